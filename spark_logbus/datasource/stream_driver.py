"""The driver's part of a streaming query: plan micro-batches, keep the group up to date.

It derives everything from the last offset and from what brokers and ZooKeeper say now; what it
keeps in memory only saves asking twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from pyspark.sql.datasource import InputPartition

from spark_logbus.datasource import lag
from spark_logbus.datasource.advance import GroupView, advance, replay
from spark_logbus.datasource.options import SourceOptions
from spark_logbus.datasource.planning import plan_input_partitions
from spark_logbus.datasource.stream_offset import UNRESOLVED, StreamOffset
from spark_logbus.model import TopicPartition
from spark_logbus.offsets import (
    Committed,
    DriverLink,
    Finding,
    GroupProgress,
    Patience,
    Snapshot,
    decide,
    of_current_topics,
    resolve,
    take_snapshot,
)

T = TypeVar("T")


class StreamDriver:
    """Plans for one run of one query. Not thread-safe: Spark calls it from one process, in turn."""

    def __init__(
        self, options: SourceOptions, *, link: DriverLink, patience: Patience | None = None
    ) -> None:
        self._options = options
        self._link = link
        self._patience = patience or Patience()
        self._target: Snapshot | None = None  # of an AvailableNow run
        self._seen: Snapshot | None = None  # for the progress report
        self._planned: StreamOffset | None = None  # compared with the brokers just now
        self._reached: Mapping[TopicPartition, int] = {}  # for the progress report, too

    # -- what Spark asks, in the order in which it asks -----------------------------------

    def prepare_available_now(self) -> None:
        """Fix what this run reads: everything up to now, nothing after."""
        self._target = self._ask(
            "Looking up the end of the read", lambda: self._snapshot(missing_ok=True)
        )

    def initial(self) -> dict[str, Any]:
        return UNRESOLVED.to_json()

    def latest(self, start: Mapping[str, Any], *, max_records: int | None) -> Mapping[str, Any]:
        """The end of the next micro-batch, or ``start`` itself when there is nothing new.

        Spark asks when everything before ``start`` is processed and recorded, also after the
        last micro-batch of a run; so this is where the group's offsets are committed.
        """
        last = StreamOffset.from_json(start)
        end = self._ask(
            "Planning the next micro-batch", lambda: self._plan(last, max_records=max_records)
        )
        self._reached = last.to if end is None else end.to
        if end is None:
            return start
        self._planned = end
        return end.to_json()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        """The input partitions of the micro-batch that ends at ``end``, wherever it begins."""
        if start == end:
            return []
        planned = StreamOffset.from_json(end)
        return self._ask("Planning the tasks", lambda: self._input_partitions(planned))

    def commit(self, end: Mapping[str, Any]) -> None:
        """The micro-batch that ends at ``end`` is processed; say so in the group's offsets."""
        done = StreamOffset.from_json(end)
        if done.resolved and self._options.group is not None:
            self._ask("Committing the group's offsets", lambda: self._commit(done))

    def report(self) -> dict[str, Any] | None:
        """How far the last plan leaves the query behind, for its progress."""
        return lag.report(self._seen, self._reached, self._link) if self._seen else None

    def close(self) -> None:
        self._link.close()

    # -- how it is answered ---------------------------------------------------------------

    def _ask(self, what: str, attempt: Callable[[], T]) -> T:
        return self._patience.run(what, attempt, on_fault=self._link.reset)

    def _snapshot(self, *, missing_ok: bool) -> Snapshot:
        return take_snapshot(self._link.admin(), self._options.selection, missing_ok=missing_ok)

    def _plan(self, last: StreamOffset, *, max_records: int | None) -> StreamOffset | None:
        self._seen = self._snapshot(missing_ok=last.resolved)
        snapshot = self._seen if self._target is None else self._seen.capped(self._target)
        progress = self._link.progress()
        generation = progress.generation() if progress is not None else 0
        view = GroupView(self._options.group, generation)
        first = None
        if not last.resolved:
            first = last = self._first(snapshot, progress, view)
        elif progress is not None and self._follows(last, generation):
            rewound = progress.rewound(after=last.generation, up_to=generation)
            view = replace(view, rewound=rewound)
        if progress is not None and view.rewound is None:
            progress.commit(last.to, topic_ids=last.topic_ids, generation=generation)
        plan = advance(last, snapshot, max_records=max_records, view=view)
        self._decide(plan.findings)
        return plan.end or first

    def _follows(self, last: StreamOffset, generation: int) -> bool:
        """Whether the group was rewound since ``last``. Rewinds that it had before the stream
        joined it are past: the stream started where its own options said."""
        return last.group == self._options.group and generation > last.generation

    def _first(
        self, snapshot: Snapshot, progress: GroupProgress | None, view: GroupView
    ) -> StreamOffset:
        """Where the query starts, as an offset with no records in it."""
        committed: dict[TopicPartition, int] = {}
        findings: list[Finding] = []
        if isinstance(self._options.starting, Committed) and progress is not None:
            committed, findings = of_current_topics(progress.committed(), snapshot.topic_ids)
        resolved = resolve(
            self._options.starting, snapshot, option="startingOffsets", committed=committed
        )
        self._decide([*findings, *resolved.findings])
        return StreamOffset(
            start=resolved.offsets,
            to=resolved.offsets,
            topic_ids=snapshot.topic_ids,
            group=view.group,
            generation=view.generation,
        )

    def _input_partitions(self, planned: StreamOffset) -> list[InputPartition]:
        ranges = planned.ranges()
        if not ranges:
            return []
        if planned != self._planned:
            # From the checkpoint of an earlier run: much may have happened since.
            ranges, findings = replay(planned, self._snapshot(missing_ok=True))
            self._decide(findings)
        return plan_input_partitions(ranges, self._options, self._link)

    def _commit(self, done: StreamOffset) -> None:
        progress = self._link.progress()
        if progress is not None:
            progress.commit(done.to, topic_ids=done.topic_ids, generation=done.generation)

    def _decide(self, findings: list[Finding]) -> None:
        decide(findings, fail_on_data_loss=self._options.fail_on_data_loss)

"""The driver's part of a streaming query: plan micro-batches, keep the group up to date.

It derives everything from the last offset and from what brokers and ZooKeeper say now; what it
keeps in memory only saves asking twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from spark_logbus.client.schemas.topic import ValueSchemas
from spark_logbus.clock import Clock, SystemClock
from spark_logbus.datasource import lag
from spark_logbus.datasource.columns import ColumnChoice
from spark_logbus.datasource.deferred_commit import DeferredCommit
from spark_logbus.datasource.input_partition import NO_SCHEMAS
from spark_logbus.datasource.input_planner import InputPlanner, MicroBatchInput
from spark_logbus.datasource.micro_batch import GroupView, MicroBatchPlan, plan_micro_batch, replay
from spark_logbus.datasource.options import SourceOptions
from spark_logbus.datasource.planning import splitter
from spark_logbus.datasource.stream_offset import UNRESOLVED, StreamOffset
from spark_logbus.datasource.stream_schemas import StreamSchemas
from spark_logbus.datasource.value_schemas import ReadSchemas
from spark_logbus.errors import OffsetNotAvailableError
from spark_logbus.model import NEVER_REWOUND, OffsetRange, RewindMark, TopicPartition
from spark_logbus.offsets.data_loss import (
    AboveEnd,
    DataLoss,
    apply_policy,
    explained,
    of_current_topics,
)
from spark_logbus.offsets.position import Committed
from spark_logbus.offsets.resolve import locate
from spark_logbus.offsets.snapshot import Snapshot, take_snapshot
from spark_logbus.offsets.trigger_limits import NO_LIMITS, TriggerLimits, limited_ends
from spark_logbus.retry import RetryPolicy
from spark_logbus.spark.driver import DriverConnections
from spark_logbus.spark.group import GroupCommitter

T = TypeVar("T")

# So long a stream waits for who leads a partition to have what was there: longer than ZooKeeper and
# the brokers take to agree, and less than a query waits for brokers at first.
_LEADERS_AGREE_S: Final = 20.0


class StreamDriver:
    """Plans for one run of one query. Not thread-safe: Spark calls it from one process, in turn.

    ``background`` has two threads or more. They work while Spark does: on the group's commit, and
    with ``prefetch`` on the next input.
    """

    def __init__(
        self,
        options: SourceOptions,
        *,
        connections: DriverConnections,
        columns: ColumnChoice,
        background: Executor,
        prefetch: bool = True,
        retry_policy: RetryPolicy | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._options = options
        self._connections = connections
        self._inputs = InputPlanner(options, columns, connections, background if prefetch else None)
        self._schemas = StreamSchemas(
            ReadSchemas(columns, include_headers=options.include_headers), connections
        )
        self._commits = DeferredCommit(background)
        self._background = background
        self._retry_policy = retry_policy or RetryPolicy()
        self._met = False  # the cluster
        self._target: Snapshot | None = None  # of an AvailableNow run
        self._seen: Snapshot | None = None  # for the progress report
        self._planned: StreamOffset | None = None  # compared with the brokers just now
        self._found: Mapping[str, ValueSchemas] = NO_SCHEMAS  # for what is planned
        self._reached: Mapping[TopicPartition, int] = {}  # for the progress report, too
        self._clock = clock or SystemClock()
        self._last_trigger: float | None = None  # when a micro-batch was planned, monotonic
        self._above_since: float | None = None  # ends that were seen before are not there

    # -- what Spark asks, in the order in which it asks -----------------------------------

    def prepare_available_now(self) -> None:
        """Fix what this run reads: everything up to now, nothing after."""
        self._target = self._ask(
            "Looking up the end of the read", lambda: self._snapshot(missing_ok=True)
        )

    def initial(self) -> dict[str, Any]:
        return UNRESOLVED.to_json()

    def latest(self, start: Mapping[str, Any], *, limited: bool) -> Mapping[str, Any]:
        """The end of the next micro-batch, or ``start`` itself when there is nothing new.

        ``limited`` says whether the options' limits count for this trigger.

        Spark asks when everything before ``start`` is processed and recorded, also after the
        last micro-batch of a run; so this is where the group's offsets are committed.
        """
        last = StreamOffset.from_json(start)
        limits = self._options.trigger if limited else NO_LIMITS
        end = self._ask("Planning the next micro-batch", lambda: self._plan(last, limits))
        self._reached = last.to if end is None else end.to
        if end is None:
            return start
        self._planned = end
        self._last_trigger = self._clock.monotonic()
        ranges = end.ranges()
        self._found = self._ask("Looking up schemas", lambda: self._find_schemas(ranges))
        self._inputs.begin(ranges, end.topic_ids, self._found)
        return end.to_json()

    def plan_input(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> MicroBatchInput:
        """The input of the micro-batch that ends at ``end``, wherever it begins."""
        if start == end:
            return MicroBatchInput([])
        planned = StreamOffset.from_json(end)
        return self._ask("Planning the tasks", lambda: self._input(planned))

    def commit(self, end: Mapping[str, Any]) -> None:
        """The micro-batch that ends at ``end`` is processed; say so in the group's offsets."""
        done = StreamOffset.from_json(end)
        if done.resolved and self._options.group is not None:
            self._ask("Committing the group's offsets", lambda: self._commit(done))

    def report(self) -> dict[str, Any] | None:
        """The lag that the last plan leaves, for the query's progress."""
        return lag.report(self._seen, self._reached, self._connections) if self._seen else None

    def close(self) -> None:
        self._commits.close()
        self._background.shutdown(wait=False, cancel_futures=True)
        self._connections.close()

    # -- how it is answered ---------------------------------------------------------------

    def _ask(self, what: str, attempt: Callable[[], T]) -> T:
        retry_policy = self._retry_policy
        if not self._met:
            retry_policy = retry_policy.at_first_contact()
        answer = retry_policy.retry(what, attempt)
        self._met = True
        return answer

    def _snapshot(self, *, missing_ok: bool) -> Snapshot:
        return take_snapshot(
            self._connections.admin(), self._options.selection, missing_ok=missing_ok
        )

    def _plan(self, last: StreamOffset, limits: TriggerLimits) -> StreamOffset | None:
        """Returns the end of the next micro-batch; None if there is none. What came before it is
        committed beside, or before this returns None."""
        self._commits.settle()
        self._seen = self._snapshot(missing_ok=last.resolved)
        snapshot = self._seen if self._target is None else self._seen.capped(self._target)
        group = self._owned_group({*snapshot.topic_ids, *last.topic_ids})
        mark = group.mark() if group is not None else NEVER_REWOUND
        view = GroupView(self._options.group, mark)
        joins = not last.resolved
        if joins:
            last = self._first(snapshot, group, view)
        elif group is not None and self._follows(last, mark):
            rewound = group.rewound(after=last.mark, up_to=mark)
            view = replace(view, rewound=rewound)
            if self._target is not None:  # a rewind that skips records also skips those to come
                self._target = self._target.reaching(rewound)
                snapshot = self._seen.capped(self._target)
        if group is not None and view.rewound is None:
            self._commits.begin(partial(group.commit, last.to, topic_ids=last.topic_ids, mark=mark))
        end = None
        try:
            end = self._next_end(last, snapshot, view, limits, waits=not joins)
        finally:
            if end is None:  # also when the query fails: what it has processed is committed
                self._commits.settle()
        return last if joins and end is None else end

    def _next_end(
        self,
        last: StreamOffset,
        snapshot: Snapshot,
        view: GroupView,
        limits: TriggerLimits,
        *,
        waits: bool,
    ) -> StreamOffset | None:
        plan = plan_micro_batch(last, snapshot, view=view)
        self._decide(plan.findings)
        if plan.end is None or (waits and self._waits_for_more(plan, limits)):
            return None
        return plan.end.cut(
            limited_ends(plan.end.spans(), limits, splitter(self._connections.admin()))
        )

    def _waits_for_more(self, plan: MicroBatchPlan, limits: TriggerLimits) -> bool:
        if limits.min_records is None or self._target is not None or plan.moved:
            return False
        if self._last_trigger is None:
            return False  # the first of a run, as in Spark's Kafka source
        waited_s = self._clock.monotonic() - self._last_trigger
        return plan.records < limits.min_records and waited_s < limits.max_delay_ms / 1000

    def _owned_group(self, topics: Iterable[str]) -> GroupCommitter | None:
        """Returns the group, where there is one, when this query owns ``topics`` in it."""
        group = self._connections.progress()
        if group is not None:
            group.hold(topics)
        return group

    def _follows(self, last: StreamOffset, mark: RewindMark) -> bool:
        """True if the group was rewound since ``last``. Rewinds that it had before the stream
        joined it are past: the stream started where its own options said."""
        return last.group == self._options.group and not mark.may_be(last.mark)

    def _first(
        self, snapshot: Snapshot, group: GroupCommitter | None, view: GroupView
    ) -> StreamOffset:
        """The start of the query, as an offset with no records in it."""
        committed: dict[TopicPartition, int] = {}
        findings: list[DataLoss] = []
        if isinstance(self._options.starting.positions, Committed) and group is not None:
            committed, findings = of_current_topics(group.committed(), snapshot.topic_ids)
        resolved = locate(
            self._options.starting,
            snapshot,
            self._connections.admin(),
            now_us=self._clock.now_us(),
            committed=committed,
        )
        self._decide([*findings, *resolved.findings])
        return StreamOffset(
            start=resolved.offsets,
            to=resolved.offsets,
            topic_ids=snapshot.topic_ids,
            group=view.group,
            mark=view.mark,
        )

    def _input(self, planned: StreamOffset) -> MicroBatchInput:
        self._commits.settle()
        ranges = planned.ranges()
        if not ranges:
            return MicroBatchInput([])
        if planned != self._planned:
            # From the checkpoint of an earlier run: much may have happened since.
            self._owned_group(planned.topic_ids)
            self._seen = self._snapshot(missing_ok=True)
            ranges, findings = replay(planned, self._seen)
            self._decide(findings)
            self._found = self._find_schemas(ranges)
        return self._inputs.plan(ranges, planned.topic_ids, self._found)

    def _find_schemas(self, ranges: Sequence[OffsetRange]) -> Mapping[str, ValueSchemas]:
        """Returns the schemas of topics that have one, for records before the ends that were
        seen."""
        return self._schemas.find(self._seen, ranges) if self._seen is not None else {}

    def _commit(self, done: StreamOffset) -> None:
        self._commits.settle()
        group = self._connections.progress()
        if group is not None:
            group.commit(done.to, topic_ids=done.topic_ids, mark=done.mark)

    def _decide(self, findings: list[DataLoss]) -> None:
        self._wait_for_leaders(findings)
        apply_policy(
            explained(findings, self._options.selection),
            fail_on_data_loss=self._options.fail_on_data_loss,
        )

    def _wait_for_leaders(self, findings: list[DataLoss]) -> None:
        """Raises OffsetNotAvailableError while an end that was seen before is not there with the
        leader of a partition that has replicas: a leader that was replaced, and has not heard of
        that, knows older ends. What none has after a while is lost."""
        replicated = frozenset() if self._seen is None else self._seen.replicated
        above = [
            each
            for each in findings
            if isinstance(each, AboveEnd) and each.topic_partition in replicated
        ]
        if not above:
            self._above_since = None
            return
        now = self._clock.monotonic()
        if self._above_since is None:
            self._above_since = now
        if now - self._above_since < _LEADERS_AGREE_S:
            self._connections.admin().hear_all({each.topic_partition.topic for each in above})
            raise OffsetNotAvailableError(
                f"A leader does not have what was there before: {above[0]}"
            )

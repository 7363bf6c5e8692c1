"""Stages the records of a round: several readers, one producer."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from spark_logbus.audit.counts import WindowTally, add
from spark_logbus.client import (
    Cluster,
    Producer,
    ProducerConfig,
    StagedTask,
    WriteIdentity,
)
from spark_logbus.client.schemas.topic import WriterSchema
from spark_logbus.coordination.mirrors import MirroredTopic, PlannedRound
from spark_logbus.errors import BrokerUnavailableError
from spark_logbus.mirror.audit import RoundReports, tally_encoded
from spark_logbus.mirror.points import CopiedRun, add_run
from spark_logbus.mirror.source.source import NO_SCHEMAS, MirrorSource, TargetSchemaIds
from spark_logbus.model import OffsetRange, TopicPartition
from spark_logbus.record.stage_id import stage_id

ATTEMPT: Final = 0  # the only one of each write

# A broker that starts again is waited for in the round; one that is away for longer, by the mirror.
_PRODUCER: Final = ProducerConfig(
    linger_ms=0, delivery_timeout_ms=30_000, max_block_ms=35_000, buffer_bytes=32 << 20
)


class StoppedError(BrokerUnavailableError):
    """The mirror was asked to stop in the middle of a round, which the next run does again."""


@dataclass(slots=True)
class CopiedPartition:
    """Records that were read of a range: their runs and bytes, and when the last one came to the
    source; None if there was none. ``tallies`` are of an audited round."""

    runs: list[CopiedRun] = field(default_factory=list)
    size_bytes: int = 0
    time_us: int | None = None
    tallies: dict[int, WindowTally] = field(default_factory=dict)

    @property
    def records(self) -> int:
        return sum(run.records for run in self.runs)


@dataclass(frozen=True, slots=True)
class StagedRound:
    """All records of a round, on the disks of the target and unseen. By range of the source."""

    write: int
    copied: Mapping[OffsetRange, CopiedPartition]
    task: StagedTask


def stage_round(
    source: MirrorSource,
    target: Cluster,
    planned: PlannedRound,
    topics: Mapping[str, MirroredTopic],
    schema_ids: Mapping[str, TargetSchemaIds],
    *,
    readers: int,
    stopping: threading.Event,
    write: int,
    identity: WriteIdentity,
    reports: RoundReports | None = None,
) -> StagedRound:
    """Reads a round's ranges from the source, by so many ``readers``, and stages them in the target
    with ``reports`` of them. Raises what either does, the first error that came; StoppedError once
    ``stopping`` is set."""
    failure = _Failure()
    # Record batches are sent as they are, whatever schemas there are.
    schemas: dict[str, WriterSchema | None] = dict.fromkeys(
        topics[name].target for name in planned.topic_ids
    )
    if reports is not None:
        schemas[reports.topic] = reports.schema()
    with Producer(
        target, _PRODUCER, stage_id=stage_id(write, ATTEMPT), stage_for=identity, schemas=schemas
    ) as producer:

        def copy(each: OffsetRange) -> CopiedPartition:
            name, partition = each.topic_partition.topic, each.topic_partition.partition
            topic_id, ids = planned.topic_ids[name], schema_ids.get(name, NO_SCHEMAS)
            part = CopiedPartition()
            for batch in source.read(each, topic_id=topic_id, schema_ids=ids):
                if stopping.is_set():
                    raise StoppedError("The mirror was asked to stop.")
                if failure.happened.is_set():
                    break
                add_run(part.runs, CopiedRun(batch.start, batch.end, batch.record_count))
                part.size_bytes += len(batch.data)
                part.time_us = batch.time_us
                if reports is not None:
                    add(part.tallies, tally_encoded(batch.data))
                producer.append_encoded(
                    topics[name].target, batch.data, partition=partition, on_ack=failure.note
                )
            return part

        with ThreadPoolExecutor(readers, thread_name_prefix="mirror-reader") as pool:
            futures = {each: pool.submit(copy, each) for each in planned.ranges}
            for future in futures.values():
                future.add_done_callback(failure.note)
        failure.raise_if_any()
        copied = {each: future.result() for each, future in futures.items()}
        records = {
            in_target(each.topic_partition, topics): part.records
            for each, part in copied.items()
            if part.records
        }
        if reports is not None:
            records |= reports.stage(producer, planned.number, _by_target(copied, topics))
        producer.flush()
        failure.raise_if_any()
    size_bytes = sum(part.size_bytes for part in copied.values())
    return StagedRound(write, copied, StagedTask(ATTEMPT, records, size_bytes))


def in_target(at: TopicPartition, topics: Mapping[str, MirroredTopic]) -> TopicPartition:
    """Returns the copy of a partition."""
    return TopicPartition(topics[at.topic].target, at.partition)


class _Failure:
    """First failure of a round, at which its readers break off. Thread-safe."""

    def __init__(self) -> None:
        self.happened = threading.Event()
        self._error: BaseException | None = None

    def note(self, future: Future[Any]) -> None:
        """Looks at what is over: a range that was read, or an append."""
        error = future.exception()
        if error is not None and self._error is None:
            self._error = error
            self.happened.set()

    def raise_if_any(self) -> None:
        if self._error is not None:
            raise self._error


def _by_target(
    copied: Mapping[OffsetRange, CopiedPartition], topics: Mapping[str, MirroredTopic]
) -> dict[str, dict[int, WindowTally]]:
    """Sums up the tallies of a round, by topic of the target."""
    total: dict[str, dict[int, WindowTally]] = {}
    for each, part in copied.items():
        add(total.setdefault(topics[each.topic_partition.topic].target, {}), part.tallies)
    return total

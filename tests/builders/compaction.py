"""Keyed record batches, compaction in this process, and what a log then holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa

from spark_logbus.broker.compaction.run import job_of
from spark_logbus.client.fetch.batches import EncodedBatch, decoded, walk
from spark_logbus.client.fetch.records import ConsumerRecord, records_of
from spark_logbus.compactor.compact import compact
from spark_logbus.compactor.messages import Compacted, CompactorReport, Finished
from spark_logbus.log import PartitionLog
from spark_logbus.model import Compression, Header
from spark_logbus.record import stamp
from spark_logbus.record.rows.arrow import ProducerStamp, encode
from spark_logbus.record.rows.builder import ArrowBatchBuilder
from tests.fakes.clock import NOW_US

FAR = 1 << 62


class Keyed(NamedTuple):
    """A record to be appended; a value of None is a tombstone."""

    key: bytes | None
    value: bytes | None
    timestamp_us: int = NOW_US
    headers: tuple[Header, ...] = ()


def arrow_batch_of(records: Iterable[Keyed]) -> pa.RecordBatch:
    builder = ArrowBatchBuilder()
    for record in records:
        builder.add(
            value=record.value,
            key=record.key,
            timestamp_us=record.timestamp_us,
            headers=record.headers,
        )
    return builder.build()


def keyed_batch(
    *records: Keyed,
    compression: Compression = Compression.NONE,
    schema_id: int = 0,
    producer_id: int = -1,
) -> memoryview:
    return encode(
        arrow_batch_of(records),
        compression=compression,
        schema_id=schema_id,
        stamp=ProducerStamp(producer_id, 0, 7) if producer_id >= 0 else ProducerStamp(),
    )


def stamped_batch(base_offset: int, *records: Keyed) -> memoryview:
    data = keyed_batch(*records)
    stamp(data, base_offset=base_offset, leader_epoch=1, append_time_us=NOW_US)
    return data


def compact_here(
    log: PartitionLog, now_us: int, *, map_bytes: int = 1 << 20
) -> tuple[Finished, list[Compacted]] | None:
    """Compacts in this thread as the broker and its child do; None if there is nothing to do."""
    plan = log.compaction.plan(now_us)
    if plan is None:
        return None
    reports: list[CompactorReport] = []
    compact(job_of(log.topic_partition, plan, map_bytes=map_bytes), reports.append)
    groups = [report for report in reports if isinstance(report, Compacted)]
    for report in groups:
        if report.changed:
            assert log.compaction.swap(plan.groups[report.number])
    finished = reports[-1]
    assert isinstance(finished, Finished)
    log.compaction.finished(plan, end_offset=finished.end_offset, now_us=now_us)
    return finished, groups


def raw_batches(log: PartitionLog, start: int | None = None) -> list[EncodedBatch]:
    """All visible record batches, with the client's own check that offsets are dense."""
    ends = log.ends()
    offset = ends.log_start_offset if start is None else start
    found: list[EncodedBatch] = []
    while (piece := log.read(offset, max_bytes=700)) is not None:
        raws = list(walk(log.topic_partition, memoryview(piece.read()), position=offset))
        assert raws, "a fetch brings at least one whole record batch"
        found += raws
        offset = raws[-1].header.next_offset
    assert offset == ends.high_watermark
    return found


def records_in(log: PartitionLog, start: int | None = None) -> list[ConsumerRecord]:
    """All visible records, as the client decodes them."""
    found: list[ConsumerRecord] = []
    for raw in raw_batches(log, start):
        fetched = decoded(log.topic_partition, raw, start=start or 0, end=FAR)
        if fetched is not None:
            found += records_of(fetched)
    return found


def state_of(records: Sequence[ConsumerRecord]) -> dict[bytes, bytes | None]:
    """Returns the last value of each key for a reader of the whole log; None for a tombstone."""
    state: dict[bytes, bytes | None] = {}
    for record in records:
        if record.key is not None:
            state[record.key] = record.value
    return state

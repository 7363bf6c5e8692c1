"""Compactions of a log by hand, without the compacting process."""

from __future__ import annotations

from spark_logbus.log import CompactionGroup, CompactionPlan, LogConfig, index_cleaned
from spark_logbus.record import HEADER_SIZE, checksum, stamp
from spark_logbus.record import format as fmt
from tests.fakes.clock import NOW_US
from tests.fakes.disk import SimulatedDisk
from tests.fakes.log_directory import Broker

CONFIG = LogConfig(
    segment_bytes=1024,
    cleanup_policy="compact",
    min_cleanable_dirty_ratio=0.0,
    retention_ms=None,
    flush_ms=60_000,
)


def keyed(count: int, payload: bytes, *, span: int | None = None) -> memoryview:
    """A record batch as the log sees it: nobody here looks into the payload."""
    payload += bytes(-len(payload) % fmt.ALIGNMENT)
    attributes = fmt.HAS_KEY | (fmt.HAS_OFFSET_DELTA if span else 0)
    header = fmt.HEADER.pack(
        0, HEADER_SIZE + len(payload) - fmt.LENGTH_FIELD_END, 0, 0, fmt.MAGIC_V1, 0, attributes, 0,
        count, (span or count) - 1, NOW_US, NOW_US, -1, -1, -1, 0,
    )  # fmt: skip
    data = memoryview(bytearray(header + payload))
    fmt.CRC.pack_into(data, fmt.CRC_AT, checksum(data))
    return data


def broker_with(count: int, config: LogConfig = CONFIG) -> Broker:
    """Two record batches of two records to a segment."""
    broker = Broker(files=SimulatedDisk(), config=config)
    broker.append(*(keyed(2, b"%03d" % number + bytes(400)) for number in range(count)))
    return broker


def planned(broker: Broker, segment_bytes: int = 3000) -> CompactionPlan:
    """All sealed segments, three to a group."""
    log = broker.log()
    log.configure(LogConfig(**{**vars(CONFIG), "segment_bytes": segment_bytes}))
    plan = log.compaction.plan(NOW_US)
    assert plan is not None
    return plan


def write_cleaned(broker: Broker, group: CompactionGroup) -> None:
    """Writes the file that the compacting process writes; of the group its first record is left."""
    base, end = group.base_offset, group.end_offset
    data = keyed(1, b"new%03d" % base, span=end - base)
    stamp(data, base_offset=base, leader_epoch=1, append_time_us=NOW_US)
    file = broker.files.open(group.cleaned, create=True)
    file.pwrite(data, 0)
    summary = index_cleaned(
        broker.files,
        group.cleaned,
        group.cleaned_index,
        base_offset=base,
        end_offset=end,
        index_interval_bytes=4096,
    )
    assert summary is not None

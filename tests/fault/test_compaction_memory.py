"""The compacting process keeps to its memory, whatever a record batch says it becomes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spark_logbus.broker.compaction.run import job_of
from spark_logbus.compactor.messages import (
    Compacted,
    CompactorReport,
    Finished,
    decode_report,
    encode,
)
from spark_logbus.log import LogConfig, PartitionLog
from spark_logbus.model import Compression
from spark_logbus.record import HEADER_SIZE
from tests.builders.compaction import Keyed, compact_here, keyed_batch, records_in, state_of
from tests.fakes.clock import NOW_US
from tests.fakes.log_directory import Broker

MIB = 1 << 20
HOUR_US = 3600 * 1_000_000
BOMB_RECORDS = 50  # fewer are not compressed
BOMB_MIB = 150
DATA_MIB = 256  # for Python and Arrow alone it takes more than 120; with the bomb, more than 400
CONFIG = LogConfig(
    segment_bytes=1024,
    cleanup_policy="compact",
    min_cleanable_dirty_ratio=0.0,
    retention_ms=None,
    delete_retention_ms=0,
)


@pytest.fixture(scope="module")
def bomb() -> memoryview:
    """Makes a few kilobytes that become 150 MiB: newer values of the keys 0 to 49."""
    value = bytes(BOMB_MIB * MIB // BOMB_RECORDS)
    records = (Keyed(b"%d" % n, value) for n in range(BOMB_RECORDS))
    data = keyed_batch(*records, compression=Compression.ZSTD)
    assert 1000 * len(data) < BOMB_MIB * MIB
    return data


def filled(path: Path, bomb: memoryview) -> Broker:
    """Old values, the bomb, a tombstone for key 0 and a new value for key 1; all sealed."""
    broker = Broker(path, config=CONFIG)
    for data in (
        keyed_batch(*(Keyed(b"%d" % n, b"oldest") for n in range(9))),
        keyed_batch(Keyed(b"gone", b"old"), Keyed(b"other", b"old")),
        keyed_batch(Keyed(b"gone", None)),
        memoryview(bytearray(bomb)),
        keyed_batch(Keyed(b"0", None), Keyed(b"1", b"new"), Keyed(b"other", b"new")),
        keyed_batch(Keyed(b"active", bytes(900))),
    ):
        broker.append(data)
    return broker


def compact_in_child(
    log: PartitionLog, directory: Path, *, data_mib: int
) -> tuple[Finished, list[Compacted]]:
    """Compacts as the broker does, in a process that may not have more memory of its own than
    that."""
    plan = log.compaction.plan(NOW_US)
    assert plan is not None
    job_file = directory / "compaction.job"
    job_file.write_bytes(encode(job_of(log.topic_partition, plan, map_bytes=MIB)))
    command = f'ulimit -d {data_mib * 1024} && exec "$0" -m spark_logbus.compactor "$1"'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, str(job_file)],
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    reports: list[CompactorReport] = [
        report for line in done.stdout.splitlines() if (report := decode_report(line))
    ]
    groups = [report for report in reports if isinstance(report, Compacted)]
    for group in groups:
        if group.changed:
            assert log.compaction.swap(plan.groups[group.number])
    finished = reports[-1]
    assert isinstance(finished, Finished)
    log.compaction.finished(plan, end_offset=finished.end_offset, now_us=NOW_US)
    return finished, groups


def has_bomb(log: PartitionLog, bomb: memoryview) -> bool:
    payload = bytes(bomb[HEADER_SIZE:])
    return any(payload in path.read_bytes() for path in log.directory.glob("*.log"))


@pytest.mark.long
def test_a_too_large_record_batch_is_kept_within_memory(tmp_path: Path, bomb: memoryview) -> None:
    broker = filled(tmp_path / "data", bomb)
    log = broker.log()
    before = state_of(records_in(log))
    finished, groups = compact_in_child(log, tmp_path, data_mib=DATA_MIB)
    assert finished.too_large == 1
    assert finished.undecodable == 0
    assert sum(group.records_after for group in groups) < sum(
        group.records_before for group in groups
    ), "all else is compacted"
    assert has_bomb(log, bomb)
    assert state_of(records_in(log)) == before
    broker.directory.close()


def test_deleted_records_do_not_return_from_kept_batches(tmp_path: Path, bomb: memoryview) -> None:
    """Tombstones before it go in time, those behind it stay: it may hold what they delete."""
    broker = filled(tmp_path / "data", bomb)
    log = broker.log()
    for round_number in range(1, 4):
        broker.append(keyed_batch(Keyed(b"active", bytes(900))))
        done = compact_here(log, NOW_US + round_number * HOUR_US)
        assert done is not None
        assert done[0].too_large == 1
    state = state_of(records_in(log))
    assert b"gone" not in state
    assert state[b"0"] is None, "not the bomb's"
    assert state[b"1"] == b"new"
    assert state[b"other"] == b"new"
    assert has_bomb(log, bomb)
    broker.directory.close()

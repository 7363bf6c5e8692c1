"""The checks of replicas fail where replicas differ, and the pauses are those that there were."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path

import pytest

from spark_logbus.model import TopicPartition
from spark_logbus.record import stamp
from spark_logbus.record.rows.arrow import encode_rows
from tests.builders.record_batches import record_batch
from tests.fault.load.failovers import longest_pause, percentile
from tests.fault.load.logs import check_compacted_same, check_same

WHERE = TopicPartition("t", 0)


def stored(payload: bytes, *, at: int, epoch: int = 0) -> bytes:
    """A record batch of two records."""
    batch = bytearray(record_batch(2, payload=payload))
    stamp(batch, base_offset=at, leader_epoch=epoch, append_time_us=0)
    return bytes(batch)


def keyed(key: bytes, value: bytes, *, at: int) -> bytes:
    batch = bytearray(encode_rows(array("q", [0]), [key], [value]))
    stamp(batch, base_offset=at, leader_epoch=0, append_time_us=0)
    return bytes(batch)


def directories(base: Path, *contents: Sequence[bytes]) -> dict[int, Path]:
    """Data directories of brokers that have these record batches in their logs."""
    found = {}
    for broker_id, batches in enumerate(contents, start=1):
        directory = base / str(broker_id) / f"{WHERE}"
        directory.mkdir(parents=True)
        (directory / f"{0:020}.log").write_bytes(b"".join(batches))
        found[broker_id] = directory.parent
    return found


FIRST, SECOND, THIRD = (stored(b"%d" % at, at=at) for at in (0, 2, 4))


def test_replicas_may_differ_above_the_watermark(tmp_path: Path) -> None:
    data = directories(tmp_path, [FIRST, SECOND], [FIRST, SECOND, THIRD], [FIRST, SECOND[:-3]])
    check_same(data, WHERE, 0, 2)
    with pytest.raises(AssertionError, match="broker 3 ends at 2, and its watermark is 4"):
        check_same(data, WHERE, 0, 4)
    with pytest.raises(AssertionError, match="broker 1 ends at 4, and its watermark is 6"):
        check_same(data, WHERE, 2, 6)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ([FIRST, stored(b"x", at=2)], "differs below its watermark 4"),
        ([FIRST, stored(b"2", at=2, epoch=1)], "differs below its watermark 4"),
        ([FIRST], "broker 2 ends at 2, and its watermark is 4"),
        ([SECOND], "differs below its watermark 4"),
    ],
    ids=["bytes", "epoch", "short", "gap"],
)
def test_replicas_that_differ_below_the_watermark_are_told(
    tmp_path: Path, other: Sequence[bytes], said: str
) -> None:
    with pytest.raises(AssertionError, match=said):
        check_same(directories(tmp_path, [FIRST, SECOND], other), WHERE, 0, 4)


def test_a_gap_that_all_have_is_told(tmp_path: Path) -> None:
    data = directories(tmp_path, [FIRST, THIRD], [FIRST, THIRD])
    with pytest.raises(AssertionError, match="gap at 2"):
        check_same(data, WHERE, 0, 6)


OLD, NEW, ELSE = keyed(b"a", b"1", at=0), keyed(b"a", b"2", at=1), keyed(b"b", b"3", at=2)


def test_replicas_may_have_compacted_differently(tmp_path: Path) -> None:
    check_compacted_same(directories(tmp_path, [OLD, NEW, ELSE], [NEW, ELSE]), WHERE, 3)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ([OLD, ELSE], "broker 2 lacks the newest of keys in t-0: {1}"),
        ([keyed(b"a", b"x", at=1), ELSE], "at 1 of t-0, another has"),
    ],
)
def test_compacted_replicas_that_differ_are_told(
    tmp_path: Path, other: Sequence[bytes], said: str
) -> None:
    with pytest.raises(AssertionError, match=said):
        check_compacted_same(directories(tmp_path, [OLD, NEW, ELSE], other), WHERE, 3)


@pytest.mark.parametrize(
    ("since", "pause"), [(0.0, 7.0), (2.5, 6.5), (9.0, 1.0), (10.0, 0.0), (1.5, 7.0)]
)
def test_the_longest_pause_is_between_acknowledgements(since: float, pause: float) -> None:
    assert longest_pause([1.0, 2.0, 9.0, 10.0], since) == pause


@pytest.mark.parametrize(("share", "value"), [(0.5, 2), (0.99, 4), (1, 4), (0.25, 1)])
def test_percentiles_are_values_that_there_were(share: float, value: int) -> None:
    assert percentile([4, 2, 3, 1], share) == value
    assert percentile([5], share) == 5

"""Specifications applied to what the brokers hold."""

from __future__ import annotations

import pytest

from spark_logbus.errors import DataLossError, InvalidOptionError
from spark_logbus.model import (
    AtOffset,
    AtTimestamp,
    Earliest,
    LastDuration,
    LastRecords,
    Latest,
    OffsetRange,
    TopicPartition,
)
from spark_logbus.offsets.data_loss import (
    AboveEnd,
    BelowLogStart,
    DataLoss,
    TopicGone,
    apply_policy,
)
from spark_logbus.offsets.position import (
    Committed,
    OffsetBound,
    PerPartition,
    Positions,
)
from spark_logbus.offsets.resolve import lookups, make_ranges, resolve
from spark_logbus.offsets.snapshot import Snapshot, Span

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
SNAPSHOT = Snapshot({"t": "id"}, {T0: Span(10, 20), T1: Span(0, 5)})


@pytest.mark.parametrize(
    ("positions", "expected", "findings"),
    [
        (Earliest(), {T0: 10, T1: 0}, []),
        (Latest(), {T0: 20, T1: 5}, []),
        (PerPartition(((T0, AtOffset(15)), (T1, Latest()))), {T0: 15, T1: 5}, []),
        (PerPartition(((T0, AtOffset(20)), (T1, AtOffset(0)))), {T0: 20, T1: 0}, []),
        (
            PerPartition(((T0, AtOffset(3)), (T1, AtOffset(9)))),
            {T0: 10, T1: 5},
            [BelowLogStart(T0, 3, 10), AboveEnd(T1, 9, 5)],
        ),
        (Committed(), {T0: 12, T1: 0}, []),
        (LastRecords(3), {T0: 17, T1: 2}, []),
        (LastRecords(7), {T0: 13, T1: 0}, []),
        (LastDuration(60), {T0: 13, T1: 5}, []),
        (PerPartition(((T0, AtTimestamp(9)), (T1, Latest()))), {T0: 13, T1: 5}, []),
    ],
)
def test_resolve(
    positions: Positions, expected: dict[TopicPartition, int], findings: list[DataLoss]
) -> None:
    bound = OffsetBound(positions=positions, option="startingOffsets")
    resolved = resolve(bound, SNAPSHOT, committed={T0: 12}, found={T0: 13, T1: None})
    assert resolved.offsets == expected
    assert resolved.findings == findings


@pytest.mark.parametrize(
    ("named", "said"), [((T0,), "lacks t-1"), ((T0, T1, T2), "names t-2"), ((T0, T2), "lacks t-1")]
)
def test_offsets_must_name_exactly_what_is_read(
    named: tuple[TopicPartition, ...], said: str
) -> None:
    positions = PerPartition(tuple((topic_partition, Earliest()) for topic_partition in named))
    with pytest.raises(InvalidOptionError, match=said):
        resolve(OffsetBound(positions=positions, option="startingOffsets"), SNAPSHOT)


def test_only_timestamps_of_what_is_read_are_looked_up() -> None:
    assert lookups(Earliest(), SNAPSHOT, now_us=100) == {}
    assert lookups(LastDuration(30), SNAPSHOT, now_us=100) == {
        T0: AtTimestamp(70),
        T1: AtTimestamp(70),
    }
    before_1970 = lookups(LastDuration(300), SNAPSHOT, now_us=100)
    assert before_1970[T0] == AtTimestamp(-200)
    mixed = PerPartition(((T0, Earliest()), (T1, AtTimestamp(5)), (T2, AtTimestamp(5))))
    assert lookups(mixed, SNAPSHOT, now_us=100) == {T1: AtTimestamp(5)}


def test_a_timestamp_without_a_record() -> None:
    at = AtTimestamp(1_769_860_800_000_000)
    found: dict[TopicPartition, int | None] = {T0: 12, T1: None}
    strict = OffsetBound(positions=at, option="startingTimestamp")
    with pytest.raises(
        InvalidOptionError, match=r"startingTimestamp: t-1 .* 2026-01-31T12:00:00\+00:00; .*latest"
    ):
        resolve(strict, SNAPSHOT, found=found)
    lenient = OffsetBound(positions=at, option="startingTimestamp", latest_without_match=True)
    assert resolve(lenient, SNAPSHOT, found=found).offsets == {T0: 12, T1: 5}


def test_found_offsets_are_cut_to_the_snapshot() -> None:
    bound = OffsetBound(positions=LastDuration(1), option="endingOffsets")
    assert resolve(bound, SNAPSHOT, found={T0: 9, T1: 8}).offsets == {T0: 10, T1: 5}


OPTIONS = ("startingTimestamp", "endingOffsets")


def test_make_ranges() -> None:
    assert make_ranges({T0: 3, T1: 5}, {T0: 7, T1: 5}, options=OPTIONS) == [
        OffsetRange(T0, 3, 7),
        OffsetRange(T1, 5, 5),
    ]
    with pytest.raises(
        InvalidOptionError, match=r"startingTimestamp and .* t-0 would start at 8 and end at 7"
    ):
        make_ranges({T0: 8}, {T0: 7}, options=OPTIONS)


def test_loss_is_decided_by_the_option(caplog: pytest.LogCaptureFixture) -> None:
    apply_policy([], fail_on_data_loss=True)
    with pytest.raises(DataLossError, match=r"topic t was deleted.*failOnDataLoss"):
        apply_policy([TopicGone("t")], fail_on_data_loss=True)
    apply_policy([TopicGone("t"), BelowLogStart(T0, 3, 10)], fail_on_data_loss=False)
    assert "offset 3 was to be read next, but the log now starts at 10" in caplog.text


def test_a_long_list_of_losses_stays_readable() -> None:
    with pytest.raises(DataLossError, match="and 40 more"):
        apply_policy([TopicGone(f"t{n}") for n in range(50)], fail_on_data_loss=True)


def test_a_capped_snapshot_ignores_later_records_only() -> None:
    before = Snapshot({"t": "id"}, {T0: Span(0, 20), T1: Span(0, 5)})
    now = Snapshot(
        {"t": "id", "u": "id2"},
        {T0: Span(10, 30), T2: Span(0, 9), TopicPartition("u", 0): Span(0, 1)},
    )
    assert now.capped(before) == Snapshot({"t": "id"}, {T0: Span(10, 20)})
    skipping = before.reaching({T0: 25, T1: 1, T2: 8})
    assert skipping == Snapshot({"t": "id"}, {T0: Span(0, 25), T1: Span(0, 5)})
    emptied = Snapshot({"t": "id"}, {T0: Span(25, 30)}).capped(before)
    assert emptied.spans == {T0: Span(25, 25)}

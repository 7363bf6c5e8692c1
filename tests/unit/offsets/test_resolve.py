"""Specifications applied to what the brokers hold."""

from __future__ import annotations

import pytest

from spark_logbus.errors import DataLossError, InvalidOptionError
from spark_logbus.model import AtOffset, Earliest, Latest, OffsetRange, TopicPartition
from spark_logbus.offsets import (
    AboveEnd,
    BelowLogStart,
    Committed,
    Finding,
    PerPartition,
    Positions,
    Snapshot,
    Span,
    TopicGone,
    decide,
    make_ranges,
    resolve,
)

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
    ],
)
def test_resolve(
    positions: Positions, expected: dict[TopicPartition, int], findings: list[Finding]
) -> None:
    resolved = resolve(positions, SNAPSHOT, option="startingOffsets", committed={T0: 12})
    assert resolved.offsets == expected
    assert resolved.findings == findings


@pytest.mark.parametrize(
    ("named", "said"), [((T0,), "lacks t-1"), ((T0, T1, T2), "names t-2"), ((T0, T2), "lacks t-1")]
)
def test_offsets_must_name_exactly_what_is_read(
    named: tuple[TopicPartition, ...], said: str
) -> None:
    positions = PerPartition(tuple((tp, Earliest()) for tp in named))
    with pytest.raises(InvalidOptionError, match=said):
        resolve(positions, SNAPSHOT, option="startingOffsets")


def test_make_ranges() -> None:
    assert make_ranges({T0: 3, T1: 5}, {T0: 7, T1: 5}) == [
        OffsetRange(T0, 3, 7),
        OffsetRange(T1, 5, 5),
    ]
    with pytest.raises(InvalidOptionError, match="t-0 would start at 8 and end at 7"):
        make_ranges({T0: 8}, {T0: 7})


def test_loss_is_decided_by_the_option(caplog: pytest.LogCaptureFixture) -> None:
    decide([], fail_on_data_loss=True)
    with pytest.raises(DataLossError, match=r"topic t was deleted.*failOnDataLoss"):
        decide([TopicGone("t")], fail_on_data_loss=True)
    decide([TopicGone("t"), BelowLogStart(T0, 3, 10)], fail_on_data_loss=False)
    assert "offset 3 was to be read next, but the log now starts at 10" in caplog.text


def test_a_long_list_of_losses_stays_readable() -> None:
    with pytest.raises(DataLossError, match="and 40 more"):
        decide([TopicGone(f"t{n}") for n in range(50)], fail_on_data_loss=True)


def test_a_capped_snapshot_ignores_what_came_later_but_not_what_went() -> None:
    before = Snapshot({"t": "id"}, {T0: Span(0, 20), T1: Span(0, 5)})
    now = Snapshot(
        {"t": "id", "u": "id2"},
        {T0: Span(10, 30), T2: Span(0, 9), TopicPartition("u", 0): Span(0, 1)},
    )
    assert now.capped(before) == Snapshot({"t": "id"}, {T0: Span(10, 20)})
    emptied = Snapshot({"t": "id"}, {T0: Span(25, 30)}).capped(before)
    assert emptied.spans == {T0: Span(25, 25)}

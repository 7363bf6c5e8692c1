"""Rewinds: planned as a table, cut to what the log holds."""

from __future__ import annotations

from typing import cast

import pytest

from spark_logbus.coordination.groups.rewinds import GroupRewinds, Rewind
from spark_logbus.errors import InvalidRequestError
from spark_logbus.model import (
    AtOffset,
    AtTimestamp,
    Earliest,
    LastDuration,
    LastRecords,
    Latest,
    TopicPartition,
)
from spark_logbus.offsets.position import PerPartition, ShiftBack
from spark_logbus.offsets.rewind import (
    RewindPlan,
    Target,
    apply,
    describe,
    plan,
)
from spark_logbus.offsets.snapshot import Snapshot, Span

T0, T1, T9 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("t", 9)
SNAPSHOT = Snapshot({"t": "id"}, {T0: Span(100, 200), T1: Span(0, 50)})
FOUND = {T0: 150, T1: None}


@pytest.mark.parametrize(
    ("target", "expected", "clamped"),
    [
        (Earliest(), {T0: 100, T1: 0}, []),
        (Latest(), {T0: 200, T1: 50}, []),
        (AtOffset(120), {T0: 120, T1: 50}, [T1]),
        (AtOffset(7), {T0: 100, T1: 7}, [T0]),
        (PerPartition(((T1, AtOffset(7)),)), {T1: 7}, []),
        (AtTimestamp(1), {T0: 150, T1: 50}, []),
        (LastDuration(1), {T0: 150, T1: 50}, []),
        (ShiftBack(30), {T0: 150, T1: 20}, []),  # from the commit, and from the end without one
        (ShiftBack(90), {T0: 100, T1: 0}, [T0, T1]),
        (LastRecords(30), {T0: 170, T1: 20}, []),  # from the end, whatever is committed
        (LastRecords(90), {T0: 110, T1: 0}, [T1]),
        (PerPartition(((T0, Earliest()), (T1, AtTimestamp(1)))), {T0: 100, T1: 50}, []),
    ],
)
def test_plan(
    target: Target, expected: dict[TopicPartition, int], clamped: list[TopicPartition]
) -> None:
    made = plan("g", target, snapshot=SNAPSHOT, committed={T0: 180}, found=FOUND)
    assert made.positions == expected
    assert [row.topic_partition for row in made.rows if row.clamped] == clamped


def test_the_table_tells_what_would_be_read_again() -> None:
    made = plan("g", Earliest(), snapshot=SNAPSHOT, committed={T0: 180})
    assert [row.change for row in made.rows] == [-80, -50]
    assert made.records_to_read_again == 130
    assert [row.committed for row in made.rows] == [180, None]


def test_a_partition_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="t-9"):
        plan("g", PerPartition(((T9, AtOffset(1)),)), snapshot=SNAPSHOT, committed={})


class Recorder:
    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def record(
        self,
        group: str,
        positions: dict[TopicPartition, int],
        *,
        description: str,
        reason: str,
        actor: str,
        topic_ids: dict[str, str],
    ) -> Rewind:
        self.calls.append((group, positions, description, reason, actor, topic_ids))
        return Rewind(1, positions, reason, 0, actor, description)


def test_apply_records_the_positions_and_the_reason() -> None:
    recorder = Recorder()
    made = plan("g", AtOffset(120), snapshot=SNAPSHOT, committed={})
    apply(made, rewinds=cast(GroupRewinds, recorder), by="ann", why="bad deploy")
    said = ("to offset 120", "bad deploy", "ann", {"t": "id"})
    assert recorder.calls == [("g", {T0: 120, T1: 50}, *said)]


def test_an_empty_plan_changes_nothing() -> None:
    recorder = Recorder()
    with pytest.raises(InvalidRequestError, match="no partition"):
        apply(RewindPlan("g", Earliest(), ()), rewinds=cast(GroupRewinds, recorder), by="ann")
    assert recorder.calls == []


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (AtTimestamp(1_700_000_000_000_000), "to time 2023-11-14T22:13:20.000+00:00"),
        (LastDuration(90_000_000), "by 90 s"),
        (ShiftBack(5), "by 5 records"),
        (PerPartition(((T0, Latest()), (T1, AtOffset(7)))), "t-0 to latest, t-1 to offset 7"),
        (Earliest(), "to earliest"),
        (LastRecords(5), "to 5 records before the end"),
    ],
)
def test_targets_read_well(target: Target, text: str) -> None:
    assert describe(target) == text

"""Points of a mirrored partition, and offsets that are translated by them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from spark_logbus.coordination.mirrors import Point
from spark_logbus.mirror.points import (
    MAX_POINTS,
    CopiedRun,
    PlacedRun,
    add_run,
    extended,
    limit_for,
    points_of_round,
    translated,
)
from spark_logbus.model import OffsetRange, TopicPartition

AT = TopicPartition("t", 0)


def points(*pairs: tuple[int, int]) -> tuple[Point, ...]:
    return tuple(Point(*pair) for pair in pairs)


@pytest.mark.parametrize(
    ("known", "offset", "target", "exact", "ahead"),
    [
        (points((0, 0), (100, 100)), 0, 0, True, 0),
        (points((0, 0), (100, 100)), 42, 42, True, 0),
        (points((0, 0), (100, 100)), 100, 100, True, 0),
        (points((0, 0), (100, 100)), 130, 100, True, 30),  # it has read what is not copied yet
        (points((70, 0), (100, 30)), 10, 0, True, 0),  # from before the log began
        (points((70, 0), (100, 30)), 80, 10, True, 0),
        # of 100 offsets 20 have a record: the last ones, for all that is known
        (points((0, 0), (100, 20)), 50, 0, False, 0),
        (points((0, 0), (100, 20)), 90, 10, False, 0),
        # none of them has one
        (points((0, 5), (100, 5), (110, 15)), 50, 5, True, 0),
        # others have appended between two rounds
        (points((0, 0), (50, 50), (50, 60), (80, 90)), 49, 49, True, 0),
        (points((0, 0), (50, 50), (50, 60), (80, 90)), 50, 50, True, 0),
        (points((0, 0), (50, 50), (50, 60), (80, 90)), 51, 61, True, 0),
    ],
)
def test_an_offset_is_translated_to_the_first_place_it_may_have(
    known: Sequence[Point], offset: int, target: int, exact: bool, ahead: int
) -> None:
    found = translated(known, offset)
    assert (found.target, found.exact, found.ahead) == (target, exact, ahead)


def test_dense_runs_and_points_become_one() -> None:
    runs: list[CopiedRun] = []
    for run in [CopiedRun(0, 5, 5), CopiedRun(5, 9, 4), CopiedRun(9, 20, 3), CopiedRun(20, 22, 2)]:
        add_run(runs, run)
    assert runs == [CopiedRun(0, 9, 9), CopiedRun(9, 20, 3), CopiedRun(20, 22, 2)]
    assert extended(points((0, 0)), points((0, 0), (9, 9), (9, 9), (12, 12)), limit=9) == points(
        (0, 0), (12, 12)
    )


def test_the_first_point_and_the_newest_are_kept() -> None:
    known = points((0, 0))
    for number in range(1, 50):
        known = extended(known, points((number * 10, number)), limit=5)
    assert known == points((0, 0), (460, 46), (470, 47), (480, 48), (490, 49))


@pytest.mark.parametrize(("partitions", "limit"), [(1, MAX_POINTS), (100, 88), (10_000, 3)])
def test_a_topics_points_fit_into_a_node(partitions: int, limit: int) -> None:
    assert limit_for(partitions) == limit


RANGE = OffsetRange(AT, 100, 200)


@pytest.mark.parametrize(
    ("runs", "placed", "high_watermark", "expected"),
    [
        # as planned, into a copy that nobody else writes to
        ([CopiedRun(100, 200, 100)], [PlacedRun(0, 100, 50)], 150, points((100, 50), (200, 150))),
        # with a gap, and an offset without a record at the end
        (
            [CopiedRun(110, 120, 10), CopiedRun(150, 199, 49)],
            [PlacedRun(0, 59, 50)],
            109,
            points((100, 50), (110, 50), (120, 60), (150, 60), (199, 109), (200, 109)),
        ),
        # nothing but offsets without a record
        ([], [], 50, points((100, 50), (200, 50))),
        # behind, and before, what others have appended
        (
            [CopiedRun(100, 200, 100)],
            [PlacedRun(0, 100, 57)],
            160,
            points((100, 50), (100, 57), (200, 157), (200, 160)),
        ),
        # by an earlier process: how many records there were is what lies there
        (None, [PlacedRun(0, 100, 50)], 150, points((100, 50), (200, 150))),
        (None, [PlacedRun(0, 30, 50)], 80, points((100, 50), (200, 80))),
        # cut by others, or compacted there before it was looked at: the earliest place
        (
            [CopiedRun(100, 200, 100)],
            [PlacedRun(0, 60, 50), PlacedRun(60, 40, 120)],
            160,
            points((100, 50), (200, 50), (200, 160)),
        ),
        (None, [], 70, points((100, 50), (200, 50), (200, 70))),
        (
            [CopiedRun(100, 200, 100)],
            [PlacedRun(0, 99, 50)],
            160,
            points((100, 50), (200, 50), (200, 160)),
        ),
    ],
)
def test_the_points_that_a_round_adds(
    runs: list[CopiedRun] | None,
    placed: list[PlacedRun],
    high_watermark: int,
    expected: tuple[Point, ...],
) -> None:
    found = points_of_round(Point(100, 50), RANGE, runs, placed, high_watermark)
    assert extended(points((100, 50)), found, limit=100) == expected


@pytest.mark.parametrize("seed", range(20))
def test_no_record_is_passed_over_whatever_was_compacted(seed: int) -> None:
    """Holds when the points in the middle were forgotten, too."""
    dice = random.Random(seed)
    offsets = sorted(dice.sample(range(1_000), dice.randint(1, 999)))
    known = points((0, 0))
    start = 0
    while start < 1_000:
        end = min(1_000, start + dice.randint(1, 200))
        there = [offset for offset in offsets if start <= offset < end]
        runs: list[CopiedRun] = []
        while there:
            size = dice.randint(1, len(there))
            some, there = there[:size], there[size:]
            add_run(runs, CopiedRun(some[0], some[-1] + 1, size))
        records = sum(run.records for run in runs)
        last = known[-1]
        round_ = points_of_round(
            last,
            OffsetRange(AT, start, end),
            runs if dice.random() < 0.8 else None,
            [PlacedRun(0, records, last.target)] if records else [],
            last.target + records,
        )
        known = extended(known, round_, limit=dice.choice([5, 200]))
        start = end
    for offset in range(1_001):
        found = translated(known, offset)
        true = sum(each < offset for each in offsets)
        assert found.target == true if found.exact else found.target <= true

"""Points of a partition, and what an offset of the source becomes in the target. Pure.

Between two points records and offsets may lie as densely here as there: then each offset between
them has its record. Or there are fewer records than offsets, as after a compaction: then it is only
known between which two places a record is. An offset is translated to the earlier one. So a group
that goes on in the target may read records again, and passes over none.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from spark_logbus.coordination.mirrors import Point
from spark_logbus.model import OffsetRange

# Of one partition; a partition without gaps needs two.
MAX_POINTS: Final = 200
# Of a topic's node in ZooKeeper, well below the 1 MiB that one holds.
_POINTS_BYTES: Final = 400_000
_POINT_BYTES: Final = 45


@dataclass(frozen=True, slots=True)
class CopiedRun:
    """``records`` records of the source, which are all that there are from ``start`` to ``end``."""

    start: int
    end: int
    records: int

    @property
    def dense(self) -> bool:
        return self.records == self.end - self.start


@dataclass(frozen=True, slots=True)
class PlacedRun:
    """``records`` records of a round, from its number ``sequence`` on, at ``offset`` and after."""

    sequence: int
    records: int
    offset: int


@dataclass(frozen=True, slots=True)
class Translation:
    """``exact`` unless the record may be after ``target``; ``ahead`` is how many offsets of the
    source are not copied yet."""

    target: int
    exact: bool = True
    ahead: int = 0


def limit_for(partitions: int) -> int:
    """Returns how many points a partition of a topic with so many partitions can have."""
    return max(3, min(MAX_POINTS, _POINTS_BYTES // (_POINT_BYTES * max(1, partitions))))


def add_run(runs: list[CopiedRun], run: CopiedRun) -> None:
    """Puts a run behind the others; dense ones that follow each other become one."""
    last = runs[-1] if runs else None
    if last is not None and last.dense and run.dense and last.end == run.start:
        runs[-1] = CopiedRun(last.start, run.end, last.records + run.records)
    else:
        runs.append(run)


def points_of_round(
    last: Point,
    copied: OffsetRange,
    runs: Sequence[CopiedRun] | None,
    placed: Sequence[PlacedRun],
    high_watermark: int,
) -> list[Point]:
    """Returns the points that a round adds which copied a range of offsets.

    ``runs`` is what was read of it; None where an earlier process has done it, of which that is not
    known. ``placed`` is where its records lie in the target, which ends at ``high_watermark``.
    """
    points = [Point(copied.start, last.target)]
    records = None if runs is None else sum(run.records for run in runs)
    if records == 0:
        return [*points, Point(copied.end, last.target)]
    whole = len(placed) == 1 and placed[0].sequence == 0 and records in (None, placed[0].records)
    if not whole:  # others have appended between them, or compaction has taken their numbers away
        return [*points, Point(copied.end, last.target), Point(copied.end, high_watermark)]
    at = placed[0].offset
    for run in runs or [CopiedRun(copied.start, copied.end, placed[0].records)]:
        points += [Point(run.start, at), Point(run.end, at + run.records)]
        at += run.records
    return [*points, Point(copied.end, at), Point(copied.end, max(at, high_watermark))]


def extended(points: Sequence[Point], more: Iterable[Point], *, limit: int) -> tuple[Point, ...]:
    """Adds points, without those that say nothing new; where there are more than ``limit``, the
    oldest but the first go."""
    found = list(points)
    for point in more:
        if point == found[-1]:
            continue
        if len(found) > 1 and _dense(found[-2], found[-1]) and _dense(found[-1], point):
            found[-1] = point
        else:
            found.append(point)
    return tuple(found if len(found) <= limit else [found[0], *found[1 - limit :]])


def translated(points: Sequence[Point], offset: int) -> Translation:
    """Translates a position in the source into one in the target."""
    number = bisect_left(points, offset, key=attrgetter("source"))
    if number == len(points):
        return Translation(points[-1].target, ahead=offset - points[-1].source)
    after = points[number]
    if number == 0 or after.source == offset:
        return Translation(after.target)
    before = points[number - 1]
    target = max(before.target, after.target - (after.source - offset))
    return Translation(target, exact=_dense(before, after) or before.target == after.target)


def _dense(before: Point, after: Point) -> bool:
    """True if each offset between them has its record, here and there."""
    return after.source - before.source == after.target - before.target > 0

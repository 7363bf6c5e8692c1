"""Division of ranges among Spark tasks (pure); the brokers say where a cut can fall.

Large ranges are cut, and small ones share a task. Both go by bytes, because bytes are what a task
takes time for; the number of records says little about that.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from spark_logbus.model import OffsetRange

# Asks the brokers, for ranges and the bytes that a piece of each may have: the pieces, and the
# size of the range.
Splitter = Callable[
    [Mapping[OffsetRange, int]], Mapping[OffsetRange, tuple[list[OffsetRange], int]]
]

DEFAULT_MAX_BYTES = 512 << 20

# Below this a task costs more than it gains: starting one takes about what reading 8 MiB does.
MIN_PIECE_BYTES = 8 << 20

# What small ranges in one task come to at most. How many tasks a Spark cluster runs at once is not
# known; this bounds what it costs when that is more than the driver's machine has cores. Starting
# a task takes a twentieth of the time that reading so much does.
MAX_SHARE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class SplitLimits:
    """A user's limits on tasks; ``parallelism`` is the number that could run at once."""

    max_bytes: int = DEFAULT_MAX_BYTES
    max_records: int | None = None
    min_partitions: int | None = None
    parallelism: int = 1


@dataclass(frozen=True, slots=True)
class TaskRanges:
    """Ranges that one task reads, in order, and about how many bytes of the log they are."""

    ranges: tuple[OffsetRange, ...]
    size_bytes: int


def piece_bytes(total_bytes: int, limits: SplitLimits) -> int:
    """The size of a piece: as large as allowed, smaller where cores would stay idle."""
    by_cores = max(MIN_PIECE_BYTES, _ceil_div(total_bytes, max(1, limits.parallelism)))
    wanted = min(limits.max_bytes, by_cores)
    if limits.min_partitions:
        wanted = min(wanted, max(1, total_bytes // limits.min_partitions))
    return max(1, wanted)


def split(
    ranges: Iterable[OffsetRange], limits: SplitLimits, splitter: Splitter
) -> list[TaskRanges]:
    """The ranges of each task: all of ``ranges``, in order of partition and offset."""
    wanted = sorted(r for r in ranges if r.count)
    if not wanted:
        return []
    sizes = {r: size for r, (_, size) in splitter(dict.fromkeys(wanted, limits.max_bytes)).items()}
    target = piece_bytes(sum(sizes.values()), limits)
    counts = {r: piece_count(size, target, limits) for r, size in sizes.items()}
    cut = _split_evenly(sizes, counts, splitter)
    pieces = [piece for r in wanted for piece in cut.get(r, [r]) if piece.count]
    if limits.min_partitions and len(pieces) < limits.min_partitions:
        pieces = split_by_count(pieces, limits.min_partitions)
    if limits.max_records is not None:
        most = limits.max_records
        pieces = [part for p in pieces for part in _evenly(p, _ceil_div(p.count, most))]
    density = {r.topic_partition: size / r.count for r, size in sizes.items()}
    weights = {piece: density[piece.topic_partition] * piece.count for piece in pieces}
    # Who asks for a number of partitions is given that, and none shares a task.
    alone_bytes = 0.0 if limits.min_partitions else target / 2
    shares = _shared(pieces, weights, limits, alone_bytes=alone_bytes)
    return [TaskRanges(share, round(sum(weights[piece] for piece in share))) for share in shares]


def _shared(
    pieces: Sequence[OffsetRange],
    weights: Mapping[OffsetRange, float],
    limits: SplitLimits,
    *,
    alone_bytes: float,
) -> list[tuple[OffsetRange, ...]]:
    """The small pieces dealt to about as many tasks as run at once, in equal parts; a piece of
    ``alone_bytes`` or more has a task for itself. ``weights`` are the bytes of each."""
    total = sum(weight for weight in weights.values() if weight < alone_bytes)
    room = min(max(MIN_PIECE_BYTES, total / limits.parallelism), MAX_SHARE_BYTES, limits.max_bytes)
    tasks = max(1, math.ceil(total / room))
    shares: list[tuple[OffsetRange, ...]] = []
    last = _Last()
    dealt = 0.0
    for piece in pieces:
        weight = weights[piece]
        part = None
        if weight < alone_bytes:
            part = int((dealt + weight / 2) * tasks / total) if total else 0
            dealt += weight
        if last.takes(piece, weight, part, limits):
            shares[-1] = (*shares[-1], piece)
            last = _Last(part, last.bytes + weight, last.records + piece.count)
        else:
            shares.append((piece,))
            last = _Last(part, weight, piece.count)
    return shares


@dataclass(frozen=True, slots=True)
class _Last:
    """State of the last share: which part of the small pieces it holds, if any, and its size."""

    part: int | None = None
    bytes: float = 0.0
    records: int = 0

    def takes(
        self, piece: OffsetRange, weight: float, part: int | None, limits: SplitLimits
    ) -> bool:
        return (
            part is not None
            and part == self.part
            and self.bytes + weight <= limits.max_bytes
            and (limits.max_records is None or self.records + piece.count <= limits.max_records)
        )


def piece_count(size: int, target: int, limits: SplitLimits) -> int:
    """Number of pieces that a range of ``size`` bytes is cut into: the nearest to pieces of
    ``target`` bytes, so that partitions of about equal size are not cut for a few bytes, but never
    so few that one is larger than allowed."""
    return max(1, round(size / target), _ceil_div(size, limits.max_bytes))


def _split_evenly(
    sizes: Mapping[OffsetRange, int], counts: Mapping[OffsetRange, int], splitter: Splitter
) -> dict[OffsetRange, list[OffsetRange]]:
    """The ranges that are to be cut, each in equal pieces."""
    wanted = {r: _ceil_div(sizes[r], count) for r, count in sorted(counts.items()) if count > 1}
    return {r: pieces for r, (pieces, _) in splitter(wanted).items()} if wanted else {}


def split_by_count(pieces: Sequence[OffsetRange], min_partitions: int) -> list[OffsetRange]:
    """Cuts pieces until there are ``min_partitions``, where there are that many records.

    Cuts inside a record batch: two tasks then fetch it, and each keeps its part. That is why it
    comes after the cuts by bytes, for the rest that was asked for.
    """
    total = sum(piece.count for piece in pieces)
    cut: list[OffsetRange] = []
    for piece in pieces:
        parts = max(1, min(piece.count, _ceil_div(piece.count * min_partitions, max(1, total))))
        cut.extend(_evenly(piece, parts))
    return cut


def _evenly(piece: OffsetRange, parts: int) -> list[OffsetRange]:
    bounds = [piece.start + piece.count * i // parts for i in range(parts + 1)]
    return [
        OffsetRange(piece.topic_partition, start, end) for start, end in itertools.pairwise(bounds)
    ]


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)

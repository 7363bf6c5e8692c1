"""A line through costs over sizes: what is fixed, and what each unit adds. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Points = Sequence[tuple[float, float]]
"""(size, cost), by size."""


_EXPLAINED = 0.9  # of the variance, at least, for a line to be drawn further than was measured


@dataclass(frozen=True)
class Line:
    """Cost = ``fixed`` + ``per_unit`` * size, by ordinary least squares.

    The largest sizes decide such a line, and its R² with it. So ``farthest`` is beside it: the
    point that is furthest from the line in parts of its own cost.
    """

    fixed: float
    per_unit: float
    r2: float
    """The share of the costs' variance that the line explains; 1 where they do not vary."""
    farthest: tuple[float, float]
    """Its size, and the part of its cost by which it is above the line (below: negative)."""
    bend: float | None
    """Slope of the last stretch over that of the line through the points before it: 1 is straight,
    above 1 the cost bends upwards. None for fewer than four points, or where it did not grow."""

    @property
    def holds(self) -> bool:
        """True if the costs follow it well enough to be told for larger sizes."""
        return self.r2 >= _EXPLAINED and self.per_unit >= 0

    def at(self, size: float) -> float:
        return self.fixed + self.per_unit * size


def fit(points: Points) -> Line:
    """Raises ValueError unless there are two sizes."""
    sizes = sorted({size for size, _ in points})
    if len(sizes) < 2:
        raise ValueError(f"A line needs costs at two sizes, got {len(sizes)}.")
    fixed, per_unit = _least_squares(points)
    mean = sum(cost for _, cost in points) / len(points)
    spread = sum((cost - mean) ** 2 for _, cost in points)
    left = sum((cost - fixed - per_unit * size) ** 2 for size, cost in points)
    offs = [
        (size, (cost - fixed - per_unit * size) / cost if cost else 0.0) for size, cost in points
    ]
    return Line(
        fixed=fixed,
        per_unit=per_unit,
        r2=1 - left / spread if spread else 1.0,
        farthest=max(offs, key=lambda off: abs(off[1])),
        bend=_bend(sorted(points)),
    )


def _least_squares(points: Points) -> tuple[float, float]:
    count = len(points)
    mean_size = sum(size for size, _ in points) / count
    mean_cost = sum(cost for _, cost in points) / count
    spread = sum((size - mean_size) ** 2 for size, _ in points)
    together = sum((size - mean_size) * (cost - mean_cost) for size, cost in points)
    return mean_cost - together / spread * mean_size, together / spread


def _bend(points: Points) -> float | None:
    before = points[:-1]
    if len(before) < 3:
        return None
    _, slope = _least_squares(before)
    (size, cost), (last_size, last_cost) = points[-2:]
    if slope <= 0 or last_size == size:
        return None
    return (last_cost - cost) / (last_size - size) / slope

"""Checks that all contenders read the same rows, by their count and a checksum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


@dataclass(frozen=True)
class Rows:
    """Count of rows, and a checksum of some columns in whatever order."""

    count: int
    checksum: int

    @classmethod
    def of(cls, frame: DataFrame, columns: Sequence[str] = ("key", "value")) -> Rows:
        """Reads a frame; of the columns those count that it has."""
        names = [name for name in columns if name in frame.columns]
        # As sums of 40 bits, which no number of rows here lets overflow.
        hashed = F.shiftrightunsigned(F.xxhash64(*names), 24)
        row = frame.agg(F.count("*").alias("count"), F.sum(hashed).alias("checksum")).first()
        assert row is not None
        return cls(row["count"], row["checksum"] or 0)


class Same:
    """Compares what contenders found with what the first one found."""

    def __init__(self, *first: object, by: str = "what is written") -> None:
        self._first = [(by, one) for one in first]

    def require(self, contender: str, found: object) -> None:
        """Raises SystemExit unless it is the same."""
        self._first = self._first or [(contender, found)]
        [(name, first)] = self._first
        if found != first:
            raise SystemExit(f"{contender} has {found}, {name} {first}.")

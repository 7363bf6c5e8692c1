"""Fingerprint of a data frame's records: their number, and a digest that no order changes.

A compacted topic has offsets without a record, so ``end - start`` does not say how many records a
range holds. What a load proves is that the records that it staged are those that its readers handed
over: each by its partition and offset, none missing and none in another's place.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

#: The columns that a tally is made of.
TALLIED = ("partition", "offset")
_RECORDS = "records"
_DIGEST = "digest"


@dataclass(frozen=True, slots=True)
class RecordTally:
    """Equal for two data frames that hold the same partitions and offsets. Immutable."""

    records: int
    digest: int

    def with_others(self, others: RecordTally) -> RecordTally:
        """Tally of both together, which have no record in common."""
        return RecordTally(self.records + others.records, self.digest ^ others.digest)


NONE: Final = RecordTally(0, 0)
"""Tally of no records."""


def together(tallies: Iterable[RecordTally]) -> RecordTally:
    """Joins tallies that have no record in common."""
    return reduce(RecordTally.with_others, tallies, NONE)


class ObservedTally:
    """The tally of what passes through a data frame while an action on it runs."""

    def __init__(self, frame: DataFrame) -> None:
        self._observation = Observation()
        self.frame = frame.observe(self._observation, *aggregates())

    def tally(self) -> RecordTally:
        """Tally of the first action on ``frame``, which must have ended.

        Spark counts what a stage reads again after it lost an executor twice. The tallies then
        differ, which costs a load that would have been right; it is never the other way round.

        Where nothing at all passes through, Spark cuts the plan short, and there is nothing that it
        has counted: not even that there were no rows.
        """
        return tally_from(_seen(self._observation))


class ConditionCount:
    """The number of rows of a data frame that meet a condition, while an action on it runs."""

    def __init__(self, frame: DataFrame, condition: str | None) -> None:
        """``condition`` is an expression of Spark SQL; None is met by no row, and costs nothing."""
        self._observation = None if condition is None else Observation()
        self.frame = frame
        if self._observation is not None:
            counted = F.expr(f"count_if({condition})").alias(_RECORDS)
            self.frame = frame.observe(self._observation, counted)

    def count(self) -> int:
        """Count of the first action on ``frame``, which must have ended."""
        if self._observation is None:
            return 0
        return int(_seen(self._observation).get(_RECORDS) or 0)


def _seen(observation: Observation) -> dict[str, Any]:
    observed = observation._jo  # whose row PySpark can only take when there is one
    counted = observed is not None and observed.getRow().schema() is not None
    return observation.get if counted else {}


def tally_of(frame: DataFrame) -> RecordTally:
    """Tallies all records, of which it reads the columns ``partition`` and ``offset``."""
    row = frame.agg(*aggregates()).first()
    return tally_from({} if row is None else row.asDict())


def aggregates() -> list[Column]:
    """Expressions that a tally is made from, of the columns ``partition`` and ``offset``."""
    return [
        F.count(F.lit(1)).alias(_RECORDS),
        F.expr(f"bit_xor(xxhash64({', '.join(TALLIED)}))").alias(_DIGEST),
    ]


def tally_from(found: dict[str, Any]) -> RecordTally:
    """Returns the tally of a row of ``aggregates``."""
    return RecordTally(found.get(_RECORDS) or 0, found.get(_DIGEST) or 0)

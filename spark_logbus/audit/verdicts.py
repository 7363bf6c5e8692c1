"""What is said of one window, from what was to be there and what is. Pure: a table of cases.

A record that was acknowledged has to be there, whatever else is not known: too few is a finding
always. That nothing is missing is only said where all counters have said all that they know.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from spark_logbus.audit.counts import WindowTally, time_of


class Status(enum.Enum):
    """Kinds of verdicts."""

    #: What was counted is there, once.
    COMPLETE = "complete"
    #: Fewer are there.
    MISSING = "missing"
    #: More are there: some twice, or some that nobody counted.
    TOO_MANY = "too many"
    #: As many are there, but not the same: some are missing, and as many are too many.
    EXCHANGED = "exchanged"
    #: Some of those are there that were never acknowledged.
    IN_DOUBT = "in doubt"
    #: No counter reported anything, and records are there.
    UNCOUNTED = "uncounted"
    #: A counter died: what it counted last will never be known.
    GAP = "not known"
    #: A counter will report, or a load or consumer get so far.
    NOT_YET = "not yet known"
    #: Retention deleted some of it.
    EXPIRED = "not comparable any more"


#: Verdicts that an operator has to look at.
FINDINGS: Final = frozenset(
    {
        Status.MISSING, Status.TOO_MANY, Status.EXCHANGED, Status.IN_DOUBT, Status.UNCOUNTED,
        Status.GAP,
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    """``records`` is how many it is about; ``at_us`` the time of that one, where it is one."""

    status: Status
    records: int = 0
    at_us: int | None = None

    def __str__(self) -> str:
        if self.records and self.status is not Status.COMPLETE:
            return f"{self.status.value}: {self.records:,}"
        return self.status.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Reports of all counters on one window."""

    counted: WindowTally = WindowTally()
    in_doubt: WindowTally = WindowTally()
    reported: bool = False
    """At least one of them has reported something of this window."""

    changing: bool = False
    """One may have counted more of it after the records that it is compared with were read."""

    pending: bool = False
    """One that lives has not yet reported all of the time of this window."""

    behind: bool = False
    """One that lives may have counted more by the time of that reading than it has reported."""

    gap: bool = False
    """One has died that may have counted more of it."""

    unplaced: bool = False
    """One has died that has never said of which time its records were."""


def judge(expected: Expected, found: WindowTally, *, start_us: int, window_us: int) -> Verdict:
    """Judges a window in which the records of ``found`` are."""
    difference = found - expected.counted
    at_us = time_of(difference, start_us=start_us, window_us=window_us)
    if difference.records < 0:
        if expected.changing:
            return Verdict(Status.NOT_YET)
        return Verdict(Status.MISSING, -difference.records, at_us)
    if not difference.records and difference:
        return Verdict(Status.NOT_YET if expected.changing else Status.EXCHANGED)
    return _of_enough(expected, difference, at_us)


def _of_enough(expected: Expected, more: WindowTally, at_us: int | None) -> Verdict:
    """Judges a window in which all acknowledged records are, and ``more``."""
    if expected.gap or (expected.unplaced and more):
        return Verdict(Status.GAP, more.records)
    if expected.pending or (expected.behind and more):
        return Verdict(Status.NOT_YET)
    if more in (WindowTally(), expected.in_doubt):
        return Verdict(Status.COMPLETE)
    if more.records <= expected.in_doubt.records:
        return Verdict(Status.IN_DOUBT, expected.in_doubt.records)
    if not expected.reported:
        return Verdict(Status.UNCOUNTED, more.records, at_us)
    return Verdict(Status.TOO_MANY, more.records - expected.in_doubt.records, at_us)

"""Folds reports into what each run of each counter has counted. Pure.

Counts are cumulative, so of each window the report with the highest sequence counts, whatever the
order in which reports come and however often. So do the times of the last report of all: a clock
that was ahead for a while has said too much, and the next report puts it right.

A run has *closed* if one of its reports was its last; it *lives* if its next report is not overdue;
else it is *dead*, and what it published after the time that its reports are complete through is
not known.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from spark_logbus.audit.counts import NOTHING, WindowTally
from spark_logbus.audit.report import CounterReport, Tier

DEAD_AFTER_INTERVALS: Final = 3
"""A report may be late by one failed append and one pause of a machine; not by three."""


class State(enum.Enum):
    """State of a run, which decides whether more of its counts will come."""

    #: All that it has counted is known.
    CLOSED = "closed"
    #: More will be known soon.
    LIVE = "live"
    #: What it counted last will never be known.
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class RunWindow:
    """Counts of one window by one run, and when the run reported their last change."""

    tally: WindowTally
    in_doubt: WindowTally
    changed_us: int
    sequence: int = 0


_NO_WINDOW: Final = RunWindow(NOTHING, NOTHING, 0)


@dataclass(slots=True)
class RunRecord:
    """One run of a counter, as far as its reports say."""

    tier: Tier
    counter: str
    run: str
    interval_us: int
    through_us: int
    """All that it has published by then is known."""
    heard_us: int
    """When it reported last."""
    closed: bool = False
    topics: set[str] = field(default_factory=set)
    windows: dict[tuple[str, int], RunWindow] = field(default_factory=dict)
    window_lengths: set[int] = field(default_factory=set)
    sequence: int = 0
    """The number of the report that both times are of."""

    def state(self, now_us: int) -> State:
        if self.closed:
            return State.CLOSED
        return State.DEAD if now_us - self.heard_us > self.silence_us else State.LIVE

    @property
    def silence_us(self) -> int:
        """Time within which a run that lives publishes a report."""
        return DEAD_AFTER_INTERVALS * self.interval_us

    def concerns(self, topic: str) -> bool:
        """True if it may have counted records of ``topic``. One that died before it met any may
        have met this one."""
        return topic in self.topics or not (self.topics or self.closed)

    def has_counted(self, topic: str) -> bool:
        """True if it has named a window of ``topic``; else its records may be of any time."""
        return any(of == topic for of, _ in self.windows)

    def left_open(self, topic: str, *, start_us: int, end_us: int) -> bool:
        """True for a window of which a run that died may have counted more than it reported.

        That is the window in which it died, by the clock; and any that it was still counting
        records of, as one does whose records are older than the clock.
        """
        died_in = start_us < self.heard_us + self.silence_us and self.through_us < end_us
        counted = self.windows.get((topic, start_us))
        return died_in or (
            counted is not None and counted.changed_us > self.through_us - self.silence_us
        )


def fold(reports: Iterable[CounterReport]) -> list[RunRecord]:
    """Folds reports into runs, in the order of tier, counter and run."""
    runs: dict[tuple[str, str, str], RunRecord] = {}
    for report in reports:
        key = report["tier"], report["counter"], report["run"]
        record = runs.get(key)
        if record is None:
            record = runs[key] = RunRecord(
                Tier(report["tier"]), report["counter"], report["run"], report["interval_us"],
                report["complete_through"], report["reported_at"],
            )  # fmt: skip
        _take(record, report)
    return [runs[key] for key in sorted(runs)]


def _take(record: RunRecord, report: CounterReport) -> None:
    through_us, heard_us = report["complete_through"], report["reported_at"]
    if report["sequence"] > record.sequence:
        record.sequence = report["sequence"]
        record.through_us, record.heard_us = through_us, heard_us
    elif report["sequence"] == record.sequence:
        record.through_us = max(record.through_us, through_us)
        record.heard_us = max(record.heard_us, heard_us)
    record.interval_us = max(record.interval_us, report["interval_us"])
    record.closed = record.closed or report["last"]
    if report["topic"] is None:
        return
    record.topics.add(report["topic"])
    if report["window_start"] is None:
        return
    record.window_lengths.add(report["window_us"])
    window = report["topic"], report["window_start"]
    known = record.windows.get(window)
    if known is None or known.sequence < report["sequence"]:
        record.windows[window] = RunWindow(
            WindowTally(report["records"], report["time_sum"]),
            WindowTally(report["in_doubt"], report["in_doubt_time_sum"]),
            heard_us,
            report["sequence"],
        )


def in_windows(record: RunRecord, topic: str, *, window_us: int) -> RunRecord:
    """Returns the run with its counts of ``topic`` alone, in windows of ``window_us``, which is a
    multiple of its own."""
    windows: dict[tuple[str, int], RunWindow] = {}
    for (of, start), counted in record.windows.items():
        if of == topic:
            wide = start // window_us * window_us
            before = windows.get((topic, wide), _NO_WINDOW)
            windows[topic, wide] = RunWindow(
                before.tally + counted.tally.moved(start - wide),
                before.in_doubt + counted.in_doubt.moved(start - wide),
                max(before.changed_us, counted.changed_us),
            )
    return replace(record, windows=windows)

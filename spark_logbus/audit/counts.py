"""Counts of records by window of event time.

A window is ``[start, start + length)`` of record timestamps, in µs since 1970; starts are multiples
of the length. Of each window two numbers are kept: how many records there are, and the sum of their
times within it. Both add up in any order, and cost nothing beside the records themselves. The sum
shows what a number alone does not: one record that is missing beside one that is there twice. And
where one record is missing, the difference of the sums is its time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_logbus.errors import ConfigError

DEFAULT_WINDOW_MS: Final = 600_000
"""Ten minutes: 144 rows a day to look at, and a finding is near enough to be looked for."""

MODULUS: Final = 1 << 63
"""Sums are kept modulo this, so that they fit a long of Avro's whatever the window's length."""


@dataclass(frozen=True, slots=True)
class WindowTally:
    """Number of records, and sum of their times in µs after their window's start, modulo 2⁶³."""

    records: int = 0
    time_sum: int = 0

    def __bool__(self) -> bool:
        return self != NOTHING

    def __add__(self, other: WindowTally) -> WindowTally:
        return WindowTally(self.records + other.records, (self.time_sum + other.time_sum) % MODULUS)

    def __sub__(self, other: WindowTally) -> WindowTally:
        """Difference of two tallies of one window; its ``records`` may be negative."""
        return WindowTally(self.records - other.records, (self.time_sum - other.time_sum) % MODULUS)

    def moved(self, by_us: int) -> WindowTally:
        """Returns the tally of the same records in a window that begins ``by_us`` earlier."""
        return WindowTally(self.records, (self.time_sum + self.records * by_us) % MODULUS)


NOTHING: Final = WindowTally()

Tallies = Mapping[int, WindowTally]
"""Tallies of windows, by their starts."""


def tally_times(timestamps: pa.Array, *, window_us: int) -> dict[int, WindowTally]:
    """Counts an Arrow column of timestamps in µs, or of integers that are such, by window."""
    if not len(timestamps):
        return {}
    # No copy: the buffer of the column, which has no nulls.
    times: npt.NDArray[np.int64] = np.asarray(timestamps.view(pa.int64()))
    first, last = (int(at) // window_us for at in (times.min(), times.max()))
    if first == last:  # as nearly always
        start = first * window_us
        # Sums of numpy wrap around, which is undone by taking both modulo.
        return {start: WindowTally(len(times), (int(times.sum()) - len(times) * start) % MODULUS)}
    windows = times // window_us
    order = np.argsort(windows, kind="stable")  # near to sorted, which takes no time
    windows = windows[order]
    begins = np.flatnonzero(np.diff(windows, prepend=windows[0] - 1))
    sums = np.add.reduceat((times[order] - windows * window_us), begins)
    counts = np.diff(begins, append=len(windows))
    return {
        int(window) * window_us: WindowTally(int(count), int(total) % MODULUS)
        for window, count, total in zip(windows[begins], counts, sums, strict=True)
    }


def add(to: dict[int, WindowTally], more: Tallies) -> None:
    """Adds ``more`` to ``to``, window by window."""
    for start, tally in more.items():
        to[start] = to.get(start, NOTHING) + tally


def common_window_us(lengths: Iterable[int], *, wanted_us: int | None, topic: str) -> int:
    """Returns the length in which counts of windows of these ``lengths`` can be compared: the
    wanted one, else the longest. ConfigError if it is no multiple of the others."""
    known = sorted({*lengths})
    window_us = wanted_us or (known[-1] if known else DEFAULT_WINDOW_MS * 1_000)
    odd = next((length for length in known if window_us % length), None)
    if odd is not None:
        raise ConfigError(
            f"Records of {topic} were counted in windows of {odd / 1e6:g} s, which do not add up "
            f"to windows of {window_us / 1e6:g} s; choose a multiple of {odd / 1e6:g} s."
        )
    return window_us


def time_of(difference: WindowTally, *, start_us: int, window_us: int) -> int | None:
    """Returns the time of the one record that is too many or too few; None where it is not one."""
    if abs(difference.records) != 1:
        return None
    within = difference.time_sum * difference.records % MODULUS
    return start_us + within if within < window_us else None


def as_tally(records: Any, time_sum: Any) -> WindowTally:
    """Makes a tally of numbers that another engine has summed up."""
    return WindowTally(int(records), int(time_sum) % MODULUS)

"""Moments and durations as people write them (pure)."""

from __future__ import annotations

import datetime as dt
import re
from typing import Final

US_PER_MS: Final = 1_000
US_PER_S: Final = 1_000_000

MAX_DURATION_US: Final = 36_500 * 86_400 * US_PER_S
"""A hundred years."""

_UNITS_US: Final = {
    "us": 1, "microsecond": 1,
    "ms": US_PER_MS, "millisecond": US_PER_MS,
    "s": US_PER_S, "sec": US_PER_S, "second": US_PER_S,
    "m": 60 * US_PER_S, "min": 60 * US_PER_S, "minute": 60 * US_PER_S,
    "h": 3_600 * US_PER_S, "hr": 3_600 * US_PER_S, "hour": 3_600 * US_PER_S,
    "d": 86_400 * US_PER_S, "day": 86_400 * US_PER_S,
    "w": 604_800 * US_PER_S, "week": 604_800 * US_PER_S,
}  # fmt: skip


def parse_duration_us(text: str) -> int:
    """``15m``, ``90 seconds``, ``1 day`` in microseconds. Raises ValueError for anything else."""
    found = re.fullmatch(r"(\d{1,18})\s*([a-z]+)", text.strip().lower(), re.ASCII)
    unit = None
    if found is not None:
        unit = _UNITS_US.get(found[2]) or _UNITS_US.get(found[2].removesuffix("s"))
    if found is None or unit is None:
        raise ValueError(
            f"expected a number and a unit, such as 90s, 15m, 10 minutes or 1 day, got {text!r}"
        )
    duration_us = int(found[1]) * unit
    if duration_us > MAX_DURATION_US:
        raise ValueError(f"expected at most a hundred years (36500d), got {text!r}")
    return duration_us


def parse_moment_us(text: str) -> int:
    """ISO 8601 in microseconds since 1970, UTC where no zone is given. Raises ValueError."""
    moment = dt.datetime.fromisoformat(text.strip())
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)


def parse_past_us(text: str, *, now_us: int) -> int:
    """A date or time, or how long ago: ``1d`` or ``-1d``. Raises ValueError."""
    try:
        if re.match(r"\d{4}-\d\d-\d\d", text):
            return parse_moment_us(text)
        return now_us - parse_duration_us(text.removeprefix("-"))
    except ValueError as error:
        raise ValueError(
            f"expected a time such as 2026-01-31T12:00Z, or how long ago, such as 6h, got {text!r}"
        ) from error


def show_moment(us: int, *, timespec: str = "auto") -> str:
    """A moment for a message: ISO 8601 in UTC, or the number where no calendar reaches."""
    try:
        moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=us)
        return moment.isoformat(timespec=timespec)
    except OverflowError:
        return f"{us} µs after 1970"

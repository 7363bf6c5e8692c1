"""Moments and durations as people write them."""

from __future__ import annotations

import pytest

from spark_logbus.times import parse_duration_us, parse_moment_us, parse_past_us, show_moment


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("90 sec", 90),
        ("10m", 600),
        ("10 Minutes", 600),
        ("1 minute", 60),
        (" 6h ", 21_600),
        ("2 hrs", 7_200),
        ("7d", 604_800),
        ("1 week", 604_800),
        ("250ms", 0.25),
        ("0s", 0),
        ("36500d", 36_500 * 86_400),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration_us(text) == seconds * 1_000_000


@pytest.mark.parametrize(
    "text", ["", "10", "m", "-5m", "1.5h", "\u0663d", "36501d", "5 moons", "1" * 30 + "d", "s10"]
)
def test_durations_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_duration_us(text)


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("1970-01-01T00:00:01.000001Z", 1_000_001),
        ("1970-01-01T05:30:01+05:30", 1_000_000),
        ("1970-01-01T00:00:01", 1_000_000),
        ("1970-01-02", 86_400_000_000),
        ("1969-12-31T23:59:59Z", -1_000_000),
    ],
)
def test_moments(text: str, us: int) -> None:
    assert parse_moment_us(text) == us


@pytest.mark.parametrize("text", ["", "yesterday", "12:00", "2013-13-01"])
def test_moments_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_moment_us(text)


def test_moments_are_shown_as_they_are_written() -> None:
    assert show_moment(1_769_860_800_000_000) == "2026-01-31T12:00:00+00:00"
    assert show_moment((1 << 63) - 1) == f"{(1 << 63) - 1} µs after 1970"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1m", 40_000_000), ("-1m", 40_000_000), ("1970-01-01T00:00:07Z", 7_000_000)],
)
def test_times_in_the_past(text: str, expected: int) -> None:
    assert parse_past_us(text, now_us=100_000_000) == expected


@pytest.mark.parametrize("text", ["", "-", "yesterday", "1970-13-01", "5"])
def test_what_is_no_time_in_the_past(text: str) -> None:
    with pytest.raises(ValueError, match=text or "expected"):
        parse_past_us(text, now_us=0)

"""What a rewind's target is read from."""

from __future__ import annotations

import pytest

from spark_logbus.cli.groups import _parse_duration, _parse_time, _target
from spark_logbus.errors import InvalidRequestError
from spark_logbus.offsets import ByCount, ToEarliest, ToOffset


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:01Z", 1_000_000),
        ("1970-01-01T01:00:01+01:00", 1_000_000),
        ("1970-01-01", 0),  # without a zone: UTC
        ("2013-12-01T05:00:00.000001", 1_385_874_000_000_001),
    ],
)
def test_times(text: str, expected: int) -> None:
    assert _parse_time(text) == expected


@pytest.mark.parametrize("text", ["", "yesterday", "12:00", "2013-13-01"])
def test_times_that_are_none(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="ISO 8601"):
        _parse_time(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("6h", 21_600), ("7d", 604_800)]
)
def test_durations(text: str, seconds: int) -> None:
    assert _parse_duration(text) == seconds * 1_000_000


@pytest.mark.parametrize("text", ["", "10", "m", "-5m", "1.5h", "10 m", "10M", "٣d", "36501d"])
def test_durations_that_are_none(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="--by-duration"):
        _parse_duration(text)


def test_exactly_one_target() -> None:
    assert _target(3, None, None, None, False, False) == ToOffset(3)
    assert _target(None, None, None, 0, False, False) == ByCount(0)
    assert _target(None, None, None, None, True, False) == ToEarliest()
    with pytest.raises(InvalidRequestError, match="got 0"):
        _target(None, None, None, None, False, False)
    with pytest.raises(InvalidRequestError, match="got 2"):
        _target(0, None, None, None, False, True)

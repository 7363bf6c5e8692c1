"""What ``logbus groups rewind`` makes of its options."""

from __future__ import annotations

import pytest

from spark_logbus.cli.admin.groups import _target
from spark_logbus.errors import InvalidRequestError
from spark_logbus.model import (
    AtOffset,
    AtTimestamp,
    Earliest,
    LastDuration,
    LastRecords,
    Latest,
    TopicPartition,
)
from spark_logbus.offsets.position import PerPartition, ShiftBack
from spark_logbus.offsets.rewind import Target, describe

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_times_and_durations() -> None:
    at = _target(None, None, "1970-01-01T00:00:02Z", None, None, False, False)
    assert at == AtTimestamp(2_000_000)
    assert _target(None, None, None, "90s", None, False, False) == LastDuration(90_000_000)
    with pytest.raises(InvalidRequestError, match="--to-time is 'noon'; use ISO 8601"):
        _target(None, None, "noon", None, None, False, False)
    with pytest.raises(InvalidRequestError, match="--by-duration is '-5m'; use 6h"):
        _target(None, None, None, "-5m", None, False, False)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("9999-12-31T23:59-12:00", "to time 253402343940000000 µs after 1970"),
        ("0001-01-01T00:00+12:00", "to time -62135640000000000 µs after 1970"),
        ("2013-12-01T05:00Z", "to time 2013-12-01T05:00:00.000+00:00"),
    ],
)
def test_a_time_is_shown_also_where_no_calendar_reaches(text: str, shown: str) -> None:
    assert describe(_target(None, None, text, None, None, False, False)) == shown


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("earliest", Earliest()),
        ("23", AtOffset(23)),
        ("-1000", LastRecords(1000)),
        ("-10 minutes", LastDuration(600_000_000)),
        ('{"t": {"0": 23, "1": -1}}', PerPartition(((T0, AtOffset(23)), (T1, Latest())))),
    ],
)
def test_a_position_is_written_as_elsewhere(text: str, target: Target) -> None:
    assert _target(text, None, None, None, None, False, False) == target
    with pytest.raises(InvalidRequestError, match="got 2"):
        _target(text, None, None, None, None, True, False)


def test_exactly_one_target() -> None:
    assert _target(None, 3, None, None, None, False, False) == AtOffset(3)
    assert _target(None, None, None, None, 0, False, False) == ShiftBack(0)
    assert _target(None, None, None, None, None, True, False) == Earliest()
    with pytest.raises(InvalidRequestError, match="got 0"):
        _target(None, None, None, None, None, False, False)
    with pytest.raises(InvalidRequestError, match="got 2"):
        _target(None, 0, None, None, None, False, True)

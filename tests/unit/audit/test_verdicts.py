"""The table of verdicts."""

from __future__ import annotations

from typing import Any

import pytest

from spark_logbus.audit.counts import WindowTally
from spark_logbus.audit.verdicts import Expected, Status, Verdict, judge

WINDOW = 60_000_000
TEN = WindowTally(10, 1_000)
NOTHING = WindowTally()


def verdict(found: WindowTally, **expected: Any) -> Verdict:
    expected.setdefault("reported", True)
    return judge(Expected(**expected), found, start_us=WINDOW, window_us=WINDOW)


@pytest.mark.parametrize(
    ("found", "status", "records", "at_us"),
    [
        (TEN, Status.COMPLETE, 0, None),
        (WindowTally(9, 993), Status.MISSING, 1, WINDOW + 7),
        (WindowTally(7, 800), Status.MISSING, 3, None),
        (NOTHING, Status.MISSING, 10, None),
        (WindowTally(11, 1_040), Status.TOO_MANY, 1, WINDOW + 40),
        (WindowTally(12, 1_040), Status.TOO_MANY, 2, None),
        (WindowTally(10, 1_001), Status.EXCHANGED, 0, None),
    ],
)
def test_what_is_there_is_compared_with_what_was_counted(
    found: WindowTally, status: Status, records: int, at_us: int | None
) -> None:
    assert verdict(found, counted=TEN) == Verdict(status, records, at_us)


@pytest.mark.parametrize(
    ("found", "status", "records"),
    [
        (TEN, Status.COMPLETE, 0),  # none of them arrived
        (WindowTally(13, 1_090), Status.COMPLETE, 0),  # all of them did
        (WindowTally(11, 1_020), Status.IN_DOUBT, 3),
        (WindowTally(13, 1_091), Status.IN_DOUBT, 3),
        (WindowTally(14, 1_100), Status.TOO_MANY, 1),
        (WindowTally(9, 990), Status.MISSING, 1),
        (WindowTally(10, 999), Status.EXCHANGED, 0),
    ],
)
def test_records_in_doubt_may_be_there_or_not(
    found: WindowTally, status: Status, records: int
) -> None:
    got = verdict(found, counted=TEN, in_doubt=WindowTally(3, 90))
    assert (got.status, got.records) == (status, records)


@pytest.mark.parametrize(
    ("flag", "found", "status"),
    [
        # One that died: never complete, whatever the numbers say; but what is missing is missing.
        ("gap", TEN, Status.GAP),
        ("gap", WindowTally(15, 1_500), Status.GAP),
        ("gap", WindowTally(9, 900), Status.MISSING),
        ("gap", WindowTally(10, 999), Status.EXCHANGED),
        # One that died and has never said of which time its records were.
        ("unplaced", TEN, Status.COMPLETE),
        ("unplaced", WindowTally(15, 1_500), Status.GAP),
        ("unplaced", WindowTally(9, 900), Status.MISSING),
        # One that lives and has not yet reported all of the window.
        ("pending", TEN, Status.NOT_YET),
        ("pending", WindowTally(11, 1_040), Status.NOT_YET),
        ("pending", WindowTally(9, 900), Status.MISSING),
        # One that may have counted more than it has reported.
        ("behind", TEN, Status.COMPLETE),
        ("behind", WindowTally(11, 1_040), Status.NOT_YET),
        ("behind", WindowTally(9, 900), Status.MISSING),
        # One that counted after the topic was read.
        ("changing", TEN, Status.COMPLETE),
        ("changing", WindowTally(11, 1_040), Status.TOO_MANY),
        ("changing", WindowTally(9, 900), Status.NOT_YET),
        ("changing", WindowTally(10, 999), Status.NOT_YET),
    ],
)
def test_what_is_not_known_is_never_called_complete(
    flag: str, found: WindowTally, status: Status
) -> None:
    assert verdict(found, counted=TEN, **{flag: True}).status is status


@pytest.mark.parametrize(
    ("expected", "status"),
    [({}, Status.UNCOUNTED), ({"gap": True}, Status.GAP), ({"pending": True}, Status.NOT_YET)],
)
def test_records_that_nobody_counted_are_told(expected: dict[str, Any], status: Status) -> None:
    got = judge(Expected(**expected), TEN, start_us=WINDOW, window_us=WINDOW)
    assert got.status is status

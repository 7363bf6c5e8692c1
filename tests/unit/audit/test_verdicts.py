"""The table of verdicts."""

from __future__ import annotations

from typing import Any

import pytest

from spark_logbus.audit.counts import Tally
from spark_logbus.audit.verdicts import Expected, Finding, Verdict, judge

WINDOW = 60_000_000
TEN = Tally(10, 1_000)
NOTHING = Tally()


def verdict(found: Tally, **expected: Any) -> Verdict:
    expected.setdefault("reported", True)
    return judge(Expected(**expected), found, start_us=WINDOW, window_us=WINDOW)


@pytest.mark.parametrize(
    ("found", "finding", "records", "at_us"),
    [
        (TEN, Finding.COMPLETE, 0, None),
        (Tally(9, 993), Finding.MISSING, 1, WINDOW + 7),
        (Tally(7, 800), Finding.MISSING, 3, None),
        (NOTHING, Finding.MISSING, 10, None),
        (Tally(11, 1_040), Finding.TOO_MANY, 1, WINDOW + 40),
        (Tally(12, 1_040), Finding.TOO_MANY, 2, None),
        (Tally(10, 1_001), Finding.EXCHANGED, 0, None),
    ],
)
def test_what_is_there_is_compared_with_what_was_counted(
    found: Tally, finding: Finding, records: int, at_us: int | None
) -> None:
    assert verdict(found, counted=TEN) == Verdict(finding, records, at_us)


@pytest.mark.parametrize(
    ("found", "finding", "records"),
    [
        (TEN, Finding.COMPLETE, 0),  # none of them arrived
        (Tally(13, 1_090), Finding.COMPLETE, 0),  # all of them did
        (Tally(11, 1_020), Finding.IN_DOUBT, 3),
        (Tally(13, 1_091), Finding.IN_DOUBT, 3),
        (Tally(14, 1_100), Finding.TOO_MANY, 1),
        (Tally(9, 990), Finding.MISSING, 1),
        (Tally(10, 999), Finding.EXCHANGED, 0),
    ],
)
def test_records_in_doubt_may_be_there_or_not(found: Tally, finding: Finding, records: int) -> None:
    got = verdict(found, counted=TEN, in_doubt=Tally(3, 90))
    assert (got.finding, got.records) == (finding, records)


@pytest.mark.parametrize(
    ("flag", "found", "finding"),
    [
        # One that died: never complete, whatever the numbers say; but what is missing is missing.
        ("gap", TEN, Finding.GAP),
        ("gap", Tally(15, 1_500), Finding.GAP),
        ("gap", Tally(9, 900), Finding.MISSING),
        ("gap", Tally(10, 999), Finding.EXCHANGED),
        # One that died and has never said of which time its records were.
        ("unplaced", TEN, Finding.COMPLETE),
        ("unplaced", Tally(15, 1_500), Finding.GAP),
        ("unplaced", Tally(9, 900), Finding.MISSING),
        # One that lives and has not yet reported all of the window.
        ("pending", TEN, Finding.NOT_YET),
        ("pending", Tally(11, 1_040), Finding.NOT_YET),
        ("pending", Tally(9, 900), Finding.MISSING),
        # One that may have counted more than it has reported.
        ("behind", TEN, Finding.COMPLETE),
        ("behind", Tally(11, 1_040), Finding.NOT_YET),
        ("behind", Tally(9, 900), Finding.MISSING),
        # One that counted after the topic was read.
        ("changing", TEN, Finding.COMPLETE),
        ("changing", Tally(11, 1_040), Finding.TOO_MANY),
        ("changing", Tally(9, 900), Finding.NOT_YET),
        ("changing", Tally(10, 999), Finding.NOT_YET),
    ],
)
def test_what_is_not_known_is_never_called_complete(
    flag: str, found: Tally, finding: Finding
) -> None:
    assert verdict(found, counted=TEN, **{flag: True}).finding is finding


@pytest.mark.parametrize(
    ("expected", "finding"),
    [({}, Finding.UNCOUNTED), ({"gap": True}, Finding.GAP), ({"pending": True}, Finding.NOT_YET)],
)
def test_records_that_nobody_counted_are_told(expected: dict[str, Any], finding: Finding) -> None:
    got = judge(Expected(**expected), TEN, start_us=WINDOW, window_us=WINDOW)
    assert got.finding is finding

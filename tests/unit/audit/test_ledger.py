"""Reports folded, and the comparison of windows that follows from them."""

from __future__ import annotations

from typing import Any

import pytest

from spark_logbus.audit.comparison import AuditResult, AuditSpan, Copy, compare
from spark_logbus.audit.counts import WindowTally
from spark_logbus.audit.ledger import State, fold, in_windows
from spark_logbus.audit.report import CounterReport, Tier, known_reports
from spark_logbus.audit.topic import TopicCounts
from spark_logbus.audit.verdicts import Status

S = 1_000_000
WINDOW = 600 * S
INTERVAL = 60 * S
FIVE = WindowTally(5, 50)
TEN = WindowTally(10, 1_000)


def report(run: str = "r1", **fields: Any) -> CounterReport:
    """Makes a report of the window from 0 to 600 s, counted at its end, unless ``fields`` say
    otherwise."""
    given: dict[str, Any] = {
        "tier": Tier.PRODUCER, "counter": f"of {run}", "run": run, "sequence": 1,
        "complete_through_us": WINDOW, "interval_us": INTERVAL, "topic": "t", "window_us": WINDOW,
        "window_start_us": 0, "counted": TEN,
    }  # fmt: skip
    given |= fields
    counted, in_doubt = given["counted"], given.get("in_doubt", WindowTally())
    return {
        "tier": given["tier"].value,
        "counter": given["counter"],
        "run": given["run"],
        "sequence": given["sequence"],
        "reported_at": given.get("reported_at_us", given["complete_through_us"]),
        "complete_through": given["complete_through_us"],
        "interval_us": given["interval_us"],
        "last": given.get("last", False),
        "topic": given["topic"],
        "window_start": given["window_start_us"],
        "window_us": given["window_us"],
        "records": counted.records,
        "time_sum": counted.time_sum,
        "in_doubt": in_doubt.records,
        "in_doubt_time_sum": in_doubt.time_sum,
    }


def compared(
    reports: list[CounterReport], found: dict[int, WindowTally], *, now_us: int, **fields: Any
) -> AuditResult:
    read_at_us = fields.pop("read_at_us", now_us)
    copies = fields.pop("copies", ())
    span = AuditSpan(since_us=0, until_us=now_us, now_us=now_us, window_us=WINDOW)
    counts = TopicCounts(read_at_us, found, **fields)
    return compare("t", fold(reports), counts, span, copies=copies)


def findings(result: AuditResult) -> dict[int, Status]:
    return {window.start_us: window.verdict.status for window in result.windows}


# -- runs ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "silent_for", "state"),
    [
        (True, 10**12, State.CLOSED),
        (False, INTERVAL, State.LIVE),
        (False, 3 * INTERVAL, State.LIVE),
        (False, 3 * INTERVAL + 1, State.DEAD),
    ],
)
def test_who_is_silent_for_three_intervals_is_dead(
    last: bool, silent_for: int, state: State
) -> None:
    (run,) = fold([report(last=last)])
    assert run.state(WINDOW + silent_for) is state


def test_the_last_report_of_a_window_counts() -> None:
    (run,) = fold([report(sequence=2, counted=TEN), report(sequence=1, counted=FIVE)])
    assert run.windows["t", 0].tally == TEN
    assert run.through_us == WINDOW


@pytest.mark.parametrize("in_order", [True, False])
def test_a_run_whose_clock_was_ahead_for_a_while_is_dead_all_the_same(in_order: bool) -> None:
    """Counts of the run since then are not taken for complete."""
    reports = [
        report(sequence=1, complete_through_us=WINDOW // 4),
        report(sequence=2, complete_through_us=10**6 * WINDOW),
        report(sequence=3, complete_through_us=WINDOW // 2),
    ]
    (run,) = fold(reports if in_order else reports[::-1])
    assert (run.through_us, run.heard_us) == (WINDOW // 2, WINDOW // 2)
    assert run.state(2 * WINDOW) is State.DEAD
    assert run.left_open("t", start_us=0, end_us=WINDOW)


def test_reports_of_a_tier_of_a_later_release_are_left_out() -> None:
    known = report(in_doubt=FIVE, last=True)
    assert known_reports([known, {**known, "tier": "of a later release"}]) == [known]


def test_windows_are_put_together_for_a_coarser_comparison() -> None:
    parts = [report(), report(window_start_us=WINDOW, counted=FIVE)]
    (run,) = (in_windows(one, "t", window_us=2 * WINDOW) for one in fold(parts))
    assert run.windows["t", 0].tally == WindowTally(15, 1_050 + 5 * WINDOW)


# -- windows ------------------------------------------------------------------------------


def test_what_a_mirror_has_appended_is_to_be_there() -> None:
    reports = [copied(Tier.MIRROR, TEN, last=True), report(last=True, counted=FIVE)]
    found = {0: WindowTally(14, 1_040)}
    (window,) = compared(reports, found, now_us=2 * WINDOW).windows
    assert (window.verdict.status, window.verdict.records) == (Status.MISSING, 1)


def test_producers_of_a_window_are_added_up() -> None:
    both = [report("a", last=True), report("b", counted=FIVE, last=True)]
    result = compared(both, {0: WindowTally(15, 1_050)}, now_us=2 * WINDOW)
    assert findings(result) == {0: Status.COMPLETE}
    assert [(one.counter, one.records) for one in result.windows[0].counters] == [
        ("of a", 10), ("of b", 5)
    ]  # fmt: skip
    assert (result.findings, result.not_yet_known, result.dead) == (0, 0, ())


def test_a_producer_that_died_leaves_a_gap_where_it_died() -> None:
    half = WINDOW + 100 * S
    reports = [
        report("a", complete_through_us=half),
        report("a", sequence=2, complete_through_us=half, window_start_us=WINDOW, counted=FIVE),
        report("b", window_start_us=2 * WINDOW, complete_through_us=3 * WINDOW, last=True),
    ]
    found = {0: TEN, WINDOW: FIVE, 2 * WINDOW: TEN}
    result = compared(reports, found, now_us=3 * WINDOW)
    assert findings(result)[WINDOW] is Status.GAP
    assert findings(result)[2 * WINDOW] is Status.COMPLETE
    assert [run.counter for run in result.dead] == ["of a"]


def test_who_died_long_before_is_no_matter_of_these_windows() -> None:
    old = report("old", complete_through_us=10 * S, window_start_us=0)
    new = report("new", window_start_us=3 * WINDOW, complete_through_us=4 * WINDOW, last=True)
    span = AuditSpan(since_us=2 * WINDOW, until_us=4 * WINDOW, now_us=4 * WINDOW, window_us=WINDOW)
    result = compare("t", fold([old, new]), TopicCounts(4 * WINDOW, {3 * WINDOW: TEN}), span)
    assert findings(result) == {3 * WINDOW: Status.COMPLETE}
    assert result.dead == ()


def test_a_producer_that_only_said_hello_leaves_a_gap() -> None:
    born = report(
        topic=None, window_start_us=None, counted=WindowTally(), complete_through_us=10 * S
    )
    result = compared([born], {}, now_us=2 * WINDOW)
    assert findings(result) == {0: Status.GAP}
    opened: CounterReport = {**born, "topic": "t"}
    assert findings(compared([opened], {0: TEN}, now_us=2 * WINDOW)) == {0: Status.GAP}
    of_another: CounterReport = {**born, "topic": "u"}
    assert findings(compared([of_another], {}, now_us=2 * WINDOW)) == {}
    ended: CounterReport = {**born, "last": True}
    assert findings(compared([ended], {}, now_us=2 * WINDOW)) == {}


def test_a_dead_producer_of_old_records_leaves_their_window_open() -> None:
    late = report(complete_through_us=100 * WINDOW)  # still counting records of the first window
    result = compared([late], {0: TEN}, now_us=102 * WINDOW)
    assert findings(result)[0] is Status.GAP


def test_a_window_is_not_known_before_all_who_live_have_reported_it() -> None:
    early = report(complete_through_us=WINDOW - 1)
    assert findings(compared([early], {0: TEN}, now_us=WINDOW)) == {0: Status.NOT_YET}
    assert findings(compared([report()], {0: TEN}, now_us=WINDOW)) == {0: Status.COMPLETE}


def test_more_than_was_counted_waits_for_the_next_report() -> None:
    more = {0: WindowTally(11, 1_040)}
    waiting = compared([report()], more, now_us=WINDOW + S)
    assert findings(waiting) == {0: Status.NOT_YET}
    assert waiting.awaits_report
    again = report(sequence=2, complete_through_us=WINDOW + 2 * S)
    decided = compared([again], more, now_us=WINDOW + 3 * S, read_at_us=WINDOW + S)
    assert findings(decided) == {0: Status.TOO_MANY}
    assert not decided.awaits_report


def test_who_waits_for_acknowledgements_lives_and_has_more_to_say() -> None:
    """The run has reported of late, and has records under way since the window ended."""
    waiting = report(complete_through_us=WINDOW, reported_at_us=2 * WINDOW)
    now_us = 2 * WINDOW + S
    more = compared([waiting], {0: WindowTally(11, 1_040)}, now_us=now_us)
    assert (findings(more), more.dead) == ({0: Status.NOT_YET}, ())
    assert findings(compared([waiting], {0: TEN}, now_us=now_us)) == {0: Status.COMPLETE}
    sooner: CounterReport = {**waiting, "complete_through": WINDOW - 1}
    assert findings(compared([sooner], {0: TEN}, now_us=now_us)) == {0: Status.NOT_YET}
    dead = compared([sooner], {0: TEN}, now_us=3 * WINDOW)
    assert findings(dead) == {0: Status.GAP, WINDOW: Status.GAP, 2 * WINDOW: Status.GAP}


def test_what_was_counted_after_the_reading_is_not_missed() -> None:
    later = report(complete_through_us=WINDOW + 2 * S)
    result = compared([later], {0: FIVE}, now_us=WINDOW + 3 * S, read_at_us=WINDOW + S)
    assert findings(result) == {0: Status.NOT_YET}


def test_windows_that_retention_reached_are_not_compared() -> None:
    result = compared([report(last=True)], {}, now_us=2 * WINDOW, expired_before_us=1)
    assert findings(result) == {0: Status.EXPIRED}
    assert result.findings == 0


# -- copies -------------------------------------------------------------------------------


def copied(tier: Tier, tally: WindowTally, **fields: Any) -> CounterReport:
    return report(f"{tier.value} run", tier=tier, counter="x", counted=tally, **fields)


@pytest.mark.parametrize("tier", [Tier.LOAD, Tier.CONSUMER])
@pytest.mark.parametrize(
    ("tally", "fields", "status"),
    [
        (TEN, {"last": True}, Status.COMPLETE),
        (FIVE, {"last": True}, Status.MISSING),
        (FIVE, {"last": True, "complete_through_us": WINDOW - 1}, Status.NOT_YET),
        (FIVE, {}, Status.NOT_YET),  # lives
        (FIVE, {"interval_us": 1}, Status.GAP),  # died
        (WindowTally(11, 1_040), {"last": True}, Status.TOO_MANY),
    ],
)
def test_copies_are_compared_with_the_topic(
    tier: Tier, tally: WindowTally, fields: dict[str, Any], status: Status
) -> None:
    reports = [report(last=True), copied(tier, tally, **fields)]
    result = compared(reports, {0: TEN}, now_us=WINDOW + S)
    (window,) = result.windows
    assert window.verdict.status is Status.COMPLETE  # of the topic
    assert [copy.verdict.status for copy in window.copies] == [status]


@pytest.mark.parametrize(
    ("there", "not_yet", "status"),
    [
        (TEN, WindowTally(), Status.COMPLETE),
        (FIVE, WindowTally(5, 950), Status.NOT_YET),
        (WindowTally(4, 40), WindowTally(5, 950), Status.MISSING),
        (WindowTally(6, 60), WindowTally(5, 950), Status.TOO_MANY),
    ],
)
@pytest.mark.parametrize("expired", [None, 1])
def test_a_place_that_was_read_lacks_only_what_is_not_due(
    there: WindowTally, not_yet: WindowTally, status: Status, expired: int | None
) -> None:
    place = Copy(name="w", counts=TopicCounts(0, {0: there}), not_yet={0: not_yet})
    result = compared(
        [report(last=True)],
        {0: TEN} if expired is None else {0: not_yet},
        now_us=2 * WINDOW,
        copies=[place],
        expired_before_us=expired,
    )
    assert result.windows[0].copies[0].verdict.status is status


@pytest.mark.parametrize(
    ("of_topic", "from_us", "found"),
    [
        (None, 0, [Status.TOO_MANY]),
        ({0: WindowTally(11, 1_040)}, 0, [Status.COMPLETE]),  # one came after the audit had read
        ({0: WindowTally(11, 1_040)}, 1, []),
    ],
)
def test_a_place_may_have_read_the_topic_for_itself(
    of_topic: dict[int, WindowTally] | None, from_us: int, found: list[Status]
) -> None:
    there = TopicCounts(0, {0: WindowTally(11, 1_040)})
    place = Copy(name="m", counts=there, topic=of_topic, from_us=from_us)
    result = compared([report(last=True)], {0: TEN}, now_us=2 * WINDOW, copies=[place])
    assert [copy.verdict.status for copy in result.windows[0].copies] == found

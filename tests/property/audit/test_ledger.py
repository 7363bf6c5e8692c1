"""Whatever way reports take, and however often publishing fails, the ledger knows what was counted
and never more than was promised."""

from __future__ import annotations

import itertools
from collections import Counter

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_logbus.audit.counts import WindowTally, add, tally_times
from spark_logbus.audit.ledger import fold, in_windows
from spark_logbus.audit.report import CounterReport, Tier
from spark_logbus.audit.run import Run
from tests.property.examples import examples

WINDOW = 1_000
TIMES = st.integers(-3 * WINDOW, 5 * WINDOW)
# What happens to a run: records of a topic are counted, or are in doubt; or a draft is published:
# it arrives; it fails; or it arrives and is thought to have failed.
COUNTED = st.tuples(
    st.sampled_from(["counted", "doubted"]), st.sampled_from("ab"), st.lists(TIMES, min_size=1)
)
DRAFTED = st.tuples(st.sampled_from(["arrives", "fails", "arrives unseen"]))
STEPS = st.lists(st.one_of(COUNTED, DRAFTED), max_size=30)

DEFAULT = settings(max_examples=examples(150))


def tallies_by_hand(times: list[int]) -> dict[int, WindowTally]:
    counts = Counter(at // WINDOW * WINDOW for at in times)
    sums = Counter[int]()
    for at in times:
        sums[at // WINDOW * WINDOW] += at % WINDOW
    return {start: WindowTally(count, sums[start]) for start, count in counts.items()}


@DEFAULT
@given(st.lists(TIMES))
def test_columns_are_counted_as_records_are(times: list[int]) -> None:
    assert tally_times(pa.array(times, pa.int64()), window_us=WINDOW) == tallies_by_hand(times)


@DEFAULT
@given(STEPS, st.data())
def test_reports_in_any_order_and_number_fold_to_what_was_counted(
    steps: list[tuple[object, ...]], data: st.DataObject
) -> None:
    run = Run(tier=Tier.PRODUCER, counter="c", run="r", interval_us=1, window_us=WINDOW)
    clock = itertools.count(1)
    arrived: list[CounterReport] = []
    truth: dict[tuple[str, str], list[int]] = {}
    for step in steps:
        match step:
            case (("counted" | "doubted") as kind, str(topic), list(times)):
                truth.setdefault((kind, topic), []).extend(times)
                tallies = tally_times(pa.array(times, pa.int64()), window_us=WINDOW)
                assert run.add(topic, tallies, in_doubt=kind == "doubted")
            case (fate,):
                draft = run.draft(now_us=next(clock))
                if fate != "fails":
                    arrived += draft.reports
                if fate != "arrives":
                    run.put_back(draft)
    arrived += run.draft(now_us=next(clock), last=True).reports
    assert not run.add("a", {0: WindowTally(1, 0)})
    repeated = arrived + data.draw(st.lists(st.sampled_from(arrived)))
    (record,) = fold(data.draw(st.permutations(repeated)))
    assert record.closed
    for topic in "ab":
        for kind in ("counted", "doubted"):
            expected = tallies_by_hand(truth.get((kind, topic), []))
            found = {
                start: window.tally if kind == "counted" else window.in_doubt
                for (of, start), window in record.windows.items()
                if of == topic
            }
            assert {start: tally for start, tally in found.items() if tally.records} == expected
        wide = in_windows(record, topic, window_us=4 * WINDOW)
        total: dict[int, WindowTally] = {}
        for (of, start), one in record.windows.items():
            first = start // (4 * WINDOW) * 4 * WINDOW
            if of == topic:
                add(total, {first: one.tally.moved(start - first)})
        assert {start: one.tally for (_, start), one in wide.windows.items()} == total


@DEFAULT
@given(STEPS)
def test_what_is_promised_to_be_complete_has_arrived(steps: list[tuple[object, ...]]) -> None:
    """A run that dies at any time has reported all up to the time that it has promised."""
    run = Run(tier=Tier.PRODUCER, counter="c", run="r", interval_us=1, window_us=WINDOW)
    arrived: list[CounterReport] = []
    counted_by: list[tuple[int, list[int]]] = [(0, [])]  # at each moment, all so far
    for now_us, step in enumerate(steps, start=1):
        match step:
            case (("counted" | "doubted"), str(), list(times)):
                run.add("a", tally_times(pa.array(times, pa.int64()), window_us=WINDOW))
                counted_by.append((now_us, counted_by[-1][1] + times))
            case (fate,):
                draft = run.draft(now_us=now_us)
                if fate != "fails":
                    arrived += draft.reports
                if fate != "arrives":
                    run.put_back(draft)
    for record in fold(arrived):
        known = [times for at, times in counted_by if at <= record.through_us][-1]
        found = {start: window.tally for (_, start), window in record.windows.items()}
        assert found == tallies_by_hand(known)

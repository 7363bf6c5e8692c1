"""The window that is read again, as tables of cases."""

from __future__ import annotations

import pytest

from spark_logbus.audit.warehouse import Loads
from spark_logbus.load import NotInLogError
from spark_logbus.load.files.target import existing_rows
from spark_logbus.load.plan.ranges import LoadSource
from spark_logbus.load.plan.window import Window, WindowBounds, gone_since, plan_window
from spark_logbus.load.tally import NONE, RecordTally
from spark_logbus.model import OffsetRange, TopicPartition
from spark_logbus.offsets.snapshot import Snapshot, Span

P0 = TopicPartition("t", 0)
P1 = TopicPartition("t", 1)


def snapshot(start: int = 0) -> Snapshot:
    return Snapshot({"t": "id"}, {P0: Span(start, 100), P1: Span(0, 100)})


def asked(start: int, end: int, *, since_us: int | None = None) -> WindowBounds:
    return WindowBounds({P0: start, P1: 0}, {P0: end, P1: 0}, since_us)


@pytest.mark.parametrize(
    ("loaded", "log_start", "window", "expected"),
    [
        ([(0, 50)], 0, (10, 20), [(10, 20)]),
        ([(0, 50)], 0, (0, 100), [(0, 50)]),  # never beyond what was loaded
        ([(0, 30), (30, 50)], 0, (10, 40), [(10, 40)]),  # of two loads
        ([(20, 50)], 0, (0, 100), [(20, 50)]),  # the first began later
        ([(0, 50)], 0, (50, 100), []),
        ([(0, 50)], 0, (30, 20), []),
        ([], 0, (0, 100), []),
        ([(0, 50)], 10, (10, 40), [(10, 40)]),
        ([(0, 20), (40, 50)], 40, (30, 100), [(40, 50)]),  # the gap was never loaded
    ],
)
def test_a_window_is_what_was_loaded_of_it(
    loaded: list[tuple[int, int]],
    log_start: int,
    window: tuple[int, int],
    expected: list[tuple[int, int]],
) -> None:
    loads = Loads({0: loaded})
    ranges = plan_window(snapshot(log_start), "t", loads, asked(*window))
    assert [(r.start, r.end) for r in ranges] == expected


def test_partitions_have_windows_of_their_own() -> None:
    loads = Loads({0: [(0, 50)], 1: [(0, 7)]})
    ranges = plan_window(snapshot(), "t", loads, WindowBounds({P0: 40, P1: 2}, {P0: 99, P1: 5}))
    assert [(r.topic_partition, r.start, r.end) for r in ranges] == [(P0, 40, 50), (P1, 2, 5)]


@pytest.mark.parametrize(
    ("loaded", "window", "gone"),
    [
        ([(0, 50)], (5, 20), "5 to 9"),
        ([(0, 50)], (5, 8), "5 to 7"),  # all of it
        ([(0, 8), (10, 50)], (5, 20), "5 to 7"),
    ],
)
def test_a_window_that_the_log_no_longer_has_is_refused(
    loaded: list[tuple[int, int]], window: tuple[int, int], gone: str
) -> None:
    expected = (
        rf"t-0: records of offsets {gone} were loaded and are no longer in the log; reprocessing "
        r"is possible from offset 10 on.* --from '\{\"t\": \{\"0\": 10, \"1\": 0\}\}'"
    )
    with pytest.raises(NotInLogError, match=expected):
        plan_window(snapshot(10), "t", Loads({0: loaded}), asked(*window))


@pytest.mark.parametrize(
    ("found", "end", "gone"),
    [
        ((5, None), 100, "5 to 9"),
        ((5, 8), 100, "5 to 7"),
        ((5, 5), 100, None),  # all of a later time than the window's
        ((None, None), 100, None),
        ((5, None), 7, "5 to 6"),
    ],
)
def test_records_of_a_time_that_the_log_no_longer_has_are_refused(
    found: tuple[int | None, int | None], end: int, gone: str | None
) -> None:
    window = Window(LoadSource([], "id", False, False), asked(10, end, since_us=7), {P0: 10})
    if gone is None:
        gone_since("t", window, {P0: found})
    else:
        with pytest.raises(NotInLogError, match=f"offsets {gone} were .* from offset 10 on"):
            gone_since("t", window, {P0: found})


@pytest.mark.parametrize(
    ("read", "held", "proven"),
    [
        (RecordTally(3, 9), RecordTally(2, 8), True),  # each offset, whatever is held
        (RecordTally(2, 8), RecordTally(2, 8), True),  # compacted since before it was loaded
        (RecordTally(2, 8), RecordTally(2, 9), False),  # others
        (RecordTally(2, 8), NONE, False),
    ],
)
def test_what_is_read_again_proves_that_nothing_is_missing(
    read: RecordTally, held: RecordTally, proven: bool
) -> None:
    source = LoadSource([OffsetRange(P0, 4, 6), OffsetRange(P1, 0, 1)], "id", True, False)
    assert Window(source, asked(4, 6), {}).all_read(read, held) is proven


def test_files_of_a_window_are_named_and_their_records_added_up() -> None:
    found = existing_rows(
        {"b": RecordTally(2, 3), "a": RecordTally(1, 5)}, {"_logbus/d": RecordTally(4, 6)}
    )
    assert (found.names, found.records, found.dead_letters) == (("a", "b", "_logbus/d"), 3, 4)
    assert found.tally == RecordTally(7, 3 ^ 5 ^ 6)

"""Counting by window: the same by columns as by hand, and in coarser windows."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_logbus.audit.counts import (
    MODULUS,
    WindowTally,
    add,
    common_window_us,
    tally_times,
    time_of,
)
from spark_logbus.errors import ConfigError

MINUTE = 60_000_000
NOW = 1_700_000_000_000_000 // MINUTE * MINUTE
US = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([], {}),
        ([NOW], {NOW: WindowTally(1, 0)}),
        ([NOW, NOW + MINUTE - 1], {NOW: WindowTally(2, MINUTE - 1)}),
        (
            [NOW + 3, NOW + MINUTE + 5, NOW + 4],
            {NOW: WindowTally(2, 7), NOW + MINUTE: WindowTally(1, 5)},
        ),
        ([-1, 0, 1], {-MINUTE: WindowTally(1, MINUTE - 1), 0: WindowTally(2, 1)}),
        ([NOW, NOW + 9 * MINUTE], {NOW: WindowTally(1, 0), NOW + 9 * MINUTE: WindowTally(1, 0)}),
    ],
)
@pytest.mark.parametrize("kind", [pa.int64(), US])
def test_each_record_counts_in_its_window(
    times: list[int], expected: dict[int, WindowTally], kind: pa.DataType
) -> None:
    assert tally_times(pa.array(times, pa.int64()).cast(kind), window_us=MINUTE) == expected


def test_sums_of_thousands_of_times_do_not_wrap() -> None:
    times = pa.array([NOW + 59_000_000] * 10_000, US)  # their plain sum exceeds 64 bits
    assert tally_times(times, window_us=MINUTE) == {NOW: WindowTally(10_000, 590_000_000_000)}


def test_coarser_windows_hold_the_same_records() -> None:
    times = pa.array([NOW + number * 7_000_001 for number in range(100)], US)
    fine, wide = tally_times(times, window_us=MINUTE), tally_times(times, window_us=5 * MINUTE)
    total: dict[int, WindowTally] = {}
    for start, tally in fine.items():
        first = start // (5 * MINUTE) * 5 * MINUTE
        add(total, {first: tally.moved(start - first)})
    assert total == wide


def test_the_difference_of_one_record_is_its_time() -> None:
    times = [NOW + number for number in (5, 5, 11, 40)]
    whole = tally_times(pa.array(times, US), window_us=MINUTE)[NOW]
    for at in times:
        rest = list(times)
        rest.remove(at)
        fewer = tally_times(pa.array(rest, US), window_us=MINUTE)[NOW]
        assert time_of(fewer - whole, start_us=NOW, window_us=MINUTE) == at
        assert time_of(whole - fewer, start_us=NOW, window_us=MINUTE) == at
    assert time_of(WindowTally(2, 7), start_us=NOW, window_us=MINUTE) is None
    # One that is missing beside others that are exchanged has no time within the window.
    assert time_of(WindowTally(-1, MODULUS // 2), start_us=NOW, window_us=MINUTE) is None


def test_tallies_add_up_window_by_window() -> None:
    total = {0: WindowTally(1, 2)}
    add(total, {0: WindowTally(3, MODULUS - 1), MINUTE: WindowTally(1, 1)})
    assert total == {0: WindowTally(4, 1), MINUTE: WindowTally(1, 1)}


@pytest.mark.parametrize(
    ("lengths", "wanted", "found"),
    [([], None, 600_000_000), ([60, 60], None, 60), ([60, 300], None, 300), ([60], 600, 600)],
)
def test_windows_are_compared_in_the_longest(
    lengths: list[int], wanted: int | None, found: int
) -> None:
    assert common_window_us(lengths, wanted_us=wanted, topic="t") == found


@pytest.mark.parametrize(("lengths", "wanted"), [([60, 90], None), ([60], 90), ([600], 60)])
def test_windows_that_do_not_add_up_are_refused(lengths: list[int], wanted: int | None) -> None:
    with pytest.raises(ConfigError, match="add up"):
        common_window_us(lengths, wanted_us=wanted, topic="t")

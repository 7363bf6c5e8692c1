"""Copies of many places of a buffer, beside a slice of each."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_logbus.record.gather import pieces, windows

DATA = memoryview(bytes(range(250)) * 8)

places = st.lists(
    st.tuples(st.integers(0, 1_500), st.integers(0, 500)), min_size=1, max_size=40
).map(lambda found: np.array(found, np.int64))


@given(places)
def test_pieces_are_slices_one_after_the_other(found: np.ndarray) -> None:
    starts, sizes = found[:, 0], found[:, 1]
    expected = b"".join(bytes(DATA[at : at + size]) for at, size in found.tolist())
    assert bytes(pieces(DATA, starts, sizes)) == expected


@pytest.mark.parametrize(("start", "size"), [(-1, 4), (0, -1), (0, 2_001), (2_000, 1), (9_999, 0)])
def test_a_piece_outside_of_the_data_is_refused(start: int, size: int) -> None:
    with pytest.raises(IndexError, match="2000 bytes"):
        pieces(DATA, np.array([8, start]), np.array([8, size]))


def test_windows_are_slices_of_one_size() -> None:
    found = windows(DATA, np.array([1_920, 0, 8]), 80)
    assert [each.tobytes() for each in found] == [
        bytes(DATA[1_920:]),
        bytes(DATA[:80]),
        bytes(DATA[8:88]),
    ]


@pytest.mark.parametrize(("start", "size"), [(1_928, 80), (0, 2_008)])
def test_a_window_outside_of_the_data_is_refused(start: int, size: int) -> None:
    with pytest.raises(IndexError):
        windows(DATA, np.array([start]), size)

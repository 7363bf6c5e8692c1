"""Attempts of atomic writes as text and as producer ids."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_logbus.errors import InvalidRequestError
from spark_logbus.record.stage_id import MAX_ATTEMPT, StageIds, attempts_text, stage_id


@given(st.lists(st.integers(0, 60), unique=True))
def test_the_order_of_the_tasks_is_kept(attempts: list[int]) -> None:
    ids = StageIds.of(5, attempts_text(attempts))
    expected = [stage_id(5, attempt) for attempt in attempts]
    assert list(ids) == expected
    assert len(ids) == len(expected)
    known = {stage_id(5, attempt) for attempt in range(0, 90, 3)} | {7, stage_id(6, 3)}
    among = [each for each in expected if each in known]
    assert ids.among(known) == among
    assert ids.among(dict.fromkeys(list(known)[:4])) == [
        each for each in expected if each in list(known)[:4]
    ]
    assert all((each in ids) == (each in expected) for each in known)


@pytest.mark.parametrize(
    "text",
    [
        *("-1", "1-", "-", ",", "1,", "a", "1 ", "+1", "1--2", "2-1", "1-2-3", "0x1", "1e3"),
        *("٣", "²", "\0", "0-1048576", "1048576", "9" * 30, "0-" + "9" * 30),
    ],
)
def test_what_is_no_list_of_attempts_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        StageIds.of(5, text)


@pytest.mark.parametrize("text", ["3,3", "1-5,3", "3,1-5", "5-7,7-9", "0-1048575,1048575"])
def test_an_attempt_counts_once(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="twice"):
        StageIds.of(5, text)


@pytest.mark.parametrize("write", [-1, 1 << 43, 1 << 64])
def test_the_number_of_a_write_is_bounded(write: int) -> None:
    with pytest.raises(InvalidRequestError, match="number is 0 to"):
        StageIds.of(write, "1")


def test_a_million_attempts_take_the_memory_of_a_range() -> None:
    tracemalloc.start()
    try:
        ids = StageIds.of(5, f"0-{MAX_ATTEMPT}")
        assert len(ids) == MAX_ATTEMPT + 1
        assert ids.among({stage_id(5, 7): None}) == [stage_id(5, 7)]
        scattered = StageIds.of(5, ",".join(map(str, range(0, 100_000, 2))))
        _, peak = tracemalloc.get_traced_memory()
        assert scattered.among([stage_id(5, 8)]) == [stage_id(5, 8)]
        del ids
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 2_000_000
    assert peak < 40_000_000

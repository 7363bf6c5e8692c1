from __future__ import annotations

from pathlib import Path

import pytest

from spark_logbus.log import OS_FILES
from spark_logbus.log.segment.index import HEADER_SIZE, MAX_ENTRIES, NO_TIMESTAMP, Index, Summary
from spark_logbus.log.segment.index_file import read_index, read_summary

SUMMARY = Summary(100, 160, 4000, 999, 5, 6)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / f"{100:020d}.index"


def content(entries: int = 1) -> bytes:
    index = Index()
    for number in range(entries):
        index.add(offset=100 + number, position=number, max_timestamp_before_us=NO_TIMESTAMP)
    return index.encode(SUMMARY)


def test_a_whole_file(path: Path) -> None:
    path.write_bytes(content(3))
    found = read_index(OS_FILES, path)
    assert found is not None
    assert (found.summary, found.problem) == (SUMMARY, None)
    assert found.index is not None
    assert len(found.index) == 3
    assert read_summary(OS_FILES, path) == SUMMARY


def test_a_missing_file(path: Path) -> None:
    assert read_index(OS_FILES, path) is None
    assert read_summary(OS_FILES, path) is None


@pytest.mark.parametrize("length", [0, HEADER_SIZE - 1])
def test_a_cut_header(path: Path, length: int) -> None:
    path.write_bytes(content()[:length])
    found = read_index(OS_FILES, path)
    assert found is not None
    assert (found.summary, found.index) == (None, None)
    assert found.problem == "its header is damaged or cut off"
    assert read_summary(OS_FILES, path) is None


@pytest.mark.parametrize("entries", [1, MAX_ENTRIES])
def test_entries_that_are_cut_or_too_many(path: Path, entries: int) -> None:
    for data in (content(entries)[:-1], content(entries) + b"x"):
        path.write_bytes(data)
        found = read_index(OS_FILES, path)
        assert found is not None
        assert (found.summary, found.index) == (SUMMARY, None)
        assert found.problem == "its entries are damaged or cut off"
        assert read_summary(OS_FILES, path) == SUMMARY


@pytest.mark.parametrize("other", [(101, 160, 4000), (100, 161, 4000), (100, 160, 4008)])
def test_a_summary_of_another_segment_or_state(other: tuple[int, int, int]) -> None:
    assert SUMMARY.is_of(base_offset=100, end_offset=160, size_bytes=4000)
    base, end, size = other
    assert not SUMMARY.is_of(base_offset=base, end_offset=end, size_bytes=size)

from __future__ import annotations

import pytest

from spark_logbus.log.segment.index import (
    ENTRY_SIZE,
    HEADER_SIZE,
    NO_TIMESTAMP,
    Index,
    Summary,
    decode_summary,
)

SUMMARY = Summary(100, 160, 4000, 999, 5, 6)


def index() -> Index:
    found = Index()
    found.add(offset=100, position=0, max_timestamp_before_us=NO_TIMESTAMP)
    found.add(offset=120, position=1000, max_timestamp_before_us=50)
    found.add(offset=140, position=3000, max_timestamp_before_us=50)
    found.add(offset=150, position=3500, max_timestamp_before_us=90)
    return found


@pytest.mark.parametrize(
    ("offset", "entry"), [(100, (100, 0)), (119, (100, 0)), (120, (120, 1000)), (999, (150, 3500))]
)
def test_by_offset(offset: int, entry: tuple[int, int]) -> None:
    assert index().at_offset(offset) == entry


@pytest.mark.parametrize(
    ("position", "entry"), [(0, (100, 0)), (2999, (120, 1000)), (3000, (140, 3000))]
)
def test_by_position(position: int, entry: tuple[int, int]) -> None:
    assert index().at_position(position) == entry


@pytest.mark.parametrize(
    ("timestamp", "entry"),
    [(-5, (100, 0)), (50, (100, 0)), (51, (140, 3000)), (90, (140, 3000)), (91, (150, 3500))],
)
def test_by_timestamp_finds_the_entry_before(timestamp: int, entry: tuple[int, int]) -> None:
    assert index().at_timestamp(timestamp) == entry


def test_from_offset_and_from_position() -> None:
    assert index().from_offset(121) == (140, 3000)
    assert index().from_offset(151) is None
    assert index().from_position(0) == (100, 0)
    assert index().from_position(3001) == (150, 3500)
    assert index().from_position(3501) is None


def test_a_file_round_trips() -> None:
    data = index().encode(SUMMARY)
    assert len(data) == HEADER_SIZE + 4 * ENTRY_SIZE
    assert decode_summary(data[:HEADER_SIZE]) == SUMMARY
    found = Index.decode(data, SUMMARY)
    assert found is not None
    assert found.encode(SUMMARY) == data
    assert found.at_timestamp(51) == (140, 3000)


def test_every_flipped_bit_and_every_truncation_is_noticed() -> None:
    data = index().encode(SUMMARY)
    for byte in range(len(data)):
        harmed = bytearray(data)
        harmed[byte] ^= 1 << byte % 8
        assert Index.decode(bytes(harmed), SUMMARY) is None, byte
        assert Index.decode(data[:byte], SUMMARY) is None
    assert Index.decode(data + bytes(ENTRY_SIZE), SUMMARY) is None


def test_an_index_of_another_state_of_the_segment_is_stale() -> None:
    assert Index.decode(index().encode(SUMMARY), Summary(100, 160, 4096, 999, 5, 6)) is None

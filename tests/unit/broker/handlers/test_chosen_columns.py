from __future__ import annotations

import struct
from dataclasses import dataclass

import pytest

from spark_logbus.broker.handlers import chosen_columns
from spark_logbus.broker.handlers.chosen_columns import chosen_slices
from spark_logbus.log import LogSlice
from spark_logbus.protocol import ColumnChoice
from spark_logbus.record import format as fmt
from spark_logbus.record.chunks import ChunkError, chosen_chunks, read_directory
from tests.builders.typed import flights, typed_record_batch

NUMBER = ColumnChoice(["timestamp"], {1: [1]})


@dataclass(frozen=True)
class Held:
    """A file's bytes."""

    data: bytes

    def pread(self, size: int, position: int) -> bytes:
        return self.data[position : position + size]


def slice_of(data: bytes | bytearray, *, length: int | None = None) -> LogSlice:
    return LogSlice(Held(bytes(data)), 0, len(data) if length is None else length)  # type: ignore[arg-type]


def record_batches(*counts: int) -> bytearray:
    data, offset = bytearray(), 0
    for count in counts:
        one = bytearray(typed_record_batch(flights(offset, count)))
        fmt.STAMPED_OFFSET.pack_into(one, 0, offset)
        data += one
        offset += count
    return data


def places(slices: list[LogSlice]) -> list[tuple[int, int]]:
    return [(each.position, each.length) for each in slices]


def chosen(data: bytes | bytearray, choice: ColumnChoice) -> list[tuple[int, int]]:
    return places(chosen_slices(slice_of(data), choice, max_bytes=1 << 20))


@pytest.mark.parametrize("claimed", [8, 1 << 20, 1 << 31])
def test_a_damaged_length_never_leads_out_of_the_slice(claimed: int) -> None:
    data = record_batches(50, 50)
    (length,) = struct.unpack_from("<I", data, 8)
    second = length + 12
    struct.pack_into("<I", data, second + 8, (length + claimed) & ~7 | 4)
    assert sum(length for _, length in chosen(data, NUMBER)) <= len(data)
    [*_, (start, size)] = chosen(data, NUMBER)
    assert start + size == len(data), "who reads it finds out that it is damaged"


def test_places_that_make_no_sense_choose_nothing_more() -> None:
    data = record_batches(50, 50)
    for odd in ([1, 1, 1], [-5, 1], [1 << 62, 1], [4, 1, -1, 99, 1][1:]):
        assert chosen(data, ColumnChoice(["timestamp"], {1: odd})) == chosen(data, NUMBER)
    backwards = ColumnChoice(["nothing", "timestamp"], {1: [3, 1, 0], 7: [0]}, min_bytes=-9)
    assert chosen(data, backwards) == chosen(data, ColumnChoice(["timestamp"], {1: [0, 1, 3]}))


def test_one_fetch_finds_the_ends_of_so_many_small_record_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chosen_columns, "_MOST_RECORD_BATCHES", 3)
    data = record_batches(1, 1, 1, 1, 1)
    small = ColumnChoice([], {1: [0]}, min_bytes=1 << 20)
    assert chosen(data, small) == [(0, len(record_batches(1, 1, 1)))]


def test_fewer_columns_than_the_attributes_promise_are_those_that_there_are() -> None:
    attributes = fmt.HAS_KEY | fmt.HAS_OFFSET_DELTA | fmt.HAS_TOMBSTONES
    assert chosen_chunks(attributes, 1, columns=["timestamp", "key"], fields=[0]) == [0]
    assert chosen_chunks(attributes, 2, columns=[], fields=None) == []


@pytest.mark.parametrize("length", [0, fmt.HEADER_SIZE, fmt.CHUNKS_AT - 1])
def test_a_directory_that_did_not_come_is_told(length: int) -> None:
    beginning = bytes(typed_record_batch(flights(0, 1)))[:length]
    with pytest.raises(ChunkError, match=f"only {length} bytes"):
        read_directory(beginning, 4096)

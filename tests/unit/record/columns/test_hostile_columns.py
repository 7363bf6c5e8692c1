"""Record batches of columns that lie, under right checksums: a typed error, in bounded memory,
never a crash."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

from spark_logbus.errors import CorruptRecordBatchError
from spark_logbus.model import Compression
from spark_logbus.record import format as fmt
from spark_logbus.record import verify
from spark_logbus.record.chunks import body_start_of, read_directory
from spark_logbus.record.columns.decoder import decode_columns, verify_selected
from spark_logbus.record.columns.encoder import encode_columns
from spark_logbus.record.columns.layout import ALL, ColumnSelection, column_layout
from spark_logbus.record.rows.arrow import TIMESTAMP
from spark_logbus.record.rows.ipc import MessageForm, message_form
from tests.builders.typed import cut, reseal_columns

NOTHING = ColumnSelection(frozenset(), ())


def encoded(
    values: pa.Array, *, compression: Compression = Compression.NONE, **others: pa.Array
) -> bytearray:
    times = pa.array([1_000 + 2 * number for number in range(len(values))], TIMESTAMP)
    arrow_batch = pa.record_batch({"timestamp": times, "value": values, **others})
    return bytearray(encode_columns(arrow_batch, schema_id=7, compression=compression))


def records(*fields: tuple[pa.Field, list[Any]]) -> pa.Array:
    arrays = [pa.array(values, field.type) for field, values in fields]
    return pa.StructArray.from_arrays(arrays, fields=[field for field, _ in fields])


def optional(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind)


def required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


def refused(
    forged: bytearray, value_type: pa.DataType, why: str, selection: ColumnSelection = ALL
) -> None:
    header = verify(reseal_columns(forged))
    with pytest.raises(CorruptRecordBatchError, match=why):
        decode_columns(header, forged, value_type, selection=selection)
    part = cut(bytes(forged), selection)
    verify_selected(header, part, selection)
    with pytest.raises(CorruptRecordBatchError, match=why):
        decode_columns(header, part, value_type, selection=selection, is_selected=True)


def set_attribute(record_batch: bytearray, bit: int) -> bytearray:
    attributes = fmt.ATTRIBUTES.unpack_from(record_batch, fmt.ATTRIBUTES_AT)[0]
    fmt.ATTRIBUTES.pack_into(record_batch, fmt.ATTRIBUTES_AT, attributes | bit)
    return record_batch


def form_of(record_batch: bytearray, value_type: pa.DataType) -> tuple[int, MessageForm]:
    """Position of the Arrow message, and places of its numbers."""
    attributes = fmt.ATTRIBUTES.unpack_from(record_batch, fmt.ATTRIBUTES_AT)[0]
    room = column_layout(value_type, attributes).room
    form = message_form(memoryview(record_batch)[room:])
    assert form is not None
    return room, form


# -- values that the schema does not allow --------------------------------------------------

PAIR = pa.struct([optional("x", pa.int32())])
STRICT_PAIR = pa.struct([required("x", pa.int32())])
NESTED = [
    (PAIR, [{"x": 1}, {"x": None}], STRICT_PAIR, "a.x"),
    (pa.list_(pa.int32()), [[1], [2, None]], pa.list_(required("item", pa.int32())), "a.item"),
    (
        pa.list_(PAIR),
        [[{"x": 1}], [{"x": None}]],
        pa.list_(required("item", STRICT_PAIR)),
        "a.item.x",
    ),
    (
        pa.map_(pa.string(), pa.int32()),
        [[("k", 1)], [("k", None)]],
        pa.map_(pa.string(), required("value", pa.int32())),
        "a.value",
    ),
]


@pytest.mark.parametrize(("loose", "values", "strict", "place"), NESTED)
def test_a_null_inside_of_a_value_that_cannot_be_null(
    loose: pa.DataType, values: list[Any], strict: pa.DataType, place: str
) -> None:
    forged = encoded(records((optional("a", loose), values)))
    refused(forged, pa.struct([required("a", strict)]), f"the field {place} is null")


@pytest.mark.parametrize(("loose", "values", "strict", "place"), NESTED)
def test_values_without_nulls_are_accepted_at_every_depth(
    loose: pa.DataType, values: list[Any], strict: pa.DataType, place: str
) -> None:
    honest = encoded(records((optional("a", loose), [values[0], None, values[0]])))
    found = decode_columns(verify(honest), honest, pa.struct([optional("a", strict)]))
    assert found["value"].field("a").to_pylist() == [values[0], None, values[0]]


def test_a_null_in_a_field_that_cannot_be_null() -> None:
    forged = encoded(records((optional("a", pa.int32()), [1, None])))
    refused(forged, pa.struct([required("a", pa.int32())]), "the field a is null, which its schema")


def test_a_null_in_a_field_that_cannot_be_null_beside_tombstones() -> None:
    values = pa.array([{"a": 1}, None, {"a": None}], pa.struct([optional("a", pa.int32())]))
    refused(encoded(values), pa.struct([required("a", pa.int32())]), "the field a is null")
    honest = encoded(values.slice(0, 2))
    found = decode_columns(verify(honest), honest, pa.struct([required("a", pa.int32())]))
    assert found["value"].to_pylist() == [{"a": 1}, None]


def test_a_text_that_is_not_utf8() -> None:
    forged = encoded(records((optional("a", pa.binary()), [b"text", b"\xff\xfe"])))
    refused(forged, pa.struct([optional("a", pa.string())]), "UTF8")


@pytest.mark.parametrize(
    ("stored", "value", "read"),
    [
        (pa.int64(), 86_400_000_000, pa.time64("us")),
        (pa.int64(), -1, pa.time64("us")),
        (pa.decimal128(38), 10**20, pa.decimal128(9)),
    ],
)
def test_a_value_beyond_its_type(stored: pa.DataType, value: int, read: pa.DataType) -> None:
    forged = encoded(records((optional("a", stored), [value])))
    refused(forged, pa.struct([optional("a", read)]), "cannot be decoded")


# -- columns beside the value ---------------------------------------------------------------

A = pa.struct([optional("a", pa.int32())])


@pytest.mark.parametrize("deltas", [[0, 0], [5, 1], [-1, 5], [5, 5]])
def test_offset_deltas_that_do_not_rise(deltas: list[int]) -> None:
    values = pa.array([{"a": 1}, {"a": 2}], A)
    forged = encoded(values, offset_delta=pa.array(deltas, pa.int32()))
    struct.pack_into("<I", forged, 36, 5)
    refused(forged, A, "do not rise")
    refused(forged, A, "do not rise", NOTHING)


def test_an_offset_delta_behind_the_last() -> None:
    values = pa.array([{"a": 1}, {"a": 2}], A)
    forged = encoded(values, offset_delta=pa.array([0, 6], pa.int32()))
    struct.pack_into("<I", forged, 36, 5)
    refused(forged, A, "beyond the last")


def test_tombstones_that_are_null() -> None:
    """The attribute turns the first field into the column of tombstones."""
    fields = ((optional("t", pa.bool_()), [True, None]), (optional("a", pa.int32()), [1, 2]))
    forged = set_attribute(encoded(records(*fields)), fmt.HAS_TOMBSTONES)
    refused(forged, A, "a record has no tombstone")
    refused(forged, A, "a record has no tombstone", NOTHING)


def test_columns_beside_tombstones_are_read_without_the_schema() -> None:
    honest = encoded(pa.array([{"a": 1}, None], A), key=pa.array([b"k", None]))
    found = decode_columns(verify(honest), honest, None)
    assert list(found) == ["timestamp", "key", "value"]
    assert found["key"].to_pylist() == [b"k", None]
    assert found["value"].to_pylist() == [{}, None]


def test_tombstones_of_values_that_are_no_records() -> None:
    fields = ((optional("t", pa.bool_()), [True, False]), (optional("a", pa.int32()), [1, 2]))
    forged = set_attribute(encoded(records(*fields)), fmt.HAS_TOMBSTONES)
    refused(forged, pa.int32(), "column of tombstones, and its values are no records")


def test_a_timestamp_that_is_null() -> None:
    forged = encoded(pa.array([{"a": 1}], A))
    room, form = form_of(forged, A)
    nodes, buffers = room + 8 * form.nodes.start, room + 8 * form.buffers.start
    struct.pack_into("<qq", forged, nodes, 1, 1)  # one record, one null
    struct.pack_into("<qq", forged, buffers, 0, 8)  # its even time says that it is not there
    refused(forged, A, "a record has no timestamp")


# -- numbers that lie -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "read"),
    [
        (pa.int32(), pa.int64()),
        (pa.int32(), pa.string()),
        (pa.string(), pa.int32()),
        (pa.int32(), pa.struct([optional("x", pa.int32())])),
        (pa.struct([optional("x", pa.int32())]), pa.int32()),
        (pa.list_(pa.int32()), pa.list_(pa.list_(pa.int32()))),
        (pa.null(), pa.int32()),
        (pa.int32(), pa.null()),
        (pa.bool_(), pa.int32()),
    ],
)
def test_another_schema_with_as_many_columns(stored: pa.DataType, read: pa.DataType) -> None:
    values = pa.nulls(200, stored) if stored == pa.null() else pa.array([None] * 200, stored)
    forged = encoded(records((optional("a", stored), values.to_pylist())))
    refused(forged, pa.struct([optional("a", read)]), "cannot be decoded as columns of schema 7")


def test_another_schema_with_more_columns() -> None:
    forged = encoded(pa.array([{"a": 1}], A))
    more = pa.struct([*A, optional("b", pa.int32())])
    header = verify(forged)
    with pytest.raises(CorruptRecordBatchError, match="it has 2 columns, its schema 3"):
        decode_columns(header, forged, more)


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
def test_records_that_take_no_bytes_are_bounded_by_their_timestamps(
    compression: Compression,
) -> None:
    count = 0xFFFF_FFFF
    forged = encoded(records((optional("a", pa.null()), [None] * 60)), compression=compression)
    kind = pa.struct([optional("a", pa.null())])
    room, form = form_of(forged, kind)
    struct.pack_into("<II", forged, 32, count, count - 1)
    struct.pack_into("<q", forged, room + 8 * form.record_count, count)
    for node in range(0, len(form.nodes), 2):
        struct.pack_into("<q", forged, room + 8 * form.nodes[node], count)
    refused(forged, kind, "no room for the timestamps of 4294967295", NOTHING)
    refused(forged, kind, "no room for the timestamps", ColumnSelection(frozenset(), (0,)))


@pytest.mark.parametrize("compression", Compression)
def test_a_buffer_in_the_bytes_of_another_column_is_refused(compression: Compression) -> None:
    kind = pa.struct([required("a", pa.string()), required("b", pa.string())])
    honest = encoded(
        pa.array([{"a": f"a{i}", "b": f"b{i}"} for i in range(60)], kind), compression=compression
    )
    room, form = form_of(honest, kind)
    size = len(honest) - body_start_of(honest)
    directory = read_directory(honest, len(honest))
    layout = column_layout(kind, 0)
    for number, column in enumerate(layout.columns):
        own = range(directory.bounds[number], directory.bounds[number + 1])
        for buffer in column.buffers:
            at = room + 8 * form.buffers[2 * buffer]
            for place in range(0, size, 64):
                if place + directory.body_start in own:
                    continue
                forged = bytearray(honest)
                struct.pack_into("<qq", forged, at, place, 8)
                refused(forged, kind, "points outside of its bytes")


@pytest.mark.parametrize("place", [(0, -8), (-8, 8), (1 << 62, 1 << 62), (4, 4), (0, 1 << 40)])
def test_a_buffer_outside_of_everything_is_refused(place: tuple[int, int]) -> None:
    honest = encoded(pa.array([{"a": 1}, {"a": 2}], A))
    room, form = form_of(honest, A)
    for at in form.buffers[::2]:
        forged = bytearray(honest)
        struct.pack_into("<qq", forged, room + 8 * at, *place)
        refused(forged, A, "points outside of its bytes")


MANY = pa.struct([required(f"f{i}", pa.int64()) for i in range(8)])


def many(compression: Compression) -> bytearray:
    return encoded(pa.array([{f"f{i}": i for i in range(8)}] * 60, MANY), compression=compression)


@pytest.mark.parametrize("claim", [1 << 29, 10 << 30, 1 << 62, (1 << 63) - 1])
@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.ZSTD])
def test_a_claimed_size_is_refused_before_memory_is_taken(
    compression: Compression, claim: int
) -> None:
    forged = many(compression)
    bounds = read_directory(forged, len(forged)).bounds
    struct.pack_into("<q", forged, bounds[3], claim)
    before = pa.total_allocated_bytes()
    for fields in (None, (2,), (1, 2)):
        refused(forged, MANY, "when decoded, the limit is", ColumnSelection(frozenset(), fields))
    assert pa.total_allocated_bytes() == before
    others = ColumnSelection(frozenset(), (0, 7))
    header = verify(forged)
    assert decode_columns(header, forged, MANY, selection=others)["value"][0].as_py() == {
        "f0": 0,
        "f7": 7,
    }


def test_many_claims_that_are_each_within_the_limit() -> None:
    forged = many(Compression.ZSTD)
    for start in read_directory(forged, len(forged)).bounds[:-1]:
        struct.pack_into("<q", forged, start, 200 << 20)
    before = pa.total_allocated_bytes()
    refused(forged, MANY, "claims to take 1887436800 bytes when decoded")
    refused(forged, MANY, "claims to take 419430400 bytes", ColumnSelection(frozenset(), (3, 5)))
    assert pa.total_allocated_bytes() == before


@pytest.mark.parametrize("claim", [-(1 << 63), -2, -1, 0, 1, 479, 481, 1 << 20])
@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.ZSTD])
def test_a_claimed_size_that_is_wrong_within_the_limit(
    compression: Compression, claim: int
) -> None:
    forged = many(compression)
    bounds = read_directory(forged, len(forged)).bounds
    struct.pack_into("<q", forged, bounds[3], claim)
    refused(forged, MANY, "cannot be decoded", ColumnSelection(frozenset(), (2,)))


@pytest.mark.parametrize("length", range(1, 8))
def test_a_compressed_buffer_too_short_for_its_length(length: int) -> None:
    forged = many(Compression.LZ4)
    room, form = form_of(forged, MANY)
    struct.pack_into("<q", forged, room + 8 * form.buffers[3], length)
    refused(forged, MANY, "one of its compressed buffers has no length")


def lie(record_batch: bytearray, *, count: int | None = None, start: int | None = None) -> None:
    old_count, old_start = fmt.DIRECTORY.unpack_from(record_batch, fmt.DIRECTORY_AT)
    fmt.DIRECTORY.pack_into(
        record_batch,
        fmt.DIRECTORY_AT,
        old_count if count is None else count,
        old_start if start is None else start,
    )


@pytest.mark.parametrize(
    ("count", "start"),
    [(0, None), (1, None), (3, None), (1 << 14, None), ((1 << 32) - 1, None), (None, 0),
     (None, 96), (None, 97), (None, 1 << 20), (None, (1 << 32) - 1)],
)  # fmt: skip
def test_a_directory_that_lies(count: int | None, start: int | None) -> None:
    forged = encoded(pa.array([{"a": 1}], A))
    lie(forged, count=count, start=start)
    reseal_columns(forged)
    with pytest.raises(CorruptRecordBatchError, match=r"its columns|it has .* columns"):
        verify(forged)


def test_lengths_in_the_directory_that_are_not_the_columns() -> None:
    """Chunks of other lengths that come to as many bytes in all."""
    forged = encoded(pa.array([{"a": 1}, {"a": 2}], A))
    (first, _), (second, _) = fmt.CHUNK.iter_unpack(forged[fmt.CHUNKS_AT : fmt.CHUNKS_AT + 16])
    fmt.CHUNK.pack_into(forged, fmt.CHUNKS_AT, first - 8, 0)
    fmt.CHUNK.pack_into(forged, fmt.CHUNKS_AT + fmt.CHUNK.size, second + 8, 0)
    refused(forged, A, "points outside of its bytes")


def test_what_lies_between_buffers_means_nothing() -> None:
    forged = encoded(pa.array([{"a": 1}], A))
    forged[-1] ^= 0xFF  # padding behind the last value
    header = verify(reseal_columns(forged))
    assert decode_columns(header, forged, A)["value"].to_pylist() == [{"a": 1}]


# -- in bulk --------------------------------------------------------------------------------


def run_driver(*arguments: str) -> dict[str, int]:
    """A native crash must fail one test, not end the run: so all this happens in a child."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "tests.builders.typed_mutations", *arguments],
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    counts: dict[str, int] = json.loads(done.stdout)
    assert counts["peak_mib"] < 600
    return counts


@pytest.mark.parametrize("compression", [c.name.lower() for c in Compression])
def test_random_damage(compression: str) -> None:
    assert run_driver("random", compression, "1.5")["corrupt"] > 100


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("compression", [c.name.lower() for c in Compression])
@pytest.mark.parametrize("what", ["numbers", "bits", "random"])
def test_damage_of_every_number_and_every_bit(what: str, compression: str) -> None:
    counts = run_driver(what, compression, *(["60"] if what == "random" else []))
    assert counts["corrupt"] > 1_000

"""Layout 1: what goes in comes out, whole or selected, from the whole record batch or from a cut
one; and damage is found, or is in what was not selected."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import types

from spark_logbus.errors import CorruptRecordBatchError, UnsupportedVersionError
from spark_logbus.model import Compression
from spark_logbus.record import format as fmt
from spark_logbus.record import parse_header, split, verify
from spark_logbus.record.columns.decoder import decode_columns, selected_size, verify_selected
from spark_logbus.record.columns.encoder import encode_columns
from spark_logbus.record.columns.join import column_run, verified_columns
from spark_logbus.record.columns.layout import ALL, ColumnSelection
from spark_logbus.record.rows.arrow import MIN_RECORDS_TO_COMPRESS
from spark_logbus.record.run import sound_run
from tests.builders.typed import cut, joined_from, rows_of, run_of
from tests.property.record.typed_strategies import Typed, selections, typed

DEFAULT = settings(max_examples=80)
DAMAGE = (CorruptRecordBatchError, UnsupportedVersionError)


def expected(one: Typed, selection: ColumnSelection) -> dict[str, list[Any]]:
    found = {}
    for name in ("timestamp", "key", "value", "headers", "offset_delta"):
        chosen = name in selection.columns or name in ("value", "offset_delta")
        if name in one.arrow_batch.schema.names and chosen:
            found[name] = rows_of(one.arrow_batch[name])
    if selection.fields is None:
        return found
    if not types.is_struct(one.value_type):
        if 0 not in selection.fields:
            del found["value"]
        return found
    names = [one.value_type.field(at).name for at in selection.fields if at < one.field_count]
    found["value"] = [
        None if row is None else {name: row[name] for name in names} for row in found["value"]
    ]
    return found


def check(data: bytes, selection: ColumnSelection, *, is_cut: bool) -> None:
    if is_cut:
        verify_selected(parse_header(data), data, selection)
    else:
        verify(data)


def decoded(
    data: bytes, one: Typed, selection: ColumnSelection, *, is_cut: bool
) -> dict[str, list[Any]]:
    check(data, selection, is_cut=is_cut)
    header = parse_header(data)
    columns = decode_columns(header, data, one.value_type, selection=selection, is_selected=is_cut)
    for array in columns.values():
        array.validate(full=True)
    return {name: rows_of(array) for name, array in columns.items()}


def check_round_trip(one: Typed) -> None:
    header = verify(one.record_batch)
    assert header.layout == fmt.LAYOUT_COLUMNS
    assert header.size == len(one.record_batch)
    count = one.arrow_batch.num_rows
    assert header.record_count == count
    assert (header.compression is Compression.NONE) or count >= MIN_RECORDS_TO_COMPRESS
    found = decode_columns(header, one.record_batch, one.value_type)
    assert found["value"].type == one.value_type
    assert {name: rows_of(array) for name, array in found.items()} == expected(one, ALL)
    assert [each for each, _ in split(one.record_batch, allow_tail=False)] == [header]


@DEFAULT
@given(typed())
def test_round_trip(one: Typed) -> None:
    check_round_trip(one)


@pytest.mark.slow
@settings(max_examples=2_000)
@given(typed(max_rows=12))
def test_round_trip_of_many(one: Typed) -> None:
    check_round_trip(one)


def check_selection(one: Typed, selection: ColumnSelection) -> None:
    found = expected(one, selection)
    assert decoded(one.record_batch, one, selection, is_cut=False) == found
    part = cut(one.record_batch, selection)
    assert len(part) == selected_size(parse_header(part), part, selection)
    assert decoded(part, one, selection, is_cut=True) == found


@DEFAULT
@given(typed(), st.data())
def test_columns_beside_the_value_take_no_schema(one: Typed, data: st.DataObject) -> None:
    header = verify(one.record_batch)
    found = decode_columns(header, one.record_batch, None)
    without_value = expected(one, ALL)
    values = without_value.pop("value")
    if header.has_tombstones:
        tombstones = found.pop("value").is_null().to_pylist()
        assert tombstones == [value is None for value in values]
    assert {name: rows_of(array) for name, array in found.items()} == without_value
    selection = data.draw(selections(one.field_count))
    part = cut(one.record_batch, selection)
    columns = decode_columns(header, part, None, selection=selection, is_selected=True)
    columns.pop("value", None)
    chosen = {name for name in without_value if name in selection.columns} | {"offset_delta"}
    assert {name: rows_of(array) for name, array in columns.items()} == {
        name: rows for name, rows in without_value.items() if name in chosen
    }


@DEFAULT
@given(typed(), st.data())
def test_any_selection_gives_the_same_whole_or_cut(one: Typed, data: st.DataObject) -> None:
    check_selection(one, data.draw(selections(one.field_count)))


@pytest.mark.slow
@settings(max_examples=2_000)
@given(typed(max_rows=12), st.data())
def test_any_selection_of_many(one: Typed, data: st.DataObject) -> None:
    check_selection(one, data.draw(selections(one.field_count)))


@DEFAULT
@given(typed(max_rows=3), st.data())
def test_any_flipped_bit(one: Typed, data: st.DataObject) -> None:
    damaged = bytearray(one.record_batch)
    damaged[data.draw(st.integers(24, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(DAMAGE):
        verify(damaged)


@DEFAULT
@given(typed(max_rows=3), st.data())
def test_any_flipped_bit_of_a_cut_one(one: Typed, data: st.DataObject) -> None:
    selection = data.draw(selections(one.field_count))
    damaged = bytearray(cut(one.record_batch, selection))
    damaged[data.draw(st.integers(24, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(DAMAGE):
        verify_selected(parse_header(damaged), damaged, selection)


@DEFAULT
@given(typed(max_rows=3), st.data())
def test_damage_of_what_was_not_selected_changes_nothing(one: Typed, data: st.DataObject) -> None:
    """A broker cuts without looking at what it leaves out."""
    selection = data.draw(selections(one.field_count))
    intact = cut(one.record_batch, selection)
    damaged = bytearray(one.record_batch)
    body_start = int(fmt.DIRECTORY.unpack_from(damaged, fmt.DIRECTORY_AT)[1])
    at = data.draw(st.integers(body_start, len(damaged) - 1))
    damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    part = cut(bytes(damaged), selection)
    if part != intact:
        with pytest.raises(DAMAGE):
            verify_selected(parse_header(part), part, selection)


@DEFAULT
@given(typed(max_rows=2), st.data())
def test_any_truncation(one: Typed, data: st.DataObject) -> None:
    selection = data.draw(selections(one.field_count))
    for whole, is_cut in ((one.record_batch, False), (cut(one.record_batch, selection), True)):
        part = whole[: data.draw(st.integers(fmt.HEADER_SIZE, len(whole) - 1))]
        with pytest.raises(DAMAGE):
            check(part, selection, is_cut=is_cut)


def check_together(ones: list[Typed], selection: ColumnSelection, *, is_cut: bool) -> None:
    """Checks the columns of record batches that are alike, decoded together."""
    parts = [cut(one.record_batch, selection) if is_cut else one.record_batch for one in ones]
    found = joined_from(run_of(parts, is_cut=is_cut), selection, ones[0].value_type)
    assert found is not None
    header = parse_header(parts[0])
    alone = decode_columns(
        header, parts[0], ones[0].value_type, selection=selection, is_selected=is_cut
    )
    kinds = [(name, array.type) for name, array in alone.items()]
    assert [(name, array.type) for name, array in found.items()] == kinds
    of_each = [expected(one, selection) for one in ones]
    assert {name: rows_of(array) for name, array in found.items()} == {
        name: [row for each in of_each for row in each[name]] for name in of_each[0]
    }


@DEFAULT
@given(typed(), st.data(), st.booleans())
def test_decoded_together_they_give_the_rows_of_each(
    one: Typed, data: st.DataObject, is_cut: bool
) -> None:
    """Parts of one record batch differ in their numbers of records and nulls, not in attributes."""
    whole, header = one.arrow_batch, parse_header(one.record_batch)
    count = whole.num_rows
    least = MIN_RECORDS_TO_COMPRESS if header.compression else 1
    parts = [one]
    for _ in range(data.draw(st.integers(0, 3))):
        rows = data.draw(st.integers(min(least, count), count))
        part = whole.slice(data.draw(st.integers(0, count - rows)), rows)
        encoded = encode_columns(part, schema_id=header.schema_id, compression=header.compression)
        if parse_header(encoded).attributes == header.attributes:
            parts.append(Typed(one.schema, part, bytes(encoded)))
    check_together(parts, data.draw(selections(one.field_count)), is_cut=is_cut)


@DEFAULT
@given(typed(max_rows=3), st.data(), st.integers(0, 2), st.booleans())
def test_any_flipped_bit_ends_what_is_verified_together(
    one: Typed, data: st.DataObject, number: int, is_cut: bool
) -> None:
    selection = data.draw(selections(one.field_count))
    part = cut(one.record_batch, selection) if is_cut else one.record_batch
    run = run_of([part] * 3, is_cut=is_cut)
    damaged = bytearray(run.data)
    at = number * len(part) + data.draw(st.integers(24, len(part) - 1))
    damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        found = sound_run(memoryview(damaged), run.bounds.tolist(), [is_cut] * 3)
    except DAMAGE:
        assert number == 0
        return
    if len(set(found.attributes.tolist())) > 1:  # readers verify those of the same together
        return
    columns = column_run(found, selection)
    assert len(found) == number or columns is None or verified_columns(columns) == number

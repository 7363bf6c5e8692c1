"""The source's columns where values have a schema."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from spark_logbus.datasource.columns import ColumnChoice, check_columns, typed_schema
from spark_logbus.datasource.options import ValueOptions
from spark_logbus.datasource.value_types import retyped, spark_type
from spark_logbus.errors import InvalidOptionError
from spark_logbus.model import OnUndecodable

INT, LONG, TEXT, BYTES = pa.int32(), pa.int64(), pa.string(), pa.binary()


def must(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


def struct(*fields: pa.Field | tuple[str, pa.DataType]) -> StructType:
    made = spark_type(pa.struct([*fields]))
    assert isinstance(made, StructType)
    return made


def value(*fields: pa.Field | tuple[str, pa.DataType]) -> tuple[str, pa.DataType]:
    return "value", pa.struct([*fields])


VALUE = struct(
    must("number", INT),
    ("tail", TEXT),
    ("legs", pa.list_(pa.struct([must("to", TEXT)]))),
    ("prices", pa.map_(TEXT, pa.float64())),
)
OFFSET = ("offset", LONG)
TOLD = ("undecodable", pa.struct([("value", BYTES), ("reason", TEXT)]))
FLAT = ValueOptions(flatten=True)
KEEP = ValueOptions(on_undecodable=OnUndecodable.KEEP)


def offered(values: ValueOptions = ValueOptions()) -> StructType:  # noqa: B008
    return typed_schema(VALUE, values, include_headers=False)


def test_a_field_that_is_a_column_may_be_null_because_a_value_may_be() -> None:
    assert all(field.nullable for field in offered(FLAT).fields[:2])
    with pytest.raises(InvalidOptionError, match="column number is NOT NULL, but a record may"):
        check_columns(struct(must("number", INT)), offered(FLAT))


@pytest.mark.parametrize(
    "schema",
    [
        struct(value(("tail", TEXT), ("number", INT))),
        struct(value(must("number", INT)), must("offset", LONG)),
        struct(value(("legs", pa.list_(pa.struct([("to", TEXT)]))))),
        struct(value(("prices", pa.map_(TEXT, pa.float64()))), TOLD),
        struct(value()),
    ],
)
def test_a_schema_may_have_fewer_fields_of_the_value(schema: StructType) -> None:
    check_columns(schema, offered(KEEP))


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (struct(value(("number", LONG))), "column value the type struct<number:bigint>"),
        (struct(value(("nothing", INT))), "column value the type struct<nothing:int>"),
        (struct(value(must("tail", TEXT))), "a part of column value is NOT NULL"),
        (struct(value(("legs", pa.list_(pa.struct([]))))), "column value the type"),
        (struct(value(("tail", TEXT), ("tail", TEXT))), "column value the type"),
        (struct(("value", BYTES)), "column value the type binary"),
        (struct(("number", INT)), "names the column number, which .* it has key"),
        (struct(must("value", pa.struct([("number", INT)]))), "column value is NOT NULL"),
        (struct(TOLD), "names the column undecodable, .*; set the option onUndecodable to keep"),
    ],
)
def test_other_fields_are_told(schema: StructType, said: str) -> None:
    with pytest.raises(InvalidOptionError, match=said):
        check_columns(schema, offered())


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("Number",), "Option columns names Number, .* did you mean number"),
        (("headers",), "Option columns names the column headers; set the option includeHeaders"),
        (("undecodable",), "Option columns names undecodable, .* set the option onUndecodable"),
        (("value", "tail"), "Option columns names value and its field tail"),
    ],
)
def test_the_option_columns_is_told_what_there_is(names: tuple[str, ...], said: str) -> None:
    with pytest.raises(InvalidOptionError, match=said):
        offered(ValueOptions(columns=names))


@pytest.mark.parametrize(
    "name",
    ["key", "Offset", "undecodable", "topic", "partition", "timestamp", "TIMESTAMPTYPE", "headers"],
)
def test_a_field_that_is_named_as_a_column_of_the_record_has_a_prefix(name: str) -> None:
    made = typed_schema(struct((name, TEXT), ("number", INT)), FLAT, include_headers=False)
    assert made.names[:2] == [f"value_{name}", "number"]
    assert made[f"value_{name}"].dataType.simpleString() == "string"
    assert made["offset"].dataType.simpleString() == "bigint"
    chosen = ColumnChoice(StructType([made[f"value_{name}"], made["offset"]]), FLAT)
    assert chosen.value_fields(lambda: [name, "number"]) == (name,)
    by_option = ValueOptions(flatten=True, columns=("offset", f"value_{name}"))
    offers = typed_schema(struct((name, TEXT)), by_option, include_headers=False)
    assert offers.names == ["offset", f"value_{name}"]
    assert "value" in typed_schema(struct((name, INT)), KEEP, include_headers=False).names


def test_fields_named_value_or_with_the_prefix_keep_their_names() -> None:
    made = typed_schema(struct(("value", INT), ("value_key", INT)), FLAT, include_headers=True)
    assert made.names[:2] == ["value", "value_key"]
    chosen = ColumnChoice(StructType(made.fields[:2]), FLAT)
    assert chosen.value_fields(lambda: ["value", "value_key"]) == ("value", "value_key")


@pytest.mark.parametrize("names", [("key", "value_key"), ("VALUE_OFFSET", "offset")])
def test_a_column_that_two_fields_would_have_is_refused(names: tuple[str, str]) -> None:
    value = struct(*((name, INT) for name in names))
    with pytest.raises(InvalidOptionError, match=r"(?i)the value has a field value_\w+, too"):
        typed_schema(value, FLAT, include_headers=False)


@pytest.mark.parametrize(
    ("schema", "values", "fields"),
    [
        (struct(value(("tail", TEXT), ("number", INT)), OFFSET), KEEP, ("tail", "number")),
        (struct(OFFSET), KEEP, ()),
        (struct(OFFSET, ("number", INT)), FLAT, ("number",)),
        (struct(OFFSET, ("partition", INT)), FLAT, ()),
        # Which records do not decode is found by decoding them.
        (struct(OFFSET, TOLD), KEEP, None),
    ],
)
def test_only_the_fields_that_become_columns_are_read(
    schema: StructType, values: ValueOptions, fields: tuple[str, ...] | None
) -> None:
    assert ColumnChoice(schema, values).value_fields(list) == fields


@pytest.mark.parametrize("zone", ["UTC", None])
def test_nanoseconds_are_cut_off_to_the_microsecond_before(zone: str | None) -> None:
    nanos = pa.array([5, -1, -1001, 1999, None, -(1 << 63)], pa.timestamp("ns", zone))
    micros = retyped(nanos.slice(1), pa.timestamp("us", zone))
    assert micros.view(pa.int64()).to_pylist() == [-1, -2, 1, None, -(1 << 63) // 1000]
    assert spark_type(nanos.type).simpleString() == ("timestamp" if zone else "timestamp_ntz")


def test_nested_values_keep_what_is_null_when_fields_are_left_out() -> None:
    kind = pa.struct(
        [
            pa.field("legs", pa.list_(pa.struct([("to", pa.string()), ("at", pa.int32())]))),
            pa.field("by", pa.map_(pa.string(), pa.struct([("x", pa.int32()), ("y", pa.int32())]))),
        ]
    )
    rows: list[Any] = [
        {"legs": None, "by": []},
        None,
        {"legs": [{"to": "A", "at": 1}, None], "by": [("k", {"x": 1, "y": None}), ("j", None)]},
        {"legs": [], "by": None},
    ]
    wanted = pa.struct([kind.field("by"), kind.field("legs")])
    for start in range(len(rows) + 1):
        array = pa.array(rows, kind).slice(start)
        assert retyped(array, wanted).to_pylist() == array.to_pylist()
        retyped(array, wanted).validate(full=True)

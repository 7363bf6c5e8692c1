"""Arrow types of Avro schemas, and Avro schemas of Arrow types.

Types are such that Spark takes them: times and timestamps are in microseconds where Avro's are in
milliseconds, enums are strings, a duration is a struct of its three numbers. A union of null and
one other type is that type, nullable. Any other union is a struct of its members but null, named
``member0``, ``member1`` and so on, of which one is not null: what Spark's ``from_avro`` makes.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyarrow import types

from avro_columns.errors import UnsupportedTypeError
from avro_columns.values import resolved_tree as tree

#: A duration of Avro's: months, days and milliseconds, none of which is the others' multiple.
DURATION: Final = pa.struct(
    [pa.field(name, pa.int64(), nullable=False) for name in ("months", "days", "millis")]
)

_PLAIN: Final = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: Final = {
    "date": pa.date32(),
    "time-millis": pa.time64("us"),
    "time-micros": pa.time64("us"),
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "timestamp-nanos": pa.timestamp("ns", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "local-timestamp-nanos": pa.timestamp("ns"),
    "duration": DURATION,
}
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def arrow_type(schema: tree.AnySchema) -> pa.DataType:
    """The type of a column of values of ``schema``."""
    node = tree.parse(schema)
    if isinstance(node, tree.Primitive):
        return _primitive(node)
    if isinstance(node, tree.Enum):
        return pa.string()
    if isinstance(node, tree.Array):
        return pa.list_(_field("item", node.items))
    if isinstance(node, tree.Map):
        return pa.map_(pa.string(), _field("value", node.values))
    if isinstance(node, tree.Record):
        return pa.struct([_field(one.name, one.node) for one in node.fields])
    others = node.others
    if not others:
        return pa.null()
    if len(others) == 1:
        return arrow_type(others[0])
    return pa.struct(
        [pa.field(f"member{i}", arrow_type(member)) for i, member in enumerate(others)]
    )


def arrow_schema(schema: tree.AnySchema) -> pa.Schema:
    """The columns of a record's fields.

    Raises UnsupportedTypeError for a schema that is not a record.
    """
    record = tree.record_of(tree.parse(schema))
    return pa.schema([_field(one.name, one.node) for one in record.fields])


def _field(name: str, node: tree.Node) -> pa.Field:
    return pa.field(name, arrow_type(node), nullable=tree.is_nullable(node))


def _primitive(node: tree.Primitive) -> pa.DataType:
    if node.logical == "decimal":
        return pa.decimal128(node.precision, node.scale)
    if node.logical in _LOGICAL:
        return _LOGICAL[node.logical]
    return pa.binary(node.size) if node.kind == "fixed" else _PLAIN[node.kind]


# -- Avro of Arrow ------------------------------------------------------------------------


def avro_schema(columns: pa.Schema | pa.StructType, *, name: str = "record") -> dict[str, Any]:
    """A schema for records of ``columns``, as ``json`` takes it.

    Records inside are named by their place. A nullable field is a union of null and its type, with
    null as its default. Raises UnsupportedTypeError that names the column that Avro has no type
    or name for.
    """
    return _record(list(columns), name, "", set())


def _record(fields: list[pa.Field], name: str, place: str, taken: set[str]) -> dict[str, Any]:
    name = _free_name(name, taken)
    prefix = f"{place}." if place else ""
    made = []
    for one in fields:
        if not _NAME.match(one.name):
            raise UnsupportedTypeError(
                f"The column {prefix + one.name!r} cannot be named so in Avro: letters, digits and "
                "underscores only, no digit first. Rename it."
            )
        made.append({"name": one.name, **_typed(one, prefix + one.name, taken)})
    return {"type": "record", "name": name, "fields": made}


def _free_name(place: str, taken: set[str]) -> str:
    """``place`` as a name of Avro's that no other type has."""
    name = free = re.sub(r"[^A-Za-z0-9_]+", "_", place)
    number = 1
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    taken.add(free)
    return free


def _typed(one: pa.Field, place: str, taken: set[str]) -> dict[str, Any]:
    plain = _avro_type(one.type, place, taken)
    if one.nullable and plain != "null":
        return {"type": ["null", plain], "default": None}
    return {"type": plain}


_SIMPLE: Final = (
    (types.is_null, "null"),
    (types.is_boolean, "boolean"),
    (types.is_int64, "long"),
    (types.is_uint32, "long"),
    (types.is_uint64, None),
    (types.is_integer, "int"),
    (types.is_float64, "double"),
    (types.is_floating, "float"),
    (types.is_string, "string"),
    (types.is_large_string, "string"),
    (types.is_string_view, "string"),
    (types.is_binary, "bytes"),
    (types.is_large_binary, "bytes"),
    (types.is_binary_view, "bytes"),
    (types.is_date, {"type": "int", "logicalType": "date"}),
    (types.is_time32, {"type": "int", "logicalType": "time-millis"}),
    (types.is_time64, {"type": "long", "logicalType": "time-micros"}),
)
_LISTS: Final = (
    types.is_list,
    types.is_large_list,
    types.is_fixed_size_list,
    types.is_list_view,
    types.is_large_list_view,
)
_UNITS: Final = {"s": "millis", "ms": "millis", "us": "micros", "ns": "nanos"}


def _avro_type(arrow: pa.DataType, place: str, taken: set[str]) -> Any:
    for matches, plain in _SIMPLE:
        if matches(arrow) and plain is not None:
            return plain
        if matches(arrow):
            break
    nested = partial(_nested, taken=taken)
    if types.is_timestamp(arrow):
        local = "" if arrow.tz else "local-"
        return {"type": "long", "logicalType": f"{local}timestamp-{_UNITS[arrow.unit]}"}
    if types.is_dictionary(arrow):
        return _avro_type(arrow.value_type, place, taken)
    if types.is_fixed_size_binary(arrow):
        return {"type": "fixed", "name": _free_name(place, taken), "size": arrow.byte_width}
    if types.is_decimal(arrow) and arrow.precision <= tree.MAX_PRECISION and arrow.scale >= 0:
        return {
            "type": "bytes",
            "logicalType": "decimal",
            "precision": arrow.precision,
            "scale": arrow.scale,
        }
    if any(matches(arrow) for matches in _LISTS):
        return {"type": "array", "items": nested(arrow.value_field, f"{place}[]")}
    if types.is_map(arrow) and types.is_string(arrow.key_type):
        return {"type": "map", "values": nested(arrow.item_field, f"{place}{{}}")}
    if types.is_struct(arrow):
        return _record(list(arrow), place or "record", place, taken)
    raise UnsupportedTypeError(
        f"The column {place} is {arrow}, for which Avro has no type; cast it first."
    )


def _nested(one: pa.Field, place: str, *, taken: set[str]) -> Any:
    return _typed(one, place, taken)["type"]


def row_bytes(arrow: pa.DataType) -> int:
    """Least number of bytes that a row of a column takes, null or not."""
    if types.is_struct(arrow):
        return 1 + sum(row_bytes(one.type) for one in arrow)
    try:
        return 1 + int(arrow.bit_width) // 8
    except ValueError:  # of no fixed size: an offset
        return 5

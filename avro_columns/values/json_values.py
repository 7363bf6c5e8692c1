"""Values of a schema out of JSON, as people and other tools write them, and as JSON.

Numbers, texts, objects and arrays stand for themselves, objects for maps and records. What JSON has
no type for is text: moments, dates and times in ISO 8601, decimals, UUIDs; or the number that Avro
stores. Bytes are text, or ``{"base64": "..."}`` where they are no UTF-8.

A value of a union is written as what it is. If that would be read as another member's, it is
written with the name of its own, as JSON of Avro's has it: ``{"string": "2026-01-31"}``.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from avro_columns.errors import ValueMismatchError
from avro_columns.values import resolved_tree as tree
from avro_columns.values.union_matching import (
    Member,
    keeps,
    member_name,
    member_of,
    misfit,
    takes,
)

# -- out of JSON --------------------------------------------------------------------------


def value_of_json(node: tree.Node, given: Any) -> Any:
    """Returns the value for ``columns_of`` of ``given``, which ``json.loads`` has returned. Leaves
    what does not fit the schema to the checks of ``columns_of``. Raises ValueMismatchError for
    texts that stand for nothing."""
    if given is None:
        return None
    if isinstance(node, tree.Union):
        if len(node.others) == 1:
            return value_of_json(node.others[0], given)
        found = _named_member(node, given) or _first_member(node, given)
        return given if found is None else found
    if isinstance(node, tree.Record) and isinstance(given, dict):
        nodes = {one.name: one.node for one in node.fields}
        return {
            name: value_of_json(nodes[name], each) if name in nodes else each
            for name, each in given.items()
        }
    if isinstance(node, tree.Map) and isinstance(given, dict):
        return {name: value_of_json(node.values, each) for name, each in given.items()}
    if isinstance(node, tree.Array) and isinstance(given, list):
        return [value_of_json(node.items, each) for each in given]
    return _leaf(node, given) if isinstance(node, tree.Primitive) else given


def _named_member(node: tree.Union, given: Any) -> Member | None:
    """The member whose name is the only key."""
    if isinstance(given, dict) and len(given) == 1:
        [(name, inner)] = given.items()
        for number, other in enumerate(node.others):
            if member_name(other) == name:
                return Member(number, value_of_json(other, inner))
    return None


def _first_member(node: tree.Union, given: Any) -> Member | None:
    """The first that keeps it as it stands, or else the first that takes what it stands for."""
    first = None
    for number, other in enumerate(node.others):
        try:
            made = value_of_json(other, given)
        except ValueMismatchError:
            continue
        if keeps(other, given):
            return Member(number, made)
        if first is None and takes(other, made):
            first = Member(number, made)
    return first


def _leaf(node: tree.Primitive, given: Any) -> Any:
    logical = node.logical or ""
    if node.kind in ("bytes", "fixed") and logical in ("", "uuid"):
        is_text_of_id = logical and isinstance(given, str)
        return _parsed(node, given, uuid.UUID) if is_text_of_id else _bytes(node, given)
    if logical == "decimal" and isinstance(given, str | int | float) and given is not True:
        return _parsed(node, str(given), Decimal)
    if node.kind in ("float", "double") and given in _NO_NUMBERS:
        return float(given)
    if isinstance(given, str):
        for ending, parse in _PARSED:
            if logical.startswith(ending):
                micros = _NANOS.sub("", given, count=1)
                if ending == "timestamp" and _parsed(node, micros, parse).tzinfo is None:
                    raise ValueMismatchError(
                        f"{misfit(node, given).message} A time without a zone is no moment; write "
                        "its zone behind it, such as Z or +08:00."
                    )
                return _parsed(node, given, _moment_ns if logical.endswith("-nanos") else parse)
    return given


_NO_NUMBERS: Final = ("NaN", "Infinity", "-Infinity")
_PARSED: Final[tuple[tuple[str, Callable[[str], Any]], ...]] = (
    ("timestamp", datetime.fromisoformat),
    ("local-timestamp", datetime.fromisoformat),
    ("date", date.fromisoformat),
    ("time", time.fromisoformat),
)
_NANOS = re.compile(r"(?<=\.\d{6})\d{1,3}")


def _moment_ns(text: str) -> Any:
    """A moment; the number of nanoseconds if it has any, which Python's have not."""
    moment = datetime.fromisoformat(_NANOS.sub("", text, count=1))
    finer = _NANOS.search(text)
    if finer is None:
        return moment
    since = moment.replace(tzinfo=moment.tzinfo or UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return since // timedelta(microseconds=1) * 1000 + int(finer[0].ljust(3, "0"))


def _parsed(node: tree.Primitive, text: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(text)
    except (ValueError, InvalidOperation) as error:
        raise misfit(node, text) from error


def _bytes(node: tree.Primitive, given: Any) -> Any:
    if isinstance(given, dict) and given.keys() == {"base64"}:
        try:
            return base64.b64decode(given["base64"], validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise misfit(node, given) from error
    if isinstance(given, str):
        try:
            return given.encode()
        except UnicodeEncodeError as error:
            raise misfit(node, given) from error
    return given


# -- as JSON ------------------------------------------------------------------------------


def json_of_value(node: tree.Node, value: Any) -> Any:
    """Returns the value for ``json.dumps`` of ``value``, which is one of ``rows_of``.
    ``value_of_json`` makes the same value of it again."""
    if value is None:
        return None
    if isinstance(node, tree.Union):
        return _json_of_member(node, value)
    if isinstance(node, tree.Record):
        return {one.name: json_of_value(one.node, value[one.name]) for one in node.fields}
    if isinstance(node, tree.Map):
        return {key: json_of_value(node.values, each) for key, each in value.items()}
    if isinstance(node, tree.Array):
        return [json_of_value(node.items, each) for each in value]
    return _json_of_leaf(node, value)


def _json_of_member(node: tree.Union, value: Any) -> Any:
    if len(node.others) == 1:
        return json_of_value(node.others[0], value)
    number, own = member_of(node, value)
    member = node.others[number]
    plain = json_of_value(member, own)
    read = None if _named_member(node, plain) else _first_member(node, plain)
    return plain if read is not None and read.number == number else {member_name(member): plain}


def _json_of_leaf(node: tree.Primitive | tree.Enum, value: Any) -> Any:
    if isinstance(value, bytes):
        is_id = isinstance(node, tree.Primitive) and node.logical == "uuid"
        return str(uuid.UUID(bytes=value)) if is_id else _json_of_bytes(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else _NOT_FINITE[str(value)]
    if isinstance(value, date | time):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value


_NOT_FINITE: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _json_of_bytes(data: bytes) -> str | dict[str, str]:
    """Text where it is UTF-8, else ``{"base64": ...}``."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}

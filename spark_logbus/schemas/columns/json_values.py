"""Values of a schema out of JSON, as people and other tools write them.

Numbers, texts, objects and arrays stand for themselves, objects for maps and records. What JSON has
no type for is text: moments, dates and times in ISO 8601, decimals, UUIDs; or the number that Avro
stores. Bytes are text, or ``{"base64": "..."}`` where they are no UTF-8. A value of a union is
written as what it is.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from spark_logbus.errors import SchemaMismatchError
from spark_logbus.schemas.columns import inlined
from spark_logbus.schemas.columns.fitting import misfit


def value_of_json(node: inlined.Node, given: Any) -> Any:
    """What ``columns_of`` takes for ``given``, which ``json.loads`` has returned. What does not fit
    the schema is left for its checks, but for texts that stand for nothing: SchemaMismatchError."""
    if given is None:
        return None
    if isinstance(node, inlined.Union):
        return _of_union(node, given)
    if isinstance(node, inlined.Record) and isinstance(given, dict):
        nodes = {one.name: one.node for one in node.fields}
        return {
            name: value_of_json(nodes[name], each) if name in nodes else each
            for name, each in given.items()
        }
    if isinstance(node, inlined.Map) and isinstance(given, dict):
        return {name: value_of_json(node.values, each) for name, each in given.items()}
    if isinstance(node, inlined.Array) and isinstance(given, list):
        return [value_of_json(node.items, each) for each in given]
    return _leaf(node, given) if isinstance(node, inlined.Primitive) else given


def _of_union(node: inlined.Union, given: Any) -> Any:
    """As the first member to which it can be made; the checks choose among several."""
    others = node.others
    if len(others) == 1:
        return value_of_json(others[0], given)
    if isinstance(given, str) and any(_is_text(other) for other in others):
        return given
    for other in others:
        try:
            made = value_of_json(other, given)
        except SchemaMismatchError:
            continue
        if made is not given and made != given:
            return made
    return given


def _is_text(node: inlined.Node) -> bool:
    return isinstance(node, inlined.Primitive) and node.kind == "string"


def _leaf(node: inlined.Primitive, given: Any) -> Any:
    logical = node.logical or ""
    if node.kind in ("bytes", "fixed") and logical not in ("decimal", "duration", "uuid"):
        return _bytes(node, given)
    if logical == "decimal" and isinstance(given, str | int | float) and given is not True:
        return _parsed(node, str(given), Decimal)
    if node.kind in ("float", "double") and given in _NO_NUMBERS:
        return float(given)
    if isinstance(given, str):
        for ending, parse in _PARSED:
            if logical.startswith(ending):
                return _parsed(node, given, parse)
    return given


_NO_NUMBERS: Final = ("NaN", "Infinity", "-Infinity")
_PARSED: Final[tuple[tuple[str, Callable[[str], Any]], ...]] = (
    ("timestamp", datetime.fromisoformat),
    ("local-timestamp", datetime.fromisoformat),
    ("date", date.fromisoformat),
    ("time", time.fromisoformat),
)


def _parsed(node: inlined.Primitive, text: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(text)
    except (ValueError, InvalidOperation) as error:
        raise misfit(node, text) from error


def _bytes(node: inlined.Primitive, given: Any) -> Any:
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

"""What changed between two schemas, place by place."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from avro_columns.compatibility import UnionBranches, written_field
from avro_columns.model import (
    Array,
    Enum,
    Field,
    Fixed,
    Map,
    Named,
    Record,
    Schema,
    Union,
    place,
)


@dataclass(frozen=True, slots=True)
class Difference:
    """``before`` and ``after`` are None where there is nothing. ``place`` is in the newer schema,
    but of what was removed in the older one."""

    place: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class _Pair:
    older: Schema
    newer: Schema
    place: str


def differences(older: Schema, newer: Schema) -> list[Difference]:
    """Returns what differs, in the order of the newer schema, from the top down. Compares types
    that contain themselves once."""
    found: list[Difference] = []
    waiting = deque([_Pair(older, newer, "")])
    seen: set[tuple[int, int]] = set()
    branches = UnionBranches()
    while waiting:
        pair = waiting.popleft()
        key = id(pair.older), id(pair.newer)
        if key in seen:
            continue
        seen.add(key)
        for step in _compare(pair, branches):
            if isinstance(step, _Pair):
                waiting.append(step)
            else:
                found.append(step)
    return found


def _compare(pair: _Pair, branches: UnionBranches) -> Iterator[_Pair | Difference]:
    older, newer, at = pair.older, pair.newer, pair.place
    if type(older) is not type(newer) or older.kind != newer.kind:
        yield Difference(at, type_text(older), type_text(newer))
        return
    if isinstance(older, Named) and isinstance(newer, Named):
        yield from _changed(place(at, ".name"), older.name, newer.name)
        yield from _changed(place(at, ".doc"), older.doc, newer.doc)
        yield from _changed(place(at, ".aliases"), list(older.aliases), list(newer.aliases))
    if not isinstance(older, Union) and not isinstance(newer, Union):
        for key in sorted(older.properties.keys() | newer.properties.keys()):
            yield from _changed(
                place(at, f".{key}"), older.properties.get(key), newer.properties.get(key)
            )
    match older, newer:
        case Array(), Array():
            yield _Pair(older.items, newer.items, place(at, ".items"))
        case Map(), Map():
            yield _Pair(older.values, newer.values, place(at, ".values"))
        case Fixed(), Fixed():
            yield from _changed(place(at, ".size"), older.size, newer.size)
        case Enum(), Enum():
            yield from _changed(place(at, ".symbols"), list(older.symbols), list(newer.symbols))
            yield from _changed(place(at, ".default"), older.default, newer.default)
        case Union(), Union():
            yield from _compare_unions(older, newer, at, branches)
        case Record(), Record():
            yield from _compare_records(older, newer, at)


def _compare_unions(
    older: Union, newer: Union, at: str, branches: UnionBranches
) -> Iterator[_Pair | Difference]:
    left = set(range(len(older.branches)))
    for number, branch in enumerate(newer.branches):
        taken = next((one for one in branches.find(older, branch) if one in left), None)
        below = place(at, f"[{number}]")
        if taken is None:
            yield Difference(below, None, type_text(branch))
        else:
            left.remove(taken)
            yield _Pair(older.branches[taken], branch, below)
    for number in sorted(left):
        yield Difference(place(at, f"[{number}]"), type_text(older.branches[number]), None)


def _compare_records(older: Record, newer: Record, at: str) -> Iterator[_Pair | Difference]:
    by_name = {field.name: number for number, field in enumerate(older.fields)}
    left = set(by_name.values())
    for number, field in enumerate(newer.fields):
        below = place(at, f".fields[{number}]")
        before = written_field(field, by_name)
        if before is None or before not in left:
            yield Difference(below, None, _field_text(field))
            continue
        left.remove(before)
        old = older.fields[before]
        yield from _changed(place(below, ".name"), old.name, field.name)
        yield from _changed(place(below, ".default"), _default_text(old), _default_text(field))
        yield from _changed(place(below, ".doc"), old.doc, field.doc)
        yield from _changed(place(below, ".order"), old.order, field.order)
        yield from _changed(place(below, ".aliases"), list(old.aliases), list(field.aliases))
        yield _Pair(old.schema, field.schema, place(below, ".type"))
    for number in sorted(left):
        removed = older.fields[number]
        yield Difference(place(at, f".fields[{number}]"), _field_text(removed), None)


def _changed(at: str, before: Any, after: Any) -> Iterator[Difference]:
    if before != after:
        yield Difference(at, _shown(before), _shown(after))


def _shown(value: Any) -> str | None:
    if value is None or value == []:
        return None
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _field_text(field: Field) -> str:
    text = f"{field.name}: {type_text(field.schema)}"
    return f"{text} = {_default_text(field)}" if field.has_default else text


def _default_text(field: Field) -> str | None:
    return json.dumps(field.default, ensure_ascii=False) if field.has_default else None


def type_text(schema: Schema) -> str:
    """A type in a word or two."""
    match schema:
        case Union(branches=branches):
            return f"[{', '.join(map(type_text, branches))}]"
        case Array(items=items):
            return f"array<{type_text(items)}>"
        case Map(values=values):
            return f"map<{type_text(values)}>"
        case Named(name=name):
            return f"{schema.kind} {name}"
    logical = schema.properties.get("logicalType")
    return f"{schema.kind} ({logical})" if isinstance(logical, str) else schema.kind

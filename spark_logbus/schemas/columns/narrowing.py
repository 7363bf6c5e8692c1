"""Records of some fields only: what a reader wants, and what of a writer's record it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spark_logbus.config import nearest
from spark_logbus.errors import SchemaMismatchError
from spark_logbus.schemas.columns.tree import Node, Record


def narrowed(node: Node, names: Sequence[str]) -> Record:
    """The record with those of its fields, in that order.

    Raises SchemaMismatchError for a name that is no field, or there twice, and for a schema that is
    no record.
    """
    if not isinstance(node, Record):
        raise SchemaMismatchError(
            f"The fields {', '.join(names)} are to be read, but the schema is no record."
        )
    by_name = {field.name: field for field in node.fields}
    for name in names:
        if name not in by_name:
            meant = nearest(name, list(by_name))
            hint = f"did you mean {meant}?" if meant else f"it has {', '.join(by_name)}."
            raise SchemaMismatchError(f"The schema {node.name} has no field {name!r}; {hint}")
    if len({*names}) < len(names):
        raise SchemaMismatchError(f"A field is named twice: {', '.join(names)}.")
    return replace(node, fields=tuple(by_name[name] for name in names))


def used_places(writer: Node, reader: Node) -> tuple[int, ...] | None:
    """The places of the writer's fields that become fields of the reader, rising; None: of all,
    or of what are no two records."""
    if not isinstance(writer, Record) or not isinstance(reader, Record):
        return None
    places = {field.name: number for number, field in enumerate(writer.fields)}
    used: set[int] = set()
    for field in reader.fields:
        names = [name for name in (field.name, *field.aliases) if name in places]
        used.update(places[name] for name in names[:1])
    return None if len(used) == len(places) else tuple(sorted(used))


def at_places(writer: Node, places: tuple[int, ...] | None) -> Node:
    """The writer's record with the fields of ``used_places``."""
    if places is None or not isinstance(writer, Record):
        return writer
    return replace(writer, fields=tuple(writer.fields[place] for place in places))

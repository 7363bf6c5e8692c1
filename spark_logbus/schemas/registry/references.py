"""Schemas with what they refer to: from texts of several subjects to one model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from avro_columns.model import Enum, Fixed, Record, Schema, named_types
from avro_columns.parse import parse
from avro_columns.text import canonical_text
from spark_logbus.schemas.avro_errors import logbus_errors
from spark_logbus.schemas.errors import (
    InvalidSchemaError,
    UnknownSubjectError,
    UnknownVersionError,
)
from spark_logbus.schemas.registry.subjects import Content, Reference

# Of one schema, those of references too: as many as a person can follow, with room.
_MAX_SCHEMAS: Final = 100
_MAX_BYTES: Final = 2_000_000

Load = Callable[[str, int], Content]
NamedType = Record | Enum | Fixed


class Resolver:
    """Parses contents with their references, each of which it loads once. For one schema, on one
    thread."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._parsed: dict[tuple[str, int], dict[str, NamedType]] = {}
        self._open: list[tuple[str, int]] = []
        self._bytes = 0

    def schema(self, content: Content) -> Schema:
        """Raises InvalidSchemaError, also for what is not there to be referred to."""
        known = self.known(content.references)
        with logbus_errors:
            return parse(content.text, known=known.values())

    def known(self, references: Sequence[Reference]) -> dict[str, NamedType]:
        """All types that may be named with these references, by full name."""
        known: dict[str, NamedType] = {}
        for number, each in enumerate(references):
            place = f"references[{number}]"
            for name, found in self._types(each, place).items():
                there = known.setdefault(name, found)
                if there is not found and _text(there) != _text(found):
                    raise InvalidSchemaError(
                        f"The type {name!r} comes with two references, and is not the same in "
                        "them. Refer to one version of it everywhere.",
                        place,
                    )
        return known

    def _types(self, reference: Reference, place: str) -> dict[str, NamedType]:
        key = reference.subject, reference.version
        if key in self._parsed:
            return self._parsed[key]
        if key in self._open:
            raise InvalidSchemaError(f"{_shown(reference)} refers to itself.", place)
        try:
            content = self._load(*key)
        except (UnknownSubjectError, UnknownVersionError) as error:
            raise InvalidSchemaError(
                f"{_shown(reference)} is not there to be referred to. {error.message}", place
            ) from error
        self._bytes += len(content.text)
        if len(self._parsed) + len(self._open) >= _MAX_SCHEMAS or self._bytes > _MAX_BYTES:
            raise InvalidSchemaError(
                f"It refers to more than {_MAX_SCHEMAS} schemas, or to more than {_MAX_BYTES:,} "
                "bytes of them, with those that they refer to. Refer to fewer.",
                place,
            )
        self._open.append(key)
        known = self.known(content.references)
        with logbus_errors:
            types = known | named_types(parse(content.text, known=known.values()))
        self._open.pop()
        self._parsed[key] = types
        return types


def _shown(reference: Reference) -> str:
    return f"Version {reference.version} of the subject {reference.subject!r}"


@logbus_errors
def _text(schema: NamedType) -> str:
    return canonical_text(schema)

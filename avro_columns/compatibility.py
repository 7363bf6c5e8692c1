"""Which data can be read with another schema than it was written with, by Avro's rules.

``faults`` compares a reader's schema with a writer's. Of the reader's union it takes the branch
that readers take (``branches``). So each pair of types leads to certain other pairs, and two
schemas fit if no pair that can be reached from theirs has a fault of its own. Pairs are looked at
once each, in a loop: types may contain themselves, and be as many as fit into a schema.

Logical types are compared as well (``logical``), where Avro compares the types below them only.

The names of faults are those of Confluent's registry, which has them of Avro.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from avro_columns.branches import PROMOTIONS, Branches, TypeName
from avro_columns.defaults import Defaults
from avro_columns.errors import SchemaSyntaxError, UnknownCompatibilityError
from avro_columns.logical import PLAIN, Meaning, keeps_meaning, meaning_of
from avro_columns.model import (
    Array,
    Enum,
    Field,
    Fixed,
    Map,
    Named,
    Primitive,
    Record,
    Schema,
    Union,
    place,
)

# Pairs grow with the product of two schemas' sizes only where types contain each other in circles.
_MAX_PAIRS: Final = 200_000
# As many as anybody reads; a subject can have thousands of versions, each with thousands of fields.
_MAX_FAULTS: Final = 1_000


class Rule(enum.Enum):
    """The rule of resolution that a pair of types breaks."""

    NAME_MISMATCH = "NAME_MISMATCH"
    FIXED_SIZE_MISMATCH = "FIXED_SIZE_MISMATCH"
    MISSING_ENUM_SYMBOLS = "MISSING_ENUM_SYMBOLS"
    READER_FIELD_MISSING_DEFAULT_VALUE = "READER_FIELD_MISSING_DEFAULT_VALUE"
    TYPE_MISMATCH = "TYPE_MISMATCH"
    MISSING_UNION_BRANCH = "MISSING_UNION_BRANCH"


class Compatibility(enum.Enum):
    """Rule for a schema that is registered. Backward: the new schema reads data of the old one.
    Forward: the old schema reads data of the new one. Full: both. The old one is the latest
    version, or each version (transitive)."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @classmethod
    def named(cls, name: object) -> Compatibility:
        """Returns the member of that name, in upper or lower case. Raises
        UnknownCompatibilityError."""
        try:
            return cls(name.upper() if isinstance(name, str) else name)
        except ValueError as error:
            raise UnknownCompatibilityError(
                f"There is no compatibility {name!r}; there are {', '.join(c.name for c in cls)}."
            ) from error

    @property
    def transitive(self) -> bool:
        return self.name.endswith("_TRANSITIVE")

    @property
    def backward(self) -> bool:
        return self.name.startswith(("BACKWARD", "FULL"))

    @property
    def forward(self) -> bool:
        return self.name.startswith(("FORWARD", "FULL"))


@dataclass(frozen=True, slots=True)
class Fault:
    """``place`` is in the reader's schema, ``writer_place`` in the writer's; ``detail`` names what
    is missing or different."""

    rule: Rule
    place: str
    writer_place: str
    message: str
    detail: str

    def __str__(self) -> str:
        return f"{self.place or 'The schema'}: {self.message}"


@dataclass(frozen=True, slots=True)
class OldSchema:
    version: int
    schema: Schema


@dataclass(frozen=True, slots=True)
class VersionFault:
    """A fault between the new schema and that of ``version``; ``reader_is_new`` says in which
    direction."""

    fault: Fault
    version: int
    reader_is_new: bool

    def __str__(self) -> str:
        new, old = "the new schema", f"version {self.version}"
        reader, writer = (new, old) if self.reader_is_new else (old, new)
        return (
            f"{self.fault.rule.name} at {self.fault.place or 'the top'} of {reader}, which cannot "
            f"read what is written with {writer}: {self.fault.message}"
        )


def check(
    new: Schema, old: Sequence[OldSchema], compatibility: Compatibility
) -> list[VersionFault]:
    """Returns the faults of ``new`` against ``old``, which is in the order of its versions. Stops
    soon after 1,000 of them."""
    compared = old if compatibility.transitive else old[-1:]
    found: list[VersionFault] = []
    for each in reversed(compared):
        if len(found) >= _MAX_FAULTS:
            break
        if compatibility.backward:
            found += [VersionFault(f, each.version, True) for f in faults(new, each.schema)]
        if compatibility.forward:
            found += [VersionFault(f, each.version, False) for f in faults(each.schema, new)]
    return found


def faults(reader: Schema, writer: Schema) -> list[Fault]:
    """Returns the reasons why data of ``writer`` cannot be read with ``reader``, 1,000 at most; an
    empty list where all of it can.

    Raises SchemaSyntaxError for schemas whose types contain each other in so many ways that
    comparing them would take too long.
    """
    found: list[Fault] = []
    waiting = deque([_Pair(reader, writer, "", "")])
    seen = {(id(reader), id(writer))}
    branches = UnionBranches()
    while waiting and len(found) < _MAX_FAULTS:
        for step in _compare(waiting.popleft(), branches):
            if len(found) >= _MAX_FAULTS:
                break
            if isinstance(step, Fault):
                found.append(step)
                continue
            key = id(step.reader), id(step.writer)
            if key not in seen:
                seen.add(key)
                waiting.append(step)
        if len(seen) > _MAX_PAIRS:
            raise SchemaSyntaxError(
                f"The types of the schemas contain each other in more than {_MAX_PAIRS:,} ways, "
                "which is too much to compare."
            )
    return found


@dataclass(frozen=True, slots=True)
class _Pair:
    reader: Schema
    writer: Schema
    place: str
    writer_place: str

    def below(self, reader: Schema, writer: Schema, step: str, writer_step: str) -> _Pair:
        return _Pair(reader, writer, place(self.place, step), place(self.writer_place, writer_step))

    def fault(self, rule: Rule, message: str, detail: str, step: str = "") -> Fault:
        return Fault(rule, place(self.place, step), self.writer_place, message, detail)


def _compare(pair: _Pair, branches: UnionBranches) -> Iterator[_Pair | Fault]:
    """The faults of a pair of types, and the pairs that have to fit too."""
    reader, writer = pair.reader, pair.writer
    if isinstance(writer, Union):
        for number, branch in enumerate(writer.branches):
            yield pair.below(reader, branch, "", f"[{number}]")
    elif isinstance(reader, Union):
        candidates = branches.find(reader, writer)
        if not candidates:
            named = _named(writer)
            yield pair.fault(
                Rule.MISSING_UNION_BRANCH,
                f"the union of the reader has no type for the writer's {named}.",
                named,
            )
        else:
            below = [pair.below(reader.branches[n], writer, f"[{n}]", "") for n in candidates]
            yield next((one for one in below if _is_taken(one, branches)), below[0])
    elif isinstance(reader, Record) and isinstance(writer, Record):
        yield from _compare_records(pair, reader, writer)
    elif isinstance(reader, Enum) and isinstance(writer, Enum):
        yield from _compare_enums(pair, reader, writer)
    elif isinstance(reader, Fixed) and isinstance(writer, Fixed):
        yield from _compare_names(pair, reader, writer)
        if reader.size != writer.size:
            yield pair.fault(
                Rule.FIXED_SIZE_MISMATCH,
                f"{reader.name} has {reader.size} bytes for the reader, {writer.size} for the "
                "writer.",
                f"expected: {writer.size}, found: {reader.size}",
            )
        yield from _compare_meanings(pair, reader, writer)
    elif isinstance(reader, Array) and isinstance(writer, Array):
        yield pair.below(reader.items, writer.items, ".items", ".items")
    elif isinstance(reader, Map) and isinstance(writer, Map):
        yield pair.below(reader.values, writer.values, ".values", ".values")
    elif reader.kind == writer.kind or reader.kind in PROMOTIONS.get(writer.kind, ()):
        yield from _compare_meanings(pair, reader, writer)
    else:
        yield pair.fault(
            Rule.TYPE_MISMATCH,
            f"the reader has {_named(reader)}, the writer {_named(writer)}, which cannot be "
            "promoted to it.",
            f"reader type: {reader.kind.upper()} not compatible with writer type: "
            f"{writer.kind.upper()}",
        )


def _is_taken(pair: _Pair, branches: UnionBranches) -> bool:
    """Do readers take this branch, and not look at the next one of a like name? They do where only
    some symbols are missing, and may look further than here, where fields of records differ."""
    return not any(
        isinstance(step, Fault) and step.rule is not Rule.MISSING_ENUM_SYMBOLS
        for step in _compare(pair, branches)
    )


def _compare_meanings(pair: _Pair, reader: Schema, writer: Schema) -> Iterator[Fault]:
    means, meant = _meaning(reader), _meaning(writer)
    if not keeps_meaning(meant, means, same_kind=reader.kind == writer.kind):
        yield pair.fault(
            Rule.TYPE_MISMATCH,
            f"the reader has {_shown(reader, means)}, the writer {_shown(writer, meant)}, which do "
            "not mean the same; add a field of the other type instead.",
            f"reader type: {_shown(reader, means).upper()} not compatible with writer type: "
            f"{_shown(writer, meant).upper()}",
        )


def _meaning(schema: Schema) -> Meaning:
    if isinstance(schema, Fixed):
        return meaning_of(schema.kind, schema.properties, size=schema.size)
    return meaning_of(schema.kind, schema.properties) if isinstance(schema, Primitive) else PLAIN


def _shown(schema: Schema, meaning: Meaning) -> str:
    return f"{schema.kind} ({meaning})" if meaning.logical else schema.kind


def _compare_records(pair: _Pair, reader: Record, writer: Record) -> Iterator[_Pair | Fault]:
    yield from _compare_names(pair, reader, writer)
    by_name = {field.name: number for number, field in enumerate(writer.fields)}
    for number, field in enumerate(reader.fields):
        step = f".fields[{number}]"
        written = written_field(field, by_name)
        if written is not None:
            yield pair.below(
                field.schema,
                writer.fields[written].schema,
                f"{step}.type",
                f".fields[{written}].type",
            )
        elif not field.has_default:
            yield pair.fault(
                Rule.READER_FIELD_MISSING_DEFAULT_VALUE,
                f"the reader's field {field.name!r} has no default, and the writer has no such "
                "field.",
                field.name,
                step,
            )
        else:
            fault = Defaults(kept=True).fault(field.default, field.schema)
            if fault is not None:
                yield pair.fault(
                    Rule.READER_FIELD_MISSING_DEFAULT_VALUE,
                    f"the default of the reader's field {field.name!r}, which the writer has not, "
                    f"cannot be read: {fault}.",
                    field.name,
                    step,
                )


def written_field(field: Field, by_name: dict[str, int]) -> int | None:
    """The number of the writer's field that a reader's field is read of."""
    names = (field.name, *field.aliases)
    return next((by_name[name] for name in names if name in by_name), None)


def _compare_enums(pair: _Pair, reader: Enum, writer: Enum) -> Iterator[Fault]:
    yield from _compare_names(pair, reader, writer)
    known = set(reader.symbols)
    missing = [symbol for symbol in writer.symbols if symbol not in known]
    if missing and reader.default is None:
        yield pair.fault(
            Rule.MISSING_ENUM_SYMBOLS,
            f"the reader's enum {reader.name} lacks symbols of the writer's, and has no default "
            f"for them: {', '.join(missing)}.",
            f"[{', '.join(missing)}]",
            ".symbols",
        )


def _compare_names(pair: _Pair, reader: Named, writer: Named) -> Iterator[Fault]:
    if not _same_name(reader, writer):
        yield pair.fault(
            Rule.NAME_MISMATCH,
            f"the reader's type is named {reader.name}, the writer's {writer.name}, which is no "
            "alias of it.",
            f"expected: {writer.name}",
            ".name",
        )


def _same_name(reader: Named, writer: Named) -> bool:
    """Avro compares names without their namespaces."""
    return reader.short_name == writer.short_name or writer.name in reader.aliases


class UnionBranches:
    """Finds the branches of a union that a reader takes. For the length of one comparison, in which
    what each union holds is noted once."""

    def __init__(self) -> None:
        self._by_union: dict[int, Branches] = {}

    def find(self, union: Union, writer: Schema) -> list[int]:
        """The numbers of the branches that may be taken, the best first, for data of ``writer``,
        which is no union."""
        held = self._by_union.get(id(union))
        if held is None:
            held = self._by_union[id(union)] = Branches(map(_type_name, union.branches))
        return held.find(_type_name(writer))


def _type_name(schema: Schema) -> TypeName:
    if isinstance(schema, Named):
        return TypeName(schema.kind, schema.name, schema.aliases)
    return TypeName(schema.kind)


def _named(schema: Schema) -> str:
    return f"{schema.kind} {schema.name}" if isinstance(schema, Named) else schema.kind

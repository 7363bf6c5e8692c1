"""Columns of a writer's schema made into columns of a reader's.

What happens to each field is decided once, when the schemas are known: nothing, a cast, another
place in the record, a constant. Then every batch takes as many calls of Arrow as the schema has
fields. What depends on the values themselves (a symbol that the reader's enum has not, a member
that the reader's union has not) makes its rows undecodable, as a value that is no datum does.

Resolution is the specification's. Of a union it takes the member that Java's reader takes
(``branches``). Where schemas name different units of time, the instant is kept, not the number; and
where logical types mean something else, they do not resolve (``logical``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from avro_columns.branches import PROMOTIONS, Branches, TypeName
from avro_columns.decode.cursors import Faults, Flags, Longs
from avro_columns.decode.decoder import Decoded
from avro_columns.decode.leaf_readers import NOT_UTF8, is_text, number_bounds
from avro_columns.errors import ResolutionError, ValueMismatchError
from avro_columns.logical import keeps_meaning
from avro_columns.values import resolved_tree as tree
from avro_columns.values.arrow_types import arrow_type
from avro_columns.values.coerce import as_lists, as_member, of_sizes
from avro_columns.values.rows import default_array

#: Makes an array without nulls, whose values are of these rows, the reader's. None: it is already.
Step = Callable[[pa.Array, Longs, Faults], pa.Array] | None

#: Why records do not resolve, by the full names of the writer's and the reader's, each of which is
#: one type in a schema. Members of unions are tried, and each pair would be looked at again for all
#: that it stands in, so that the time would grow fourfold with each level of nesting.
_Failed = dict[tuple[str, str], ResolutionError]

_UNITS: Final = {"millis": 1000, "micros": 1000, "nanos": 1}

_HIGHEST: Final = (1 << 63) - 1

_NO_NULL: Final = "the value is null, which the reader's schema does not allow"
_NO_MEMBER: Final = "the value is of a member that the reader's schema has not: "
_NO_SYMBOL: Final = "the symbol is none of the reader's, whose enum has no default"
_RANGE: Final = "the number {value} is out of the range of the reader's type"


class Resolver:
    """Makes values of one schema those of another. Thread-safe.

    Between records, ``writer_fields`` are the writer's fields that are needed: a decoder may make
    these alone. None stands for all, as the other types have none to choose from.
    """

    def __init__(
        self,
        writer: tree.AnySchema,
        reader: tree.AnySchema,
        *,
        fields: Collection[str] | None = None,
    ) -> None:
        """Makes the reader's ``fields`` only, in its order; the others need not resolve. None: all.

        Raises ResolutionError that names the place, UnsupportedTypeError, and
        ValueMismatchError for a name that is no field of the reader's.
        """
        written, read = tree.parse(writer), tree.parse(reader)
        if fields is not None:
            read = tree.with_fields(tree.record_of(read), fields)
        self.arrow_type = arrow_type(read)
        self._whole_type = arrow_type(written)
        self.writer_fields: tuple[str, ...] | None = None
        if isinstance(written, tree.Record) and isinstance(read, tree.Record):
            written = tree.with_fields(written, _needed(written, read))
            self.writer_fields = tuple(one.name for one in written.fields)
        self.writer_type = arrow_type(written)
        self._nullable = tree.is_nullable(written)
        self._step = None if repr(written) == repr(read) else _step(written, read, {})

    @property
    def changes_nothing(self) -> bool:
        """Are the reader's columns the writer's?"""
        return self._step is None and self.writer_type.equals(self._whole_type)

    def resolve(self, values: pa.Array) -> Decoded:
        """``values``, of all of the writer's fields or of those that are needed, as the reader's.

        Null stays null. Raises ValueMismatchError for columns of another schema.
        """
        if values.type.equals(self._whole_type):
            values = _narrowed(values, self.writer_type)
        elif not values.type.equals(self.writer_type):
            raise ValueMismatchError(
                f"Expected a column of the writer's schema, {self.writer_type}; got {values.type}."
            )
        if self._step is None:
            return Decoded(values, [])
        faults = Faults(len(values))
        rows = np.arange(len(values))
        if values.null_count and not self._nullable:
            valid = np.asarray(values.is_valid())
            made = _spread(self._step(values.drop_null(), rows[valid], faults), valid)
        else:
            made = self._step(values, rows, faults)
        if faults:
            sound = np.ones(len(values), bool)
            sound[faults.rows()] = False
            made = made.take(pa.array(rows, mask=~sound))
        return Decoded(made, faults.told(0))


def _narrowed(values: pa.Array, arrow: pa.DataType) -> pa.Array:
    """``values`` with the fields of ``arrow`` alone; nothing is copied."""
    if values.type.equals(arrow):
        return values
    validity = None
    if values.null_count:
        flags = np.asarray(values.is_valid())
        validity = pa.py_buffer(np.packbits(flags, bitorder="little"))
    fields = [values.field(one.name) for one in arrow]
    return pa.Array.from_buffers(arrow, len(values), [validity], children=fields)


def _spread(values: pa.Array, flags: Flags) -> pa.Array:
    """``values`` where ``flags`` are set, null elsewhere."""
    return values.take(pa.array(np.cumsum(flags) - 1, mask=~flags))


def _refused(writer: tree.Node, reader: tree.Node, why: str = "") -> ResolutionError:
    return ResolutionError(
        f"{tree.named(reader.place)} was written as {tree.described(writer)}, "
        f"which cannot be read as {tree.described(reader)}{why}."
    )


def _step(writer: tree.Node, reader: tree.Node, failed: _Failed) -> Step:
    """Raises ResolutionError where the schemas do not resolve."""
    if isinstance(writer, tree.Union):
        return _from_union(writer, reader, failed)
    if isinstance(reader, tree.Union):
        return _to_union(writer, reader, failed)
    if isinstance(writer, tree.Record) and isinstance(reader, tree.Record):
        names = writer.name, reader.name
        if names in failed:
            raise failed[names]
        try:
            return _record(writer, reader, failed)
        except ResolutionError as error:
            failed[names] = error
            raise
    if isinstance(writer, tree.Array) and isinstance(reader, tree.Array):
        return _array(writer, reader, failed)
    if isinstance(writer, tree.Map) and isinstance(reader, tree.Map):
        return _map(writer, reader, failed)
    if isinstance(writer, tree.Enum) and isinstance(reader, tree.Enum):
        return _enum(writer, reader)
    if isinstance(writer, tree.Primitive) and isinstance(reader, tree.Primitive):
        return _primitive(writer, reader)
    raise _refused(writer, reader)


def _check_names(
    writer: tree.Record | tree.Enum | tree.Primitive,
    reader: tree.Record | tree.Enum | tree.Primitive,
) -> None:
    """Names match without their namespaces, or by the reader's aliases."""
    short = writer.name.rpartition(".")[2]
    aliases = {alias for one in reader.aliases for alias in (one, one.rpartition(".")[2])}
    if short != reader.name.rpartition(".")[2] and not {short, writer.name} & aliases:
        raise _refused(
            writer, reader, f": their names are {writer.name} and {reader.name}; add an alias"
        )


# -- unions -------------------------------------------------------------------------------


def _to_union(writer: tree.Node, reader: tree.Union, failed: _Failed) -> Step:
    arrow = arrow_type(reader)
    if tree.is_null(writer):
        if reader.null_index is None:
            raise _refused(writer, reader)
        return lambda values, rows, faults: pa.nulls(len(values), arrow)
    number, inner = _member(writer, reader, Branches(map(_type_name, reader.others)), failed)
    return inner if len(reader.others) == 1 else _wrapped(inner, number, arrow)


def _member(
    writer: tree.Node, reader: tree.Union, branches: Branches, failed: _Failed
) -> tuple[int, Step]:
    """The member of the reader's that takes the writer's values, which are not null."""
    problem = None
    for number in branches.find(_type_name(writer)):
        try:
            return number, _step(writer, reader.others[number], failed)
        except ResolutionError as error:
            problem = problem or error
    raise problem or _refused(writer, reader)


def _type_name(node: tree.Node) -> TypeName:
    if isinstance(node, tree.Primitive):
        return TypeName(node.kind, node.name, node.aliases)
    kind = type(node).__name__.lower()
    if isinstance(node, tree.Record | tree.Enum):
        return TypeName(kind, node.name, node.aliases)
    return TypeName(kind)


def _wrapped(inner: Step, number: int, arrow: pa.DataType) -> Step:
    def step(values: pa.Array, rows: Longs, faults: Faults) -> pa.Array:
        return as_member(inner(values, rows, faults) if inner else values, number, arrow)

    return step


def _from_union(writer: tree.Union, reader: tree.Node, failed: _Failed) -> Step:
    arrow, place = arrow_type(reader), reader.place
    several = isinstance(reader, tree.Union) and len(reader.others) > 1
    branches = None
    if isinstance(reader, tree.Union):
        branches = Branches(map(_type_name, reader.others))
    steps: list[tuple[Step, str]] = []  # of each member but null, or why there is none
    problem: ResolutionError | None = None
    in_place = several and arrow_type(writer).equals(arrow)
    for own, member in enumerate(writer.others):
        number = 0
        try:
            if isinstance(reader, tree.Union) and branches is not None:
                number, inner = _member(member, reader, branches, failed)
            else:
                inner = _step(member, reader, failed)
        except ResolutionError as error:
            problem = problem or error
            steps.append((None, _NO_MEMBER + _unformatted(error.message)))
            in_place = False
        else:
            in_place = in_place and inner is None and number == own
            steps.append((_wrapped(inner, number, arrow) if several else inner, ""))
    null_fits = tree.is_nullable(reader)
    if all(why for _, why in steps) and not (null_fits and writer.null_index is not None):
        raise problem or _refused(writer, reader)
    null_is_read = null_fits or not tree.is_nullable(writer)
    if len(steps) == 1:
        return _from_nullable(steps[0], arrow, place, null_fits=null_is_read)
    if not steps:
        return lambda values, rows, faults: pa.nulls(len(values), arrow)
    if in_place and null_is_read:
        return None
    return _from_members(steps, arrow, place, null_fits=null_fits)


def _from_nullable(
    member: tuple[Step, str], arrow: pa.DataType, place: str, *, null_fits: bool
) -> Step:
    inner, why_none = member
    if inner is None and not why_none and null_fits:
        return None

    def step(values: pa.Array, rows: Longs, faults: Faults) -> pa.Array:
        valid = np.asarray(values.is_valid())
        if not null_fits:
            _fail(faults, rows[~valid], place, _NO_NULL)
        if why_none:
            _fail(faults, rows[valid], place, why_none)
            return pa.nulls(len(values), arrow)
        if valid.all():
            return inner(values, rows, faults) if inner else values
        present = values.drop_null()
        return _spread(inner(present, rows[valid], faults) if inner else present, valid)

    return step


def _from_members(
    steps: list[tuple[Step, str]], arrow: pa.DataType, place: str, *, null_fits: bool
) -> Step:
    def step(values: pa.Array, rows: Longs, faults: Faults) -> pa.Array:
        whole = np.asarray(values.is_valid())
        parts: list[pa.Array] = [pa.nulls(1, arrow)]
        places = np.zeros(len(values), np.int64)
        behind = 1
        left = np.ones(len(values), bool)
        for number, (inner, why_none) in enumerate(steps):
            member = values.field(number)
            held = np.asarray(member.is_valid()) & whole
            left &= ~held
            if not held.any():
                continue
            if why_none:
                _fail(faults, rows[held], place, why_none)
                continue
            part = member.filter(pa.array(held))
            parts.append(inner(part, rows[held], faults) if inner else part)
            places[held] = np.arange(behind, behind + len(part))
            behind += len(part)
        if not null_fits:
            _fail(faults, rows[left], place, _NO_NULL)
        return pa.concat_arrays(parts).take(pa.array(places))

    return step


def _unformatted(message: str) -> str:
    """``message`` in a reason, which is formatted with a value."""
    return message.rstrip(".").replace("{", "{{").replace("}", "}}")


def _fail(faults: Faults, rows: Longs, place: str, reason: str, values: Any = None) -> None:
    if len(rows):
        numbers = np.zeros(len(rows), np.int64) if values is None else values
        faults.add(rows, place, reason, numbers)


# -- records, arrays, maps ----------------------------------------------------------------


def _record(writer: tree.Record, reader: tree.Record, failed: _Failed) -> Step:
    _check_names(writer, reader)
    written = {one.name: number for number, one in enumerate(writer.fields)}
    plan: list[tuple[int, Step] | pa.Array] = []
    for one in reader.fields:
        name = _source(one, written)
        if name is None:
            plan.append(_default(one, reader))
        else:
            number = written[name]
            plan.append((number, _step(writer.fields[number].node, one.node, failed)))
    arrow = arrow_type(reader)
    as_it_is = [(number, None) for number in range(len(writer.fields))]
    if plan == as_it_is and arrow.equals(arrow_type(writer)):
        return None

    def step(values: pa.Array, rows: Longs, faults: Faults) -> pa.Array:
        arrays = []
        for one in plan:
            if isinstance(one, tuple):
                number, inner = one
                column = values.field(number)
                arrays.append(inner(column, rows, faults) if inner else column)
            else:
                arrays.append(one.take(pa.array(np.zeros(len(values), np.int64))))
        if not arrays:
            return pa.Array.from_buffers(arrow, len(values), [None])
        return pa.StructArray.from_arrays(arrays, fields=list(arrow))

    return step


def _source(field: tree.Field, written: Collection[str]) -> str | None:
    """The writer's field that a field of the reader's is read from: by name, or by an alias."""
    return next((name for name in (field.name, *field.aliases) if name in written), None)


def _needed(writer: tree.Record, reader: tree.Record) -> set[str]:
    """The writer's fields that the reader's are read from."""
    written = {one.name for one in writer.fields}
    return {name for one in reader.fields if (name := _source(one, written)) is not None}


def _default(one: tree.Field, reader: tree.Record) -> pa.Array:
    if one.default is tree.NO_DEFAULT:
        raise ResolutionError(
            f"The field {one.node.place or one.name} is not in the writer's {reader.name}, and the "
            "reader's schema has no default for it; add one."
        )
    try:
        return default_array(one, one.node.place)
    except ValueMismatchError as error:
        raise ResolutionError(error.message) from error


def _array(writer: tree.Array, reader: tree.Array, failed: _Failed) -> Step:
    inner, arrow = _step(writer.items, reader.items, failed), arrow_type(reader)
    if inner is None and arrow.equals(arrow_type(writer)):
        return None

    def step(values: pa.Array, rows: Longs, faults: Faults) -> pa.Array:
        sizes, items = np.asarray(pc.list_value_length(values)), values.flatten()
        made = inner(items, np.repeat(rows, sizes), faults) if inner else items
        return of_sizes(arrow, sizes, made)

    return step


def _map(writer: tree.Map, reader: tree.Map, failed: _Failed) -> Step:
    inner, arrow = _step(writer.values, reader.values, failed), arrow_type(reader)
    if inner is None and arrow.equals(arrow_type(writer)):
        return None

    def step(values: pa.Array, rows: Longs, faults: Faults) -> pa.Array:
        lists = as_lists(values)
        sizes, entries = np.asarray(pc.list_value_length(lists)), lists.flatten()
        items = entries.field(1)
        made = inner(items, np.repeat(rows, sizes), faults) if inner else items
        pairs = pa.StructArray.from_arrays(
            [entries.field(0), made], fields=[arrow.key_field, arrow.item_field]
        )
        return of_sizes(arrow, sizes, pairs)

    return step


# -- leaves -------------------------------------------------------------------------------


def _enum(writer: tree.Enum, reader: tree.Enum) -> Step:
    _check_names(writer, reader)
    missing = pa.array([one for one in writer.symbols if one not in reader.symbols], pa.string())
    if not len(missing):
        return None
    default, place = reader.default, reader.place

    def step(values: pa.Array, rows: Longs, faults: Faults) -> pa.Array:
        odd = pc.is_in(values, missing)
        if default is not None:
            return pc.if_else(odd, pa.scalar(default), values)
        _fail(faults, rows[np.asarray(odd)], place, _NO_SYMBOL)
        return values

    return step


def _primitive(writer: tree.Primitive, reader: tree.Primitive) -> Step:
    same_kind = reader.kind == writer.kind
    if not same_kind and reader.kind not in PROMOTIONS.get(writer.kind, ()):
        raise _refused(writer, reader)
    if writer.kind == "fixed":
        _check_names(writer, reader)
        if writer.size != reader.size:
            raise _refused(writer, reader, f": the sizes are {writer.size} and {reader.size}")
    if not keeps_meaning(writer.meaning, reader.meaning, same_kind=same_kind):
        raise _refused(
            writer, reader, ": they do not mean the same; add a field of the other type instead"
        )
    if reader.logical == "decimal":
        return _decimal(writer, reader)
    if writer.kind in ("int", "long"):
        return _number(writer, reader)
    return _plain(writer, reader)


def _decimal(writer: tree.Primitive, reader: tree.Primitive) -> Step:
    arrow = arrow_type(reader)
    return None if writer.precision == reader.precision else lambda values, *_: values.cast(arrow)


def _plain(writer: tree.Primitive, reader: tree.Primitive) -> Step:
    arrow, place = arrow_type(reader), reader.place
    if arrow.equals(arrow_type(writer)):
        return None
    if not types.is_string(arrow):
        return lambda values, *_: values.cast(arrow)

    def step(values: pa.Array, rows: Longs, faults: Faults) -> pa.Array:
        try:
            return values.cast(arrow)
        except pa.ArrowInvalid:
            sound = np.fromiter(map(is_text, values.to_pylist()), bool, len(values))
            _fail(faults, rows[~sound], place, NOT_UTF8)
            return _spread(values.filter(pa.array(sound)).cast(arrow), sound)

    return step


def _number(writer: tree.Primitive, reader: tree.Primitive) -> Step:
    arrow = arrow_type(reader)
    written, read = _unit(writer), _unit(reader)
    if arrow.equals(arrow_type(writer)) and (writer.logical == reader.logical or written == read):
        return None
    if reader.kind in ("float", "double"):
        width = np.float32 if reader.kind == "float" else np.float64
        return lambda values, *_: pa.array(_written(values, writer).astype(width))
    if written and read:
        return _other_unit(written, read, arrow, reader.place)
    return _other_meaning(writer, reader, arrow)


def _unit(node: tree.Primitive) -> int | None:
    """Nanoseconds of a number in a column of timestamps or times; None for other numbers."""
    logical = node.logical or ""
    return _UNITS[logical.rpartition("-")[2]] if "time" in logical else None


def _other_unit(written: int, read: int, arrow: pa.DataType, place: str) -> Step:
    """Returns the step that converts times between units."""
    factor, divisor = max(written // read, 1), max(read // written, 1)

    def step(values: pa.Array, rows: Longs, faults: Faults) -> pa.Array:
        numbers = np.array(values.view(pa.int64()))
        if factor > 1:
            _check(numbers, (-(_HIGHEST // factor), _HIGHEST // factor), rows, faults, place)
        return pa.array(numbers * factor // divisor).view(arrow)

    return step


def _other_meaning(writer: tree.Primitive, reader: tree.Primitive, arrow: pa.DataType) -> Step:
    """The number that was written, as the reader takes it."""
    place, bounds, factor = reader.place, number_bounds(reader), _factor(reader)
    width = np.int32 if arrow.bit_width == 32 else np.int64

    def step(values: pa.Array, rows: Longs, faults: Faults) -> pa.Array:
        numbers = _written(values, writer)
        _check(numbers, bounds, rows, faults, place)
        return pa.array((numbers * factor).astype(width)).view(arrow)

    return step


def _check(
    numbers: Longs, bounds: tuple[int, int], rows: Longs, faults: Faults, place: str
) -> None:
    """Puts 0 for numbers out of ``bounds``, whose rows are faults."""
    bad = (numbers < bounds[0]) | (numbers > bounds[1])
    if bad.any():
        faults.add(rows[bad], place, _RANGE, numbers[bad])
        numbers[bad] = 0


def _factor(node: tree.Primitive) -> int:
    """Factor from a written number to the one in its column."""
    return 1000 if (node.logical or "").endswith("-millis") else 1


def _written(values: pa.Array, node: tree.Primitive) -> Longs:
    """The numbers that were written."""
    width = pa.int32() if values.type.bit_width == 32 else pa.int64()
    return np.asarray(values.view(width)).astype(np.int64) // _factor(node)

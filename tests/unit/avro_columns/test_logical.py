"""Which types may be read as which, by what their values mean."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final

import pytest

from avro_columns.compatibility import faults
from avro_columns.decode.evolution import Resolver
from avro_columns.errors import ResolutionError
from avro_columns.parse import parse_value

UNITS: Final = ("millis", "micros", "nanos")
INSTANTS: Final = {f"timestamp-{unit}" for unit in UNITS}
LOCALS: Final = {f"local-timestamp-{unit}" for unit in UNITS}
FLOATS: Final = {"float", "double"}
BASES: Final = {"date": "int", "time-millis": "int", "uuid": "string"}

#: Of each type, those that it may be read as. ``decimal 4 2`` has 4 digits, 2 of them after the
#: point; what is ``of N bytes`` is a fixed.
READABLE: Final[dict[str, set[str]]] = {
    "boolean": {"boolean"},
    "int": {"int", "long", "date", "time-millis", *FLOATS},
    "long": {"long", "time-micros", *INSTANTS, *LOCALS, *FLOATS},
    "float": FLOATS,
    "double": {"double"},
    "string": {"string", "bytes", "uuid"},
    "bytes": {"string", "bytes", "uuid"},
    "uuid": {"string", "bytes", "uuid"},
    "date": {"date", "int", "long", *FLOATS},
    "time-millis": {"time-millis", "time-micros", "int", "long", *FLOATS},
    "time-micros": {"time-micros", "long", *FLOATS},
    **{name: {*INSTANTS, "long", *FLOATS} for name in INSTANTS},
    **{name: {*LOCALS, "long", *FLOATS} for name in LOCALS},
    "decimal 4 2": {"decimal 4 2", "decimal 6 2"},
    "decimal 6 2": {"decimal 6 2"},
    "decimal 6 3": {"decimal 6 3"},
    "fixed of 12 bytes": {"fixed of 12 bytes"},
    "fixed of 16 bytes": {"fixed of 16 bytes", "uuid of 16 bytes"},
    "uuid of 16 bytes": {"fixed of 16 bytes", "uuid of 16 bytes"},
    "duration of 12 bytes": {"duration of 12 bytes"},
    "decimal of 12 bytes": {"decimal of 12 bytes"},
}

AROUND: Final[dict[str, Callable[[Any], Any]]] = {
    "itself": lambda kind: kind,
    "a field": lambda kind: {
        "type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]
    },
    "an array": lambda kind: {"type": "array", "items": kind},
    "a map": lambda kind: {"type": "map", "values": kind},
}  # fmt: skip


def schema(name: str) -> Any:
    """The type that a name of ``READABLE`` stands for."""
    logical, *rest = name.split()
    if rest[:1] == ["of"]:
        more = {"precision": 9, "scale": 2} if logical == "decimal" else {}
        named = {"type": "fixed", "name": "F", "size": int(rest[1]), **more}
        return named if logical == "fixed" else {**named, "logicalType": logical}
    if logical == "decimal":
        precision, scale = map(int, rest)
        return {"type": "bytes", "logicalType": logical, "precision": precision, "scale": scale}
    if "-" in logical or logical in BASES:
        return {"type": BASES.get(logical, "long"), "logicalType": logical}
    return logical


def resolves(writer: Any, reader: Any) -> bool:
    try:
        Resolver(writer, reader)
    except ResolutionError:
        return False
    return True


@pytest.mark.parametrize("around", AROUND)
def test_reading_and_compatibility_agree_on_all_pairs_of_types(around: str) -> None:
    for name, other in itertools.product(READABLE, READABLE):
        writer, reader = AROUND[around](schema(name)), AROUND[around](schema(other))
        readable = other in READABLE[name]
        assert resolves(writer, reader) == readable, (name, other)
        found = faults(parse_value(reader), parse_value(writer))
        assert (not found) == readable, (name, other)


def test_reading_and_compatibility_agree_on_members_of_unions() -> None:
    for name, other in itertools.product(READABLE, READABLE):
        writer, reader = schema(name), ["null", {"type": "map", "values": "int"}, schema(other)]
        assert resolves(writer, reader) == (other in READABLE[name]), (name, other)
        assert (not faults(parse_value(reader), parse_value(writer))) == (other in READABLE[name])


def test_a_fault_says_what_the_types_mean() -> None:
    [fault] = faults(parse_value(schema("timestamp-millis")), parse_value(schema("date")))
    assert str(fault) == (
        "The schema: the reader has long (timestamp-millis), the writer int (date), which do not "
        "mean the same; add a field of the other type instead."
    )
    assert fault.rule.name == "TYPE_MISMATCH"


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        ({"type": "int", "logicalType": "timestamp-millis"}, schema("timestamp-millis")),
        ({"type": "string", "logicalType": "date"}, "string"),
        ({"type": "long", "logicalType": "number of days"}, schema("timestamp-millis")),
    ],
)
def test_logical_types_that_are_unknown_or_misplaced_mean_nothing(writer: Any, reader: Any) -> None:
    kind = writer["type"]
    assert resolves(writer, reader) == resolves(kind, reader)
    assert resolves(writer, reader) == (not faults(parse_value(reader), parse_value(writer)))


DECIMAL: Final = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}


@pytest.mark.parametrize(
    ("kind", "default", "fits"),
    [
        ("float", 3.4e38, True),
        ("float", 1e39, False),
        ("double", 1e308, True),
        ("double", 10**400, False),
        (["float", "double"], 1e39, True),
        (["null", {"type": "array", "items": "float"}], [1e39], False),
        (DECIMAL, "\x27\x0f", True),
        (DECIMAL, "\x27\x10", False),
        ({"type": "long", "logicalType": "timestamp-millis"}, (2**63 - 1) // 1000, True),
        ({"type": "long", "logicalType": "timestamp-millis"}, 2**63 - 1, False),
    ],
)  # fmt: skip
def test_reading_and_compatibility_agree_on_defaults(kind: Any, default: Any, fits: bool) -> None:
    writer: Any = {"type": "record", "name": "R", "fields": []}
    field = {"name": "new", "type": kind, "default": default}
    reader: Any = {**writer, "fields": [field]}
    assert bool(faults(parse_value(reader), parse_value(writer))) != fits
    if fits:
        assert not Resolver(writer, reader).changes_nothing
    else:
        with pytest.raises(ResolutionError, match=r"is no value of its type"):
            Resolver(writer, reader)

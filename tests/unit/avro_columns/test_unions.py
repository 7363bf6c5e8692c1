"""A value of a union stays of its member, whatever else a newer version of the schema has."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from avro_columns.compatibility import faults
from avro_columns.decode import evolution
from avro_columns.decode.evolution import Resolver
from avro_columns.errors import ResolutionError
from avro_columns.parse import parse_value
from avro_columns.values.rows import columns_of
from avro_columns.values.union_matching import Member
from tests.builders.avro_types import (
    ALL_PAIRS,
    TYPES,
    Definitions,
)


@pytest.mark.parametrize("member", [0, 1])
def test_a_type_that_becomes_a_union_is_its_own_member_of_it(member: int) -> None:
    of_writer, of_reader = Definitions(), Definitions()
    written, read = [], []
    for number, pair in enumerate(ALL_PAIRS):
        written.append({"name": f"f{number}", "type": of_writer.of(pair[member])})
        union = [of_reader.of(one) for one in pair]
        read.append({"name": f"f{number}", "type": union})
    writer, reader = ({"type": "record", "name": "R", "fields": one} for one in (written, read))
    rows = [
        [TYPES[pair[member]].values[which] for pair in ALL_PAIRS]
        for which in (0, 1)
    ]  # fmt: skip
    values = columns_of([{f"f{n}": one for n, one in enumerate(row)} for row in rows], writer)
    expected = columns_of(
        [{f"f{n}": Member(member, one) for n, one in enumerate(row)} for row in rows], reader
    )
    resolved = Resolver(writer, reader).resolve(values).checked()
    assert [
        pair for n, pair in enumerate(ALL_PAIRS) if resolved.field(n) != expected.field(n)
    ] == []


def record(name: str, *kinds: Any, **more: Any) -> dict[str, Any]:
    fields = [{"name": f"x{number}", "type": kind} for number, kind in enumerate(kinds)]
    return {"type": "record", "name": name, "fields": fields, **more}


def enum(name: str, *symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


def fixed(name: str, size: int, **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size, **more}


def decimal(scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": scale}


X = {"x0": 1}


@pytest.mark.parametrize(
    ("writer", "value", "reader", "number"),
    [
        ("int", 1, ["double", "long", "int"], 2),
        ("int", 1, ["string", "double", "long"], 1),  # the first to which it is promoted
        ("string", "a", ["bytes", enum("e", "a"), "string"], 2),
        (record("b.R", "int"), X, [record("a.R", "int"), record("b.R", "long")], 1),
        (record("c.R", "int"), X, [record("b.R", "int"), record("S", "int", aliases=["c.R"])], 1),
        (record("R", "int"), X, [record("S", "int", aliases=["R"]), record("R", "int")], 1),
        (record("a.R", "int"), X, [record("S", "int", aliases=["b.R"]), "long"], 0),
        (enum("c.E", "A"), "A", [enum("a.F", "A"), enum("b.E", "A")], 1),
        (enum("c.E", "A", "B"), "A", [enum("a.E", "A", default="A"), enum("b.E", "A", "B")], 0),
        (fixed("a.F", 2), b"ab", [fixed("b.F", 2), fixed("a.F", 2)], 1),
        (fixed("c.F", 2), b"ab", [fixed("a.F", 3), fixed("b.F", 2)], 1),
        (decimal(2), Decimal("1.25"), ["string", decimal(2)], 1),
        # As Java's reader, unlike its check, which looks at the names of records only:
        (record("c.R", "int"), X, [record("a.R", "string"), record("b.R", "int")], 1),
    ],
)
def test_the_member_that_is_taken(writer: Any, value: Any, reader: Any, number: int) -> None:
    resolved = Resolver(writer, reader).resolve(columns_of([value], writer)).checked()
    others = range(resolved.type.num_fields)
    assert [one for one in others if resolved.field(one)[0].is_valid] == [number]


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        (decimal(2), ["string", decimal(3)]),
        (fixed("a.F", 2), [fixed("b.F", 2), fixed("a.F", 3)]),
        (record("a.R", "int"), [record("b.R", "int"), record("a.R", "string")]),
        (record("R", "int"), [record("S", "int")]),
        ("int", [{"type": "long", "logicalType": "timestamp-micros"}, "double"]),
    ],
)
def test_the_same_member_that_cannot_be_read_gives_way_to_no_other(
    writer: Any, reader: Any
) -> None:
    with pytest.raises(ResolutionError):
        Resolver(writer, reader)
    assert faults(parse_value(reader), parse_value(writer)) != []


def nested(namespaces: str, leaf: str, levels: int = 8) -> Any:
    """Records of the same names in the namespaces, each with a union of those of the next level."""
    defined = set()

    def record(namespace: str, level: int) -> Any:
        name = f"{namespace}.L{level}"
        if name in defined:
            return name
        defined.add(name)
        below = leaf if level == levels else [record(one, level + 1) for one in namespaces]
        return {"type": "record", "name": name, "fields": [{"name": "u", "type": below}]}

    return record(namespaces[0], 0)


def test_members_that_cannot_be_read_are_looked_at_once_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = 0
    record = evolution._record

    def counted(*given: Any) -> Any:
        nonlocal looked
        looked += 1
        return record(*given)

    monkeypatch.setattr(evolution, "_record", counted)
    writer, reader = nested("ab", "string"), nested("xy", "int")
    assert faults(parse_value(reader), parse_value(writer))
    with pytest.raises(ResolutionError, match=r"cannot be read as int"):
        Resolver(writer, reader)
    assert looked == 1 + 8 * 4  # two of the writer's with two of the reader's

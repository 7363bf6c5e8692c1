"""Values read under another schema are what Avro's own reader in Java makes of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from avro_columns.decode.evolution import Resolver
from avro_columns.encode.encoder import Encoder
from avro_columns.errors import ResolutionError
from avro_columns.values.rows import columns_of
from tests.builders.avro_types import ALL_PAIRS, TYPES, Definitions, all_unions, rows_of_all_unions
from tests.servers.avro_java import JavaAvro, java_avro

pytestmark = pytest.mark.long

#: Of all writers' types with all readers' unions, each so many is compared.
STEP = 23


@pytest.fixture(scope="module")
def java() -> Iterator[JavaAvro]:
    with java_avro() as started:
        yield started


@pytest.mark.parametrize(("context", "nullable"), [("a field", False), ("a map", True)])
def test_unions_that_did_not_change_are_read_as_by_java(
    java: JavaAvro, context: str, nullable: bool
) -> None:
    writer, reader = (
        all_unions(context, nullable=nullable, newer=newer) for newer in (False, True)
    )
    values = rows_of_all_unions(context, nullable=nullable)
    datums = Encoder(writer).encode(values).to_pylist()
    ours = Encoder(reader).encode(Resolver(writer, reader).resolve(values).checked()).to_pylist()
    assert ours == java.read(datums, writer, reader).datums


def read_here(values: pa.Array, writer: Any, reader: Any) -> list[bytes | None]:
    """A datum of each value under ``reader``; None for a value that is refused."""
    try:
        resolved = Resolver(writer, reader).resolve(values).values
    except ResolutionError:
        return [None] * len(values)
    datums = iter(Encoder(reader).encode(resolved.drop_null()).to_pylist())
    return [next(datums) if valid else None for valid in resolved.is_valid().to_pylist()]


def test_types_that_become_unions_are_read_as_by_java(java: JavaAvro) -> None:
    plain = [name for name, one in TYPES.items() if "logicalType" not in one.json]
    unions = [pair for pair in ALL_PAIRS if {*pair} <= {*plain}]
    compared = 0
    for name, pair in itertools.islice(itertools.product(plain, unions), 0, None, STEP):
        of_reader = Definitions()
        union = [of_reader.of(one) for one in pair]
        writer, reader = (
            {"type": "record", "name": "t.R", "fields": [{"name": "u", "type": kind}]}
            for kind in (TYPES[name].json, union)
        )
        values = columns_of([{"u": value} for value in TYPES[name].values], writer)
        ours = read_here(values, writer, reader)
        datums = Encoder(writer).encode(values).to_pylist()
        theirs, compatible = java.read(datums, writer, reader)
        if ours == theirs:
            compared += theirs[0] is not None
        elif name == "bytes":  # that are no text: Java replaces them
            assert None in ours
            assert all(own in (None, other) for own, other in zip(ours, theirs, strict=True))
        elif name.startswith("record"):  # of any name, which Java's check does not accept
            assert not compatible
            assert ours == [None] * len(ours)
        else:  # of the same name in another namespace, which the specification accepts
            assert name.startswith(("enum", "fixed"))
            assert theirs == [None] * len(theirs)
    assert compared > len(plain)

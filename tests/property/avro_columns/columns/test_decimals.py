"""Decimals under another decimal: their numbers stay, and are those of Python's.

fastavro reads a decimal by the writer's digits and scale whatever the reader's are, and a decimal
in bytes as text where a reader has that first; so Python's own decimals say here what is right.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from avro_columns.decode.decoder import Decoder
from avro_columns.decode.evolution import Resolver
from avro_columns.encode.encoder import Encoder
from avro_columns.errors import ResolutionError
from tests.builders.avro import datum, without_logical

DEFAULT = settings(max_examples=200)


def most_digits(size: int) -> int:
    """Digits, at most, that columns and the bytes of a fixed hold."""
    return min(38, int((8 * size - 1) * math.log10(2)))


@dataclass(frozen=True)
class Written:
    """A writer's type, and unscaled numbers of it beside the bytes that they were written as."""

    kind: dict[str, Any]
    numbers: list[int]
    data: list[bytes]

    def values(self) -> list[Decimal]:
        with localcontext(prec=40):
            return [Decimal(number).scaleb(-self.kind["scale"]) for number in self.numbers]


@st.composite
def written(draw: st.DrawFn) -> Written:
    size = draw(st.one_of(st.none(), st.integers(1, 20)))
    precision = draw(st.integers(1, most_digits(size or 16)))
    digits = {"logicalType": "decimal", "precision": precision,
              "scale": draw(st.integers(0, precision))}  # fmt: skip
    limit = 10**precision - 1
    numbers = draw(st.lists(st.integers(-limit, limit), max_size=5))
    if size is not None:
        kind = {"type": "fixed", "name": "amount", "size": size, **digits}
        return Written(kind, numbers, [n.to_bytes(size, "big", signed=True) for n in numbers])
    # Bytes of a sign before a number are allowed, and change nothing.
    data = [
        n.to_bytes((n.bit_length() + 8) // 8 + draw(st.integers(0, 2)), "big", signed=True)
        for n in numbers
    ]
    return Written({"type": "bytes", **digits}, numbers, data)


@st.composite
def wider(draw: st.DrawFn, kind: dict[str, Any]) -> dict[str, Any]:
    """The type with as many digits or more."""
    most = most_digits(kind.get("size", 16))
    return {**kind, "precision": draw(st.integers(kind["precision"], most))}


@DEFAULT
@given(st.data(), written())
def test_a_decimal_may_gain_digits_wherever_it_stands(
    data: st.DataObject, decimals: Written
) -> None:
    kind, reader = decimals.kind, data.draw(wider(decimals.kind))
    values = decimals.values()
    assert resolved(kind, reader, decimals.data) == values
    assert resolved(kind, ["null", reader], decimals.data) == values
    assert resolved(["null", kind], ["null", reader], [None, *decimals.data]) == [None, *values]
    assert resolved(array(kind), array(reader), [decimals.data]) == [values]
    # As text and bytes it would be another value: it is read as neither, wherever they stand.
    members = data.draw(st.permutations(["string", "null", reader]))
    place = f"member{[one for one in members if one != 'null'].index(reader)}"
    got = resolved(kind, members, decimals.data)
    assert [one[place] for one in got] == values
    # And what is written again is the number that was read.
    column = Resolver(kind, reader).resolve(decoded(kind, decimals.data)).checked()
    again = Decoder(reader).decode(Encoder(reader).encode(column)).checked()
    assert again.to_pylist() == values


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def resolved(writer: Any, reader: Any, values: list[Any]) -> list[Any]:
    resolver = Resolver(writer, reader)
    made = resolver.resolve(decoded(writer, values)).checked()
    made.validate(full=True)
    assert made.type == resolver.arrow_type
    got: list[Any] = made.to_pylist()
    return got


def decoded(writer: Any, values: list[Any]) -> pa.Array:
    plain = without_logical(writer)
    datums = pa.array([datum(plain, value) for value in values], pa.binary())
    return Decoder(writer).decode(datums).checked()


@DEFAULT
@given(st.data(), written())
def test_a_decimal_does_not_lose_digits_or_change_its_scale(
    data: st.DataObject, decimals: Written
) -> None:
    kind = decimals.kind
    most = most_digits(kind.get("size", 16))
    precision = data.draw(st.integers(1, most))
    scale = data.draw(st.integers(0, precision))
    reader = {**kind, "precision": precision, "scale": scale}
    if scale == kind["scale"] and precision >= kind["precision"]:
        assert resolved(kind, reader, decimals.data) == decimals.values()
    else:
        with pytest.raises(ResolutionError, match="cannot be read as a decimal"):
            Resolver(kind, reader)


@DEFAULT
@given(written())
def test_a_decimal_is_read_as_nothing_else(decimals: Written) -> None:
    others: list[Any] = ["bytes", "string", "long", "double"]
    if "size" in decimals.kind:
        others += [without_logical(decimals.kind), {**decimals.kind, "type": "bytes"}]
    for other in others:
        for writer, reader in ((decimals.kind, other), (other, decimals.kind)):
            with pytest.raises(ResolutionError):
                Resolver(writer, reader)

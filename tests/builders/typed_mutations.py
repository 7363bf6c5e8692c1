"""Decodes many damaged record batches of a schema's columns under right checksums, with little
memory. A program of its own, because a defect in native code ends the process.

    python -m tests.builders.typed_mutations numbers|bits|random none|lz4|zstd [seconds]

Prints the counts as JSON. Any exception but CorruptRecordBatchError ends it with a traceback.
"""

from __future__ import annotations

import json
import random
import resource
import struct
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyarrow import types

from avro_columns.values.arrow_types import arrow_type
from avro_columns.values.rows import columns_of
from spark_logbus.errors import CorruptRecordBatchError
from spark_logbus.model import Compression
from spark_logbus.record import format as fmt
from spark_logbus.record import parse_header, verify
from spark_logbus.record.chunks import body_start_of
from spark_logbus.record.columns.decoder import decode_columns, verify_selected
from spark_logbus.record.columns.encoder import encode_columns
from spark_logbus.record.columns.layout import ALL, ColumnSelection
from spark_logbus.record.rows.arrow import HEADERS, TIMESTAMP
from tests.builders.mutations import BOUNDARIES, MEMORY_LIMIT_BYTES, peak_mib
from tests.builders.typed import T0, cut, joined_from, reseal_columns, rows_of, run_of

SCHEMA: Final = json.dumps({
    "type": "record", "name": "All",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "ok", "type": ["null", "boolean"]},
        {"name": "text", "type": "string"},
        {"name": "nothing", "type": "null"},
        {"name": "data", "type": ["null", "bytes"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9,
                                   "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": ["null", {"type": "map", "values": ["null", "long"]}]},
        {"name": "place", "type": ["null", {"type": "record", "name": "Place", "fields": [
            {"name": "x", "type": "double"},
            {"name": "path", "type": {"type": "array", "items": {
                "type": "record", "name": "Step", "fields": [
                    {"name": "to", "type": "string"}, {"name": "far", "type": "float"}]}}},
        ]}]},
        {"name": "either", "type": ["int", "string"]},
    ],
})  # fmt: skip
VALUE_TYPE: Final = arrow_type(SCHEMA)
SELECTIONS: Final = (
    ALL,
    ColumnSelection(frozenset(), ()),
    ColumnSelection(frozenset({"timestamp"}), (2, 9)),
    ColumnSelection(frozenset({"key", "headers"}), (0, 3, 6, 7, 8, 10)),
)


def row(i: int) -> dict[str, Any]:
    place = {"x": i / 4, "path": [{"to": "a" * (i % 4), "far": 0.5}] * (i % 3)}
    return {
        "id": i,
        "ok": None if i % 5 == 0 else i % 2 == 0,
        "text": "größe" * (i % 3),
        "nothing": None,
        "data": None if i % 7 == 0 else bytes([i % 256]) * (i % 5),
        "price": i,
        "at": i * 1_000_003,
        "tags": ["tag"] * (i % 4),
        "counts": None if i % 6 == 0 else {"a": i, "b": None},
        "place": None if i % 4 == 0 else place,
        "either": i if i % 2 else "text",
    }


def arrow_batch(count: int) -> pa.RecordBatch:
    there = columns_of([row(i) for i in range(count)], SCHEMA)
    value = there.take(pa.array([None if i % 9 == 5 else i for i in range(count)], pa.int64()))
    headers = [None if i % 3 else [{"key": "h", "value": b"x" * i}] for i in range(count)]
    return pa.record_batch({
        "timestamp": pa.array([T0 + i for i in range(count)], TIMESTAMP),
        "key": pa.array([None if i % 4 == 1 else b"key %d" % i for i in range(count)]),
        "value": value,
        "headers": pa.array(headers, HEADERS),
        "offset_delta": pa.array([2 * i for i in range(count)], pa.int32()),
    })  # fmt: skip


def encoded(count: int, compression: Compression = Compression.NONE) -> bytearray:
    return bytearray(encode_columns(arrow_batch(count), schema_id=7, compression=compression))


def numbers(original: bytearray) -> Iterator[bytearray]:
    """Each number of the directory and of Arrow's metadata replaced."""
    for at in range(fmt.DIRECTORY_AT, body_start_of(original) - 8, 4):
        for number in BOUNDARIES:
            for code, bits in (("<i", 32), ("<q", 64)):
                if -(1 << bits - 1) <= number < 1 << bits - 1:
                    damaged = bytearray(original)
                    struct.pack_into(code, damaged, at, number)
                    yield damaged


def flipped_bits(original: bytearray) -> Iterator[bytearray]:
    for at in range(fmt.DIRECTORY_AT, len(original)):
        for bit in range(8):
            damaged = bytearray(original)
            damaged[at] ^= 1 << bit
            yield damaged


def random_damage(original: bytearray, dice: random.Random) -> Iterator[bytearray]:
    """Yields damaged copies without end; most are damaged before the columns or in their start."""
    body_start = body_start_of(original)
    while True:
        damaged = bytearray(original)
        for _ in range(dice.randint(1, 6)):
            end = dice.choice((body_start, body_start, len(damaged)))
            at = dice.randrange(32, end - 8)
            step = dice.choice((1, 4, 8))
            at -= at % step
            what = dice.choice(("junk", "number", "near", "copy"))
            if what == "junk":
                damaged[at : at + step] = dice.randbytes(step)
            elif what == "number":
                damaged[at : at + 8] = struct.pack("<q", dice.choice(BOUNDARIES))
            elif what == "near":
                old = int.from_bytes(damaged[at : at + step], "little")
                new = (old + dice.choice((-64, -8, -1, 1, 8, 64))) % (1 << 8 * step)
                damaged[at : at + step] = new.to_bytes(step, "little")
            else:
                other = dice.randrange(fmt.DIRECTORY_AT, len(damaged) - 8)
                damaged[at : at + 8] = damaged[other : other + 8]
        yield damaged


def main(what: str, compression: Compression, seconds: float) -> dict[str, int]:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    original = encoded(3 if compression is Compression.NONE else 60, compression)
    cases = {
        "numbers": numbers(original),
        "bits": flipped_bits(original),
        "random": random_damage(original, random.Random(20111)),
    }
    counts = {"corrupt": 0, "accepted": 0}
    started = time.process_time()
    for number, damaged in enumerate(cases[what]):
        if time.process_time() - started > seconds:
            break
        counts[attempt(damaged, SELECTIONS[number % len(SELECTIONS)])] += 1
        counts[attempt(damaged, ALL)] += 1
    counts["peak_mib"] = peak_mib()
    return counts


def attempt(damaged: bytearray, selection: ColumnSelection) -> str:
    """Whole, without its schema, and cut: each may be refused by itself."""
    reseal_columns(damaged)
    try:
        header = verify(damaged)
        part = cut(bytes(damaged), selection)
        verify_selected(parse_header(part), part, selection)
    except CorruptRecordBatchError:
        return "corrupt"
    outcome, found = "accepted", None
    for data, value_type in ((damaged, None), (damaged, VALUE_TYPE), (part, VALUE_TYPE)):
        try:
            found = decode_columns(
                header, data, value_type, selection=selection, is_selected=data is part
            )
            read_all(found)
        except CorruptRecordBatchError:
            outcome, found = "corrupt", None
    # Whole or cut, as what was cut off is not looked at.
    check_joined(bytes(damaged), selection, found, is_cut=False)
    check_joined(part, selection, found, is_cut=True)
    return outcome


def check_joined(
    data: bytes, selection: ColumnSelection, expected: dict[str, pa.Array] | None, *, is_cut: bool
) -> None:
    """Decoding it as one of many gives the same, or leaves it to who decodes it alone."""
    joined = joined_from(run_of([data], is_cut=is_cut), selection, VALUE_TYPE)
    if joined is None:
        return
    if expected is None:
        raise SystemExit("What is refused alone is accepted together with others.")
    if {name: repr(rows_of(array)) for name, array in joined.items()} != {
        name: repr(rows_of(array)) for name, array in expected.items()
    }:
        raise SystemExit("Alone it is decoded to other rows than together with others.")


def read_all(columns: dict[str, pa.Array]) -> None:
    """Touch every byte that is offered, as Python values where there are such."""
    for array in columns.values():
        array.validate(full=True)
        if not types.is_timestamp(array.type):
            array.to_pylist()


if __name__ == "__main__":
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else float("inf")
    print(json.dumps(main(sys.argv[1], Compression[sys.argv[2].upper()], seconds)))  # noqa: T201

"""Payloads that lie, under a right checksum: a typed error, in bounded memory, never a crash."""

from __future__ import annotations

import ast
import json
import os
import pickle
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest

import spark_logbus
from spark_logbus.errors import CorruptRecordBatchError
from spark_logbus.model import Compression
from spark_logbus.record import HEADER_SIZE, verify
from spark_logbus.record import format as fmt
from spark_logbus.record.rows.arrow import decode, encode, payload_schema
from tests.builders.forged import (
    METADATA_AT,
    body_start,
    encoded,
    forge,
    message,
    reseal,
    timestamps,
)

VALUES = pa.array([b"a", b"b"])
TIMES = timestamps(1, 2)
HONEST = message({"timestamp": TIMES, "value": VALUES})


def refused(forged: bytes | bytearray, why: str) -> None:
    header = verify(forged)
    with pytest.raises(CorruptRecordBatchError, match=why):
        decode(header, forged)


def test_the_forge_can_also_be_honest() -> None:
    forged = forge(HONEST, record_count=2)
    assert decode(verify(forged), forged)["value"].equals(VALUES)


DICTIONARY = pa.array([b"a", b"b"]).dictionary_encode()
SAME = [b"same value"] * 60
MANY = {"timestamp": timestamps(*range(60)), "value": pa.array(SAME)}


@pytest.mark.parametrize(
    ("payload", "attributes", "count", "why"),
    [
        (b"", 0, 1, "points outside"),
        (bytes(8), 0, 1, "points outside"),
        (bytes(64), 0, 1, "does not start as an Arrow message"),
        (b"\xff" * 64, 0, 1, "does not start as an Arrow message"),
        (b"\xff" * 4 + bytes(60), 0, 1, "not of version 5"),
        (HONEST[4:], 0, 2, "does not start as an Arrow message"),  # framing of Arrow before 0.15
        (HONEST[:-8], 0, 2, "bytes, expected"),
        (HONEST[:16], 0, 2, "points outside"),
        (HONEST + bytes(8), 0, 2, "bytes, expected"),
        (HONEST + HONEST, 0, 2, "bytes, expected"),
        (message({"timestamp": TIMES, "value": VALUES}, old=True), 0, 2, "not of version 5"),
        (bytes(payload_schema(has_key=False, has_headers=False).serialize()), 0, 1, "not a record"),
        (message({"timestamp": TIMES, "value": DICTIONARY}), 0, 2, "cannot be decoded"),
        (HONEST, 0, 1, "holds 2 records, the header says 1"),
        (HONEST, 0, 3, "holds 2 records, the header says 3"),
        (HONEST, fmt.HAS_KEY, 2, "holds 2 columns and children, expected 3"),
        (HONEST, fmt.HAS_HEADERS, 2, "holds 2 columns and children, expected 6"),
        (HONEST, fmt.HAS_OFFSET_DELTA, 2, "holds 2 columns and children, expected 3"),
        (message({"timestamp": TIMES}), 0, 2, "holds 1 columns"),
        (message({"timestamp": TIMES, "value": VALUES, "x": TIMES}), 0, 2, "holds 3 columns"),
        (message({"timestamp": TIMES, "value": TIMES}), 0, 2, "cannot be decoded"),
        (message({"timestamp": timestamps(1, None), "value": VALUES}), 0, 2, "has no timestamp"),
        (message(MANY, codec="lz4"), 0, 60, "have compression lz4, expected none"),
        (message(MANY, codec="zstd"), 0, 60, "have compression zstd, expected none"),
        (message(MANY, codec="zstd"), Compression.LZ4, 60, "compression zstd, expected lz4"),
        (message(MANY, codec="lz4"), Compression.ZSTD, 60, "compression lz4, expected zstd"),
        (message(MANY), Compression.LZ4, 60, "compression none, expected lz4"),
    ],
)
def test_payloads_that_are_not_what_the_header_says(
    payload: bytes, attributes: int, count: int, why: str
) -> None:
    refused(forge(payload, attributes=attributes, record_count=count), why)


@pytest.mark.parametrize(
    ("deltas", "last", "why"),
    [
        ([0, 0], 1, "do not rise"),
        ([5, 1], 1, "do not rise"),
        ([-1, 5], 5, "do not rise"),
        ([None, 5], 5, "do not rise"),
        ([0, 6], 5, "last offset delta is 6, expected at most 5"),
        ([0, 2147483647], 5, "last offset delta is 2147483647, expected at most 5"),
    ],
)
def test_offset_deltas_that_lie(deltas: list[int | None], last: int, why: str) -> None:
    payload = message(
        {"timestamp": TIMES, "value": VALUES, "offset_delta": pa.array(deltas, pa.int32())}
    )
    attributes = fmt.HAS_OFFSET_DELTA
    refused(forge(payload, attributes=attributes, record_count=2, last_offset_delta=last), why)


def test_a_header_name_that_is_not_utf8() -> None:
    data = encoded()
    at = data.index("größe".encode())
    data[at + 2] = 0xFF
    fmt.CRC.pack_into(data, fmt.CRC_AT, 0)
    refused(forge(bytes(data[HEADER_SIZE:]), attributes=_attributes(data), record_count=60), "UTF8")


def _attributes(record_batch: bytes | bytearray) -> int:
    return int(struct.unpack_from("<H", record_batch, 26)[0])


@pytest.mark.parametrize("claim", [1 << 29, 1 << 40, 1 << 62, (1 << 63) - 1])
@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.ZSTD])
def test_a_claimed_size_is_refused_before_memory_is_taken(
    compression: Compression, claim: int
) -> None:
    data = encoded(60, compression)
    # The first buffer that is not empty, the timestamps, stands at the start of the body.
    struct.pack_into("<q", data, body_start(data), claim)
    before = pa.total_allocated_bytes()
    forged = forge(bytes(data[HEADER_SIZE:]), attributes=_attributes(data), record_count=60)
    refused(forged, "when decoded, the limit is 268435456")
    assert pa.total_allocated_bytes() == before


@pytest.mark.parametrize("claim", [-(1 << 63), -2, -1, 0, 1, 479, 481, 1 << 20])
@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.ZSTD])
def test_a_claimed_size_that_is_wrong_within_the_limit(
    compression: Compression, claim: int
) -> None:
    data = encoded(60, compression)
    struct.pack_into("<q", data, body_start(data), claim)
    forged = forge(bytes(data[HEADER_SIZE:]), attributes=_attributes(data), record_count=60)
    refused(forged, "cannot be decoded")


def test_a_bomb_is_refused() -> None:
    # 300 values of 1 MiB of zeros: an honest message of some 10 KiB, made without our encoder.
    mebibyte = pa.array([bytes(1 << 20)])
    zeros = pa.concat_arrays([mebibyte] * 300)
    bomb = message({"timestamp": timestamps(*range(300)), "value": zeros}, codec="zstd")
    del zeros
    assert len(bomb) < 20_000
    before = pa.total_allocated_bytes()
    refused(forge(bomb, attributes=Compression.ZSTD, record_count=300), "3145.* when decoded")
    assert pa.total_allocated_bytes() == before


def buffers_of(record_batch: bytearray) -> list[int]:
    """Position of each buffer's offset, with its length behind (slots of Arrow's Message)."""

    def u32(at: int) -> int:
        return int(struct.unpack_from("<I", record_batch, at)[0])

    def field(table: int, slot: int) -> int:
        vtable = table - int(struct.unpack_from("<i", record_batch, table)[0])
        return table + int(struct.unpack_from("<H", record_batch, vtable + 4 + 2 * slot)[0])

    batch_at = field(METADATA_AT + u32(METADATA_AT), 2)
    batch = batch_at + u32(batch_at)
    vector_at = field(batch, 2)
    vector = vector_at + u32(vector_at)
    return [vector + 4 + 16 * number for number in range(u32(vector))]


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize(
    "place",
    [(1 << 40, 8), (-8, 8), (-(1 << 62), 1 << 62), (0, 1 << 40), (1 << 62, 1 << 62), (0, -8)],
    ids=["behind", "before", "far before", "longer", "overflowing", "negative"],
)
def test_a_buffer_that_points_outside_its_body_is_refused(
    place: tuple[int, int], compression: Compression
) -> None:
    honest = encoded(60, compression)
    places = buffers_of(honest)
    filled = [at for at in places if struct.unpack_from("<q", honest, at + 8)[0] > 0]
    assert len(filled) >= 4
    for at in filled:
        data = bytearray(honest)
        struct.pack_into("<qq", data, at, *place)
        reseal(data)
        header = verify(data)
        with pytest.raises(CorruptRecordBatchError):
            decode(header, data)


class Trap:
    """Object whose unpickling would leave a file behind."""

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(SPRUNG), "w")


SPRUNG = Path(tempfile.gettempdir()) / f"logbus-trap-{os.getpid()}"


def stream_with_extension_type(name: str, payload: bytes) -> bytes:
    """A whole Arrow stream: a schema whose field claims an extension type, then a record batch."""
    metadata = {b"ARROW:extension:name": name.encode(), b"ARROW:extension:metadata": payload}
    fields = [pa.field("timestamp", TIMES.type), pa.field("value", pa.binary(), metadata=metadata)]
    schema = pa.schema(fields, metadata={b"pandas": payload})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.record_batch([TIMES, VALUES], schema=schema))
    return bytes(sink.getvalue())


@pytest.mark.parametrize("name", ["arrow.py_extension_type", "arrow.opaque", "of.our.own"])
def test_extension_types_from_clients_are_not_unpickled(name: str) -> None:
    stream = stream_with_extension_type(name, pickle.dumps(Trap()))
    refused(forge(stream, record_count=2), "not a record batch")
    schema_end = stream.index(b"\xff\xff\xff\xff", 8)
    only_the_batch = forge(stream[schema_end:], record_count=2)
    # The end of stream is no part of a payload; without it, the types are those of the format.
    refused(only_the_batch, "bytes, expected")
    assert not SPRUNG.exists()


def test_nothing_is_unpickled_or_evaluated_anywhere() -> None:
    package = Path(spark_logbus.__file__).parent
    forbidden = {"pickle", "cloudpickle", "marshal", "shelve", "dill", "yaml", "eval", "exec"}
    found = []
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = []
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names]
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            elif isinstance(node, ast.Name):
                names = [node.id]
            found += [f"{path}: {name}" for name in names if name.split(".")[0] in forbidden]
    assert found == []


def run_driver(*arguments: str) -> dict[str, int]:
    """A native crash must fail one test, not end the run: so all this happens in a child."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "tests.builders.mutations", *arguments],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    counts: dict[str, int] = json.loads(done.stdout)
    return counts


@pytest.mark.parametrize("compression", [c.name.lower() for c in Compression])
def test_every_number_of_the_metadata_replaced(compression: str) -> None:
    counts = run_driver("metadata", compression)
    assert counts["corrupt"] > 1_000
    assert counts["peak_mib"] < 600


@pytest.mark.slow
@pytest.mark.parametrize("compression", [c.name.lower() for c in Compression])
@pytest.mark.parametrize("what", ["everything", "bits", "random"])
def test_every_number_of_the_payload_replaced(what: str, compression: str) -> None:
    counts = run_driver(what, compression)
    assert counts["corrupt"] > 1_000
    assert counts["peak_mib"] < 600


def test_metadata_starts_where_the_tests_think() -> None:
    record_batch = encode(pa.record_batch({"timestamp": TIMES, "value": VALUES}))
    assert bytes(record_batch[HEADER_SIZE : HEADER_SIZE + 4]) == b"\xff" * 4
    assert METADATA_AT == HEADER_SIZE + 8
    assert bytes(record_batch[HEADER_SIZE:]) == HONEST

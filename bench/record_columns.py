"""Record batches of columns, layout 1: what their parts cost, and their bytes beside those of
layout 0 with the same values as JSON and as Avro. Of flights with 19 fields.
"""

from __future__ import annotations

import json
import random
from functools import partial
from typing import Any, Final

import pyarrow as pa
from rich.table import Table

from bench.avro import BASE_US, FLIGHT, flight
from bench.harness import best_us
from spark_logbus.model import Compression
from spark_logbus.record import verify
from spark_logbus.record.arrow import TIMESTAMP, canonical, encode
from spark_logbus.record.chunks import body_start_of, chosen_chunks, read_directory
from spark_logbus.record.column_decoder import decode_columns, verify_selected
from spark_logbus.record.column_encoder import encode_columns
from spark_logbus.record.column_layout import Selection
from spark_logbus.schemas.columns.encoder import Encoder
from spark_logbus.schemas.columns.rows import columns_of

COUNTS: Final = (50, 10_000)
SCHEMA: Final = json.dumps(FLIGHT)
NAMES: Final = [field["name"] for field in FLIGHT["fields"]]
CHOSEN: Final = Selection(
    frozenset(), tuple(sorted(map(NAMES.index, ("arr_delay", "carrier", "origin"))))
)


def rows_of(count: int) -> list[dict[str, Any]]:
    dice = random.Random(count)
    return [flight(dice, number) for number in range(count)]


def arrow_batch_of(values: pa.Array) -> pa.RecordBatch:
    times = pa.array([BASE_US + i * 100 for i in range(len(values))], TIMESTAMP)
    return pa.record_batch({"timestamp": times, "value": values})


def cut(record_batch: memoryview) -> bytes:
    """What a broker sends of it to who wants the chosen fields."""
    directory = read_directory(record_batch, len(record_batch))
    numbers = chosen_chunks(0, len(directory), columns=CHOSEN.columns, fields=CHOSEN.fields)
    bounds = directory.bounds
    chunks = [record_batch[bounds[number] : bounds[number + 1]] for number in numbers]
    return b"".join([record_batch[: directory.body_start], *chunks])


def parts_table(*, compression: Compression) -> Table:
    """Times in µs a record batch."""
    table = Table(title=f"19 fields as columns, compression {compression.name.lower()}, µs")
    for name in ("records", "encode", "verify", "decode", "3 of 19", "verify cut", "decode cut"):
        table.add_column(name, justify="right")
    for count in COUNTS:
        values = columns_of(rows_of(count), SCHEMA)
        arrow_batch, kind = arrow_batch_of(values), values.type
        record_batch = encode_columns(arrow_batch, schema_id=1, compression=compression)
        header, part = verify(record_batch), memoryview(cut(record_batch))
        decode = partial(decode_columns, header)
        chosen: dict[str, Any] = {"selection": CHOSEN}
        work = (
            partial(encode_columns, arrow_batch, schema_id=1, compression=compression),
            partial(verify, record_batch),
            partial(decode, record_batch, kind),
            partial(decode, record_batch, kind, **chosen),
            partial(verify_selected, header, part, CHOSEN),
            partial(decode, part, kind, is_selected=True, **chosen),
        )
        table.add_row(f"{count:,}", *(f"{best_us(each):,.0f}" for each in work))
    return table


def sizes_table(*, compression: Compression) -> Table:
    """Bytes of record batches of the same records."""
    table = Table(title=f"The same values in three forms, compression {compression.name.lower()}")
    for name in ("records", "columns", "of that before them", "3 of 19 cut", "Avro", "JSON"):
        table.add_column(name, justify="right")
    for count in COUNTS:
        rows = rows_of(count)
        values = columns_of(rows, SCHEMA)
        typed = encode_columns(arrow_batch_of(values), schema_id=1, compression=compression)
        datums = Encoder(SCHEMA).encode(values)
        texts = pa.array([json.dumps(row, separators=(",", ":")).encode() for row in rows])
        plain = [
            len(encode(canonical(arrow_batch_of(each), now_us=0), compression=compression))
            for each in (datums, texts)
        ]
        sizes = (len(typed), body_start_of(typed), len(cut(typed)), *plain)
        table.add_row(f"{count:,}", *(f"{size:,}" for size in sizes))
    return table

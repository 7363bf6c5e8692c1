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

from avro_columns.encode.encoder import Encoder
from avro_columns.values.rows import columns_of
from bench.kit.harness import best_us
from bench.programs.avro import BASE_US, FLIGHT, flight
from bench.programs.record.fetches import fetch_of, read_fetch
from spark_logbus.client.fetch.values import ValueReader
from spark_logbus.client.schemas.topic import ValueSchemas
from spark_logbus.model import Compression
from spark_logbus.record import verify
from spark_logbus.record.chunks import body_start_of, chosen_chunks, read_directory
from spark_logbus.record.columns.decoder import decode_columns, verify_selected
from spark_logbus.record.columns.encoder import encode_columns
from spark_logbus.record.columns.layout import ColumnSelection
from spark_logbus.record.rows.arrow import TIMESTAMP, canonical, encode
from spark_logbus.topic_schemas import Encoding

COUNTS: Final = (50, 10_000)
COUNTS_FETCHED: Final = (25_000, 500, 50)
FETCHED_RECORDS: Final = 50_000
SCHEMA: Final = json.dumps(FLIGHT)
NAMES: Final = [field["name"] for field in FLIGHT["fields"]]
CHOSEN_NAMES: Final = ("arr_delay", "carrier", "origin")
CHOSEN: Final = ColumnSelection(frozenset(), tuple(sorted(map(NAMES.index, CHOSEN_NAMES))))


def rows_of(count: int) -> list[dict[str, Any]]:
    dice = random.Random(count)
    return [flight(dice, number) for number in range(count)]


def arrow_batch_of(values: pa.Array) -> pa.RecordBatch:
    times = pa.array([BASE_US + i * 100 for i in range(len(values))], TIMESTAMP)
    return pa.record_batch({"timestamp": times, "value": values})


def cut(record_batch: memoryview) -> bytes:
    """Cuts a record batch as a broker does for a reader of the chosen fields."""
    directory = read_directory(record_batch, len(record_batch))
    numbers = chosen_chunks(0, len(directory), columns=CHOSEN.columns, fields=CHOSEN.fields)
    bounds = directory.bounds
    chunks = [record_batch[bounds[number] : bounds[number + 1]] for number in numbers]
    return b"".join([record_batch[: directory.body_start], *chunks])


def parts_table(*, compression: Compression) -> Table:
    """Measures each part in µs a record batch."""
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


def fetches_table(*, compression: Compression) -> Table:
    """Measures what a task does with many record batches; small ones are decoded together."""
    title = f"A fetch of {FETCHED_RECORDS:,} records of 19 fields, verified, decoded and joined"
    table = Table(title=title)
    for name in ("records", "µs/1,000 records", "µs", "3 of 19: µs/1,000 records", "µs"):
        table.add_column(name, justify="right")
    schemas = ValueSchemas("t", Encoding.COLUMNS, SCHEMA, {1: SCHEMA})
    rows = rows_of(FETCHED_RECORDS)
    for count in COUNTS_FETCHED:
        whole = [
            encode_columns(
                arrow_batch_of(columns_of(rows[first : first + count], SCHEMA)),
                schema_id=1,
                compression=compression,
            )
            for first in range(0, FETCHED_RECORDS, count)
        ]
        cells = []
        for fields in (None, CHOSEN_NAMES):
            values = ValueReader(schemas, fields=fields, columns=() if fields else ("timestamp",))
            came = [cut(one) if values.cut(verify(one)) is not None else one for one in whole]
            data = fetch_of(whole if fields is None else came)
            took_us = best_us(partial(read_fetch, data, records=FETCHED_RECORDS, values=values))
            cells += [took_us / FETCHED_RECORDS * 1_000, took_us / FETCHED_RECORDS * count]
        table.add_row(f"{count:,}", *(f"{cell:,.0f}" for cell in cells))
    return table


def sizes_table(*, compression: Compression) -> Table:
    """Counts bytes of record batches of the same records."""
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

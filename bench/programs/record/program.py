"""Micro benchmark of record batches: encode, verify and decode, by records a record batch.

Prints the best of several rounds, in µs a record batch, and the bytes beside keys and values.
Verify is header, length and checksum: what a broker does. Decode is what a reader does after it.

A second table is of what a task does with a fetch of many record batches: find, verify, decode and
join them to arrow batches of 10,000 rows. It shows how far the cost follows their number.

Three more are of record batches of a schema's columns (``columns``).
"""

from __future__ import annotations

import argparse
import random
from functools import partial
from itertools import repeat

import pyarrow as pa
from rich.table import Table

from bench.kit.harness import best_us, console
from bench.programs.record import columns
from bench.programs.record.fetches import fetch_of, read_fetch
from spark_logbus.model import Compression
from spark_logbus.record import verify
from spark_logbus.record.rows.arrow import canonical, decode, encode

COUNTS = (50, 500, 5_000, 50_000)
COUNTS_FETCHED = (5_000, 250, 60, 25)
FETCHED_RECORDS = 30_000
BASE_TIMESTAMP_US = 1_700_000_000_000_000


def make_records(count: int, *, value_bytes: int) -> pa.RecordBatch:
    """Values of random hexadecimal text (which compresses by half), timestamps that rise."""
    dice = random.Random(count)
    values = [dice.randbytes(value_bytes).hex()[:value_bytes].encode() for _ in range(count)]
    times = [BASE_TIMESTAMP_US + i * 100 for i in range(count)]
    return canonical(
        pa.record_batch({"timestamp": pa.array(times), "value": pa.array(values)}), now_us=0
    )


def parts_table(*, value_bytes: int, compression: Compression) -> Table:
    """Measures encoding, verifying and decoding; overhead is negative if compression saves more."""
    title = f"Record batches of {value_bytes}-byte values, compression {compression.name.lower()}"
    table = Table(title=title)
    for name in ("records", "bytes", "overhead/record", "encode µs", "verify µs", "decode µs"):
        table.add_column(name, justify="right")
    for count in COUNTS:
        records = make_records(count, value_bytes=value_bytes)
        record_batch = encode(records, compression=compression)
        work = (
            partial(encode, records, compression=compression),
            partial(verify, record_batch),
            partial(decode, verify(record_batch), record_batch),
        )
        size = len(record_batch)
        overhead = (size - count * value_bytes) / count
        times = (f"{best_us(each):,.1f}" for each in work)
        table.add_row(f"{count:,}", f"{size:,}", f"{overhead:.2f}", *times)
    return table


def fetches_table(*, value_bytes: int, compression: Compression) -> Table:
    """Measures what a task does with many record batches, by their size."""
    table = Table(title=f"A fetch of {FETCHED_RECORDS:,} records, verified, decoded and joined")
    for name in ("records a batch", "µs/1,000 records", "of 5,000 a batch", "µs a batch"):
        table.add_column(name, justify="right")
    largest = 0.0
    for count in COUNTS_FETCHED:
        record_batch = encode(make_records(count, value_bytes=value_bytes), compression=compression)
        data = fetch_of(repeat(record_batch, FETCHED_RECORDS // count))
        took_us = best_us(partial(read_fetch, data, records=FETCHED_RECORDS))
        largest = largest or took_us
        table.add_row(
            f"{count:,}",
            f"{took_us / FETCHED_RECORDS * 1_000:,.0f}",
            f"{took_us / largest:.2f}",
            f"{took_us / FETCHED_RECORDS * count:,.1f}",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench record", description=__doc__)
    choices = [compression.name.lower() for compression in Compression]
    parser.add_argument("--compression", choices=choices, default="none")
    parser.add_argument("--value-bytes", type=int, default=200)
    options = parser.parse_args()
    compression = Compression[options.compression.upper()]
    for of_values in (parts_table, fetches_table):
        console.print(of_values(value_bytes=options.value_bytes, compression=compression))
    for of_columns in (columns.parts_table, columns.fetches_table, columns.sizes_table):
        console.print(of_columns(compression=compression))

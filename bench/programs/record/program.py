"""Micro benchmark of record batches: encode, verify and decode, by records a record batch.

Prints the best of several rounds, in µs a record batch, and the bytes beside keys and values.
Verify is header, length and checksum: what a broker does. Decode is what a reader does after it.

A second table is of what a task does with a fetch of many record batches: find, verify, decode and
join them to arrow batches of 10,000 rows. It shows how far the cost follows their number.

Four more are of record batches of a schema's columns (``columns``).
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from bench.kit.harness import best_us
from bench.programs.record.columns import (
    alternatives_table,
    parts_table,
    sizes_table,
    typed_fetches_table,
)
from bench.programs.record.fetches import fetch_of, read_fetch
from spark_logbus.model import Compression
from spark_logbus.record import verify
from spark_logbus.record.rows.arrow import canonical, decode, encode

COUNTS = (50, 500, 5_000, 50_000)
COUNTS_FETCHED = (5_000, 250, 60, 25)
FETCHED_RECORDS = 30_000
BASE_TIMESTAMP_US = 1_700_000_000_000_000


@dataclass(frozen=True, slots=True)
class Result:
    records: int
    stored_bytes: int
    overhead_bytes: float  # a record, beside its value; negative when compression saves more
    encode_us: float
    verify_us: float
    decode_us: float


def make_records(count: int, *, value_bytes: int) -> pa.RecordBatch:
    """Values of random hexadecimal text (which compresses by half), timestamps that rise."""
    dice = random.Random(count)
    values = [dice.randbytes(value_bytes).hex()[:value_bytes].encode() for _ in range(count)]
    times = [BASE_TIMESTAMP_US + i * 100 for i in range(count)]
    return canonical(
        pa.record_batch({"timestamp": pa.array(times), "value": pa.array(values)}), now_us=0
    )


def measure(count: int, *, value_bytes: int, compression: Compression) -> Result:
    records = make_records(count, value_bytes=value_bytes)
    record_batch = encode(records, compression=compression)
    header = verify(record_batch)
    return Result(
        records=count,
        stored_bytes=len(record_batch),
        overhead_bytes=(len(record_batch) - count * value_bytes) / count,
        encode_us=best_us(lambda: encode(records, compression=compression)),
        verify_us=best_us(lambda: verify(record_batch)),
        decode_us=best_us(lambda: decode(header, record_batch)),
    )


def fetches_table(*, value_bytes: int, compression: Compression) -> Table:
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


def as_table(results: Sequence[Result], *, value_bytes: int, compression: Compression) -> Table:
    title = f"Record batches of {value_bytes}-byte values, compression {compression.name.lower()}"
    table = Table(title=title)
    for name in ("records", "bytes", "overhead/record", "encode µs", "verify µs", "decode µs"):
        table.add_column(name, justify="right")
    for result in results:
        table.add_row(
            f"{result.records:,}",
            f"{result.stored_bytes:,}",
            f"{result.overhead_bytes:.2f}",
            f"{result.encode_us:,.1f}",
            f"{result.verify_us:,.1f}",
            f"{result.decode_us:,.1f}",
        )
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench record", description=__doc__)
    choices = [compression.name.lower() for compression in Compression]
    parser.add_argument("--compression", choices=choices, default="none")
    parser.add_argument("--value-bytes", type=int, default=200)
    options = parser.parse_args(arguments)
    compression = Compression[options.compression.upper()]
    results = [
        measure(count, value_bytes=options.value_bytes, compression=compression) for count in COUNTS
    ]
    console = Console()
    console.print(as_table(results, value_bytes=options.value_bytes, compression=compression))
    console.print(fetches_table(value_bytes=options.value_bytes, compression=compression))
    console.print(parts_table(compression=compression))
    console.print(typed_fetches_table(compression=compression))
    console.print(sizes_table(compression=compression))
    console.print(alternatives_table())


if __name__ == "__main__":
    main()

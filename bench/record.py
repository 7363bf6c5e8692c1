"""Micro benchmark of record batches: encode, verify and decode, by records a record batch.

    python -m bench.record [--compression none|lz4|zstd] [--value-bytes 200]

Prints the best of several rounds, in µs a record batch, and the bytes beside keys and values.
Verify is header, length and checksum: what a broker does. Decode is what a reader does after it.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from spark_logbus.model import Compression
from spark_logbus.record import verify
from spark_logbus.record.arrow import canonical, decode, encode

COUNTS = (50, 500, 5_000, 50_000)
ROUNDS = 7
ROUND_S = 0.05
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


def best_us(work: Callable[[], object]) -> float:
    """The best mean of several rounds: what the work costs when nothing else runs."""
    start = time.perf_counter()
    work()
    repeats = max(1, int(ROUND_S / max(time.perf_counter() - start, 1e-6)))
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(repeats):
            work()
        best = min(best, (time.perf_counter() - start) / repeats)
    return best * 1e6


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
    parser = argparse.ArgumentParser(prog="python -m bench.record", description=__doc__)
    choices = [compression.name.lower() for compression in Compression]
    parser.add_argument("--compression", choices=choices, default="none")
    parser.add_argument("--value-bytes", type=int, default=200)
    options = parser.parse_args(arguments)
    compression = Compression[options.compression.upper()]
    results = [
        measure(count, value_bytes=options.value_bytes, compression=compression) for count in COUNTS
    ]
    Console().print(as_table(results, value_bytes=options.value_bytes, compression=compression))


if __name__ == "__main__":
    main()

"""Decodes many damaged payloads under a right checksum, with little memory. A program of its own,
because a defect in native code ends the process.

    python -m tests.builders.mutations metadata|everything|bits|random none|lz4|zstd

Prints the counts as JSON. Any exception but CorruptRecordBatchError ends it with a traceback.
"""

from __future__ import annotations

import json
import random
import resource
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from spark_logbus.errors import CorruptRecordBatchError
from spark_logbus.model import Compression
from spark_logbus.record import HEADER_SIZE, verify
from spark_logbus.record.rows.arrow import decode
from tests.builders.forged import METADATA_AT, body_start, encoded, reseal

MEMORY_LIMIT_BYTES = 2 << 30
BOUNDARIES = (
    0, 1, 2, 3, 4, 5, 7, 8, 16, 59, 61, 64, -1, -2, -8, 1 << 15, 1 << 16, 1 << 28, 1 << 31,
    (1 << 31) - 1, -(1 << 31), 1 << 32, 1 << 40, 1 << 60, 1 << 62, (1 << 63) - 1, -(1 << 63),
)  # fmt: skip


def peak_mib() -> int:
    """Returns the peak memory of this program alone: ru_maxrss starts from its parent's."""
    status = Path("/proc/self/status").read_text("ascii")
    return int(status.split("VmHWM:")[1].split()[0]) >> 10


def numbers(original: bytearray, start: int, end: int, *, step: int) -> Iterator[bytearray]:
    for at in range(start, end - 8, step):
        for number in BOUNDARIES:
            for code, bits in (("<h", 16), ("<i", 32), ("<q", 64)):
                if -(1 << bits - 1) <= number < 1 << bits - 1:
                    damaged = bytearray(original)
                    struct.pack_into(code, damaged, at, number)
                    yield damaged


def flipped_bits(original: bytearray) -> Iterator[bytearray]:
    for at in range(HEADER_SIZE, len(original)):
        for bit in range(8):
            damaged = bytearray(original)
            damaged[at] ^= 1 << bit
            yield damaged


def random_damage(original: bytearray, rounds: int) -> Iterator[bytearray]:
    dice = random.Random(20111)
    for _ in range(rounds):
        damaged = bytearray(original)
        for _ in range(dice.randint(1, 6)):
            at = dice.randrange(HEADER_SIZE, len(damaged) - 8)
            damaged[at : at + 8] = dice.choice(
                (dice.randbytes(8), damaged[:8], struct.pack("<q", dice.choice(BOUNDARIES)))
            )
        yield damaged


def main(what: str, compression: Compression) -> dict[str, int]:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    original = encoded(60, compression)
    cases = {
        "metadata": numbers(original, METADATA_AT - 8, body_start(original), step=4),
        "everything": numbers(original, METADATA_AT - 8, len(original), step=2),
        "bits": flipped_bits(original),
        "random": random_damage(original, 50_000),
    }
    counts = {"corrupt": 0, "accepted": 0}
    for damaged in cases[what]:
        reseal(damaged)
        try:
            arrow_batch = decode(verify(damaged), damaged)
        except CorruptRecordBatchError:
            counts["corrupt"] += 1
        else:
            read_all(arrow_batch)
            counts["accepted"] += 1
    counts["peak_mib"] = peak_mib()
    return counts


def read_all(arrow_batch: pa.RecordBatch) -> None:
    """Touch every byte that an accepted arrow batch offers."""
    for column in arrow_batch.columns:
        (
            column.cast(pa.int64()) if column.type == arrow_batch.schema[0].type else column
        ).to_pylist()


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Compression[sys.argv[2].upper()])))  # noqa: T201

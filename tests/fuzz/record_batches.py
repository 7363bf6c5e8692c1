"""Fuzzes what parses record batches: header, checksum and payload.

Damage without a new checksum must be found, or be in one of the stamped fields; under a right
checksum, what is accepted must be well-formed and hold as many records as the header says.
"""

from __future__ import annotations

import random
import struct
from functools import cache

import pyarrow as pa

from spark_logbus.errors import CorruptRecordBatchError, UnsupportedVersionError
from spark_logbus.model import Compression
from spark_logbus.record import HEADER_SIZE, RecordBatchHeader, parse_header, split, verify
from spark_logbus.record import format as fmt
from spark_logbus.record.rows.arrow import decode, encode
from tests.builders.forged import METADATA_AT, body_start, mixed_records, reseal
from tests.builders.mutations import BOUNDARIES
from tests.fuzz.harness import main

HEADER_FIELDS = {  # where, and as what
    0: "<q", 8: "<I", 12: "<i", 16: "<q", 24: "<B", 25: "<B", 26: "<H", 28: "<I", 32: "<I",
    36: "<I", 40: "<q", 48: "<q", 56: "<q", 64: "<h", 66: "<i", 70: "<I",
}  # fmt: skip


@cache
def seeds() -> list[bytes]:
    found = [
        bytes(encode(mixed_records(count), compression=compression))
        for compression in Compression
        for count in (1, 3, 60, 200)
    ]
    plain = mixed_records(5).select(["timestamp", "value"])
    found.append(bytes(encode(plain)))
    deltas = pa.array([0, 2, 3, 7, 11], pa.int32())
    found.append(bytes(encode(plain.append_column("offset_delta", deltas))))
    return found


def mutate(dice: random.Random, data: bytearray) -> bytearray:
    kind = dice.choice(["bit", "field", "metadata", "number", "cut", "splice", "repeat", "junk"])
    at = dice.randrange(len(data) - 8)
    match kind:
        case "bit":
            data[at] ^= 1 << dice.randrange(8)
        case "field":
            at, code = dice.choice(list(HEADER_FIELDS.items()))
            _put(dice, data, at, code)
        case "metadata":
            end = min(body_start(data), len(data) - 8) if len(data) > METADATA_AT + 8 else 0
            if end > METADATA_AT:
                _put(dice, data, dice.randrange(METADATA_AT - 8, end), dice.choice(CODES))
        case "number":
            _put(dice, data, at, dice.choice(CODES))
        case "cut":
            del data[-8 * dice.randint(1, 20) :]
        case "splice":
            other = dice.choice(seeds())
            data = data[: at // 8 * 8] + other[dice.randrange(len(other)) // 8 * 8 :]
        case "repeat":
            data[at:at] = data[max(0, at - 8 * dice.randint(1, 30)) : at]
        case "junk":
            data[at : at + 8] = dice.randbytes(8)
    return data


CODES = ("<b", "<h", "<i", "<q")


def _put(dice: random.Random, data: bytearray, at: int, code: str) -> None:
    size = struct.calcsize(code)
    if 0 <= at <= len(data) - size:
        number = dice.choice(BOUNDARIES) + dice.choice((0, 0, -1, 1))
        data[at : at + size] = (number & (1 << 8 * size) - 1).to_bytes(size, "little")


def attempt(dice: random.Random) -> str:
    original = dice.choice(seeds())
    data = bytearray(original)
    for _ in range(dice.choice((1, 1, 2, 4))):
        if len(data) > HEADER_SIZE + 16:
            data = mutate(dice, data)
    honest = dice.random() < 0.4
    if not honest and len(data) >= HEADER_SIZE:
        if dice.random() < 0.7:
            struct.pack_into("<I", data, 8, len(data) - fmt.LENGTH_FIELD_END)
        reseal(data)
    try:
        header = verify(data)
        assert parse_header(data) == header
        assert [each for each, _ in split(data, allow_tail=False)] == [header]
        arrow_batch = decode(header, data)
    except CorruptRecordBatchError:
        return "corrupt"
    except UnsupportedVersionError:
        return "version"
    if honest:
        check_only_stamped_fields_differ(header, original, data)
    arrow_batch.validate(full=True)
    assert arrow_batch.num_rows == header.record_count
    for name in arrow_batch.schema.names:
        column = arrow_batch[name]
        (column.cast(pa.int64()) if name == "timestamp" else column).to_pylist()
    return "accepted"


def check_only_stamped_fields_differ(
    header: RecordBatchHeader, original: bytes, data: bytearray
) -> None:
    """Checks that only stamped fields differ, unless the damage is another seed as a whole."""
    checked = bytes(data[24:])
    assert any(checked == seed[24:] for seed in seeds()), "damage went unnoticed"
    assert header.size == len(data)
    assert original[24:28] == checked[:4] or checked != original[24:]


if __name__ == "__main__":
    main(attempt)

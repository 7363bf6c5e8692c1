"""What record batches say that they take when they are decoded."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_logbus.model import Compression
from spark_logbus.record.claims import claimed_bytes
from spark_logbus.record.rows.arrow import encode
from spark_logbus.record.run import find_run
from tests.builders.arrow_batches import arrow_batch
from tests.builders.typed import FLIGHT, flights, typed_record_batch

PLAIN = arrow_batch([b"x" * 1000] * 100)


def claimed(record_batch: bytes | bytearray | memoryview) -> int:
    run = find_run(memoryview(bytes(record_batch)))
    assert run is not None
    return claimed_bytes(run)


@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.ZSTD])
def test_compressed_buffers_tell_their_size(compression: Compression) -> None:
    made = encode(PLAIN, compression=compression)
    assert len(made) < 10_000
    assert 100_000 <= claimed(made) < 110_000
    rows = flights(0, 1000)
    large = typed_record_batch(rows, schema=FLIGHT)
    small = typed_record_batch(rows, schema=FLIGHT, compression=compression)
    assert len(small) < len(large)
    assert abs(claimed(small) - len(large)) < 2_000


def test_what_is_not_compressed_takes_what_it_has() -> None:
    made = encode(PLAIN)
    assert claimed(made) == len(made)


@pytest.mark.parametrize("typed", [False, True])
def test_no_bytes_are_believed(typed: bool) -> None:
    """A number of at least the bytes that are there comes, whatever they are."""
    made = (
        typed_record_batch(flights(0, 100), schema=FLIGHT, compression=Compression.ZSTD)
        if typed
        else encode(PLAIN, compression=Compression.ZSTD)
    )
    for at in range(80, len(made)):
        for value in (0, 0x7F, 0xFF):
            liar = bytearray(made)
            liar[at] = value
            assert claimed(liar) >= len(made)


def test_a_claim_that_no_number_holds() -> None:
    made = bytearray(encode(PLAIN, compression=Compression.ZSTD))
    prefix = (800).to_bytes(8, "little")  # of the timestamps
    at = bytes(made).index(prefix)
    made[at : at + 8] = (2**63 - 1).to_bytes(8, "little")
    assert claimed(made) > 2**62
    assert pa.total_allocated_bytes() < 1 << 30

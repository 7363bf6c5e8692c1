"""The timestamps of record batches alone, also of payloads that lie under a right checksum."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest

from spark_logbus.errors import CorruptRecordBatchError
from spark_logbus.model import Compression
from spark_logbus.record import verify
from spark_logbus.record.timestamps import decode_timestamps
from tests.builders.forged import METADATA_AT, body_start, encoded, reseal
from tests.builders.mutations import numbers, random_damage
from tests.builders.typed import T0, flights, typed_record_batch

ROUNDS = 3_000


@pytest.mark.parametrize("compression", Compression)
def test_of_columns_no_schema_is_needed(compression: Compression) -> None:
    rows = [*flights(0, 30), None]
    record_batch = typed_record_batch(rows, keys=[b"key"] * 31, compression=compression)
    found = decode_timestamps(verify(record_batch), record_batch)
    assert found.view(pa.int64()).to_pylist() == [T0 + number for number in range(31)]


@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.ZSTD])
def test_a_payload_that_lies_is_refused_or_has_its_number_of_timestamps(
    compression: Compression,
) -> None:
    original = encoded(60, compression)
    assert verify(original).compression is compression
    refused = 0
    metadata = numbers(original, METADATA_AT - 8, body_start(original), step=8)
    for damaged in itertools.chain(metadata, random_damage(original, ROUNDS)):
        reseal(damaged)
        try:
            found = decode_timestamps(verify(damaged), damaged)
        except CorruptRecordBatchError:
            refused += 1
        else:
            found.validate(full=True)
            assert len(found) == 60
    assert refused

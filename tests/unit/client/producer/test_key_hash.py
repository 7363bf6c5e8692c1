"""Many keys at once have the hashes that each has by itself."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from crc32c import crc32c

from spark_logbus.client.producer.key_hash import MAX_KEY_BYTES, crc32c_of_each


@pytest.mark.parametrize("length", range(1, MAX_KEY_BYTES + 1))
def test_keys_of_one_length_have_the_hashes_of_single_ones(length: int) -> None:
    draw = random.Random(length)
    keys = [draw.randbytes(length) for _ in range(9_000)]
    column = pa.array(keys, pa.binary())
    for part in (slice(None), slice(5, 8_999), slice(7, 8)):
        hashes = crc32c_of_each(column[part])
        assert hashes is not None
        assert hashes.tolist() == [crc32c(key) for key in keys[part]]


@pytest.mark.parametrize(
    "keys", [[], [b""], [b"a", b"bc"], [b"ab", b"c", b"def"], [bytes(MAX_KEY_BYTES + 1)]]
)
def test_other_keys_are_left_to_be_hashed_one_by_one(keys: list[bytes]) -> None:
    assert crc32c_of_each(pa.array(keys, pa.binary())) is None

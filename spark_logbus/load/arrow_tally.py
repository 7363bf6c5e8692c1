"""The tally of records in Arrow's batches: equal to the one that Spark makes of the same records
(see ``tally``), so that what one has written the other can check."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_logbus.load.tally import TALLIED, RecordTally

_Longs = npt.NDArray[np.uint64]

# Of the hash XXH64, and the seed that Spark's function has.
_PRIME_1: Final = np.uint64(0x9E3779B185EBCA87)
_PRIME_2: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME_3: Final = np.uint64(0x165667B19E3779F9)
_PRIME_4: Final = np.uint64(0x85EBCA77C2B2AE63)
_PRIME_5: Final = np.uint64(0x27D4EB2F165667C5)
_SEED: Final = np.uint64(42)


class ArrowTally:
    """Tallies the records of batches with the columns ``partition`` and ``offset``."""

    def __init__(self) -> None:
        self._records = 0
        self._digest = np.uint64(0)

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds the records of one batch, whose numbers may have any width."""
        self._records += batch.num_rows
        hashes = xxhash64(*(batch.column(name) for name in TALLIED))
        self._digest ^= np.bitwise_xor.reduce(hashes, initial=np.uint64(0))

    @property
    def tally(self) -> RecordTally:
        """Tally of all batches so far."""
        return RecordTally(self._records, int(self._digest.astype(np.int64)))


def xxhash64(partitions: pa.Array, offsets: pa.Array) -> _Longs:
    """Computes Spark's ``xxhash64(partition, offset)``, as bits, of int32 and int64. Nulls leave
    the hash as it is before them."""
    hashes = np.full(len(partitions), _SEED)
    with np.errstate(over="ignore"):
        mixed = _with_ints(hashes, _numbers(partitions).astype(np.int32))
        hashes = np.where(_known(partitions), mixed, hashes)
        mixed = _with_longs(hashes, _numbers(offsets).astype(np.int64))
        return np.where(_known(offsets), mixed, hashes)


def _numbers(column: pa.Array) -> npt.NDArray[Any]:
    filled = column.fill_null(0) if column.null_count else column
    numbers: npt.NDArray[Any] = filled.to_numpy(zero_copy_only=False)
    return numbers


def _known(column: pa.Array) -> npt.NDArray[np.bool_]:
    known: npt.NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return known


def _with_ints(seeds: _Longs, numbers: npt.NDArray[np.int32]) -> _Longs:
    words = numbers.view(np.uint32).astype(np.uint64)
    mixed = (seeds + _PRIME_5 + np.uint64(4)) ^ (words * _PRIME_1)
    return _finished(_turned(mixed, 23) * _PRIME_2 + _PRIME_3)


def _with_longs(seeds: _Longs, numbers: npt.NDArray[np.int64]) -> _Longs:
    longs = numbers.view(np.uint64)
    mixed = (seeds + _PRIME_5 + np.uint64(8)) ^ (_turned(longs * _PRIME_2, 31) * _PRIME_1)
    return _finished(_turned(mixed, 27) * _PRIME_1 + _PRIME_4)


def _turned(longs: _Longs, bits: int) -> _Longs:
    return (longs << np.uint64(bits)) | (longs >> np.uint64(64 - bits))


def _finished(longs: _Longs) -> _Longs:
    longs = (longs ^ (longs >> np.uint64(33))) * _PRIME_2
    longs = (longs ^ (longs >> np.uint64(29))) * _PRIME_3
    return longs ^ (longs >> np.uint64(32))

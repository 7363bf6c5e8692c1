"""The tally of files on this machine's own disk, read with Arrow.

Spark counts the same in a job of its own, which takes it a second for a few files: it plans and
compiles what is read here at once. It is the same check: the columns ``partition`` and ``offset``
of all records of all files, as they are on disk, under the same hash.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import orc
from pyarrow import parquet as pq

from spark_logbus.load.layout import FileFormat
from spark_logbus.load.tally import TALLIED, RecordTally

_Longs = npt.NDArray[np.uint64]

# Of the hash XXH64, and the seed that Spark's function has.
_PRIME_1: Final = np.uint64(0x9E3779B185EBCA87)
_PRIME_2: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME_3: Final = np.uint64(0x165667B19E3779F9)
_PRIME_4: Final = np.uint64(0x85EBCA77C2B2AE63)
_PRIME_5: Final = np.uint64(0x27D4EB2F165667C5)
_SEED: Final = np.uint64(42)


def tally_of_files(files: Iterable[Path], form: FileFormat) -> RecordTally:
    """Tallies the records of ``files``. Raises OSError and pa.ArrowException."""
    records, digest = 0, np.uint64(0)
    for file in files:
        for batch in _batches(file, form):
            records += batch.num_rows
            hashes = xxhash64(*(batch.column(name).to_numpy() for name in TALLIED))
            digest ^= np.bitwise_xor.reduce(hashes, initial=np.uint64(0))
    return RecordTally(records, int(digest.astype(np.int64)))


def _batches(file: Path, form: FileFormat) -> Iterator[pa.RecordBatch]:
    if form is FileFormat.PARQUET:
        with pq.ParquetFile(file) as opened:
            yield from opened.iter_batches(columns=[*TALLIED])
    else:
        read = orc.ORCFile(file)
        for stripe in range(read.nstripes):
            yield read.read_stripe(stripe, columns=[*TALLIED])


def xxhash64(partitions: npt.NDArray[Any], offsets: npt.NDArray[Any]) -> _Longs:
    """Computes Spark's ``xxhash64(partition, offset)``, as bits, of int32 and int64."""
    with np.errstate(over="ignore"):
        words = partitions.astype(np.int32).view(np.uint32).astype(np.uint64)
        mixed = (_SEED + _PRIME_5 + np.uint64(4)) ^ (words * _PRIME_1)
        hashes = _finished(_turned(mixed, 23) * _PRIME_2 + _PRIME_3)
        longs = offsets.astype(np.int64).view(np.uint64)
        mixed = (hashes + _PRIME_5 + np.uint64(8)) ^ (_turned(longs * _PRIME_2, 31) * _PRIME_1)
        return _finished(_turned(mixed, 27) * _PRIME_1 + _PRIME_4)


def _turned(longs: _Longs, bits: int) -> _Longs:
    return (longs << np.uint64(bits)) | (longs >> np.uint64(64 - bits))


def _finished(longs: _Longs) -> _Longs:
    longs = (longs ^ (longs >> np.uint64(33))) * _PRIME_2
    longs = (longs ^ (longs >> np.uint64(29))) * _PRIME_3
    return longs ^ (longs >> np.uint64(32))

"""The records of a topic: how large, with keys or not, compressed or not, in which record batches.

Values are texts of words, as logs and JSON are: they compress. All is made from the numbers of the
records, so that both logs are sent the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_logbus.model import Compression

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS: Final = 2
_PIECE: Final = 10_000  # records that are made at once
_WORDS: Final = 256  # different ones
_WORD_BYTES: Final = 8
_TEXTS: Final = 1_024  # different values of what Spark writes, but for a number in front
_NUMBER_BYTES: Final = 20
_SEED: Final = 1


@dataclass(frozen=True, slots=True)
class Shape:
    value_bytes: int = 200
    keyed: bool = False
    """A key of 16 digits."""
    compression: Compression = Compression.NONE
    batch_records: int | None = None
    """At most so many in a record batch; None: as many as the client makes by default."""

    def __str__(self) -> str:
        parts = [f"{self.value_bytes:,} bytes"]
        if self.keyed:
            parts.append("keyed")
        if self.compression:
            parts.append(self.compression.name)
        if self.batch_records is not None:
            parts.append(f"record batches of {self.batch_records}")
        return ", ".join(parts)

    def pieces(self, records: int) -> Iterator[pa.RecordBatch]:
        """Makes so many records, piece by piece, each for one partition."""
        most = self.batch_records or _PIECE
        for start in range(0, records, _PIECE):
            whole = self.piece(start, min(_PIECE, records - start))
            for at in range(0, whole.num_rows, most):
                yield whole.slice(at, most)

    def piece(self, start: int, rows: int) -> pa.RecordBatch:
        """Makes so many records from that one on: ``value``, and ``key`` if they have one."""
        arrays = {"value": _fixed(_text(start, rows * self.value_bytes), self.value_bytes)}
        if self.keyed:
            keys = "".join(f"{number:016d}" for number in range(start, start + rows))
            arrays["key"] = _fixed(np.frombuffer(keys.encode(), np.uint8), 16)
        return pa.RecordBatch.from_arrays([*arrays.values()], names=[*arrays])

    def rows_of(self, piece: pa.RecordBatch) -> list[tuple[bytes, bytes | None]]:
        """Returns value and key of each record of a piece."""
        values = piece.column("value").to_pylist()
        keys = piece.column("key").to_pylist() if self.keyed else [None] * len(values)
        return list(zip(values, keys, strict=True))

    def rows(self, spark: SparkSession, records: int) -> DataFrame:
        """Makes so many rows for a sink, as they are written."""
        from pyspark.sql import functions as F  # who only sends needs no Spark

        size = self.value_bytes - _NUMBER_BYTES
        text = bytes(_text(_SEED, _TEXTS * size)).decode()
        texts = "\n".join(text[at : at + size] for at in range(0, len(text), size))
        # What is split is constant: the plan holds the array.
        one = F.element_at(F.split(F.lit(texts), "\n"), (F.col("id") % _TEXTS + 1).cast("int"))
        number = F.lpad(F.col("id").cast("string"), _NUMBER_BYTES, "0")
        value = F.concat(number, one).cast("binary").alias("value")
        key = F.lpad(F.col("id").cast("string"), 16, "0").cast("binary").alias("key")
        frame = spark.range(0, records, 1, PARTITIONS)
        return frame.select(key, value) if self.keyed else frame.select(value)


@cache
def _words() -> npt.NDArray[np.uint8]:
    """Makes words of small letters, each with a space at its end."""
    letters = np.random.default_rng(_SEED).integers(97, 123, (_WORDS, _WORD_BYTES), np.uint8)
    letters[:, -1] = ord(" ")
    return letters


def _text(seed: int, size: int) -> npt.NDArray[np.uint8]:
    """Words drawn at random, the same ones for the same seed."""
    drawn = np.random.default_rng([_SEED, seed]).integers(0, _WORDS, -(-size // _WORD_BYTES))
    return _words()[drawn].reshape(-1)[:size]


def _fixed(data: npt.NDArray[Any], size: int) -> pa.Array:
    """A binary column of values of that size."""
    rows = len(data) // size
    offsets = np.arange(0, len(data) + 1, size, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)

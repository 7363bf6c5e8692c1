"""Chooses the partition of a record. The same rule for one record and for columns.

A key goes to ``crc32c(key) % partitions``, so that equal keys meet in one partition, whichever
producer sends them. Records without a key stay together for one record batch, and the next
record batch goes to the next partition.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from spark_logbus.client.producer.key_hash import crc32c_of_each
from spark_logbus.record import compute as pc
from spark_logbus.record.rows.plain import integers, scalar

Partitioner: TypeAlias = Callable[[str, bytes | None, bytes | None, int], int | None]
"""A rule of the caller's: the partition for a topic, a key and a value, of so many partitions; None
for the usual one."""


def partition_of(key: bytes, partitions: int) -> int:
    """Returns the partition of records with that key."""
    return crc32c(key) % partitions


class RoundRobin:
    """The partition for records without a key. Not thread-safe.

    Starts anywhere, so that many short-lived producers do not all begin with partition 0. Those
    that are ``excluded``, as their leader is away, are passed over while there are others.
    """

    __slots__ = ("current", "excluded", "partitions")

    def __init__(self, partitions: int, *, start: int | None = None) -> None:
        self.partitions = partitions
        self.current = (random.randrange(partitions) if start is None else start) % partitions
        self.excluded: set[int] = set()

    def move_on(self) -> None:
        """Passes the turn to the next partition that is not excluded."""
        for step in range(1, self.partitions + 1):
            following = (self.current + step) % self.partitions
            if following not in self.excluded:
                self.current = following
                return

    def exclude(self, partition: int) -> None:
        """Passes over a partition from now on."""
        self.excluded.add(partition)
        if self.current == partition:
            self.move_on()

    def include(self, partition: int) -> None:
        """Lets a partition have its turn again."""
        self.excluded.discard(partition)
        if self.current in self.excluded:
            self.move_on()


def split_by_key(
    arrow_batch: pa.RecordBatch, *, partitions: int, keyless: int
) -> dict[int, pa.RecordBatch]:
    """Cuts a canonical arrow batch by partition; the order within each is kept.

    Records whose key is null go to ``keyless``. Without a key column all do.
    """
    if "key" not in arrow_batch.schema.names:
        return {keyless: arrow_batch}
    if partitions == 1:
        return {0: arrow_batch}
    return _split(arrow_batch, _chosen_by_key(arrow_batch, partitions, keyless))


def _chosen_by_key(arrow_batch: pa.RecordBatch, partitions: int, keyless: int) -> pa.Array:
    keys = arrow_batch.column("key")
    hashes = None if keys.null_count else crc32c_of_each(keys)
    if hashes is not None:
        numbers = (hashes % partitions).astype(np.int32)
        return pa.Array.from_buffers(pa.int32(), len(keys), [None, pa.py_buffer(numbers)])
    unique = keys.dictionary_encode()
    of_unique = [partition_of(key, partitions) for key in unique.dictionary.to_pylist()]
    return pc.fill_null(
        integers(of_unique, pa.int32()).take(unique.indices), scalar(keyless, pa.int32())
    )


def split_by(
    choices: Iterable[int | None], arrow_batch: pa.RecordBatch, *, partitions: int, keyless: int
) -> dict[int, pa.RecordBatch]:
    """Cuts as ``split_by_key`` does, by one choice for each record; None is the key's."""
    chosen = integers([-1 if each is None else each for each in choices], pa.int32())
    unchosen = pc.equal(chosen, scalar(-1, pa.int32()))
    if pc.any(unchosen).as_py():
        if "key" in arrow_batch.schema.names:
            usual = _chosen_by_key(arrow_batch, partitions, keyless)
        else:
            usual = scalar(keyless, pa.int32())
        chosen = pc.if_else(unchosen, usual, chosen)
    return _split(arrow_batch, chosen)


def _split(arrow_batch: pa.RecordBatch, chosen: pa.Array) -> dict[int, pa.RecordBatch]:
    # Sorting is stable, and one gather of all rows beats one filter per partition.
    order = pc.sort_indices(chosen)
    gathered = arrow_batch.take(order)
    counts = {entry["values"]: entry["counts"] for entry in pc.value_counts(chosen).to_pylist()}
    parts: dict[int, pa.RecordBatch] = {}
    start = 0
    for partition in sorted(counts):
        parts[partition] = gathered.slice(start, counts[partition])
        start += counts[partition]
    return parts

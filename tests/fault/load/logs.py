"""The files of a partition's replicas, and their comparison."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from spark_logbus.model import TopicPartition
from spark_logbus.record import split


class StoredBatch(NamedTuple):
    """A record batch as it stands in a segment."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    digest: str


def batches_in(data: Path, where: TopicPartition, start: int, end: int) -> list[StoredBatch]:
    """Returns the record batches of a log that begin in ``[start, end)``, by its files."""
    return [each for each in _walk(data / f"{where}", start) if start <= each.base_offset < end]


def _walk(directory: Path, start: int) -> Iterator[StoredBatch]:
    segments = {int(path.stem): path for path in directory.glob("*.log")}
    first = max((base for base in segments if base <= start), default=0)
    for base, path in sorted(segments.items()):
        if base >= first:
            # The last one grows meanwhile.
            for header, batch in split(path.read_bytes(), allow_tail=True):
                yield StoredBatch(
                    header.base_offset, header.next_offset, header.leader_epoch,
                    hashlib.sha256(batch).hexdigest(),
                )  # fmt: skip


def check_same(
    directories: Mapping[int, Path], where: TopicPartition, start: int, end: int
) -> None:
    """Fails unless all replicas have the same record batches from ``start`` up to the watermark
    ``end``, with no gap."""
    found = {
        broker_id: batches_in(data, where, start, end) for broker_id, data in directories.items()
    }
    (first, batches), *others = found.items()
    at = start
    for batch in batches:
        assert batch.base_offset == at, f"{where} of broker {first} has a gap at {at}: {batch}"
        at = batch.next_offset
    assert at == end, f"{where} of broker {first} ends at {at}, below its watermark {end}"
    for broker_id, its in others:
        for one, other in zip(batches, its, strict=False):
            assert one == other, (
                f"{where} differs below its watermark {end}: broker {first} has {one}, "
                f"broker {broker_id} has {other}"
            )
        assert len(batches) == len(its), (
            f"{where} ends at {batches[-1].next_offset} at broker {first}, and at "
            f"{its[-1].next_offset if its else start} at broker {broker_id}; its watermark is {end}"
        )

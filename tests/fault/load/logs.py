"""The files of a partition's replicas, and their comparison below the watermark."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from spark_logbus.model import TopicPartition
from spark_logbus.record import RecordBatchHeader, split
from spark_logbus.record import format as fmt
from spark_logbus.record.rows.arrow import decode

Row = tuple[bytes | None, bytes | None]
"""A record's key and value."""


class StoredBatch(NamedTuple):
    """A record batch as it stands in a segment."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    digest: str


def check_same(data: Mapping[int, Path], where: TopicPartition, start: int, end: int) -> None:
    """Fails unless all brokers have the same record batches from ``start`` up to the watermark
    ``end``, with no gap. ``data`` are the brokers' directories; their logs may grow meanwhile."""
    found = {
        broker_id: [*_batches(path / f"{where}", start, end)] for broker_id, path in data.items()
    }
    first = min(found)
    at = start
    for batch in found[first]:
        assert batch.base_offset == at, f"{where} of broker {first} has a gap at {at}: {batch}"
        at = batch.next_offset
    assert at == end, f"{where} of broker {first} ends at {at}, and its watermark is {end}"
    for broker_id, batches in found.items():
        for one, other in zip(found[first], batches, strict=False):
            assert one == other, (
                f"{where} differs below its watermark {end}: broker {first} has {one}, broker "
                f"{broker_id} has {other}"
            )
        its_end = batches[-1].next_offset if batches else start
        assert its_end == end, (
            f"{where} of broker {broker_id} ends at {its_end}, and its watermark is {end}"
        )


def check_compacted_same(data: Mapping[int, Path], where: TopicPartition, end: int) -> None:
    """Fails unless all brokers have the newest record of each key below the watermark ``end``, and
    the same record wherever several have one; each has compacted for itself."""
    found = {broker_id: _all_rows(path / f"{where}", end) for broker_id, path in data.items()}
    known: dict[int, Row] = {}
    for broker_id, rows in found.items():
        for offset, row in rows.items():
            assert known.setdefault(offset, row) == row, (
                f"broker {broker_id} has {row} at {offset} of {where}, another has {known[offset]}"
            )
    newest = {row[0]: offset for offset, row in sorted(known.items())}
    for broker_id, rows in found.items():
        missing = {*newest.values()} - rows.keys()
        assert not missing, f"broker {broker_id} lacks the newest of keys in {where}: {missing}"


def _batches(directory: Path, start: int, end: int) -> Iterator[StoredBatch]:
    for header, batch in _walk(directory, start):
        if start <= header.base_offset < end:
            digest = hashlib.sha256(batch).hexdigest()
            yield StoredBatch(header.base_offset, header.next_offset, header.leader_epoch, digest)


def _all_rows(directory: Path, end: int) -> Mapping[int, Row]:
    """Returns the rows of a log that may be compacted meanwhile: what replaces segments is there
    before they go."""
    while True:
        try:
            return _rows(directory, end)
        except FileNotFoundError:
            continue


def _rows(directory: Path, end: int) -> Mapping[int, Row]:
    rows: dict[int, Row] = {}
    for header, batch in _walk(directory, 0):
        # What compaction keeps of a producer has no key, and is another one's at each broker.
        if header.base_offset >= end or header.attributes & fmt.CONTROL:
            continue
        decoded = decode(header, batch)
        names = decoded.schema.names
        count = decoded.num_rows
        deltas = decoded.column(-1).to_pylist() if header.has_offset_delta else range(count)
        keys = decoded.column("key").to_pylist() if "key" in names else [None] * count
        values = decoded.column("value").to_pylist()
        for delta, key, value in zip(deltas, keys, values, strict=True):
            rows[header.base_offset + delta] = (key, value)
    return rows


def _walk(directory: Path, start: int) -> Iterator[tuple[RecordBatchHeader, memoryview]]:
    """Yields the record batches from the segment on that has ``start``."""
    segments = {int(path.stem): path for path in directory.glob("*.log")}
    first = max((base for base in segments if base <= start), default=0)
    for base, path in sorted(segments.items()):
        if base >= first:
            yield from split(path.read_bytes(), allow_tail=True)

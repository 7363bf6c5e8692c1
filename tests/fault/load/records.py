"""Names of records, their values, and where they are to be found.

A name says who wrote the record, and which one of that writer's it is; it alone determines the
value. So whatever is read tells whether it was ever written.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from spark_logbus.client import ClientConfig, ProducerConfig
from spark_logbus.model import TopicPartition

Record = int  # the writer's number and the record's, see ``_NUMBER_BITS``
Content = Mapping[TopicPartition, Sequence[Record]]
"""The records of partitions from their first offset on, at every offset one."""

# Clients wait longer than by default: each fault is over within some ten seconds, but a machine
# that runs other tests may take a minute to start a broker.
CLIENT = ClientConfig(client_id="load", retry_deadline_ms=240_000)
PRODUCER = ProducerConfig(
    linger_ms=2, batch_bytes=32 << 10, max_block_ms=240_000, delivery_timeout_ms=240_000
)
WAIT_S = 300.0  # for what clients do within these limits

FILLER = 1
"""The writer whose records are large, so that to copy a log takes a while."""

_FILLING_BYTES = 20_000
_PADDING = (0, 10, 100, 400)
_NUMBER_BITS = 40


def name(writer: int, number: int) -> Record:
    return writer << _NUMBER_BITS | number


def writer_of(record: Record) -> int:
    return record >> _NUMBER_BITS


def value_of(record: Record) -> bytes:
    is_large = writer_of(record) == FILLER
    size = _FILLING_BYTES if is_large else _PADDING[record % len(_PADDING)]
    return b"%d:" % record + bytes(size)


def record_of(value: bytes) -> Record:
    record = int(value[: value.index(b":")])
    assert value == value_of(record), f"{record} is not what was written"
    return record


class Places:
    """Offsets of one writer's records, as it was told. One thread adds."""

    def __init__(self) -> None:
        self._offsets: defaultdict[TopicPartition, array[int]] = defaultdict(lambda: array("q"))
        self._records: defaultdict[TopicPartition, array[int]] = defaultdict(lambda: array("q"))

    def add(self, where: TopicPartition, base_offset: int, records: Sequence[Record]) -> None:
        self._offsets[where].extend(range(base_offset, base_offset + len(records)))
        self._records[where].extend(records)

    def __len__(self) -> int:
        return sum(map(len, self._records.values()))

    def __iter__(self) -> Iterator[tuple[TopicPartition, int, Record]]:
        """Yields them in the order in which they were acknowledged, partition by partition."""
        for where, offsets in self._offsets.items():
            for offset, record in zip(offsets, self._records[where], strict=True):
                yield where, offset, record

"""Decided writes as the brokers see them: by partition. Pure."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from spark_logbus.coordination.writes.decisions import DecidedWrite, WriterState
from spark_logbus.log import DecidedShare
from spark_logbus.model import TopicPartition
from spark_logbus.record.stage_id import StageIds

# A request to publish comes within seconds. Most decisions take some hundred bytes, large ones some
# 10 KB; the largest that a node holds may take all of it.
_REMEMBERED_BYTES: Final = 16 << 20
_BYTES_OF_A_PARTITION: Final = 100
_BYTES_OF_A_WRITE: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionShare(DecidedShare):
    """A decided write's part in one partition, which it names."""

    topic_partition: TopicPartition
    topic_id: str


def shares_of(
    decision: DecidedWrite, writer: str = "", *, secured: bool = False
) -> Iterator[PartitionShare]:
    """Yields the shares of a decided write that are not known to be published.

    ``secured``: some brokers ask who decides. Then a decision without a mark was made before they
    did, or by one that does not, and what it is about may have a mark all the same: whatever has
    its number is published. Raises InvalidRequestError.
    """
    if secured and decision.mark is None:
        writer = ""
    attempts = StageIds.of(decision.write, decision.attempts)
    for topic, part in decision.topics.items():
        for partition, records in part.records.items():
            yield PartitionShare(
                attempts,
                records,
                writer,
                decision.mark,
                topic_partition=TopicPartition(topic, partition),
                topic_id=part.topic_id,
            )


def decided_shares(
    states: Mapping[str, WriterState],
) -> Mapping[TopicPartition, Sequence[PartitionShare]]:
    """Returns the shares that are decided and not known to be published, by partition; ``states``
    are by writer."""
    found: defaultdict[TopicPartition, list[PartitionShare]] = defaultdict(list)
    for writer, state in states.items():
        if state.last is not None:
            for each in shares_of(state.last, writer):
                found[each.topic_partition].append(each)
    return found


class DecidedWrites:
    """The writes of which this broker knows that they are decided, the last of them. Thread-safe.

    So a request to publish one needs no word of ZooKeeper's, where the broker has decided it or
    has met it. A decision never changes, but for what is known to be published.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By number and writer, the last that were met at the end. Two writers with one number are
        # none that brokers let stage something both.
        self._writes: dict[tuple[int, str], DecidedWrite] = {}
        self._writers: dict[int, str] = {}  # by number, the first that was met
        self._size_bytes = 0

    def add(self, writer: str, decision: DecidedWrite) -> None:
        """Keeps what is known already: that has the most of what was to be published."""
        with self._lock:
            key = (decision.write, writer)
            known = self._writes.pop(key, None)
            if known is None:
                known = decision
                self._size_bytes += _size_bytes(decision)
            self._writes[key] = known
            self._writers.setdefault(decision.write, writer)
            while self._size_bytes > _REMEMBERED_BYTES and len(self._writes) > 1:
                oldest = next(iter(self._writes))
                self._size_bytes -= _size_bytes(self._writes.pop(oldest))
                if self._writers.get(oldest[0]) == oldest[1]:
                    del self._writers[oldest[0]]

    def find(self, write: int, writer: str = "") -> tuple[str, DecidedWrite] | None:
        """The writer and its decision; without a name, that of the first writer that was met."""
        with self._lock:
            writer = writer or self._writers.get(write, "")
            decision = self._writes.get((write, writer))
            return None if decision is None else (writer, decision)


def _size_bytes(decision: DecidedWrite) -> int:
    """Estimates the memory that a decision takes."""
    partitions = sum(len(part.records) for part in decision.topics.values())
    return _BYTES_OF_A_WRITE + len(decision.attempts) + _BYTES_OF_A_PARTITION * partitions

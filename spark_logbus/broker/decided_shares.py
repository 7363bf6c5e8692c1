"""Decided writes as the brokers see them: by partition. Pure."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from spark_logbus.coordination.decisions import DecidedWrite, WriterState
from spark_logbus.log import DecidedShare
from spark_logbus.model import TopicPartition
from spark_logbus.record.stage_id import StageIds

# A request to publish comes within seconds. Most decisions take some hundred bytes, large ones
# some 10 KB.
_REMEMBERED: Final = 1_000


@dataclass(frozen=True, slots=True)
class PartitionShare:
    """A decided write's part in one partition."""

    topic_partition: TopicPartition
    topic_id: str
    share: DecidedShare


def shares_of(decision: DecidedWrite, writer: str = "") -> Iterator[PartitionShare]:
    """What of a decided write is not known to be published, partition by partition. Raises
    InvalidRequestError."""
    attempts = StageIds.of(decision.write, decision.attempts)
    for topic, part in decision.topics.items():
        for partition, records in part.records.items():
            yield PartitionShare(
                TopicPartition(topic, partition),
                part.topic_id,
                DecidedShare(attempts, records, writer),
            )


def decided_shares(
    states: Mapping[str, WriterState],
) -> Mapping[TopicPartition, Sequence[PartitionShare]]:
    """What is decided and not known to be published, by partition; ``states`` are by writer."""
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
        self._writes: dict[int, tuple[str, DecidedWrite]] = {}  # the last that were met at the end

    def add(self, writer: str, decision: DecidedWrite) -> None:
        """What is known already stays: it has the most of what was to be published."""
        with self._lock:
            known = self._writes.pop(decision.write, (writer, decision))
            self._writes[decision.write] = known
            if len(self._writes) > _REMEMBERED:
                del self._writes[next(iter(self._writes))]

    def find(self, write: int) -> tuple[str, DecidedWrite] | None:
        """The writer and its decision."""
        return self._writes.get(write)

"""Decided writes as the brokers see them: by partition. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from spark_logbus.coordination.decisions import DecidedWrite, WriterState
from spark_logbus.log import DecidedShare
from spark_logbus.model import TopicPartition
from spark_logbus.record.stage_id import StageIds


@dataclass(frozen=True, slots=True)
class PartitionShare:
    """A decided write's part in one partition."""

    topic_partition: TopicPartition
    topic_id: str
    share: DecidedShare


def shares_of(decision: DecidedWrite) -> Iterator[PartitionShare]:
    """What of a decided write is not known to be published, partition by partition. Raises
    InvalidRequestError."""
    attempts = StageIds.of(decision.write, decision.attempts)
    for topic, part in decision.topics.items():
        for partition, records in part.records.items():
            yield PartitionShare(
                TopicPartition(topic, partition),
                part.topic_id,
                DecidedShare(attempts, records),
            )


def decided_shares(
    states: Iterable[WriterState],
) -> Mapping[TopicPartition, Sequence[PartitionShare]]:
    """What is decided and not known to be published, by partition."""
    found: defaultdict[TopicPartition, list[PartitionShare]] = defaultdict(list)
    for state in states:
        if state.last is not None:
            for each in shares_of(state.last):
                found[each.topic_partition].append(each)
    return found

"""Decides what becomes of record batches when their append request is over. Pure."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from spark_logbus.client.cluster.leaders import partition_error
from spark_logbus.client.producer.batches import QueuedBatch
from spark_logbus.client.producer.topic_queues import PartitionQueue
from spark_logbus.errors import DuplicateSequenceError, LogbusError, ProtocolError
from spark_logbus.model import BrokerAddress
from spark_logbus.protocol import AppendResult


@dataclass(frozen=True, slots=True)
class AppendedBatches:
    """The broker has the record batches, from these offsets on; None where nobody knows."""

    base_offsets: Sequence[int | None]
    append_time_us: int | None = None


class NextStep(enum.Enum):
    """The step for the record batches of one partition."""

    ACKNOWLEDGE = enum.auto()
    #: Send them again at once, under new sequence numbers.
    RENUMBER = enum.auto()
    #: Send them again behind those that failed before them.
    FOLLOW = enum.auto()
    #: Send them again after a pause, to the leader that is found then.
    RETRY = enum.auto()
    #: Send them again at once, each by itself. An append is all or nothing: this finds out which
    #: of them the broker refuses.
    SEPARATE = enum.auto()
    FAIL = enum.auto()


def next_step(error: LogbusError, *, batches: int, renumbered: bool) -> NextStep:
    """The step after ``error`` for an append of so many record batches; ``renumbered`` if only
    their sequence numbers were to blame."""
    if renumbered:
        return NextStep.RENUMBER
    if isinstance(error, DuplicateSequenceError) and batches == 1:
        return NextStep.ACKNOWLEDGE
    if error.retriable:
        return NextStep.RETRY
    return NextStep.SEPARATE if batches > 1 else NextStep.FAIL


def append_outcomes(
    results: Sequence[AppendResult],
    parts: Sequence[tuple[PartitionQueue, Sequence[QueuedBatch]]],
    leader: BrokerAddress,
) -> list[AppendedBatches | LogbusError]:
    """The outcome for each part of a request. ProtocolError if the response is not to it."""
    got = [(result.topic, result.partition) for result in results]
    asked = [(queue.topic_partition.topic, queue.topic_partition.partition) for queue, _ in parts]
    if got != asked:
        raise ProtocolError(
            f"An append to {len(asked)} partitions was answered for others ({len(got)} results)."
        )
    return [
        AppendedBatches(_base_offsets(result, batches), result.append_time_us)
        if result.error is None
        else partition_error(result.error, queue.topic_partition, leader)
        for (queue, batches), result in zip(parts, results, strict=True)
    ]


def _base_offsets(result: AppendResult, batches: Sequence[QueuedBatch]) -> Sequence[int]:
    """The offset of each record batch's first record."""
    if len(result.base_offsets) == len(batches):
        return result.base_offsets
    counts = [batch.record_count for batch in batches[:-1]]
    return list(itertools.accumulate(counts, initial=result.base_offset))

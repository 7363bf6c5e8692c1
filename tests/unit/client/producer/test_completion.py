"""What follows from the outcome of an append, as a table."""

from __future__ import annotations

import pytest

from spark_logbus.client.producer.batches import QueuedBatch
from spark_logbus.client.producer.completion import (
    AppendedBatches,
    NextStep,
    append_outcomes,
    next_step,
)
from spark_logbus.client.producer.partitioner import RoundRobin
from spark_logbus.client.producer.topic_queues import PartitionQueue, TopicQueues
from spark_logbus.errors import (
    BrokerUnavailableError,
    DuplicateSequenceError,
    LogbusError,
    NotLeaderError,
    OutOfOrderSequenceError,
    ProtocolError,
    RecordBatchTooLargeError,
    UnknownProducerError,
    UnknownTopicError,
)
from spark_logbus.model import BrokerAddress, TopicPartition
from spark_logbus.protocol import AppendResult, error_info

LEADER = BrokerAddress(1, "h", 1)


@pytest.mark.parametrize(
    ("error", "batches", "renumbered", "step"),
    [
        (OutOfOrderSequenceError("a gap"), 2, True, NextStep.RENUMBER),
        (UnknownProducerError("never seen"), 1, True, NextStep.RENUMBER),
        (UnknownProducerError("never seen"), 2, False, NextStep.SEPARATE),
        (UnknownProducerError("never seen"), 1, False, NextStep.FAIL),
        (DuplicateSequenceError("seen"), 1, False, NextStep.ACKNOWLEDGE),
        (DuplicateSequenceError("seen"), 2, False, NextStep.SEPARATE),
        (NotLeaderError("moved"), 1, False, NextStep.RETRY),
        (BrokerUnavailableError("gone"), 3, False, NextStep.RETRY),
        (RecordBatchTooLargeError("large"), 3, False, NextStep.SEPARATE),
        (RecordBatchTooLargeError("large"), 1, False, NextStep.FAIL),
    ],
)
def test_each_failure_has_its_next_step(
    error: LogbusError, batches: int, renumbered: bool, step: NextStep
) -> None:
    assert next_step(error, batches=batches, renumbered=renumbered) is step


def part(partition: int, *counts: int) -> tuple[PartitionQueue, list[QueuedBatch]]:
    topic_partition = TopicPartition("t", partition)
    batches = []
    for count in counts:
        batch = QueuedBatch(topic_partition, opened_at=0.0, give_up_at=1.0)
        batch.record_count = count
        batches.append(batch)
    topic_queues = TopicQueues(
        topic_partition.topic, RoundRobin(2), batch_limit=1, max_record_batch_bytes=1
    )
    return topic_queues.queues[partition], batches


def test_offsets_follow_the_record_counts_unless_they_are_given() -> None:
    parts = [part(0, 3, 4, 5), part(1, 3, 4)]
    results = [AppendResult("t", 0, 10, 99), AppendResult("t", 1, 2, 99, base_offsets=[2, 70])]
    assert append_outcomes(results, parts, LEADER) == [
        AppendedBatches([10, 13, 17], 99),
        AppendedBatches([2, 70], 99),
    ]


def test_an_unknown_partition_counts_as_not_led() -> None:
    unknown = AppendResult("t", 0, error=error_info(UnknownTopicError("no t")))
    (outcome,) = append_outcomes([unknown], [part(0, 1)], LEADER)
    assert isinstance(outcome, NotLeaderError)


@pytest.mark.parametrize("partitions", [[], [1], [0, 1]])
def test_a_response_for_other_partitions_is_refused(partitions: list[int]) -> None:
    results = [AppendResult("t", number, 0, 1) for number in partitions]
    with pytest.raises(ProtocolError, match="answered for others"):
        append_outcomes(results, [part(0, 1)], LEADER)

"""Moves as a broker tells of them in its health and metrics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from spark_logbus.broker.metadata_cache import MetadataCache
from spark_logbus.broker.monitoring.moves import MovesHere
from spark_logbus.broker.replica.followers import Followers, Progress
from spark_logbus.broker.replica.manager import ReplicaManager
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.payloads import MovePayload
from spark_logbus.model import TopicPartition


def move(*to: int, error: str = "") -> MovePayload:
    return MovePayload(to=[*to], since_us=1, error=error)


def moves_here(
    topics: dict[str, TopicRecord], progress: dict[int, dict[int, Progress]]
) -> MovesHere:
    """Moves of broker 1, which leads what has it as the first; ``progress`` is by partition and new
    broker."""
    led = {
        TopicPartition(name, number): number
        for name, record in topics.items()
        for number, brokers in record.partitions.items()
        if brokers[:1] == [1]
    }
    return MovesHere(
        1,
        metadata_cache=cast(MetadataCache, SimpleNamespace(topics=topics)),
        replica_manager=cast(ReplicaManager, SimpleNamespace(find=led.get)),
        followers=cast(
            Followers, SimpleNamespace(progress=lambda led, to: progress.get(led, {}).get(to))
        ),
    )


def test_what_comes_goes_fails_and_rests() -> None:
    partitions = {0: [1], 1: [1], 2: [1], 3: [2], 4: [2], 5: [2]}
    moves = {
        0: move(2), 1: move(3), 2: move(2, error="No room."),
        3: move(1), 4: move(1, error="Gone."), 5: move(3),
    }  # fmt: skip
    topics = {"t": TopicRecord("t", "id", partitions, {}, moves=moves)}
    here = moves_here(topics, {0: {2: Progress(5, 10, 59_999)}, 1: {3: Progress(5, 10, 150_000)}})
    assert (here.leaving(), here.coming()) == (2, 1)
    assert here.failed() == {
        TopicPartition("t", 2): "The move of t-2 from broker 1 to broker 2 has failed: No room.",
        TopicPartition("t", 4): "The move of t-4 from broker 2 to broker 1 has failed: Gone.",
    }
    assert here.stuck() == {
        TopicPartition("t", 1): "t-1 is on its way to broker 3 and has not got on for 2 min: see "
        "the log of that broker."
    }


def test_a_broker_without_moves() -> None:
    here = moves_here({"t": TopicRecord("t", "id", {0: [1]}, {})}, {})
    assert (here.leaving(), here.coming(), here.failed(), here.stuck()) == (0, 0, {}, {})
    # The partition is not there any more: a node that somebody has changed by hand.
    odd = TopicRecord("t", "id", {0: [1]}, {}, moves={7: move(1)})
    assert moves_here({"t": odd}, {}).coming() == 1


def test_moves_of_several_replicas() -> None:
    partitions = {0: [1, 2], 1: [2, 1], 2: [2], 3: [1, 2]}
    moves = {0: move(1, 3, 4), 1: move(2, 3), 2: move(2, 1), 3: move(2, 1, error="Full.")}
    topics = {"t": TopicRecord("t", "id", partitions, {}, moves=moves)}
    here = moves_here(topics, {0: {3: Progress(9, 10, 0), 4: Progress(5, 10, 60_000)}})
    assert (here.leaving(), here.coming()) == (1, 1)
    assert here.failed() == {
        TopicPartition("t", 3): "The move of t-3 from brokers 1, 2 to brokers 2, 1 has failed: "
        "Full."
    }
    assert "t-0 is on its way to broker 4" in here.stuck()[TopicPartition("t", 0)]

"""Mirrors from a real Kafka into a real cluster."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from bench.servers import ServerUnavailableError
from bench.servers.kafka import Kafka, kafka
from spark_logbus.client import Admin
from spark_logbus.coordination.groups.offsets import GroupOffsets
from spark_logbus.errors import TopicRecreatedError, UnknownTopicError
from spark_logbus.local.zookeeper import EmbeddedZooKeeper
from spark_logbus.mirror import (
    Mirror,
    MirrorConfig,
    open_mirror,
    source_at,
    translate_group,
)
from spark_logbus.model import TopicPartition
from spark_logbus.selection import Topics
from spark_logbus.zookeeper import Session
from tests.helpers import wait_until
from tests.integration.mirror.mirrored import (
    Found,
    MirrorProcess,
    Pair,
    copy_all,
    records,
    two_clusters,
)

pytestmark = pytest.mark.slow

T0_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def peer() -> Iterator[Kafka]:
    with ExitStack() as open_:
        try:
            yield open_.enter_context(kafka(flushed=False))
        except ServerUnavailableError as error:
            pytest.skip(f"no Kafka here: {error}")


@pytest.fixture(scope="module")
def pair(zookeeper: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with two_clusters(zookeeper.address, tmp_path_factory.mktemp("clusters")) as clusters:
        yield clusters


@contextmanager
def mirror(peer: Kafka, pair: Pair, topic: str, **settings: Any) -> Iterator[Mirror]:
    config = MirrorConfig(name=f"mirror-{topic}", topics=Topics((topic,)), **settings)
    with open_mirror(config, target=pair.target_zookeeper, kafka=peer.bootstrap) as opened:
        yield opened


def produce(
    peer: Kafka, topic: str, first: int, count: int, *, aborted: bool = False, partitions: int = 2
) -> list[Found]:
    """Records of all shapes in one transaction; those that a reader is to see."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": peer.bootstrap, "transactional.id": topic})
    producer.init_transactions()
    producer.begin_transaction()
    sent = []
    for number in range(first, first + count):
        record = Found(
            number % partitions,
            (T0_MS + number) * 1000,
            None if number % 5 == 4 else b"key-%d" % (number % 10),
            None if number % 7 == 6 else b"value %d" % number,
            (("n", b"%d" % number), ("none", None)) if number % 3 == 0 else (),
        )
        producer.produce(
            topic, partition=record.partition, key=record.key, value=record.value,
            headers=list(record.headers), timestamp=record.timestamp_us // 1000,
        )  # fmt: skip
        sent.append(record)
    if aborted:
        producer.flush()
        producer.abort_transaction()
        return []
    producer.commit_transaction()
    return sent


def by_partition(sent: list[Found]) -> list[Found]:
    return sorted(sent, key=lambda record: record.partition)


def test_a_topic_of_kafka_is_copied_record_by_record(peer: Kafka, pair: Pair) -> None:
    """Across rounds, aborted transactions, and a round whose end nobody noted."""
    topic = "kafka-copied"
    config = {"retention.ms": "-1", "segment.bytes": "1048576"}
    peer.create_topic(topic, partitions=2, config=config)
    sent = produce(peer, topic, 0, 3_000)
    with mirror(peer, pair, topic, round_bytes=1) as opened:  # 1,000 offsets a partition
        reports = copy_all(opened)
        assert len(reports) > 1
        assert by_partition(sent) == records(pair.target, topic)
        produce(peer, topic, 9_000, 500, aborted=True)
        sent += produce(peer, topic, 3_000, 500)
        assert opened.plan_round()
        opened.commit_round(opened.stage_round())
    with mirror(peer, pair, topic) as opened:
        copy_all(opened)
        sent += produce(peer, topic, 4_000, 50)
        copy_all(opened)
        assert {lag.records for lag in opened.lags()} == {0}
    assert by_partition(sent) == records(pair.target, topic)
    assert Admin(pair.target).describe([topic])[topic].config == config


def test_a_group_of_kafka_goes_on_in_the_copy(peer: Kafka, pair: Pair) -> None:
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as KafkaPartition

    topic, group = "kafka-group", "readers"
    peer.create_topic(topic, partitions=1)
    sent = produce(peer, topic, 0, 100, partitions=1)
    produce(peer, topic, 500, 20, aborted=True, partitions=1)
    sent += produce(peer, topic, 100, 100, partitions=1)
    with mirror(peer, pair, topic) as opened:
        copy_all(opened)
    copy = records(pair.target, topic)
    assert copy == sent
    consumer = Consumer({"bootstrap.servers": peer.bootstrap, "group.id": group})
    with (
        Session(pair.target_zookeeper, client_name="test") as session,
        source_at(kafka=peer.bootstrap) as source,
    ):
        # 100 records, a marker, 20 that were aborted, a marker
        for offset, left in ((0, 0), (60, 60), (100, 100), (110, 100), (122, 100), (150, 128)):
            at = KafkaPartition(topic, 0, offset)
            consumer.commit(offsets=[at], asynchronous=False)
            [row] = translate_group(
                f"mirror-{topic}", group, source=source, session=session, execute=True
            )
            assert row.new <= left
            assert row.new == left or not row.exact
        committed = GroupOffsets(session).committed(group)[TopicPartition(topic, 0)]
        assert committed.offset == row.new
    consumer.close()


def test_a_topic_of_kafka_that_was_created_again_is_another(peer: Kafka, pair: Pair) -> None:
    topic = "kafka-again"
    peer.create_topic(topic, partitions=1)
    produce(peer, topic, 0, 10, partitions=1)
    with mirror(peer, pair, topic) as opened:
        copy_all(opened)
        peer.delete_topic(topic)
        peer.create_topic(topic, partitions=1)

        def listed() -> bool:
            with suppress(UnknownTopicError), source_at(kafka=peer.bootstrap) as source:
                return topic in source.topics(Topics((topic,)))
            return False

        wait_until(listed, message="Kafka to know its topic")
        with pytest.raises(TopicRecreatedError, match="created again in the source"):
            copy_all(opened)


def test_a_mirror_of_kafka_killed_at_random_times_copies_each_record_once(
    peer: Kafka, pair: Pair, tmp_path: Path
) -> None:
    topic = "kafka-killed"
    peer.create_topic(topic, partitions=2)
    words = [
        "spark_logbus.cli", "mirror", "--from-kafka", peer.bootstrap, "--topics", topic,
        "--zookeeper", pair.target_zookeeper, "--name", f"mirror-{topic}", "--round-bytes", "1",
    ]  # fmt: skip
    dice, pause = random.Random(1), threading.Event()
    sent: list[Found] = []
    for number in range(8):
        with MirrorProcess(words, tmp_path / f"log-{number}") as process:
            until = dice.uniform(1.0, 3.0)
            for _ in range(4):
                sent += produce(peer, topic, len(sent), 600)
                produce(peer, topic, 10**6, 100, aborted=True)
                pause.wait(until / 4)
            assert process.alive()
    with mirror(peer, pair, topic) as opened:
        copy_all(opened)
    assert by_partition(sent) == records(pair.target, topic)

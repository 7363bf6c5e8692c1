"""One of two brokers is killed: readers and writers of the other one go on, and are told."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest

from spark_logbus.cli.data.until_now import Wanted, until_now
from spark_logbus.client import (
    Admin,
    ClientConfig,
    Cluster,
    Consumer,
    ConsumerConfig,
    ConsumerRecord,
    Producer,
    ProducerConfig,
)
from spark_logbus.client.producer.partitioner import partition_of
from spark_logbus.errors import BrokerUnavailableError, RequestTimeoutError
from spark_logbus.local.cluster import BrokerProcess, EmbeddedCluster
from spark_logbus.model import AtOffset, Latest, TopicPartition
from spark_logbus.offsets.snapshot import take_snapshot
from spark_logbus.selection import Topics
from tests.helpers import wait_until, without_waiting

CONFIG = ClientConfig(client_id="test", retry_backoff_ms=10, retry_backoff_max_ms=100)


@dataclass(frozen=True)
class Halves:
    """A topic of four partitions, of which the living and the dead broker lead two each; each
    partition has ten records, "<partition>:<number>"."""

    brokers: EmbeddedCluster
    topic: str
    dead: BrokerProcess
    living_tps: tuple[TopicPartition, ...]
    dead_tps: tuple[TopicPartition, ...]

    @property
    def leader(self) -> str:
        """Names of the dead broker in messages, some of them without its address."""
        return f"broker {self.dead.broker_id}"

    def records(self, topic_partitions: Sequence[TopicPartition], count: int = 10) -> set[str]:
        return {
            f"{topic_partition.partition}:{number}"
            for topic_partition in topic_partitions
            for number in range(count)
        }


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(tmp_path_factory.mktemp("cluster"), brokers=2) as embedded:
        yield embedded


@pytest.fixture
def halves(brokers: EmbeddedCluster, request: pytest.FixtureRequest) -> Iterator[Halves]:
    """The second broker is dead until the test is over."""
    name = request.node.name.replace("[", "-").replace("]", "").replace(" ", "-")
    dead = brokers.brokers[1]
    with Cluster.from_zookeeper(brokers.zookeeper, CONFIG) as cluster:
        parts = Admin(cluster).create_topic(name, partitions=4).partitions
        with Producer(cluster) as producer:
            for partition in parts:
                for number in range(10):
                    producer.send(name, b"%d:%d" % (partition, number), partition=partition)
    ours = {number: part.leader and part.leader.broker_id for number, part in parts.items()}
    dead_tps = [TopicPartition(name, n) for n, leader in ours.items() if leader == dead.broker_id]
    living = [TopicPartition(name, n) for n, leader in ours.items() if leader != dead.broker_id]
    assert len(living) == len(dead_tps) == 2
    dead.kill()
    yield Halves(brokers, name, dead, tuple(living), tuple(dead_tps))
    if not dead.running:
        dead.start()


@contextmanager
def connected(halves: Halves, config: ClientConfig = CONFIG) -> Iterator[Cluster]:
    with Cluster.from_zookeeper(halves.brokers.zookeeper, config) as cluster:
        yield cluster


def consume(halves: Halves, *options: str) -> list[str]:
    return [
        sys.executable, "-m", "spark_logbus.cli", "consume", halves.topic,
        "--zookeeper", halves.brokers.zookeeper, *options,
    ]  # fmt: skip


def text(record: ConsumerRecord) -> str:
    value: bytes = record.value
    return value.decode()


@pytest.mark.long
def test_keyless_records_go_to_led_partitions(halves: Halves) -> None:
    living = {topic_partition.partition for topic_partition in halves.living_tps}
    config = ProducerConfig(batch_bytes=400, delivery_timeout_ms=60_000)
    with connected(halves) as cluster, Producer(cluster, config) as producer:
        # At first the dead broker is registered still; in the end it is not.
        first = [producer.send(halves.topic, b"keyless %d" % number) for number in range(200)]
        assert {future.result(60).partition for future in first} <= living
        (arrow,) = producer.send_arrow(halves.topic, pa.table({"value": [b"a", b"b"]}))
        assert arrow.result(60).partition in living
        halves.dead.start()
        wait_until(
            lambda: producer.send(halves.topic, b"again").result(60).partition not in living,
            deadline_s=60,
            message="a record for the broker that is back",
        )


@pytest.mark.long
def test_rows_without_a_key_do_not_wait_with_rows_that_have_one(halves: Halves) -> None:
    living = {topic_partition.partition for topic_partition in halves.living_tps}
    keys = (b"%d" % number for number in range(1_000))
    key = next(key for key in keys if partition_of(key, 4) in living)
    rows = pa.table({"key": pa.array([None, key, None], pa.binary()), "value": [b"a", b"b", b"c"]})
    config = ProducerConfig(delivery_timeout_ms=15_000)
    with connected(halves) as cluster:
        for _ in range(8):  # each producer begins with another partition
            with Producer(cluster, config) as producer:
                futures = producer.send_arrow(halves.topic, rows)
                assert {future.result(60).partition for future in futures} <= living


@pytest.mark.long
def test_records_that_must_wait_name_the_broker_in_the_end(halves: Halves) -> None:
    config = ProducerConfig(delivery_timeout_ms=1_500)
    with connected(halves) as cluster, Producer(cluster, config) as producer:
        kept = producer.send(halves.topic, b"x", partition=halves.dead_tps[0].partition)
        with pytest.raises(RequestTimeoutError, match=halves.leader):
            kept.result(60)


@pytest.mark.long
def test_what_there_is_is_consumed_and_the_rest_is_told(halves: Halves) -> None:
    done = subprocess.run(consume(halves), capture_output=True, text=True, timeout=60, check=False)
    assert set(done.stdout.split()) == halves.records(halves.living_tps)
    assert done.returncode == 1
    first, last = without_waiting(done.stderr).splitlines()
    named = ", ".join(map(str, halves.dead_tps))
    assert first.startswith(f"Warning: cannot read {named} at the moment: waiting for broker 2")
    assert last.startswith(f"Error: Not everything was read: {named} wait for broker 2")


def test_an_offset_only_others_have_is_no_error(
    halves: Halves,
) -> None:
    with connected(halves, replace(CONFIG, retry_deadline_ms=5_000)) as cluster:
        with Producer(cluster) as producer:
            for topic_partition in halves.living_tps * 2:
                producer.send(halves.topic, b"more", partition=topic_partition.partition)
        admin = Admin(cluster)
        topic_id = admin.describe([halves.topic], ends=False)[halves.topic].topic_id
        topic_partitions = (*halves.living_tps, *halves.dead_tps)
        reader = until_now(
            cluster, admin, Wanted(halves.topic, topic_id, topic_partitions, AtOffset(11))
        )
        read = [next(reader)]
        halves.dead.start()
        wait_until(lambda: not admin.find_offsets(dict.fromkeys(topic_partitions, Latest())).away)
        read += reader
    assert [fetched.topic_partition for fetched in read] == list(halves.living_tps)


@pytest.mark.long
def test_following_waits_for_the_broker_and_goes_on_by_itself(
    halves: Halves, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    with (
        told.open("w") as errors,
        subprocess.Popen(
            consume(halves, "--follow", "--max", "40"),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as follower,
    ):
        assert follower.stdout is not None
        at_once = {follower.stdout.readline().strip() for _ in range(20)}
        assert at_once == halves.records(halves.living_tps)
        wait_until(lambda: "broker 2" in told.read_text(), deadline_s=60, message="the warning")
        halves.dead.start()
        later = {follower.stdout.readline().strip() for _ in range(20)}
        assert later == halves.records(halves.dead_tps)
        assert follower.wait(60) == 0
    (warning,) = without_waiting(told.read_text()).splitlines()  # once, not over and over
    assert all(str(topic_partition) in warning for topic_partition in halves.dead_tps)


@pytest.mark.long
def test_a_consumer_that_runs_already_goes_on_with_the_living(
    halves: Halves, caplog: pytest.LogCaptureFixture
) -> None:
    halves.dead.start()
    config = ConsumerConfig(group=f"g-{halves.topic}", zookeeper=halves.brokers.zookeeper)
    patience = replace(CONFIG, retry_deadline_ms=1_000)  # long over when the broker is back
    with connected(halves, patience) as cluster, Consumer(cluster, config) as consumer:
        consumer.assign_topics(halves.topic)
        got = {text(next(consumer)) for _ in range(40)}
        assert len(got) == 40
        with caplog.at_level(logging.WARNING), Producer(cluster) as producer:
            halves.dead.kill()
            for topic_partition in halves.living_tps:
                producer.send(halves.topic, b"new", partition=topic_partition.partition)
            assert [text(next(consumer)) for _ in range(2)] == ["new", "new"]
            consumer.commit()
            wait_until(
                lambda: consumer.poll_arrow(0.1) or halves.leader in caplog.text,
                deadline_s=60,
                message="the warning",
            )
            # So long that one partition alone would be given up.
            wait_until(lambda: consumer.poll_arrow(0.1) or len(cluster.brokers) == 1)
        halves.dead.start()
        with Producer(cluster) as producer:
            producer.send(halves.topic, b"back", partition=halves.dead_tps[0].partition)
            assert text(next(consumer)) == "back"


@pytest.mark.long
def test_offsets_of_the_living_are_known_at_once(halves: Halves) -> None:
    with connected(halves) as cluster:
        admin = Admin(cluster)
        topic_partitions = [*halves.living_tps, *halves.dead_tps]
        found = admin.find_offsets(dict.fromkeys(topic_partitions, Latest()))
        assert found.found == dict.fromkeys(halves.living_tps, 10)
        assert set(found.away) == set(halves.dead_tps)
        described = admin.describe([halves.topic])[halves.topic].partitions
        for topic_partition in halves.dead_tps:
            assert described[topic_partition.partition].ends is None
            assert "broker 2" in str(described[topic_partition.partition].problem)
        with pytest.raises(BrokerUnavailableError, match=r"The offsets of .* broker 2"):
            take_snapshot(admin, Topics((halves.topic,)), missing_ok=False)

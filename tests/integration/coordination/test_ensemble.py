"""A cluster on a ZooKeeper ensemble of three, whose leader is killed under load."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Self

import pytest
from pyspark.sql import SparkSession

from spark_logbus.client import Admin, Cluster, Consumer, ConsumerConfig, Producer, RecordFuture
from spark_logbus.coordination.cluster.brokers import BrokerRegistry
from spark_logbus.model import TopicPartition
from spark_logbus.zookeeper import Session
from tests.helpers import wait_until
from tests.servers.broker import broker_process
from tests.servers.cluster import Logbus
from tests.servers.ensemble import Ensemble
from tests.servers.spark import Streams

PARTITIONS = 4
PATIENCE_S = 90


class Load:
    """Sends numbered values on a thread of its own until the end of the ``with`` block."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self.futures: list[RecordFuture] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _send(self) -> None:
        with Producer(self._cluster) as producer:
            while not self._stopping.wait(0.005):
                value = b"%d" % len(self.futures)
                self.futures.append(producer.send(self._topic, value))


class Reader:
    """A plain consumer of a group, which commits what it has read; on a thread of its own."""

    def __init__(self, logbus: Logbus, topic: str) -> None:
        config = ConsumerConfig(group="plain", zookeeper=logbus.zookeeper)
        self._consumer = Consumer(logbus.cluster, config)
        self._consumer.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
        self._stopping = False
        self._thread = threading.Thread(target=self._read)
        self.values: list[bytes] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        self._thread.join()
        self._consumer.close()

    def _read(self) -> None:
        while not self._stopping:
            for fetched in self._consumer.poll_arrow(timeout_s=0.2):
                self.values += fetched.arrow_batch.column("value").to_pylist()
            self._consumer.commit()


def live(zookeeper: str) -> list[int]:
    with Session(zookeeper, client_name="observer") as session:
        return [address.broker_id for address in BrokerRegistry(session).live()]


def command_line(*arguments: str) -> str:
    command = [sys.executable, "-m", "spark_logbus.cli", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=90).stdout


@pytest.mark.long
def test_all_outlive_the_leader_of_an_ensemble(tmp_path: Path, spark: SparkSession) -> None:
    with Ensemble(tmp_path / "zookeeper") as ensemble, contextlib.ExitStack() as stack:
        zookeeper = f"{ensemble.address}/logbus"
        brokers = [
            stack.enter_context(
                broker_process(tmp_path / f"broker-{number}", zookeeper, broker_id=number)
            )
            for number in (1, 2)
        ]
        pids = [broker.pid for broker in brokers]
        logbus = Logbus(zookeeper, stack.enter_context(Cluster.from_zookeeper(zookeeper)))
        topic = logbus.topic(partitions=PARTITIONS)
        streams = Streams(spark, logbus, tmp_path)
        source = streams.source(subscribe=topic, group="query", startingOffsets="earliest")
        query = streams.start(source, available_now=False)
        stack.callback(query.stop)
        with Reader(logbus, topic) as reader:
            with Load(logbus.cluster, topic) as load:

                def both_have_committed(beyond: int) -> bool:
                    return all(
                        sum(logbus.committed(group).values()) > beyond
                        for group in ("query", "plain")
                    )

                def go_on(what: str) -> None:
                    sent = len(load.futures)
                    wait_until(
                        lambda: both_have_committed(sent),
                        deadline_s=PATIENCE_S,
                        message=f"commits of what was sent {what}",
                    )

                go_on("at first")
                killed = ensemble.leader
                assert killed is not None
                ensemble.kill(killed)
                go_on("after the leader was killed")
                wait_until(lambda: ensemble.leader not in (None, killed), message="a new leader")
                Admin(logbus.cluster).create_topic("later", partitions=2)
                ensemble.start(killed)
                go_on("with the third server on its way back")
            values = [b"%d" % number for number in range(len(load.futures))]
            offsets = Counter(
                (told.partition, told.offset)
                for told in (future.result(PATIENCE_S) for future in load.futures)
            )
            assert set(offsets.values()) == {1}
            wait_until(lambda: len(reader.values) >= len(values), deadline_s=PATIENCE_S)
            wait_until(lambda: len(streams.rows) >= len(values), deadline_s=PATIENCE_S)
        assert Counter(reader.values) == Counter(values)
        assert Counter(bytes(row["value"]) for row in streams.rows) == Counter(values)
        assert query.exception() is None
        assert live(zookeeper) == [1, 2]
        assert [broker.pid for broker in brokers if broker.running] == pids
        assert "later" in command_line("topics", "list", "--zookeeper", zookeeper)
        assert "plain" in command_line("groups", "list", "--zookeeper", zookeeper)

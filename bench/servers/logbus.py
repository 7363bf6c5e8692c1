"""logbus itself: a cluster on this machine, and a client of it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.kit.harness import cluster
from spark_logbus.client import Admin, Cluster, Producer, ProducerConfig
from spark_logbus.coordination.cluster.partition_states import PartitionStates
from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.local.cluster import BrokerProcess, EmbeddedCluster
from spark_logbus.model import Latest, TopicPartition
from spark_logbus.zookeeper import Session

_LEFT_TO_THE_SYSTEM: Final = {"flush.policy": "os"}


@dataclass(frozen=True)
class Logbus:
    """A running cluster. Thread-safe."""

    running: EmbeddedCluster
    client: Cluster
    replicas: int = 1
    """Copies of each partition."""
    states: PartitionStates | None = None
    """States of partitions in ZooKeeper, where there are copies."""
    batch_prefix: struct.Struct = struct.Struct("<qI")

    @property
    def address(self) -> str:
        return self.running.zookeeper

    @property
    def pids(self) -> list[int]:
        """Process ids of the brokers."""
        return [broker.pid for broker in self.running.brokers]

    @property
    def data(self) -> Path:
        """Folder where the only broker keeps its partitions."""
        (path,) = self.all_data
        return path

    @property
    def all_data(self) -> Sequence[Path]:
        return [broker.directory / "data" for broker in self.running.brokers]

    def create_topic(self, topic: str, *, partitions: int = 1, flushed: bool = False) -> None:
        config = {} if flushed else _LEFT_TO_THE_SYSTEM
        Admin(self.client).create_topic(
            topic, partitions=partitions, replicas=self.replicas, config=config
        )

    def delete_topic(self, topic: str) -> None:
        Admin(self.client).delete_topic(topic)

    def ends(self, topic: str, *, partitions: int) -> list[int]:
        """Returns up to where consumers see each partition."""
        wanted = [TopicPartition(topic, number) for number in range(partitions)]
        found = Admin(self.client).list_offsets(dict.fromkeys(wanted, Latest()))
        return [found[each] or 0 for each in wanted]

    def server(self, broker_id: int) -> BrokerProcess:
        (found,) = [each for each in self.running.brokers if each.broker_id == broker_id]
        return found

    def leader(self, topic: str) -> int:
        """Returns the id of the broker that leads the only partition."""
        return self._state(topic).leader

    def in_sync(self, topic: str) -> int:
        """Counts the replicas of the only partition that have all that is acknowledged."""
        return len(self._state(topic).in_sync)

    @contextmanager
    def sender(self, topic: str) -> Iterator[Callable[[], None]]:
        """Yields a function that sends a record, and returns when all in sync have it."""
        with Producer(self.client, ProducerConfig(linger_ms=0)) as producer:

            def send() -> None:
                producer.send(topic, b"x").result()

            yield send

    def _state(self, topic: str) -> PartitionState:
        assert self.states is not None, "this one has no copies"
        state = self.states.states(topic)[0]
        assert state is not None, "the topic was made here, and led since"
        return state


@contextmanager
def logbus_cluster(*, brokers: int, session_ms: int) -> Iterator[Logbus]:
    """Runs fresh brokers with as many replicas of each partition. A broker counts as gone when it
    has been silent for ``session_ms``."""
    with ExitStack() as stack:
        running = stack.enter_context(
            cluster(brokers=brokers, broker={"zookeeper_session_ms": session_ms})
        )
        client = stack.enter_context(Cluster.from_zookeeper(running.zookeeper))
        session = stack.enter_context(Session(running.zookeeper, client_name="bench"))
        yield Logbus(running, client, replicas=brokers, states=PartitionStates(session))


@contextmanager
def logbus(**settings: Any) -> Iterator[Logbus]:
    """Runs a fresh cluster, gone afterwards; ``settings`` are those of ``cluster``."""
    with cluster(**settings) as running, Cluster.from_zookeeper(running.zookeeper) as client:
        yield Logbus(running, client)

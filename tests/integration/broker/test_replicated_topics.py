"""Topics with replicas, made and altered by a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from spark_logbus.broker import Broker
from spark_logbus.client import Admin, Cluster
from spark_logbus.coordination import paths
from spark_logbus.coordination.cluster.brokers import MOVES, BrokerRegistry
from spark_logbus.coordination.cluster.drained import DrainedBrokers
from spark_logbus.coordination.payloads import (
    BrokerPayload,
    MovePayload,
    TopicPayload,
    decode,
    encode,
)
from spark_logbus.errors import ConfigError, LogbusError
from spark_logbus.model import BrokerAddress
from spark_logbus.protocol import (
    AlterTopicRequest,
    AlterTopicResponse,
    Api,
    CreateTopicRequest,
    CreateTopicResponse,
    MoveRequest,
    MoveResponse,
    PartitionMove,
)
from spark_logbus.zookeeper import Session
from tests.helpers import wait_until
from tests.servers import zookeeper as servers
from tests.servers.broker import broker_here, connect, failure
from tests.servers.wire import Wire
from tests.servers.zookeeper import put, session

RACKS = {2: "a", 3: "b"}


class Brokers:
    """One broker in rack a, and registrations of others."""

    def __init__(self, wire: Wire, live: Session, zookeeper: str) -> None:
        self.wire = wire
        self.zookeeper = zookeeper
        self.drained = DrainedBrokers(live)

    def create(
        self, name: str, *, replicas: int, partitions: int = 4, config: dict[str, str] | None = None
    ) -> CreateTopicResponse:
        request = CreateTopicRequest(name, partitions, config or {}, replicas)
        return self.wire.call(Api.CREATE_TOPIC, request, CreateTopicResponse)

    def alter(self, name: str, **changes: object) -> AlterTopicResponse:
        request = msgspec.structs.replace(AlterTopicRequest(name), **changes)
        return self.wire.call(Api.ALTER_TOPIC, request, AlterTopicResponse)

    def node(self, name: str) -> TopicPayload:
        path = paths.topic(name)
        return decode(TopicPayload, servers.read(self.zookeeper, path), path=path)

    def put_earlier(self, broker_id: int) -> None:
        """Registers a broker of a release that can move partitions, and no more."""
        payload = BrokerPayload(host="h", port=9, started_us=1, version="0.2.0", features=MOVES)
        put(self.zookeeper, paths.broker(broker_id), encode(payload))


@pytest.fixture
def broker(tmp_path: Path, chroot: str) -> Iterator[Broker]:
    with broker_here(tmp_path, chroot, rack="a") as broker:
        yield broker


@pytest.fixture
def brokers(broker: Broker, chroot: str) -> Iterator[Brokers]:
    with session(chroot) as live:
        others = {each: BrokerRegistry(live) for each in RACKS}
        for broker_id, registry in others.items():
            address = BrokerAddress(broker_id, "127.0.0.1", 9, rack=RACKS[broker_id])
            registry.register(address, version="1")
        with connect(broker) as wire:
            yield Brokers(wire, live, chroot)
        for registry in others.values():
            registry.deregister()


def test_replicas_are_spread_over_brokers_and_racks(brokers: Brokers) -> None:
    assert brokers.create("t", replicas=2, partitions=6).replicas == 2
    assigned = brokers.node("t").partitions.values()
    assert sorted(members[0] for members in assigned) == [1, 1, 2, 2, 3, 3]
    assert all(len({*members}) == 2 and 3 in members for members in assigned)
    assert brokers.create("u", replicas=3).replicas == 3
    assert brokers.alter("u", partitions=7).partitions == 7
    assert all(sorted(members) == [1, 2, 3] for members in brokers.node("u").partitions.values())
    assert brokers.create("one", replicas=1).replicas == 1


@pytest.mark.parametrize(
    ("replicas", "partitions", "why"),
    [
        (0, 1, "cannot have 0 replicas of a partition; use 1 to 16"),
        (-1, 1, "cannot have -1 replicas"),
        (17, 1, "cannot have 17 replicas"),
        (1 << 62, 1 << 62, "partitions; use 1 to 10000"),
        (4, 1, r"a broker of its own, and 3 can take one now \(1, 2, 3\)"),
        (3, 1_001, "max_partitions_per_topic"),
    ],
)
def test_replicas_that_no_topic_can_have(
    brokers: Brokers, replicas: int, partitions: int, why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        brokers.create("t", replicas=replicas, partitions=partitions)
    assert brokers.create("t", replicas=1).replicas == 1


def test_a_broker_that_is_drained_takes_no_replica(brokers: Brokers) -> None:
    brokers.create("t", replicas=3)
    brokers.drained.mark(2, since_us=1)
    with pytest.raises(ConfigError, match=r"3 replicas .* 2 can take one now \(1, 3\)"):
        brokers.create("u", replicas=3)
    with pytest.raises(ConfigError, match=r"3 replicas .* 2 can take one now \(1, 3\)"):
        brokers.alter("t", partitions=5)
    brokers.alter("t", set={"retention.ms": "5"}, partitions=4)  # which adds none
    assert brokers.create("u", replicas=2).replicas == 2
    brokers.drained.clear(2)


def test_nothing_is_replicated_while_a_broker_of_an_earlier_release_runs(
    brokers: Brokers,
) -> None:
    brokers.create("t", replicas=2, partitions=1)
    brokers.put_earlier(4)
    why = r"while brokers of an earlier release run \(4\); upgrade those first"
    with pytest.raises(ConfigError, match=why):
        brokers.create("u", replicas=2)
    with pytest.raises(ConfigError, match=why):
        brokers.create("u", replicas=1, config={"min.insync.replicas": "1"})
    with pytest.raises(ConfigError, match=why):
        brokers.alter("t", partitions=2)
    with pytest.raises(ConfigError, match=why):
        brokers.alter("t", set={"unclean.leader.election": "true"})
    brokers.alter("t", set={"retention.ms": "5"})
    brokers.create("u", replicas=1)
    brokers.alter("u", partitions=5)


def test_settings_of_replicas_fit_their_number(brokers: Brokers) -> None:
    for replicas, config, why in (
        (2, {"min.insync.replicas": "3"}, "is 3, and a partition of it has 2 replicas"),
        (1, {"min.insync.replicas": "2"}, "is 2, and a partition of it has 1 replica:"),
        (3, {"min.insync.replicas": "0"}, "to '0'; set it to 1 to"),
        (3, {"min.insync.replicas": "all"}, "to 'all'"),
        (3, {"unclean.leader.election": "maybe"}, "use true or false"),
        (3, {"min.in.sync.replicas": "2"}, r"did you mean min\.insync\.replicas"),
    ):
        with pytest.raises(ConfigError, match=why):
            brokers.create("t", replicas=replicas, config=config)
    brokers.create("t", replicas=3, config={"min.insync.replicas": "3"})
    with pytest.raises(ConfigError, match="is 4, and a partition of it has 3"):
        brokers.alter("t", set={"min.insync.replicas": "4"})
    done = brokers.alter("t", set={"min.insync.replicas": "1", "unclean.leader.election": "true"})
    assert done.config == {"min.insync.replicas": "1", "unclean.leader.election": "true"}
    assert brokers.alter("t", unset=["min.insync.replicas", "unclean.leader.election"]).config == {}


def test_partitions_that_are_to_have_fewer_replicas_count(brokers: Brokers) -> None:
    brokers.create("t", replicas=3)
    node = brokers.node("t")
    moving = msgspec.structs.replace(node, moves={0: MovePayload(to=[1], since_us=1)})
    put(brokers.zookeeper, paths.topic("t"), encode(moving))
    with pytest.raises(ConfigError, match="is 2, and a partition of it has 1 replica:"):
        brokers.alter("t", set={"min.insync.replicas": "2"})
    brokers.alter("t", set={"retention.ms": "5"})


def test_a_partition_with_replicas_is_not_moved_to_one_broker(brokers: Brokers) -> None:
    brokers.create("t", replicas=2, partitions=1)

    def moved() -> LogbusError:
        request = MoveRequest([PartitionMove("t", 0, 3)])
        return failure(brokers.wire.call(Api.MOVE, request, MoveResponse).results[0].error)

    with pytest.raises(
        LogbusError, match="t-0 has 2 replicas, and a request to move it names one broker, 3"
    ):
        raise moved()
    assert brokers.node("t").moves == {}


def test_clients_and_the_registration_tell_racks(
    broker: Broker, brokers: Brokers, chroot: str
) -> None:
    path = paths.broker(broker.config.id)
    payload = decode(BrokerPayload, servers.read(chroot, path), path=path)
    assert (payload.rack, payload.features) == ("a", 3)
    with Cluster.from_zookeeper(chroot) as cluster:
        admin = Admin(cluster)
        admin.create_topic("t", partitions=1)

        def racks() -> dict[int, str | None]:
            cluster.invalidate("t")
            admin.describe(["t"], ends=False)
            return {each.broker_id: each.rack for each in cluster.brokers}

        wait_until(lambda: racks() == {1: "a", **RACKS})
        with pytest.raises(ConfigError, match="replicas must be a whole number, got str '2'"):
            admin.create_topic("u", partitions=1, replicas="2")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="cannot have 4 replicas"):
            admin.create_topic("u", partitions=1, replicas=4)

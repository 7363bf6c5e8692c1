"""Readers of partitions that have replicas nearer than their leader."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from uuid import uuid4

import pytest

from spark_logbus.client import Admin, ClientConfig, Cluster, Consumer, ConsumerConfig, RangeReader
from spark_logbus.client.cluster.nearest import NearestReplicas
from spark_logbus.client.fetch.first_fetches import FirstFetches
from spark_logbus.clock import SystemClock
from spark_logbus.errors import (
    ConfigError,
    CorruptRecordBatchError,
    LogbusError,
    NotLeaderError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
)
from spark_logbus.model import BrokerAddress, Latest, OffsetRange
from spark_logbus.protocol import Api, FetchRequest
from tests.builders.arrow_batches import QUICK, T0, numbered, record_batch
from tests.fakes.broker import FakeBroker, FakeCluster
from tests.fakes.clock import ManualClock

IN_EAST = replace(QUICK, rack="east")


@pytest.fixture
def replicated(fake: FakeCluster) -> FakeCluster:
    """Broker 1, in the west, leads; broker 2, in the east, has 40 of 40 records."""
    fake.brokers[0].rack, fake.brokers[1].rack = "west", "east"
    fake.create("t")
    for number in range(4):
        fake.append(T0, record_batch(numbered(number * 10, 10)))
    part = fake.partition(T0)
    part.followers, part.in_sync = {2: 40}, [1, 2]
    return fake


@pytest.fixture
def eastern(replicated: FakeCluster) -> Iterator[Cluster]:
    with Cluster.connect(replicated.bootstrap, IN_EAST) as connected:
        yield connected


def fetches(broker: FakeBroker) -> list[FetchRequest]:
    return [each for each in broker.requests if isinstance(each, FetchRequest)]


def read_range(cluster: Cluster, end: int = 40) -> int:
    with RangeReader(cluster, OffsetRange(T0, 0, end), in_flight=1) as reader:
        return sum(fetched.arrow_batch.num_rows for fetched in reader)


def test_a_range_is_read_in_the_readers_rack(replicated: FakeCluster, eastern: Cluster) -> None:
    assert read_range(eastern) == 40
    assert not fetches(replicated.brokers[0])
    assert all(each.replica for each in fetches(replicated.brokers[1]))


def test_the_environment_says_the_rack(
    replicated: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGBUS_RACK", "east")
    with Cluster.connect(replicated.bootstrap, QUICK) as cluster:
        assert read_range(cluster) == 40
    assert not fetches(replicated.brokers[0])
    with Cluster.connect(replicated.bootstrap, replace(QUICK, rack="west")) as cluster:
        assert read_range(cluster) == 40
    assert not any(each.replica for each in fetches(replicated.brokers[0]))


@pytest.mark.parametrize("rack", ["", " ", 5])
def test_what_no_rack_is_called_is_refused(rack: object) -> None:
    with pytest.raises(ConfigError, match="rack is"):
        ClientConfig(rack=rack)  # type: ignore[arg-type]


def test_first_fetches_ask_the_nearest(replicated: FakeCluster, eastern: Cluster) -> None:
    first = FirstFetches(eastern, [OffsetRange(T0, 0, 40)], {"t": "id-t"})
    assert first.take(0) is not None
    assert not fetches(replicated.brokers[0])


def test_the_leader_has_what_a_follower_lacks(replicated: FakeCluster, eastern: Cluster) -> None:
    replicated.partition(T0).followers[2] = 20
    assert read_range(eastern) == 40
    [lacking, *_] = [each for each in fetches(replicated.brokers[1]) if each.partitions[0].offset]
    assert (lacking.partitions[0].offset, lacking.max_wait_ms) == (20, 500), "waited for there"
    assert [each.partitions[0].offset for each in fetches(replicated.brokers[0])] == [20]


@pytest.mark.parametrize(
    "error",
    [
        NotLeaderError("not in sync any more"),
        OffsetOutOfRangeError("its log begins later"),
        CorruptRecordBatchError("its disk is damaged"),
    ],
)
def test_what_a_follower_refuses_the_leader_is_asked(
    replicated: FakeCluster, eastern: Cluster, error: LogbusError
) -> None:
    for _ in range(2):
        replicated.brokers[1].fault(Api.FETCH, "partition_error", error)
    assert read_range(eastern) == 40
    assert len(fetches(replicated.brokers[1])) == 1
    config = ConsumerConfig(max_wait_ms=20)
    with Cluster.connect(replicated.bootstrap, IN_EAST) as own, Consumer(own, config) as consumer:
        consumer.assign([T0])
        read = 0
        while read < 40:
            read += len(consumer.poll(5))
    assert len(fetches(replicated.brokers[1])) == 2


def test_a_follower_that_is_silent_is_left(replicated: FakeCluster, eastern: Cluster) -> None:
    hang = replicated.brokers[1].fault(Api.FETCH, "hang")
    assert read_range(eastern) == 40
    assert not hang.release.is_set()


def test_a_follower_that_is_gone_is_left(replicated: FakeCluster, eastern: Cluster) -> None:
    assert read_range(eastern) == 40
    replicated.brokers[1].stop()
    assert read_range(eastern) == 40


def test_a_consumer_reads_from_a_follower_and_what_that_lacks_from_the_leader(
    replicated: FakeCluster, eastern: Cluster
) -> None:
    part = replicated.partition(T0)
    with Consumer(eastern, ConsumerConfig(max_wait_ms=20)) as consumer:
        consumer.assign([T0])
        read = 0
        while read < 40:
            read += len(consumer.poll(5))
        assert not fetches(replicated.brokers[0])
        for number in range(2):
            replicated.append(T0, record_batch(numbered(40 + number * 10, 10)))
        part.followers[2] = 50
        with replicated.lock:
            replicated.lock.notify_all()
        while read < 50:
            read += len(consumer.poll(5))
        assert not fetches(replicated.brokers[0]), "it waits where it reads"
        part.followers[2] = 45  # as another replica that lags more
        while read < 60:
            read += len(consumer.poll(5))
        assert fetches(replicated.brokers[0])[0].partitions[0].offset == 50
        assert not fetches(replicated.brokers[0])[0].replica


def test_a_leader_that_was_replaced_does_not_say_what_is_out_of_range(
    replicated: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced, new = replicated.brokers
    config = ConsumerConfig(max_wait_ms=20, out_of_range="latest")
    with Cluster.connect(replicated.bootstrap, QUICK) as cluster, Consumer(cluster, config) as own:
        own.assign([T0])
        own.seek(T0, 20)
        cluster.leader(T0, cluster.retry_deadline())
        for _ in range(2):
            error = OffsetOutOfRangeError("it ends before")
            replaced.fault(Api.FETCH, "partition_error", error)
        replaced.stop_hearing()
        replicated.hand_over(T0, 2)
        seen = [record.offset for record in own.poll(5) or own.poll(5)]
        assert seen[0] == 20
    with Cluster.connect(replicated.bootstrap, QUICK) as cluster:
        replicated.hand_over(T0, 1)
        cluster.leader(T0, cluster.retry_deadline())
        replicated.hand_over(T0, 2)
        assert read_range(cluster) == 40
    assert fetches(replaced)
    assert fetches(new)


@pytest.mark.parametrize("error", [OffsetNotAvailableError("a new leader"), NotLeaderError("no")])
def test_a_new_leader_that_does_not_know_what_is_safe_is_waited_for(
    replicated: FakeCluster, error: LogbusError
) -> None:
    leader = replicated.brokers[0]
    for _ in range(3):
        leader.fault(Api.FETCH, "partition_error", error)
        leader.fault(Api.LIST_OFFSETS, "error", error)
    with Cluster.connect(replicated.bootstrap, QUICK) as cluster:
        assert Admin(cluster).list_offsets({T0: Latest()}) == {T0: 40}
        assert read_range(cluster) == 40
    for _ in range(3):
        leader.fault(Api.FETCH, "partition_error", error)
    config = ConsumerConfig(max_wait_ms=20, out_of_range="error")
    with Cluster.connect(replicated.bootstrap, QUICK) as own, Consumer(own, config) as consumer:
        consumer.assign([T0])
        read = 0
        while read < 40:
            read += len(consumer.poll(5))


# -- who is nearest ---------------------------------------------------------------------------


def at(broker_id: int, rack: str | None = None, socket_name: str | None = None) -> BrokerAddress:
    return BrokerAddress(broker_id, "h", broker_id, socket_name, rack)


def test_the_nearest_is_on_this_machine_or_in_the_rack_or_the_leader() -> None:
    name = f"logbus-test-{uuid4().hex}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind("\0" + name)
        listening.listen()
        nearest = NearestReplicas(rack="east", local_sockets=True, clock=SystemClock())
        far, other = at(1, "west", "logbus-test-not-here"), at(2, "east")
        here, equal = at(3, "west", name), at(4, "east")

        def chosen(leader: BrokerAddress | None, *others: BrokerAddress) -> BrokerAddress | None:
            return nearest.choose(T0, leader, [*others, *([leader] if leader else [])])

        assert chosen(far, other, here) is here
        assert chosen(other, far, here) is here
        assert chosen(far, other) is other
        assert chosen(equal, other) is equal, "the leader, if it is as near"
        assert chosen(here, other) is here
        assert chosen(far, at(5)) is far
        assert chosen(None, other) is other
        assert chosen(None, at(5)) is None
        without = NearestReplicas(rack=None, local_sockets=False, clock=SystemClock())
        assert without.choose(T0, far, [here, other, far]) is far


def test_followers_are_passed_over_for_a_while() -> None:
    clock = ManualClock()
    nearest = NearestReplicas(rack="east", local_sockets=True, clock=clock)
    leader, near = at(1, "west"), at(2, "east")
    nearest.avoid(T0)
    assert nearest.choose(T0, leader, [leader, near]) is leader
    clock.advance(11)
    assert nearest.choose(T0, leader, [leader, near]) is near

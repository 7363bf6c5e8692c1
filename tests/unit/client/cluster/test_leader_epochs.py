"""Clients of a cluster whose brokers hear of a new leader late, or never."""

from __future__ import annotations

import pytest

from spark_logbus.client import (
    Admin,
    Cluster,
    Consumer,
    ConsumerConfig,
    Latest,
    Producer,
    ProducerConfig,
    RangeReader,
)
from spark_logbus.model import OffsetRange, TopicPartition
from spark_logbus.protocol import Api, AppendRequest, FetchRequest, MetadataRequest
from tests.builders.arrow_batches import QUICK, record_batch
from tests.fakes.broker import FakeBroker, FakeCluster
from tests.helpers import wait_until

T0 = TopicPartition("t", 0)  # led by broker 1 of the fake cluster


@pytest.fixture
def behind(fake: FakeCluster) -> FakeBroker:
    """The former leader of ``T0``, which does not hear that broker 2 leads it now."""
    fake.create("t")
    fake.append(T0, record_batch([b"0", b"1"]))
    former = fake.brokers[0]
    former.stop_hearing()
    return former


def asked(broker: FakeBroker, kind: type[object]) -> int:
    return sum(isinstance(request, kind) for request in broker.requests)


def test_the_other_brokers_are_asked_where_one_is_behind(
    fake: FakeCluster, cluster: Cluster, behind: FakeBroker
) -> None:
    fake.hand_over(T0, 2)
    for _ in range(30):  # whoever is asked first
        cluster.invalidate("t")
        assert cluster.leader(T0, cluster.retry_deadline()).broker_id in (1, 2)
        if cluster.cached_leader(T0) == fake.brokers[1].address:
            break
    for _ in range(30):
        cluster.invalidate("t")
        assert cluster.leader(T0, cluster.retry_deadline()) == fake.brokers[1].address


def test_brokers_that_are_all_behind_are_asked_no_more_than_twice(
    fake: FakeCluster, cluster: Cluster, behind: FakeBroker
) -> None:
    fake.hand_over(T0, 2)
    while cluster.cached_leader(T0) != fake.brokers[1].address:
        cluster.invalidate("t")
        cluster.leader(T0, cluster.retry_deadline())
    fake.brokers[1].heard = behind.heard
    before = [asked(broker, MetadataRequest) for broker in fake.brokers]
    cluster.invalidate("t")
    assert cluster.leader(T0, cluster.retry_deadline()) == fake.brokers[1].address
    after = [asked(broker, MetadataRequest) for broker in fake.brokers]
    assert sum(after) - sum(before) <= 3
    assert not cluster.is_stale("t"), "it is not asked for again and again"


def test_a_broker_that_hangs_holds_nobody_up_who_has_an_answer(
    fake: FakeCluster, cluster: Cluster, behind: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_logbus.client.cluster.cluster._METADATA_MS", 50)
    fake.hand_over(T0, 2)
    while cluster.cached_leader(T0) != fake.brokers[1].address:
        cluster.invalidate("t")
        cluster.leader(T0, cluster.retry_deadline())
    hanging = [fake.brokers[1].fault(Api.METADATA, "hang") for _ in range(3)]
    try:
        for _ in range(3):
            cluster.invalidate("t")
            deadline = cluster.deadline_ms(60_000)
            assert cluster.leader(T0, deadline) == fake.brokers[1].address
            assert deadline.remaining_s > 30
    finally:
        for fault in hanging:
            fault.release.set()


def test_a_producer_goes_on_with_the_new_leader(fake: FakeCluster, behind: FakeBroker) -> None:
    with (
        Cluster.connect(fake.bootstrap, QUICK) as cluster,
        Producer(cluster, ProducerConfig(linger_ms=0)) as producer,
    ):
        assert producer.send("t", b"before", partition=0).result(60).offset == 2
        fake.hand_over(T0, 2)
        assert producer.send("t", b"after", partition=0).result(60).offset == 3
        assert asked(behind, AppendRequest) == 2, "the refusal sufficed: others knew better"
        assert producer.metrics()["record_retry_total"] == 1


def test_a_producer_asks_a_leader_again_that_nobody_knows_a_newer_one_than(
    fake: FakeCluster, behind: FakeBroker
) -> None:
    # As where brokers of an earlier release give no notice of the epochs in which they lead.
    fake.hand_over(T0, 2)
    fake.brokers[1].heard = behind.heard
    with (
        Cluster.connect(fake.bootstrap, QUICK) as cluster,
        Producer(cluster, ProducerConfig(linger_ms=0)) as producer,
    ):
        future = producer.send("t", b"x", partition=0)
        wait_until(lambda: asked(behind, AppendRequest) >= 3)
        assert not future.done()
        fake.hand_over(T0, 1)
        assert future.result(60).offset == 2


def test_a_consumer_goes_on_with_the_new_leader(fake: FakeCluster, behind: FakeBroker) -> None:
    config = ConsumerConfig(max_wait_ms=30_000, start="earliest")
    with Cluster.connect(fake.bootstrap, QUICK) as cluster, Consumer(cluster, config) as consumer:
        consumer.assign([T0])
        assert [record.value for record in consumer.poll(60)] == [b"0", b"1"]
        fake.hand_over(T0, 2)
        fake.append(T0, record_batch([b"2"]))
        assert [record.value for record in consumer.poll(60)] == [b"2"]
        assert cluster.cached_leader(T0) == fake.brokers[1].address
        fetched = asked(behind, FetchRequest)
        for _ in range(5):
            cluster.invalidate("t")
            consumer.poll(0.05)
        assert asked(behind, FetchRequest) == fetched, "it never goes back to the former leader"


def test_ranges_and_questions_go_on_with_the_new_leader(
    fake: FakeCluster, behind: FakeBroker
) -> None:
    with Cluster.connect(fake.bootstrap, QUICK) as cluster:
        assert Admin(cluster).list_offsets({T0: Latest()}) == {T0: 2}
        fake.hand_over(T0, 2)
        assert Admin(cluster).list_offsets({T0: Latest()}) == {T0: 2}
        fake.hand_over(T0, 1)
        fake.hand_over(T0, 2)
        with RangeReader(cluster, OffsetRange(T0, 0, 2)) as reader:
            assert sum(one.arrow_batch.num_rows for one in reader) == 2
        assert cluster.cached_leader(T0) == fake.brokers[1].address
        assert not cluster.has_refused(T0)


def test_a_refusal_by_a_former_leader_says_nothing_of_the_one_that_is_known(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create("t")
    assert cluster.leader(T0, cluster.retry_deadline()) == fake.brokers[0].address
    cluster.leader_refused(T0, fake.brokers[1].address)
    assert not cluster.has_refused(T0)
    assert not cluster.is_stale("t")
    cluster.leader_refused(T0, fake.brokers[0].address)
    assert cluster.has_refused(T0)
    assert cluster.is_stale("t")
    fake.hand_over(T0, 2)
    assert cluster.leader(T0, cluster.retry_deadline()) == fake.brokers[1].address
    assert not cluster.has_refused(T0)


def test_the_broker_that_a_new_partition_is_assigned_to_is_waited_for_without_the_others(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create("t")
    fake.partition(T0).epoch = -1
    assert cluster.leader(T0, cluster.retry_deadline()) == fake.brokers[0].address
    cluster.leader_refused(T0, fake.brokers[0].address)
    assert cluster.is_stale("t")
    before = sum(asked(broker, MetadataRequest) for broker in fake.brokers)
    cluster.leader(T0, cluster.retry_deadline())
    assert sum(asked(broker, MetadataRequest) for broker in fake.brokers) == before + 1

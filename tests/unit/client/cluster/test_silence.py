"""Clients of a broker that is stopped or cut off: it keeps its connections, and says nothing.

Requests may take a minute here; the tests end long before, as others are asked who leads.
"""

from __future__ import annotations

import threading

import pytest

from spark_logbus.client import Admin, Cluster, Consumer, Producer, RangeReader
from spark_logbus.model import Latest, OffsetRange, TopicPartition
from spark_logbus.protocol import Api, FetchRequest, MetadataRequest
from tests.builders.arrow_batches import T0, numbered, record_batch
from tests.fakes.broker import FakeCluster
from tests.helpers import wait_until

T1 = TopicPartition("t", 1)


@pytest.fixture
def filled(fake: FakeCluster) -> FakeCluster:
    """Partition 0 is led by broker 1, partition 1 by broker 2."""
    fake.create("t", partitions=2)
    for topic_partition in (T0, T1):
        for number in range(4):
            fake.append(topic_partition, record_batch(numbered(number * 10, 10)))
    return fake


def test_a_range_is_read_from_who_leads_by_now(filled: FakeCluster, cluster: Cluster) -> None:
    hang = filled.brokers[0].fault(Api.FETCH, "hang")
    reader = RangeReader(cluster, OffsetRange(T0, 0, 40), in_flight=1)
    cluster.leader(T0, cluster.retry_deadline())
    filled.hand_over(T0, 2)
    assert sum(fetched.arrow_batch.num_rows for fetched in reader) == 40
    assert hang.met.is_set()
    assert not hang.release.is_set()


def test_offsets_are_asked_of_who_leads_by_now(filled: FakeCluster, cluster: Cluster) -> None:
    filled.brokers[0].fault(Api.LIST_OFFSETS, "hang")
    cluster.leader(T0, cluster.retry_deadline())
    filled.hand_over(T0, 2)
    assert Admin(cluster).list_offsets({T0: Latest(), T1: Latest()}) == {T0: 40, T1: 40}


def test_a_consumer_goes_on_with_who_leads_by_now(filled: FakeCluster, cluster: Cluster) -> None:
    hang = filled.brokers[0].fault(Api.FETCH, "hang")
    with Consumer(cluster) as consumer:
        consumer.assign([T0, T1])
        read = {T0: 0, T1: 0}
        while sum(read.values()) < 80:
            for record in consumer.poll(5):
                read[TopicPartition(record.topic, record.partition)] += 1
            if hang.met.is_set() and filled.partition(T0).leader == 1:
                filled.hand_over(T0, 2)
        assert read == {T0: 40, T1: 40}
        assert not hang.release.is_set()
        hang.release.set()  # what was given up comes late, and is not handed out again
        filled.append(T0, record_batch(numbered(40, 10)))
        while read[T0] < 50:
            for record in consumer.poll(5):
                assert record.offset == read[T0]
                read[T0] += 1


def test_a_producer_goes_on_with_who_leads_by_now(filled: FakeCluster, cluster: Cluster) -> None:
    hang = filled.brokers[0].fault(Api.APPEND, "hang")
    with Producer(cluster) as producer:
        waiting = producer.send("t", b"hung", partition=0)
        assert hang.met.wait(60)
        filled.hand_over(T0, 2)
        assert waiting.result(30).offset == 40, "what was appended before is not appended again"
        assert producer.send("t", b"next", partition=0).result(30).offset == 41
        assert not hang.release.is_set()


def test_a_leader_that_only_takes_its_time_is_waited_for(
    filled: FakeCluster, cluster: Cluster
) -> None:
    hang = filled.brokers[0].fault(Api.FETCH, "hang")
    reader = RangeReader(cluster, OffsetRange(T0, 0, 40), in_flight=1)
    cluster.leader(T0, cluster.retry_deadline())

    def asked() -> int:
        return sum(isinstance(each, MetadataRequest) for each in filled.brokers[1].requests)

    before = asked()

    def release_when_others_were_asked() -> None:
        wait_until(lambda: asked() > before + 1)
        hang.release.set()

    releasing = threading.Thread(target=release_when_others_were_asked)
    releasing.start()
    assert sum(fetched.arrow_batch.num_rows for fetched in reader) == 40
    releasing.join(60)
    fetches = [each for each in filled.brokers[0].requests if isinstance(each, FetchRequest)]
    assert [each.partitions[0].offset for each in fetches] == [0], "asked once"

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import islice

import pytest

from spark_logbus.client import Admin, Cluster, Consumer, ConsumerConfig, Producer
from spark_logbus.errors import (
    BrokerUnavailableError,
    ConfigError,
    CorruptRecordBatchError,
    InvalidRequestError,
    LogbusError,
    NotLeaderError,
    OffsetOutOfRangeError,
    UnknownTopicError,
)
from spark_logbus.model import (
    AtTimestamp,
    Earliest,
    LastDuration,
    LastRecords,
    Latest,
    TimestampType,
    TopicPartition,
)
from spark_logbus.protocol import Api, FetchRequest
from tests.builders.arrow_batches import QUICK, T0, T1, numbered, record_batch
from tests.fakes.broker import FakeCluster, FaultKind
from tests.helpers import wait_until

QUICK_POLL = ConsumerConfig(max_wait_ms=20)


def fill(
    fake: FakeCluster, topic_partition: TopicPartition, batches: int, *, start: int = 0
) -> None:
    for number in range(batches):
        first = start + number * 10
        fake.append(topic_partition, record_batch(numbered(first, 10), first_us=1_000 + first))


def polled(consumer: Consumer, count: int) -> dict[TopicPartition, list[bytes | None]]:
    """Poll until ``count`` records have come."""
    got: dict[TopicPartition, list[bytes | None]] = {}
    while sum(map(len, got.values())) < count:
        for fetched in consumer.poll_arrow(60):
            mine = got.setdefault(fetched.topic_partition, [])
            assert fetched.base_offset == len(mine)
            mine += fetched.arrow_batch.column("value").to_pylist()
    return got


def test_a_position_is_behind_record_batches_that_were_handed_out_together(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create("t")
    fill(fake, T0, 30)
    with Consumer(cluster, QUICK_POLL) as consumer:
        consumer.assign_topics("t")
        assert len(consumer.poll(60, max_records=1_000)) == 300
        assert consumer.poll(0.01) == []
        assert consumer.position(T0) == 300


def test_whole_arrow_batches_of_several_partitions(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t", partitions=4)
    topic_partitions = [TopicPartition("t", number) for number in range(4)]
    for topic_partition in topic_partitions:
        fill(fake, topic_partition, 20)
    config = ConsumerConfig(fetch_bytes=3_000, partition_fetch_bytes=1_000, max_wait_ms=20)
    with Consumer(cluster, config) as consumer:
        consumer.assign_topics("t")
        assert consumer.assignment == topic_partitions
        got = polled(consumer, 800)
        assert got == {topic_partition: numbered(0, 200) for topic_partition in topic_partitions}
        assert [consumer.position(topic_partition) for topic_partition in topic_partitions] == [
            200
        ] * 4
        assert consumer.poll_arrow(0.01) == []
    fetches = [one for one in fake.brokers[0].requests if isinstance(one, FetchRequest)]
    assert max(len(fetch.partitions) for fetch in fetches) == 2  # one request for both of a leader


def test_iteration_gives_records_and_waits_for_new_ones(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create("t", partitions=2)
    fill(fake, T0, 1)
    with Consumer(cluster, QUICK_POLL) as consumer:
        consumer.assign([T0, T1])
        first = list(islice(consumer, 10))
        assert [record.offset for record in first] == list(range(10))
        assert first[3].value == b"3"
        assert first[3].timestamp_us == 1_003
        assert first[3].timestamp_type is TimestampType.CREATE_TIME
        assert (first[3].key, first[3].headers) == (None, ())

        def later() -> None:
            with Producer(cluster) as producer:
                producer.send("t", b"new", key=b"k", headers=[("h", b"1")], partition=1)

        thread = threading.Thread(target=later)
        thread.start()
        record = next(consumer)
        thread.join()
        assert (record.partition, record.offset, record.value) == (1, 0, b"new")
        assert (record.key, record.headers) == (b"k", (("h", b"1"),))


def test_positions_follow_what_was_handed_out(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    fill(fake, T0, 5)
    with Consumer(cluster, QUICK_POLL) as consumer:
        consumer.assign([T0])
        assert consumer.position(T0) == 0
        assert [record.offset for record in islice(consumer, 13)] == list(range(13))
        assert consumer.position(T0) == 13
        # Polling takes over in the middle of an arrow batch.
        rest = consumer.poll_arrow()
        assert [fetched.base_offset for fetched in rest] == [13, 20, 30, 40]
        assert rest[0].offsets().to_pylist() == list(range(13, 20))
        assert consumer.position(T0) == 50


def test_seek(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    fill(fake, T0, 5)
    with Consumer(cluster, QUICK_POLL) as consumer:
        consumer.assign([T0])
        assert next(consumer).offset == 0
        for to, expected in (
            (25, 25),
            (0, 0),
            (AtTimestamp(1_042), 42),
            (Earliest(), 0),
            (LastRecords(8), 42),
        ):
            consumer.seek(T0, to)
            assert consumer.position(T0) == expected
            assert next(consumer).offset == expected
        consumer.seek(T0, AtTimestamp(99_999))
        assert consumer.position(T0) == 50
        consumer.seek(T0, LastDuration(1_000_000))
        assert consumer.position(T0) == 50
        consumer.seek(T0, Latest())
        assert consumer.poll_arrow(0.01) == []
        with pytest.raises(InvalidRequestError, match="not assigned"):
            consumer.seek(T1, 0)
        with pytest.raises(InvalidRequestError, match="not assigned"):
            consumer.position(T1)


def test_assigning_keeps_positions_of_those_that_stay(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t", partitions=2)
    fill(fake, T0, 2)
    fill(fake, T1, 2)
    with Consumer(cluster, QUICK_POLL) as consumer:
        with pytest.raises(InvalidRequestError, match="assign some"):
            consumer.poll_arrow(0)
        consumer.assign([T0])
        assert [record.offset for record in islice(consumer, 3)] == [0, 1, 2]
        consumer.assign([T0, T1])
        assert consumer.position(T0) == 3
        consumer.assign([T1])
        assert {record.partition for record in islice(consumer, 20)} == {1}
        consumer.assign([T0])
        assert consumer.position(T0) == 0  # begun anew


def test_start(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    fill(fake, T0, 2)
    for start, expected in (
        (Latest(), 20),
        (LastRecords(4), 16),
        (AtTimestamp(1_004), 4),
        (AtTimestamp(9_999), 20),
    ):
        with Consumer(cluster, ConsumerConfig(start=start)) as consumer:
            consumer.assign([T0])
            assert consumer.position(T0) == expected


FAULTS: list[tuple[FaultKind, LogbusError | None]] = [
    ("drop_before", None),
    ("half", None),
    ("error", BrokerUnavailableError("going down")),
    ("partition_error", NotLeaderError("not any more")),
]


@pytest.mark.parametrize(("kind", "error"), FAULTS)
def test_failures_on_the_way_lose_and_repeat_nothing(
    fake: FakeCluster, cluster: Cluster, kind: FaultKind, error: LogbusError | None
) -> None:
    fake.create("t", partitions=2)
    fill(fake, T0, 20)
    fill(fake, T1, 20)
    for broker in fake.brokers:
        for _ in range(3):
            broker.fault(Api.FETCH, kind, error)
    config = ConsumerConfig(max_wait_ms=20, fetch_bytes=2_000, partition_fetch_bytes=1_000)
    with Consumer(cluster, config) as consumer:
        consumer.assign([T0, T1])
        assert polled(consumer, 400) == {T0: numbered(0, 200), T1: numbered(0, 200)}
    assert not any(broker.faults[Api.FETCH] for broker in fake.brokers)


def test_leaders_move_and_restart(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    fill(fake, T0, 2)
    with Consumer(cluster, QUICK_POLL) as consumer:
        consumer.assign([T0])
        assert [record.offset for record in islice(consumer, 20)] == list(range(20))
        fake.partition(T0).leader = 2
        fill(fake, T0, 1, start=20)
        assert [record.offset for record in islice(consumer, 10)] == list(range(20, 30))
        fake.brokers[1].stop()
        fake.brokers[1].start()
        fill(fake, T0, 1, start=30)
        assert [record.offset for record in islice(consumer, 10)] == list(range(30, 40))


def test_out_of_range(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    fill(fake, T0, 5)
    fake.partition(T0).start = 30
    with Consumer(cluster, QUICK_POLL) as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 10)
        with pytest.raises(OffsetOutOfRangeError):
            next(consumer)
    with Consumer(cluster, ConsumerConfig(out_of_range="earliest")) as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 10)
        assert next(consumer).offset == 30
    with Consumer(cluster, ConsumerConfig(out_of_range="latest", max_wait_ms=20)) as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 10)
        wait_until(lambda: consumer.poll_arrow(0.05) == [] and consumer.position(T0) == 50)


def test_errors_that_no_retry_mends(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    fill(fake, T0, 1)
    header, data = fake.partition(T0).batches[0]
    fake.partition(T0).batches[0] = (header, data[:-1] + bytes([data[-1] ^ 1]))
    with Consumer(cluster, QUICK_POLL) as consumer:
        consumer.assign([T0])
        with pytest.raises(CorruptRecordBatchError):
            next(consumer)
        consumer.assign([TopicPartition("none", 0)])
        with pytest.raises(UnknownTopicError):
            consumer.poll_arrow(1)


def test_without_a_group_there_is_nothing_to_commit(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    with Consumer(cluster) as consumer:
        consumer.assign([T0])
        with pytest.raises(ConfigError, match="set group"):
            consumer.commit()
    assert Admin(cluster).list_offsets({T0: Latest()}) == {T0: 0}


@pytest.mark.long
def test_partitions_of_an_absent_broker_hold_up_no_others(
    fake: FakeCluster, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    fake.create("t", partitions=4)
    topic_partitions = [TopicPartition("t", number) for number in range(4)]
    for topic_partition in topic_partitions:
        fill(fake, topic_partition, 2)
    fake.brokers[1].stop()
    with Consumer(cluster, QUICK_POLL) as consumer:
        consumer.assign(topic_partitions)
        assert polled(consumer, 40) == {
            topic_partitions[0]: numbered(0, 20),
            topic_partitions[2]: numbered(0, 20),
        }
        wait_until(lambda: consumer.poll_arrow(0.05) or "broker 2" in caplog.text)
        assert "Cannot read t-1, t-3 at the moment: waiting for broker 2" in caplog.text
        fake.brokers[1].start()
        assert polled(consumer, 40) == {
            topic_partitions[1]: numbered(0, 20),
            topic_partitions[3]: numbered(0, 20),
        }
    assert sum("Cannot read" in line for line in caplog.messages) == 1


def test_a_leader_that_is_silent_is_told(
    fake: FakeCluster, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    fake.create("t", partitions=2)
    fill(fake, T0, 1)
    fake.brokers[1].fault(Api.FETCH, "hang")
    with Consumer(cluster, QUICK_POLL) as consumer:
        consumer.assign([T0, T1])
        assert polled(consumer, 10) == {T0: numbered(0, 10)}
        wait_until(lambda: consumer.poll_arrow(0.05) or "broker 2" in caplog.text)
        assert "Cannot read t-1 at" in caplog.text


def test_a_consumer_gives_up_when_nothing_can_be_read(fake: FakeCluster) -> None:
    fake.create("t", partitions=2)
    config = replace(QUICK, retry_deadline_ms=2_000)
    with Cluster.connect(fake.bootstrap, config) as own, Consumer(own, QUICK_POLL) as consumer:
        consumer.assign([T0, T1])
        assert consumer.poll_arrow(0.1) == []
        for broker in fake.brokers:
            broker.stop()
        with pytest.raises(BrokerUnavailableError, match=r"Reading t-0, t-1 did not succeed"):
            next(consumer)


@pytest.mark.long
def test_a_leader_without_offsets_holds_up_no_other(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t", partitions=2)
    fill(fake, T0, 1)
    fill(fake, T1, 1)
    hang = fake.brokers[1].fault(Api.LIST_OFFSETS, "hang")
    with Consumer(cluster, QUICK_POLL) as consumer:
        consumer.assign([T0, T1])
        assert polled(consumer, 10) == {T0: numbered(0, 10)}
        assert hang.met.is_set()
        assert not hang.release.is_set()
        assert polled(consumer, 10) == {T1: numbered(0, 10)}  # asked again, on another connection

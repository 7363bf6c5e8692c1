"""The clients against real brokers and a real ZooKeeper."""

from __future__ import annotations

import threading
import uuid
from itertools import islice
from typing import Any

import pyarrow as pa
import pytest

from spark_logbus.client import (
    Admin,
    Cluster,
    Consumer,
    ConsumerConfig,
    Producer,
    ProducerConfig,
    RangeReader,
)
from spark_logbus.clock import SystemClock
from spark_logbus.coordination.groups.offsets import GroupOffsets
from spark_logbus.coordination.groups.rewinds import GroupRewinds
from spark_logbus.coordination.groups.topic_owners import GroupOwnership
from spark_logbus.errors import (
    BrokerUnavailableError,
    GroupHeldError,
    GroupRewoundError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    RecordBatchTooLargeError,
    TopicExistsError,
    TopicRecreatedError,
    UnknownTopicError,
)
from spark_logbus.local.cluster import EmbeddedCluster
from spark_logbus.model import (
    Acks,
    AtTimestamp,
    Compression,
    Earliest,
    Latest,
    OffsetRange,
    TopicPartition,
)
from spark_logbus.offsets.snapshot import take_snapshot
from spark_logbus.protocol import Api, CreateTopicRequest, CreateTopicResponse
from spark_logbus.selection import Pattern
from spark_logbus.zookeeper import Session
from tests.servers.cluster import CONFIG


@pytest.fixture
def admin(cluster: Cluster) -> Admin:
    return Admin(cluster)


@pytest.fixture
def topic(admin: Admin) -> str:
    """A fresh topic of two partitions, led by the two brokers."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    created = admin.create_topic(name, partitions=2)
    assert len({part.leader for part in created.partitions.values()}) == 2
    return name


def values(cluster: Cluster, topic_partition: TopicPartition, start: int, end: int) -> list[bytes]:
    found: list[bytes] = []
    for fetched in RangeReader(
        cluster, OffsetRange(topic_partition, start, end), fetch_bytes=4_000
    ):
        assert fetched.base_offset == start + len(found)
        found += fetched.arrow_batch.column("value").to_pylist()
    return found


def test_topics_come_and_go(admin: Admin, topic: str) -> None:
    assert topic in [one.name for one in admin.topics()]
    with pytest.raises(TopicExistsError):
        admin.create_topic(topic, partitions=2)
    described = admin.describe([topic])[topic]
    assert len(described.topic_id) == 32
    for part in described.partitions.values():
        assert part.ends is not None
        assert (part.ends.high_watermark, part.ends.size_bytes) == (0, 0)
    admin.delete_topic(topic)
    with pytest.raises(UnknownTopicError):
        admin.describe([topic])
    again = admin.create_topic(topic, partitions=1, config={"retention.ms": "100000"})
    assert again.topic_id != described.topic_id
    assert again.config["retention.ms"] == "100000"


@pytest.mark.parametrize("compression", list(Compression))
@pytest.mark.parametrize("acks", [Acks.WRITTEN, Acks.FLUSHED])
def test_what_is_sent_is_read(
    cluster: Cluster, topic: str, acks: Acks, compression: Compression
) -> None:
    config = ProducerConfig(acks=acks, compression=compression, batch_bytes=20_000)
    with Producer(cluster, config) as producer:
        futures = [producer.send(topic, b"%d" % n * 20, key=b"k%d" % (n % 9)) for n in range(2_000)]
        table = pa.table({"value": [b"a%d" % n for n in range(2_000)]})
        arrow = producer.send_arrow(topic, table, partition=1)
    sent: dict[tuple[int, int | None], bytes] = {}
    for number, future in enumerate(futures):
        told = future.result(60)
        sent[told.partition, told.offset] = b"%d" % number * 20
    (appended,) = [future.result(60) for future in arrow]
    assert appended.base_offset is not None
    ends = {1: appended.base_offset + appended.record_count}
    ends[0] = 4_000 - ends[1]
    for partition, end in ends.items():
        # With acks written the end may not be visible yet: the reader waits for it.
        read = values(cluster, TopicPartition(topic, partition), 0, end)
        for offset, value in enumerate(read):
            if partition == 1 and offset >= appended.base_offset:
                assert value == b"a%d" % (offset - appended.base_offset)
            else:
                assert value == sent.pop((partition, offset))
    assert not sent


def test_a_topic_that_others_have_deleted_is_unknown(
    brokers: EmbeddedCluster, admin: Admin, topic: str
) -> None:
    """An admin that has met the topic just before learns it as well."""
    admin.describe([topic])
    with Cluster.from_zookeeper(brokers.zookeeper, CONFIG) as other:
        Admin(other).delete_topic(topic)
    for ends in (False, True):
        with pytest.raises(UnknownTopicError, match=topic):
            admin.describe([topic], ends=ends)


def test_sending_without_acks(cluster: Cluster, topic: str) -> None:
    with Producer(cluster, ProducerConfig(acks=Acks.NONE)) as producer:
        for number in range(1_000):
            producer.send(topic, b"%d" % number, partition=0)
    topic_partition = TopicPartition(topic, 0)
    with Consumer(cluster) as consumer:  # the range is not there yet when close returns
        consumer.assign([topic_partition])
        assert [record.value for record in islice(consumer, 1_000)] == [
            b"%d" % number for number in range(1_000)
        ]


def test_offsets_by_time_and_by_size(cluster: Cluster, admin: Admin, topic: str) -> None:
    topic_partition = TopicPartition(topic, 0)
    now_us = SystemClock().now_us()  # of today, or retention would delete them
    with Producer(cluster, ProducerConfig(batch_bytes=3_000)) as producer:
        for number in range(1_000):
            producer.send(topic, b"x" * 80, partition=0, timestamp_us=now_us + 10 * number)
    assert admin.list_offsets({topic_partition: Earliest()}) == {topic_partition: 0}
    assert admin.list_offsets({topic_partition: Latest()}) == {topic_partition: 1_000}
    table = [(-now_us, 0), (0, 0), (1, 1), (4_990, 499), (9_990, 999), (9_991, None)]
    for later_us, expected in table:
        assert admin.list_offsets({topic_partition: AtTimestamp(now_us + later_us)}) == {
            topic_partition: expected
        }
    pieces, size = admin.split(OffsetRange(topic_partition, 5, 995), target_bytes=20_000)
    assert size > 80_000
    assert 3 <= len(pieces) <= 8
    assert [piece.start for piece in pieces] == [5, *(piece.end for piece in pieces[:-1])]
    assert pieces[-1].end == 995
    assert (
        sum(len(values(cluster, topic_partition, piece.start, piece.end)) for piece in pieces)
        == 990
    )


def test_limits_of_the_broker_and_of_the_topic(cluster: Cluster, admin: Admin, topic: str) -> None:
    small = f"{topic}-small"
    admin.create_topic(small, partitions=1, config={"max.message.bytes": "20000"})
    with Producer(cluster) as producer:
        producer.send(topic, b"x" * 5_000_000).result(60)
        with pytest.raises(RecordBatchTooLargeError, match="30000000"):
            producer.send(topic, b"x" * 30_000_000)
        with pytest.raises(RecordBatchTooLargeError, match="20000 bytes"):
            producer.send(small, b"x" * 20_000)
        futures = [producer.send(small, b"x" * 7_000) for _ in range(20)]
        assert [future.result(60).offset for future in futures] == list(range(20))


def test_reading_what_is_not_there(cluster: Cluster, topic: str) -> None:
    topic_partition = TopicPartition(topic, 0)
    with pytest.raises(OffsetOutOfRangeError):
        next(RangeReader(cluster, OffsetRange(topic_partition, 5, 10)))
    with pytest.raises(OffsetOutOfRangeError, match="ends at 0"):
        next(RangeReader(cluster, OffsetRange(topic_partition, 0, 10), missing_tail_wait_ms=10))
    with pytest.raises(UnknownTopicError):
        next(RangeReader(cluster, OffsetRange(TopicPartition(topic, 9), 0, 10)))


def test_columns_that_no_record_has(cluster: Cluster, topic: str) -> None:
    with Producer(cluster) as producer, pytest.raises(InvalidRequestError, match="wrong"):
        producer.send_arrow(topic, pa.table({"wrong": [1]}))


def test_a_consumer_waits_for_new_records_of_several_leaders(cluster: Cluster, topic: str) -> None:
    with (
        Consumer(cluster, ConsumerConfig(max_wait_ms=10_000)) as consumer,
        Producer(cluster) as producer,
    ):
        consumer.assign_topics(topic)
        assert consumer.poll_arrow(0) == []  # the fetches are under way from now on
        for number in range(10):
            producer.send(topic, b"%d" % number, partition=number % 2)
            record = next(consumer)
            assert record.value == b"%d" % number
            assert record.partition == number % 2


def test_a_group_resumes_and_follows_a_rewind(
    brokers: EmbeddedCluster, cluster: Cluster, topic: str
) -> None:
    topic_partition, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    fill(cluster, topic, b"", 100)
    group = f"g-{topic}"
    config = ConsumerConfig(group=group, zookeeper=brokers.zookeeper, max_wait_ms=50)
    with Consumer(cluster, config) as consumer:
        consumer.assign([topic_partition])
        assert [record.offset for record in islice(consumer, 30)] == list(range(30))
        consumer.commit()
    with Consumer(cluster, config) as consumer:
        consumer.assign([topic_partition, other])
        assert consumer.position(topic_partition) == 30
        assert consumer.position(other) == 0
        assert consumer.committed([topic_partition, other]) == {topic_partition: 30}
        consumer.commit({other: 0})
        assert consumer.committed([other]) == {other: 0}
        assert next(consumer).offset == 30
        with Session(brokers.zookeeper, client_name="operator") as session:
            GroupRewinds(session).record(
                group, {topic_partition: 10}, reason="test", actor="operator"
            )
        with pytest.raises(GroupRewoundError):
            consumer.commit()
        consumer.resume_from_committed()
        assert next(consumer).offset == 10
        consumer.commit()
        assert consumer.committed([topic_partition]) == {topic_partition: 11}


def test_no_commit_over_a_rewind_of_a_recreated_group(
    brokers: EmbeddedCluster, cluster: Cluster, topic: str
) -> None:
    fill(cluster, topic, b"", 20)
    topic_partition, group = TopicPartition(topic, 0), f"g-{topic}"
    config = ConsumerConfig(group=group, zookeeper=brokers.zookeeper, max_wait_ms=50)
    with Session(brokers.zookeeper, client_name="operator") as session:
        rewinds, offsets = GroupRewinds(session), GroupOffsets(session)
        assert (
            rewinds.record(group, {topic_partition: 4}, reason="test", actor="operator").epoch == 1
        )
        with Consumer(cluster, config) as consumer:
            consumer.assign([topic_partition])
            assert next(consumer).offset == 4
            consumer.commit()
            offsets.delete(group)
            assert (
                rewinds.record(group, {topic_partition: 2}, reason="test", actor="operator").epoch
                == 1
            )
            with pytest.raises(GroupRewoundError, match="was rewound"):
                consumer.commit()
            assert offsets.committed(group)[topic_partition].offset == 2
            consumer.resume_from_committed()
            assert next(consumer).offset == 2


def make_anew(admin: Admin, topic: str) -> None:
    admin.delete_topic(topic)
    admin.create_topic(topic, partitions=2)


def fill(cluster: Cluster, topic: str, prefix: bytes, count: int) -> None:
    with Producer(cluster) as producer:
        for number in range(count):
            producer.send(topic, prefix + b"%d" % number, partition=0)


@pytest.mark.parametrize("when", ["between polls", "during a poll", "with records received"])
def test_a_position_does_not_outlive_its_topic(
    brokers: EmbeddedCluster, cluster: Cluster, admin: Admin, topic: str, when: str
) -> None:
    """The new topic has records at the old position and behind it; none is passed over."""
    topic_partition = TopicPartition(topic, 0)
    config = ConsumerConfig(group=f"g-{topic}", zookeeper=brokers.zookeeper, max_wait_ms=20_000)
    fill(cluster, topic, b"old", 20)
    with Cluster.from_zookeeper(brokers.zookeeper, CONFIG) as own, Consumer(own, config) as reader:
        reader.assign([topic_partition])
        taken = [next(reader).value for _ in range(5)]  # all 20 are received with the first
        if when != "with records received":
            taken += [next(reader).value for _ in range(15)]
        reader.commit()
        refusals: list[UnknownTopicError] = []

        def read_to_the_end() -> None:
            try:
                while True:
                    taken.append(next(reader).value)
            except UnknownTopicError as error:  # it was deleted, and maybe not yet made anew
                refusals.append(error)

        if when == "during a poll":
            assert reader.poll_arrow(0) == []  # its fetch is under way from now on
            thread = threading.Thread(target=read_to_the_end)
            thread.start()
            make_anew(admin, topic)
            fill(cluster, topic, b"new", 50)
            thread.join(60)
        else:
            make_anew(admin, topic)
            fill(cluster, topic, b"new", 50)
            with pytest.raises(TopicRecreatedError, match="deleted"):
                reader.commit()
            read_to_the_end()
        assert taken == [b"old%d" % number for number in range(20)]
        assert len(refusals) == 1
        with pytest.raises(TopicRecreatedError, match="deleted"):
            reader.commit()
        with pytest.raises(TopicRecreatedError):  # again, until the caller has chosen
            reader.poll_arrow(60)
        assert reader.committed([topic_partition]) == {}  # what was committed in the old topic
        reader.seek(topic_partition, Earliest())
        assert [next(reader).value for _ in range(3)] == [b"new0", b"new1", b"new2"]
        reader.commit()
        assert reader.committed([topic_partition]) == {topic_partition: 3}


def test_offsets_of_an_earlier_topic_are_not_taken_up(
    brokers: EmbeddedCluster, cluster: Cluster, admin: Admin, topic: str
) -> None:
    topic_partition = TopicPartition(topic, 0)
    config = ConsumerConfig(group=f"g-{topic}", zookeeper=brokers.zookeeper, max_wait_ms=50)
    fill(cluster, topic, b"old", 20)
    with Consumer(cluster, config) as consumer:
        consumer.assign([topic_partition])
        assert [record.offset for record in islice(consumer, 5)] == list(range(5))
        consumer.commit()
    make_anew(admin, topic)
    with Consumer(cluster, config) as consumer:
        consumer.assign([topic_partition])
        assert consumer.position(topic_partition) == 0


def test_out_of_range_says_where_to_go_on_in_the_new_topic(
    cluster: Cluster, admin: Admin, topic: str
) -> None:
    config = ConsumerConfig(out_of_range="earliest", max_wait_ms=50)
    fill(cluster, topic, b"old", 20)
    with Consumer(cluster, config) as consumer:
        consumer.assign_topics(topic)
        assert [record.offset for record in islice(consumer, 20)] == list(range(20))
        make_anew(admin, topic)
        fill(cluster, topic, b"new", 30)
        assert [record.value for record in islice(consumer, 30)] == [
            b"new%d" % number for number in range(30)
        ]


def test_a_consumer_gives_way_to_a_query_that_holds_its_group(
    brokers: EmbeddedCluster, cluster: Cluster, topic: str
) -> None:
    """Two consumers that share partitions by hand do not disturb each other; a query ends both."""
    topic_partitions = [TopicPartition(topic, number) for number in (0, 1)]
    fill(cluster, topic, b"", 20)
    with Producer(cluster) as producer:
        producer.send(topic, b"x", partition=1).result(60)
    config = ConsumerConfig(group=f"g-{topic}", zookeeper=brokers.zookeeper, max_wait_ms=50)
    with Consumer(cluster, config) as first, Consumer(cluster, config) as second:
        for consumer, topic_partition in zip((first, second), topic_partitions, strict=True):
            consumer.assign([topic_partition])
            next(consumer)
            consumer.commit()
        with Session(brokers.zookeeper, client_name="query") as session:
            GroupOwnership(session, f"g-{topic}", pid=77, application="nightly").acquire([topic])
            next(first)
            with pytest.raises(GroupHeldError, match=r"application nightly, process 77"):
                first.commit()
            with Consumer(cluster, config) as late:
                late.assign(topic_partitions)
                with pytest.raises(GroupHeldError, match="process 77"):
                    late.poll_arrow(60)
                assert late.committed(topic_partitions) == dict.fromkeys(
                    topic_partitions, 1
                )  # to look is free
        first.commit()
        assert first.committed(topic_partitions) == {topic_partitions[0]: 2, topic_partitions[1]: 1}


@pytest.mark.long
def test_a_pattern_that_meets_new_topics_blames_no_broker(cluster: Cluster, admin: Admin) -> None:
    """New topics are described before their leaders serve them."""
    prefix = f"new-{uuid.uuid4().hex[:8]}"
    done = threading.Event()

    def create() -> None:
        for number in range(20):
            request = CreateTopicRequest(f"{prefix}-{number}", 8, {})
            cluster.ask_any(
                Api.CREATE_TOPIC, request, CreateTopicResponse, deadline=cluster.retry_deadline()
            )
        done.set()

    thread = threading.Thread(target=create)
    thread.start()
    said: set[str] = set()
    while True:
        last = done.is_set()
        try:
            found = take_snapshot(admin, Pattern(f"{prefix}.*"), missing_ok=True)
        except BrokerUnavailableError as error:
            said.add(str(error))
            continue
        if last and len(found.topic_ids) == 20:
            break
    thread.join()
    assert [message for message in said if "does not serve" not in message] == []


def test_many_producers_and_readers_at_once(cluster: Cluster, topic: str) -> None:
    def produce(mine: int) -> None:
        with Producer(cluster, ProducerConfig(linger_ms=1, batch_bytes=5_000)) as producer:
            for number in range(500):
                producer.send(topic, b"%d:%d" % (mine, number), key=b"%d" % mine)

    threads = [threading.Thread(target=produce, args=(mine,)) for mine in range(4)]
    for thread in threads:
        thread.start()
    with Consumer(cluster, ConsumerConfig(max_wait_ms=50)) as consumer:
        consumer.assign_topics(topic)
        got = [record.value or b"" for record in islice(consumer, 2_000)]
    for thread in threads:
        thread.join()
    for mine in range(4):
        own = [value for value in got if value.startswith(b"%d:" % mine)]
        assert own == [b"%d:%d" % (mine, number) for number in range(500)]


def test_paused_partitions_wait_and_lose_nothing(cluster: Cluster, topic: str) -> None:
    one, two = (TopicPartition(topic, number) for number in (0, 1))
    with Producer(cluster) as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number, partition=number % 2)
    with Consumer(cluster) as consumer:
        consumer.assign([one])
        read = [record.value for record in islice(consumer, 2)]
        consumer.assign([one, two])
        consumer.pause([one])
        assert consumer.paused == [one]
        assert consumer.position(one) == 2
        assert [record.value for record in islice(consumer, 5)] == [b"1", b"3", b"5", b"7", b"9"]
        assert consumer.poll_arrow(0.1) == []
        consumer.seek(one, 1)  # takes effect when it is read again
        consumer.resume([one, two])
        assert consumer.paused == []
        read += [record.value for record in islice(consumer, 4)]
        assert read == [b"0", b"2", b"2", b"4", b"6", b"8"]
        consumer.pause([one])
        consumer.assign([two])
        assert consumer.paused == []
        with pytest.raises(InvalidRequestError, match=f"{one} is not assigned"):
            consumer.pause([one])


def test_what_there_is_as_a_table(cluster: Cluster, topic: str) -> None:
    fill(cluster, topic, b"a", 3)
    headers = {"origin": b"test", "none": None}
    with Producer(cluster) as producer:
        producer.send(topic, None, key=b"k", timestamp_us=7, partition=1, headers=headers)
    with Consumer(cluster) as consumer:
        consumer.assign_topics(topic)
        consumer.seek(TopicPartition(topic, 0), "-2 records")
        table = consumer.to_arrow().sort_by([("topic", "ascending"), ("partition", "ascending")])
        assert table.column("value").to_pylist() == [b"a1", b"a2", None]
        assert table.column("offset").to_pylist() == [1, 2, 0]
        assert table.column("partition").to_pylist() == [0, 0, 1]
        assert table.column("key").to_pylist() == [None, None, b"k"]
        assert table.column("headers").to_pylist()[2] == [
            {"key": "origin", "value": b"test"}, {"key": "none", "value": None},
        ]  # fmt: skip
        assert table.column("timestamp").cast(pa.int64()).to_pylist()[2] == 7
        assert consumer.to_arrow().num_rows == 0
        fill(cluster, topic, b"b", 1)
        frame = consumer.to_pandas()
        assert frame["value"].tolist() == [b"b0"]
        assert list(frame.columns) == table.column_names


@pytest.mark.parametrize(
    ("place", "expected"), [("earliest", 0), ("latest", 3), (1, 1), ("2", 2), ("-2 records", 1),
                            ("-10 minutes", 0)],
)  # fmt: skip
def test_places_to_seek(cluster: Cluster, topic: str, place: int | str, expected: int) -> None:
    fill(cluster, topic, b"a", 3)
    with Consumer(cluster) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), place)
        assert consumer.position(TopicPartition(topic, 0)) == expected
        with pytest.raises(InvalidRequestError, match="The place to seek is 'soon'"):
            consumer.seek(TopicPartition(topic, 0), "soon")


def test_many_records_at_once(cluster: Cluster, topic: str) -> None:
    with Producer(cluster) as producer:
        producer.send_many(topic, [])
        ranges = producer.send_many(
            topic,
            [b"a", None, bytearray(b"c")],
            keys=[b"k", b"k", None],
            timestamps_us=[1, 2, 3],
            headers=[{"h": b"1"}, None, [("h", b"2"), ("h", None)]],
            partition=1,
        )
        producer.send_many(topic, pa.array([b"d"]), partition=1)
        producer.flush()
        assert sum(future.result(0).record_count for future in ranges) == 3
    with Consumer(cluster) as consumer:
        consumer.assign([TopicPartition(topic, 1)])
        got = list(islice(consumer, 4))
    assert [record.value for record in got] == [b"a", None, b"c", b"d"]
    assert [record.key for record in got] == [b"k", b"k", None, None]
    assert [record.timestamp_us for record in got[:3]] == [1, 2, 3]
    assert [record.headers for record in got] == [
        (("h", b"1"),), (), (("h", b"2"), ("h", None)), (),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"values": b"abc"}, "values must be a sequence .* got bytes"),
        ({"values": ["text"]}, r"values\[0\] must be bytes"),
        ({"values": [b"a", 1]}, r"values\[1\] must be bytes"),
        ({"values": [b"a"], "keys": [b"k", b"l"]}, "There are 1 values and 2 for the column key"),
        ({"values": [b"a"], "timestamps_us": ["noon"]}, "timestamp_us must be a whole number"),
        ({"values": [b"a"], "headers": [7]}, "headers must be a mapping"),
    ],
)
def test_what_many_records_may_be(
    cluster: Cluster, topic: str, arguments: dict[str, Any], message: str
) -> None:
    with Producer(cluster) as producer:
        with pytest.raises(InvalidRequestError, match=message):
            producer.send_many(topic, **arguments)
        assert producer.send(topic, b"next").result(60).offset == 0


def test_a_few_records_at_a_time(cluster: Cluster, topic: str) -> None:
    with Producer(cluster) as producer:
        producer.send_many(topic, [b"%d" % number for number in range(10)], partition=0)
    with Consumer(cluster) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        got = [record.value for record in consumer.poll(60, max_records=3)]
        assert got == [b"0", b"1", b"2"]
        assert consumer.position(TopicPartition(topic, 0)) == 3
        assert next(consumer).value == b"3"
        got = [record.value for record in consumer.poll(60)]
        assert got == [b"%d" % number for number in range(4, 10)]
        assert consumer.poll(0.05) == []
        assert consumer.position(TopicPartition(topic, 0)) == 10

"""What may be handed to the producer and to the admin, and what is refused in which words."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest

from spark_logbus.client import (
    Admin,
    Bootstrap,
    Cluster,
    Consumer,
    ConsumerConfig,
    Producer,
    ProducerConfig,
)
from spark_logbus.client.arguments import as_timestamp_us
from spark_logbus.errors import ConfigError, InvalidNameError, InvalidRequestError
from spark_logbus.model import (
    AtOffset,
    AtTimestamp,
    Earliest,
    LastDuration,
    LastRecords,
    TopicPartition,
)
from tests.builders.arrow_batches import T0, T1
from tests.fakes.broker import FakeCluster
from tests.unit.client.producer.test_producer import stored

NOON = datetime(2026, 3, 1, 12, 0, 0, 123_456, tzinfo=UTC)
NOON_US = 1_772_366_400_123_456


def test_arguments_that_have_one_meaning_are_taken(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t", partitions=2)
    lists: Any = [["a", bytearray(b"2")]]
    numbers: list[Any] = [NOON_US, np.int64(NOON_US)]
    one: Any = np.int8(1)
    with Producer(cluster) as producer:
        for headers in ({"a": b"1", "b": None}, lists, {}):
            producer.send("t", b"x", headers=headers, partition=0)
        for time in (NOON, NOON.astimezone(timezone(timedelta(hours=-5))), *numbers):
            future = producer.send("t", b"at noon", timestamp_us=time, partition=one)
            assert future.result(60).timestamp_us == NOON_US
    assert stored(fake, T1, "timestamp") == [NOON] * 4
    rows: list[Any] = stored(fake, T0, "headers")
    pairs = [row and [(one["key"], one["value"]) for one in row] for row in rows]
    assert pairs == [[("a", b"1"), ("b", None)], [("a", b"2")], None]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"topic": 7}, "topic must be a topic's name, as text, got int 7"),
        ({"topic": None}, "topic must be a topic's name, as text, got NoneType None"),
        ({"topic": ["t"]}, "topic must be a topic's name"),
        ({"value": "text"}, r"value must be bytes or None, got str 'text'; .*\.encode\(\)"),
        ({"value": 1.5}, "value must be bytes or None, got float 1.5"),
        ({"key": True}, "key must be bytes or None, got bool True"),
        ({"timestamp_us": NOON.replace(tzinfo=None)}, "timestamp_us is .* without a time zone"),
        ({"timestamp_us": 1.0}, "timestamp_us must be .*, got float 1.0"),
        ({"timestamp_us": False}, "timestamp_us must be .*, got bool False"),
        ({"timestamp_us": "2026-03-01"}, "timestamp_us must be .*, got str '2026-03-01'"),
        ({"timestamp_us": 1 << 63}, "microseconds that fits 64 bits"),
        ({"partition": "0"}, "partition must be a whole number or None, got str '0'"),
        ({"partition": False}, "partition must be .*, got bool False"),
        ({"headers": "a=1"}, "headers must be a mapping, or a list of pairs, .*, got str 'a=1'"),
        ({"headers": 5}, "headers must be .*, got int 5"),
        ({"headers": ["ab"]}, "headers must be .*; one of them is str 'ab'"),
        ({"headers": {"a": "text"}}, "header 'a' must be bytes or None, got str 'text'"),
        ({"headers": {"\ud800": b"1"}}, "key must be text that UTF-8 can express"),
        ({"headers": {b"a": b"1"}}, "header's key must be text, got bytes b'a'"),
    ],
)
def test_what_is_refused_names_the_argument(
    fake: FakeCluster, cluster: Cluster, arguments: dict[str, Any], named: str
) -> None:
    fake.create("t")
    with Producer(cluster) as producer:
        with pytest.raises(InvalidRequestError, match=named):
            producer.send(**{"topic": "t", "value": b"x", **arguments})
        assert producer.send("t", b"next").result(60).offset == 0  # nothing else is lost


@pytest.mark.parametrize(
    "place",
    [Earliest, None, NOON, 1.5, AtOffset("1"), AtOffset(1 << 63)],  # type: ignore[arg-type]
)
def test_an_unknown_position_is_refused(fake: FakeCluster, cluster: Cluster, place: Any) -> None:
    fake.create("t")
    with pytest.raises(ConfigError, match=r"start must be Earliest\(\), Latest\(\), AtOffset"):
        ConsumerConfig(start=place)
    with Consumer(cluster) as consumer:
        consumer.assign_topics("t")
        with pytest.raises(InvalidRequestError, match="place to seek must be"):
            consumer.seek(TopicPartition("t", 0), place)
        assert consumer.position(TopicPartition("t", 0)) == 0


def test_a_place_in_time_may_be_a_datetime() -> None:
    place: Any = AtTimestamp(NOON)  # type: ignore[arg-type]
    assert ConsumerConfig(start=place).start == AtTimestamp(as_timestamp_us(NOON))
    with pytest.raises(ConfigError, match="without a time zone"):
        ConsumerConfig(start=AtTimestamp(NOON.replace(tzinfo=None)))  # type: ignore[arg-type]


def test_a_duration_may_be_a_timedelta() -> None:
    place: Any = LastDuration(timedelta(minutes=10))  # type: ignore[arg-type]
    assert ConsumerConfig(start=place).start == LastDuration(600_000_000)
    assert ConsumerConfig(start=LastRecords(5)).start == LastRecords(5)
    for wrong in (LastRecords(-1), LastDuration(-1), LastDuration(1 << 62), LastRecords(1 << 63)):
        with pytest.raises(ConfigError, match="start must be"):
            ConsumerConfig(start=wrong)


def test_partitions_and_names_of_another_type(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    partitions: Any
    with Consumer(cluster) as consumer:
        for partitions, shown in (([("t", 0)], "tuple"), ("t", "str 't'"), (None, "NoneType")):
            with pytest.raises(InvalidRequestError, match=rf"TopicPartition.*, got {shown}"):
                consumer.assign(partitions)
        with pytest.raises(InvalidRequestError, match=r"topic must be .*, got list"):
            consumer.assign_topics(["t"])  # type: ignore[arg-type]
    with pytest.raises(InvalidNameError, match="name of a topic is text, got NoneType None"):
        Admin(cluster).create_topic(None, partitions=1)  # type: ignore[arg-type]
    with pytest.raises(InvalidNameError, match="name of a consumer group is text, got int 5"):
        ConsumerConfig(group=5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="must be a mapping of keys to values, got str"):
        Admin(cluster).create_topic("u", partitions=1, config="retention.ms=5")  # type: ignore[arg-type]


def test_addresses_of_another_type() -> None:
    with pytest.raises(ConfigError, match="is 9192, which is no text"):
        Cluster.from_zookeeper(9192)  # type: ignore[arg-type]
    for address in (None, 9192):
        with pytest.raises(ConfigError, match=f"are {address}, which is no text"):
            Bootstrap.of(address)  # type: ignore[arg-type]


def test_numbers_that_no_thread_can_wait_for_are_refused() -> None:
    for wrong in ({"linger_ms": 1 << 70}, {"max_block_ms": 1 << 70}):
        with pytest.raises(ConfigError, match="use a whole number of at most"):
            ProducerConfig(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="idempotent is 'no'; use True or False"):
        ProducerConfig(idempotent="no")  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["1", None, True, float("nan"), timedelta(seconds=1)])
def test_waits_that_are_no_time_are_refused(
    fake: FakeCluster, cluster: Cluster, wrong: Any
) -> None:
    Admin(cluster).create_topic("t", partitions=1)
    with Consumer(cluster) as consumer, Producer(cluster) as producer:
        consumer.assign_topics("t")
        calls: list[Callable[[Any], object]] = [consumer.poll, consumer.poll_arrow]
        if wrong is not None:
            calls += [producer.flush, producer.close]
        for call in calls:
            with pytest.raises(InvalidRequestError, match="timeout_s must be a number of seconds"):
                call(wrong)
        producer.send("t", b"x").result(60)  # nothing was closed
        assert consumer.poll(float("inf"))


@pytest.mark.parametrize("wrong", ["5", None, 0, 2.5, True])
def test_a_number_of_records_that_is_none_is_refused(
    fake: FakeCluster, cluster: Cluster, wrong: Any
) -> None:
    Admin(cluster).create_topic("t", partitions=1)
    with Consumer(cluster) as consumer:
        consumer.assign_topics("t")
        with pytest.raises(InvalidRequestError, match="max_records must be a whole number"):
            consumer.poll(0, max_records=wrong)


def test_a_closed_consumer_hands_nothing_out(fake: FakeCluster, cluster: Cluster) -> None:
    Admin(cluster).create_topic("t", partitions=1)
    with Producer(cluster) as producer:
        producer.send_many("t", [b"x"] * 9)
    consumer = Consumer(cluster)
    consumer.assign_topics("t")
    assert consumer.poll(60, max_records=1)
    consumer.close()
    calls: list[Callable[[], object]] = [consumer.poll, consumer.poll_arrow, consumer.to_arrow]
    calls.append(lambda: next(iter(consumer)))
    for call in calls:
        with pytest.raises(InvalidRequestError, match="closed; make another one"):
            call()
    consumer.close()


def test_settings_of_a_topic(fake: FakeCluster, cluster: Cluster) -> None:
    admin = Admin(cluster)
    two: Any = np.int32(2)
    made = admin.create_topic("t", partitions=two, config={"retention.ms": 1000})
    assert made.config == {"retention.ms": "1000"}
    for value, shown in ((True, "bool True"), (1.5, "float 1.5"), (None, "NoneType None")):
        with pytest.raises(ConfigError, match=rf"retention\.ms must be .*, got {shown}"):
            admin.create_topic("u", partitions=1, config={"retention.ms": value})  # type: ignore[dict-item]
        with pytest.raises(ConfigError, match=rf"retention\.ms must be .*, got {shown}"):
            admin.alter_topic("t", put={"retention.ms": value})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="partitions must be a whole number, got str '2'"):
        admin.create_topic("u", partitions="2")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="partitions must be a whole number, got bool True"):
        admin.alter_topic("t", partitions=True)

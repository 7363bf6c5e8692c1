"""Where a stream starts: each kind of selection with each kind of start, and what comes after."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import reduce

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.functions import lit

from spark_logbus.client import Producer
from tests.helpers import spanning
from tests.servers.cluster import Logbus
from tests.servers.spark import Streams, finish

SECOND_MS = 1_000
BEGAN_MS = 1_769_860_800_000  # 2026-01-31, 12:00 UTC
COUNT = 10  # records in each of two partitions before a query starts, one each second


def value(partition: int, number: int) -> str:
    return f"{partition}-{number:03d}"


def filled_topic(logbus: Logbus, name: str | None = None) -> str:
    """The records of partition 0 stand in one record batch or two, those of partition 1 in one
    each: timestamps are looked up in both."""
    topic = logbus.topic(partitions=2, name=name)
    with Producer(logbus.cluster) as producer:
        for partition in range(2):
            for number in range(COUNT):
                _send(producer, topic, partition, number)
                if partition == 1:
                    producer.flush()
    return topic


def append(logbus: Logbus, topic: str, number: int) -> None:
    with Producer(logbus.cluster) as producer:
        for partition in range(2):
            _send(producer, topic, partition, number)


def _send(producer: Producer, topic: str, partition: int, number: int) -> None:
    timestamp_us = (BEGAN_MS + number * SECOND_MS) * 1_000
    encoded = value(partition, number).encode()
    producer.send(topic, encoded, partition=partition, timestamp_us=timestamp_us)


def by_partition(topic: str, first: int, second: int) -> str:
    return json.dumps({topic: {"0": first, "1": second}})


SELECTIONS: dict[str, Callable[[str], str]] = {
    "assign": lambda topic: json.dumps({topic: [0, 1]}),
    "subscribe": str,
    "subscribePattern": lambda topic: f"{topic[:-1]}[{topic[-1]}]",
}

# What the options of a start are, and which number each partition begins with.
STARTS: dict[str, tuple[Callable[[str], dict[str, str]], tuple[int, int]]] = {
    "latest": (lambda _: {"startingOffsets": "latest"}, (COUNT, COUNT)),
    "earliest": (lambda _: {"startingOffsets": "earliest"}, (0, 0)),
    "offsets": (lambda topic: {"startingOffsets": by_partition(topic, 3, -1)}, (3, COUNT)),
    "timestamps": (
        lambda topic: {
            "startingOffsetsByTimestamp": by_partition(
                topic, BEGAN_MS + 2 * SECOND_MS, BEGAN_MS + 6 * SECOND_MS - 1
            )
        },
        (2, 6),
    ),
    "timestamp": (lambda _: {"startingTimestamp": str(BEGAN_MS + 4 * SECOND_MS + 1)}, (5, 5)),
    "last records": (lambda _: {"startingOffsets": "-3"}, (7, 7)),
}


@pytest.mark.parametrize(
    ("selection", "fail_on_data_loss"), spanning([*SELECTIONS], ["true", "false"])
)
@pytest.mark.long
def test_starts(logbus: Logbus, streams: Streams, selection: str, fail_on_data_loss: str) -> None:
    """All starts in one query, each a source of its own, marked with its name."""
    topic = filled_topic(logbus)
    sources = [
        streams.source(
            **{selection: SELECTIONS[selection](topic)},
            failOnDataLoss=fail_on_data_loss,
            **options(topic),
        ).select(lit(name).alias("start"), "value")
        for name, (options, _) in STARTS.items()
    ]
    # One record more in each partition, after all sources have settled where they start.
    streams.before_batch = lambda batch: None if batch else append(logbus, topic, COUNT)
    query = streams.start(reduce(DataFrame.union, sources), available_now=False)
    query.processAllAvailable()
    query.stop()
    assert sorted((row["start"], row["value"].decode()) for row in streams.rows) == sorted(
        (name, value(partition, number))
        for name, (_, firsts) in STARTS.items()
        for partition, first in enumerate(firsts)
        for number in range(first, COUNT + 1)
    )


@pytest.mark.long
def test_a_start_some_time_ago(logbus: Logbus, streams: Streams) -> None:
    topic = filled_topic(logbus)
    logbus.produce(topic, ["now"], partition=1)
    assert streams.run(subscribe=topic, startingOffsets="-10 minutes") == ["now"]


YOUNGER = BEGAN_MS + COUNT * SECOND_MS  # than all records of a filled topic


FIRSTS = {
    "startingTimestamp": (COUNT, COUNT),
    "startingOffsetsByTimestamp": (COUNT - 1, COUNT),  # the other partition has one
}


@pytest.mark.parametrize(("option", "fail_on_data_loss"), spanning([*FIRSTS], ["true", "false"]))
@pytest.mark.long
def test_no_record_is_as_young_as_the_start(
    logbus: Logbus, streams: Streams, option: str, fail_on_data_loss: str
) -> None:
    topic, firsts = filled_topic(logbus), FIRSTS[option]
    moment = (
        str(YOUNGER)
        if option == "startingTimestamp"
        else by_partition(topic, YOUNGER - SECOND_MS, YOUNGER)
    )
    late = {"subscribe": topic, option: moment, "failOnDataLoss": fail_on_data_loss}
    lacking = min(partition for partition in range(2) if firsts[partition] == COUNT)
    with pytest.raises(
        StreamingQueryException,
        match=rf"{option}: {topic}-{lacking} has no record at or after 2026-01-31T12:00:10"
        ".*startingOffsetsByTimestampStrategy to latest",
    ):
        finish(streams.start(streams.source(**late)))
    lenient = {**late, "startingOffsetsByTimestampStrategy": "latest"}
    assert streams.run(**lenient) == [
        value(partition, number)
        for partition in range(2)
        for number in range(firsts[partition], COUNT)
    ]
    append(logbus, topic, COUNT)
    assert streams.run(**lenient) == [value(0, COUNT), value(1, COUNT)]


@pytest.mark.long
def test_a_start_that_the_log_does_not_reach(logbus: Logbus, streams: Streams) -> None:
    topic = filled_topic(logbus)
    beyond = {"subscribe": topic, "startingOffsets": by_partition(topic, COUNT + 5, COUNT - 1)}
    with pytest.raises(
        StreamingQueryException,
        match=f"{topic}-0: expected records up to offset {COUNT + 5}, but the log now ends at 10",
    ):
        streams.run(**beyond)
    lenient = {**beyond, "failOnDataLoss": "false"}
    assert streams.run(**lenient) == [value(1, COUNT - 1)]
    append(logbus, topic, COUNT)
    assert streams.run(**lenient) == [value(0, COUNT), value(1, COUNT)]


@pytest.mark.long
def test_the_more_special_option_of_a_start_wins(logbus: Logbus, streams: Streams) -> None:
    topic = filled_topic(logbus)
    read = streams.run(
        subscribe=topic,
        startingOffsets="earliest",
        startingOffsetsByTimestamp=by_partition(topic, BEGAN_MS, BEGAN_MS),
        startingTimestamp=str(BEGAN_MS + 9 * SECOND_MS),
    )
    assert read == [value(0, 9), value(1, 9)]


@pytest.mark.parametrize(
    ("start", "fail_on_data_loss"), spanning(["latest", "timestamp"], ["true", "false"])
)
@pytest.mark.long
def test_a_partition_that_comes_later_is_read_from_its_beginning(
    logbus: Logbus, streams: Streams, start: str, fail_on_data_loss: str
) -> None:
    topic = filled_topic(logbus)
    options, (first, _) = STARTS[start]
    source = streams.source(subscribe=topic, **options(topic), failOnDataLoss=fail_on_data_loss)

    def grow(batch: int) -> None:
        """Adds within a micro-batch: when the query plans again, partition and records are
        there."""
        if batch == 0:
            logbus.admin.alter_topic(topic, partitions=3)
            # They are older than the start.
            logbus.produce(topic, ["2-old", "2-older"], partition=2, timestamp_us=BEGAN_MS * 1_000)
            append(logbus, topic, COUNT)

    streams.before_batch = grow
    query = streams.start(source, available_now=False)
    expected = [value(p, number) for p in range(2) for number in range(first, COUNT + 1)]
    expected += ["2-old", "2-older"]
    query.processAllAvailable()
    query.stop()
    assert streams.values() == expected


@pytest.mark.parametrize(
    "fail_on_data_loss", ["true", pytest.param("false", marks=pytest.mark.slow)]
)
@pytest.mark.long
def test_a_topic_that_joins_a_pattern_is_read_from_its_beginning(
    logbus: Logbus, streams: Streams, fail_on_data_loss: str
) -> None:
    prefix = f"joins-{fail_on_data_loss}-{streams.mode}"
    filled_topic(logbus, f"{prefix}-1")
    source = streams.source(
        subscribePattern=f"{prefix}-.*", startingOffsets="latest", failOnDataLoss=fail_on_data_loss
    )

    def join(batch: int) -> None:
        if batch == 0:
            filled_topic(logbus, f"{prefix}-2")
            logbus.produce(f"{prefix}-1", ["new"])

    streams.before_batch = join
    query = streams.start(source, available_now=False)
    expected = sorted([*(value(p, number) for p in range(2) for number in range(COUNT)), "new"])
    query.processAllAvailable()
    query.stop()
    assert streams.values() == expected
    finish(streams.start(source))
    assert streams.rows == []

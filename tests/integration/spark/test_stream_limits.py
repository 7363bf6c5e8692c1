"""How much a micro-batch of a stream takes, and what it waits for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from tests.helpers import wait_until
from tests.servers.cluster import Logbus
from tests.servers.spark import Streams, finish


class PlannedError(Exception):
    pass


def numbered(count: int, start: int = 0) -> list[str]:
    return [f"{number:05d}" for number in range(start, start + count)]


def batches(query: StreamingQuery) -> list[int]:
    """Records of each micro-batch that had any."""
    return [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]]


def taken(query: StreamingQuery, topic: str) -> list[dict[str, int]]:
    """Ends of each micro-batch that had any records."""
    ends: list[dict[str, int]] = []
    for progress in query.recentProgress:
        if not progress["numInputRows"]:
            continue
        end: dict[str, Any] = json.loads(progress["sources"][0]["endOffset"])
        ends.append(end["to"][topic])
    return ends


@pytest.mark.long
def test_a_limit_is_shared_in_proportion_across_restarts(logbus: Logbus, streams: Streams) -> None:
    topic = logbus.topic(partitions=3)
    logbus.produce(topic, numbered(100))
    logbus.produce(topic, numbered(50, 1000), partition=1)
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "30"}

    def fail_at_third(batch: int) -> None:
        if batch == 2:
            raise PlannedError(batch)

    streams.before_batch = fail_at_third
    query = streams.start(streams.source(**options))
    with pytest.raises(StreamingQueryException, match="PlannedError"):
        finish(query)
    assert taken(query, topic)[:2] == [{"0": 20, "1": 10, "2": 0}, {"0": 40, "1": 20, "2": 0}]
    assert streams.values() == [*numbered(40), *numbered(20, 1000)]

    logbus.produce(topic, numbered(1, 5000), partition=2)
    streams.before_batch = lambda _: None
    query = finish(streams.start(streams.source(**options)))
    assert batches(query) == [30, 30, 30, 1]
    assert taken(query, topic) == [
        {"0": 60, "1": 30, "2": 0},
        {"0": 79, "1": 40, "2": 1},  # a partition with little gives one record at least
        {"0": 99, "1": 50, "2": 1},
        {"0": 100, "1": 50, "2": 1},
    ]
    assert streams.values() == [*numbered(60, 40), *numbered(30, 1020), "05000"]


@pytest.mark.long
def test_once_ignores_limits(logbus: Logbus, streams: Streams) -> None:
    topic = logbus.topic(partitions=2)
    logbus.produce(topic, numbered(40))
    limits = {"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "3", "maxBytesPerTrigger": "1"}
    source = streams.source(subscribe=topic, startingOffsets="earliest", **limits)
    query = finish(streams.start(source, once=True))
    assert batches(query) == [40]
    assert streams.values() == numbered(40)


@pytest.mark.long
def test_a_limit_of_long_max(logbus: Logbus, streams: Streams) -> None:
    topic = logbus.topic(partitions=2)
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    for start in (0, 100):  # the second time the limit is added to offsets above 0
        logbus.produce(topic, numbered(7, start))
        logbus.produce(topic, numbered(3, start + 50), partition=1)
        read = streams.run(**options, maxOffsetsPerTrigger=str((1 << 63) - 1))
        assert read == [*numbered(7, start), *numbered(3, start + 50)]


@pytest.mark.long
def test_too_few_records_wait_for_more(logbus: Logbus, streams: Streams) -> None:
    topic = logbus.topic()
    logbus.produce(topic, numbered(2))
    source = streams.source(
        subscribe=topic, startingOffsets="earliest", minOffsetsPerTrigger="10",
        maxOffsetsPerTrigger="12", maxTriggerDelay="1h",
    )  # fmt: skip
    query = streams.start(source, available_now=False)
    wait_until(lambda: len(streams.rows) == 2, deadline_s=60)  # the first does not wait
    for number in range(10):
        logbus.produce(topic, numbered(1, 100 + number))
    wait_until(lambda: len(streams.rows) == 12, deadline_s=60)
    logbus.produce(topic, numbered(24, 200))
    wait_until(lambda: sum(batches(query)) == 36, deadline_s=60)
    query.stop()
    assert batches(query) == [2, 10, 12, 12]
    assert streams.values() == [*numbered(2), *numbered(10, 100), *numbered(24, 200)]


@pytest.mark.long
def test_too_few_records_wait_no_longer_than_the_delay(logbus: Logbus, streams: Streams) -> None:
    topic = logbus.topic()
    logbus.produce(topic, numbered(2))
    source = streams.source(
        subscribe=topic, startingOffsets="earliest", minOffsetsPerTrigger="1000",
        maxTriggerDelay="1 second",
    )  # fmt: skip
    query = streams.start(source, available_now=False)
    wait_until(lambda: len(streams.rows) == 2, deadline_s=60)
    logbus.produce(topic, numbered(3, 100))
    wait_until(lambda: len(streams.rows) == 5, deadline_s=60)
    query.stop()


@pytest.mark.long
def test_a_limit_by_bytes(logbus: Logbus, streams: Streams) -> None:
    topic = logbus.topic(partitions=2)
    for start in range(0, 40, 4):  # a record batch of 4 KB each
        logbus.produce(topic, [value * 200 for value in numbered(4, start)])
        logbus.produce(topic, [value * 200 for value in numbered(4, 1000 + start)], partition=1)
    source = streams.source(subscribe=topic, startingOffsets="earliest", maxBytesPerTrigger="9k")
    query = finish(streams.start(source))
    expected = [*numbered(40), *numbered(40, 1000)]
    assert streams.values() == [value * 200 for value in expected]
    assert len(batches(query)) >= 5
    assert set(batches(query)) == {16}


@pytest.mark.parametrize(
    ("delay", "options", "late"),
    [
        pytest.param(
            "1 second", {"maxOffsetsPerTrigger": "40"}, True, marks=pytest.mark.long, id="too short"
        ),
        pytest.param("100 seconds", {"maxOffsetsPerTrigger": "40"}, False, id="as the backlog"),
        pytest.param("1 second", {}, False, marks=pytest.mark.long, id="no limit"),
    ],
)
def test_a_watermark_delay_over_the_backlog_drops_nothing(
    logbus: Logbus, streams: Streams, delay: str, options: dict[str, str], late: bool
) -> None:
    """100 seconds of records that came in order: the first half to one partition, the second to
    another. Under a limit both are read side by side."""
    topic = logbus.topic(partitions=2)
    began_us = 1_700_000_000_000_000
    for second in range(0, 100, 10):
        at_us = began_us + second * 1_000_000
        values = numbered(10, second)
        logbus.produce(topic, values, partition=second // 50, timestamp_us=at_us)
    source = streams.source(subscribe=topic, startingOffsets="earliest", **options)
    watched = source.withWatermark("timestamp", delay).dropDuplicates(["value", "timestamp"])
    query = finish(streams.start(watched))
    dropped = sum(
        operator["numRowsDroppedByWatermark"]
        for progress in query.recentProgress
        for operator in progress["stateOperators"]
    )
    assert (dropped > 0) == late
    assert len(streams.rows) == 100 - dropped

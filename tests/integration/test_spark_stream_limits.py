"""How much a micro-batch of a stream takes, and what it waits for."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.streaming.query import StreamingQuery

from tests.helpers import wait_until
from tests.integration.spark_fixtures import Logbus, Streams, finish

pytestmark = pytest.mark.spark


def numbered(count: int, start: int = 0) -> list[str]:
    return [f"{number:05d}" for number in range(start, start + count)]


def batches(query: StreamingQuery) -> list[int]:
    """Records of each micro-batch that had any."""
    return [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]]


def taken(query: StreamingQuery, topic: str) -> list[dict[str, int]]:
    """Where each micro-batch ended."""
    ends: list[dict[str, int]] = []
    for progress in query.recentProgress:
        end: dict[str, Any] = progress["sources"][0]["endOffset"]
        ends.append(end["to"][topic])
    return ends


def test_a_limit_is_shared_out_in_proportion_and_holds_after_a_restart(
    logbus: Logbus, streams: Streams
) -> None:
    topic = logbus.topic(partitions=3)
    logbus.produce(topic, numbered(100))
    logbus.produce(topic, numbered(50, 1000), partition=1)
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "30"}
    query = streams.start(streams.source(**options), available_now=False)
    wait_until(lambda: len(streams.rows) >= 60, deadline_s=90)
    query.stop()
    assert taken(query, topic)[:2] == [{"0": 20, "1": 10, "2": 0}, {"0": 40, "1": 20, "2": 0}]
    logbus.produce(topic, numbered(1, 5000), partition=2)
    before = len(streams.rows)
    query = finish(streams.start(streams.source(**options)))
    assert sum(batches(query)) == len(streams.rows)
    assert max(batches(query)) <= 30
    assert before + len(streams.rows) == 151


def test_once_ignores_limits(logbus: Logbus, streams: Streams) -> None:
    topic = logbus.topic(partitions=2)
    logbus.produce(topic, numbered(40))
    limits = {"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "3", "maxBytesPerTrigger": "1"}
    source = streams.source(subscribe=topic, startingOffsets="earliest", **limits)
    query = finish(streams.start(source, once=True))
    assert batches(query) == [40]


def test_a_limit_of_long_max(logbus: Logbus, streams: Streams) -> None:
    topic = logbus.topic(partitions=2)
    logbus.produce(topic, numbered(7))
    read = streams.run(
        subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=str((1 << 63) - 1)
    )
    assert read == numbered(7)


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
    wait_until(lambda: len(streams.rows) == 36, deadline_s=60)
    query.stop()
    assert batches(query) == [2, 10, 12, 12]


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


def test_a_limit_by_bytes(logbus: Logbus, streams: Streams) -> None:
    topic = logbus.topic(partitions=2)
    for start in range(0, 40, 4):  # a record batch of 4 KB each
        logbus.produce(topic, [value * 200 for value in numbered(4, start)])
        logbus.produce(topic, [value * 200 for value in numbered(4, 1000 + start)], partition=1)
    source = streams.source(subscribe=topic, startingOffsets="earliest", maxBytesPerTrigger="18k")
    query = finish(streams.start(source))
    assert len(streams.values()) == 80
    assert len(batches(query)) >= 5
    assert set(batches(query)) == {16}

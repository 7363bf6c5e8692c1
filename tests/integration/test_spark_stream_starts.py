"""Where a stream starts: each kind of selection with each kind of start, and what comes after."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import reduce

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.functions import lit

from tests.helpers import wait_until
from tests.integration.spark_fixtures import Logbus, Streams, finish

pytestmark = pytest.mark.spark

SECOND_MS = 1_000
BEGAN_MS = 1_769_860_800_000  # 2026-01-31, 12:00 UTC
COUNT = 10  # records in each of two partitions before a query starts, one each second


def value(partition: int, number: int) -> str:
    return f"{partition}-{number:03d}"


def filled_topic(logbus: Logbus, name: str | None = None) -> str:
    topic = logbus.topic(partitions=2, name=name)
    for number in range(COUNT):
        append(logbus, topic, number)
    return topic


def append(logbus: Logbus, topic: str, number: int) -> None:
    timestamp_us = (BEGAN_MS + number * SECOND_MS) * 1_000
    for partition in range(2):
        logbus.produce(
            topic, [value(partition, number)], partition=partition, timestamp_us=timestamp_us
        )


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
    ("selection", "fail_on_data_loss"),
    [
        ("assign", "true"),
        ("subscribe", "false"),
        ("subscribePattern", "true"),
        pytest.param("assign", "false", marks=pytest.mark.slow),
        pytest.param("subscribe", "true", marks=pytest.mark.slow),
        pytest.param("subscribePattern", "false", marks=pytest.mark.slow),
    ],
)
def test_starts(logbus: Logbus, streams: Streams, selection: str, fail_on_data_loss: str) -> None:
    """All starts in one query, each a source of its own, marked with its name."""
    topic = filled_topic(logbus)

    def run() -> list[tuple[str, str]]:
        sources = [
            streams.source(
                **{selection: SELECTIONS[selection](topic)},
                failOnDataLoss=fail_on_data_loss,
                **options(topic),
            ).select(lit(name).alias("start"), "value")
            for name, (options, _) in STARTS.items()
        ]
        finish(streams.start(reduce(DataFrame.union, sources)))
        return sorted((row["start"], row["value"].decode()) for row in streams.rows)

    assert run() == sorted(
        (name, value(partition, number))
        for name, (_, firsts) in STARTS.items()
        for partition, first in enumerate(firsts)
        for number in range(first, COUNT)
    )
    append(logbus, topic, COUNT)
    # Started again from its checkpoint it reads the gap, wherever the options say to start.
    assert run() == sorted((name, value(p, COUNT)) for name in STARTS for p in range(2))


def test_a_start_some_time_ago(logbus: Logbus, streams: Streams) -> None:
    topic = filled_topic(logbus)
    logbus.produce(topic, ["now"], partition=1)
    assert streams.run(subscribe=topic, startingOffsets="-10 minutes") == ["now"]


def test_no_record_is_as_young_as_the_start(logbus: Logbus, streams: Streams) -> None:
    topic = filled_topic(logbus)
    late = {"subscribe": topic, "startingTimestamp": str(BEGAN_MS + COUNT * SECOND_MS)}
    with pytest.raises(
        StreamingQueryException,
        match=rf"startingTimestamp: {topic}-0 has no record at or after 2026-01-31T12:00:10",
    ):
        finish(streams.start(streams.source(**late)))
    lenient = {**late, "startingOffsetsByTimestampStrategy": "latest"}
    assert streams.run(**lenient) == []
    append(logbus, topic, COUNT)
    assert streams.run(**lenient) == [value(0, COUNT), value(1, COUNT)]


def test_the_more_special_option_of_a_start_wins(logbus: Logbus, streams: Streams) -> None:
    topic = filled_topic(logbus)
    read = streams.run(
        subscribe=topic,
        startingOffsets="earliest",
        startingOffsetsByTimestamp=by_partition(topic, BEGAN_MS, BEGAN_MS),
        startingTimestamp=str(BEGAN_MS + 9 * SECOND_MS),
    )
    assert read == [value(0, 9), value(1, 9)]


def test_a_partition_that_comes_later_is_read_from_its_beginning(
    logbus: Logbus, streams: Streams
) -> None:
    topic = filled_topic(logbus)
    query = streams.start(
        streams.source(subscribe=topic, startingTimestamp=str(BEGAN_MS + 9 * SECOND_MS)),
        available_now=False,
    )
    wait_until(lambda: len(streams.rows) == 2, deadline_s=60)
    logbus.admin.alter_topic(topic, partitions=3)
    logbus.produce(topic, ["2-old"], partition=2, timestamp_us=BEGAN_MS * 1_000)
    wait_until(lambda: len(streams.rows) == 3, deadline_s=60)
    query.stop()
    assert streams.values() == [value(0, 9), value(1, 9), "2-old"]

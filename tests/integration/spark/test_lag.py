"""The lag of real queries: in their progress, at a listener and for Prometheus."""

from __future__ import annotations

import json
import logging
import urllib.request
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from spark_logbus.spark.lag.listener import LagListener
from tests.helpers import wait_until
from tests.servers.cluster import Logbus
from tests.servers.spark import Streams, finish

LOGGER = "spark_logbus.spark.lag"


@pytest.fixture
def listener(spark: SparkSession) -> Iterator[LagListener]:
    with LagListener(port=0) as made:
        spark.streams.addListener(made)
        yield made
        spark.streams.removeListener(made)


def page(listener: LagListener) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{listener.port}/metrics", timeout=60) as got:
        text: str = got.read().decode()
    return text


@pytest.mark.long
def test_the_lag_of_a_limited_query_shrinks_to_nothing(
    logbus: Logbus, streams: Streams, listener: LagListener, caplog: pytest.LogCaptureFixture
) -> None:
    topic = logbus.topic(partitions=2)
    for _ in range(4):  # several record batches, so that sizes can tell them apart
        logbus.produce(topic, ["x" * 2000] * 10)
    logbus.produce(topic, ["y"] * 8, partition=1)
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "16"}
    with caplog.at_level(logging.INFO, logger=LOGGER):
        query = finish(streams.start(streams.source(**options)))
        wait_until(lambda: "numInputRows=16" in caplog.text, message="the listener's lines")
        wait_until(lambda: "bytesBehind=0" in caplog.text, message="the listener's last line")
    progress = [json.loads(one.json) for one in query.recentProgress]
    reported = [one["sources"][0]["latestOffset"] for one in progress]
    assert all(one["to"] == {topic: {"0": 40, "1": 8}} for one in reported)
    sizes = [one["bytesBehind"] for one in reported]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 20_000
    assert sizes[-1] == 0
    assert sum(one["numInputRows"] for one in progress) == len(streams.rows) == 48
    told = [message for name, _, message in caplog.record_tuples if name.startswith(LOGGER)]
    lags = [int(line.partition("maxOffsetsBehindLatest=")[2].split()[0]) for line in told]
    assert lags[0] > lags[1] > lags[2] == 0


@pytest.mark.long
def test_prometheus_sees_a_query_while_it_runs(
    logbus: Logbus, streams: Streams, listener: LagListener
) -> None:
    topic = logbus.topic()
    logbus.produce(topic, ["v"])
    source = streams.source(subscribe=topic, startingOffsets="earliest")
    query = streams.start(source, available_now=False)
    series = f'logbus_query_max_offsets_behind_latest{{id="{query.id}"'
    wait_until(lambda: series in page(listener), deadline_s=60, message="the query's series")
    assert f'topic="{topic}"' in page(listener)
    query.stop()
    wait_until(lambda: str(query.id) not in page(listener), message="the series to go")

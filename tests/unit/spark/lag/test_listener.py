"""The listener, on progress as Spark 4.3 writes it."""

from __future__ import annotations

import json
import logging
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)

from spark_logbus.errors import ConfigError
from spark_logbus.spark.lag import gauges
from spark_logbus.spark.lag.listener import LagListener
from spark_logbus.spark.lag.progress import read_progress

# Recorded from a query that reads a topic, limited to 16 records, and the source "rate".
RECORDED = Path(__file__).with_name("progress.json")


def recorded() -> dict[str, Any]:
    progress: dict[str, Any] = json.loads(RECORDED.read_text())
    return progress


def limited(*, topic: str = "t", end: int = 8, latest: int = 20, name: str = "y") -> dict[str, Any]:
    """The recorded progress with other offsets."""
    progress = recorded()
    source = progress["sources"][0]
    source["endOffset"]["to"] = {topic: {"0": end, "1": end}}
    source["latestOffset"] = {"to": {topic: {"0": latest, "1": latest}}, "bytesBehind": 77}
    return {**progress, "name": name, "id": str(uuid.uuid5(uuid.NAMESPACE_OID, name))}


def progress_event(progress: dict[str, Any]) -> QueryProgressEvent:
    return QueryProgressEvent(StreamingQueryProgress.fromJson(progress))


def terminated(progress: dict[str, Any], *, run_id: str | None = None) -> QueryTerminatedEvent:
    run = uuid.UUID(run_id or progress["runId"])
    return QueryTerminatedEvent(uuid.UUID(progress["id"]), run, None, None)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def value(
    registry: CollectorRegistry, name: str, progress: dict[str, Any], **labels: str
) -> float | None:
    own = {"query": progress["name"], "id": progress["id"]}
    return registry.get_sample_value(f"logbus_query_{name}", own | labels)


def test_the_recorded_progress_is_read() -> None:
    query = read_progress(recorded())
    [source] = query.sources  # not the rate source
    assert (query.name, query.batch_id, query.duration_s) == ("y", 1, 0.737)
    assert {
        str(topic_partition): records for topic_partition, records in source.behind.items()
    } == {"t-0": 4, "t-1": 3}
    assert (source.bytes_behind, source.input_rows) == (1234, 16)
    assert (source.input_rows_per_second, source.processed_rows_per_second) == (15.2, 21.7)


def test_a_repeated_micro_batch_has_no_lag_to_tell(registry: CollectorRegistry) -> None:
    progress = limited()
    progress["sources"][0]["latestOffset"] = None
    listener = LagListener(registry=registry)
    listener.onQueryProgress(progress_event(progress))
    assert value(registry, "batch_id", progress) == 1
    assert value(registry, "bytes_behind", progress, source="0") is None
    assert not read_progress(progress).sources[0].behind


def test_the_gauges_follow_the_query_and_go_with_it(registry: CollectorRegistry) -> None:
    listener = LagListener(registry=registry)
    progress = recorded()
    listener.onQueryProgress(progress_event(progress))
    where = {"source": "0", "topic": "t"}
    assert value(registry, "min_offsets_behind_latest", progress, **where) == 3
    assert value(registry, "max_offsets_behind_latest", progress, **where) == 4
    assert value(registry, "avg_offsets_behind_latest", progress, **where) == 3.5
    assert value(registry, "bytes_behind", progress, source="0") == 1234
    assert value(registry, "batch_duration_seconds", progress) == 0.737
    caught_up = limited(end=20)
    listener.onQueryProgress(progress_event(caught_up))
    assert value(registry, "max_offsets_behind_latest", caught_up, **where) == 0
    listener.onQueryTerminated(terminated(progress, run_id=str(uuid.uuid4())))
    assert value(registry, "batch_id", progress) == 1, "another run of the query ended"
    listener.onQueryTerminated(terminated(progress))
    assert value(registry, "batch_id", progress) is None


def test_a_query_without_logbus_leaves_no_trace(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    progress = recorded()
    del progress["sources"][0]
    with caplog.at_level(logging.INFO):
        LagListener(registry=registry).onQueryProgress(progress_event(progress))
    assert value(registry, "batch_id", progress) is None
    assert not caplog.records


def test_one_line_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        LagListener().onQueryProgress(progress_event(recorded()))
    assert caplog.messages == [
        "Query y has processed micro-batch 1: source=0 topics=t numInputRows=16 "
        "inputRowsPerSecond=15.2 processedRowsPerSecond=21.7 batchDurationMs=737 "
        "minOffsetsBehindLatest=3 maxOffsetsBehindLatest=4 avgOffsetsBehindLatest=3.5 "
        "bytesBehind=1234"
    ]


def test_a_lag_that_keeps_growing_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    listener = LagListener(warn_after=3)
    for latest in (20, 30, 40, 40, 50, 60, 70, 80):
        listener.onQueryProgress(progress_event(limited(latest=latest)))
    [warning] = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert "grew 3 times in a row and is 124 records now" in warning


@pytest.mark.parametrize("end", [3, {"t": 8}, {"t": {"0": "many"}}])
def test_what_cannot_be_read_is_logged_and_nothing_raised(
    end: object, caplog: pytest.LogCaptureFixture
) -> None:
    progress = recorded()
    progress["sources"][0]["endOffset"]["to"] = end
    LagListener().onQueryProgress(progress_event(progress))
    assert "its lag is not known now" in caplog.text


def test_series_are_bounded(registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauges, "MAX_QUERIES", 3)
    monkeypatch.setattr(gauges, "MAX_TOPICS", 2)
    listener = LagListener(registry=registry)
    many = [limited(name=f"q{number}") for number in range(5)]
    for progress in many:
        listener.onQueryProgress(progress_event(progress))
    kept = [value(registry, "batch_id", progress) for progress in many]
    assert kept == [None, None, 1, 1, 1]
    progress = limited()
    ends = {"a": 9, "b": 20, "c": 10}
    progress["sources"][0]["endOffset"]["to"] = {topic: {"0": 8} for topic in ends}
    progress["sources"][0]["latestOffset"] = {"to": {t: {"0": end} for t, end in ends.items()}}
    listener.onQueryProgress(progress_event(progress))
    told = [
        value(registry, "max_offsets_behind_latest", progress, source="0", topic=topic)
        for topic in ends
    ]
    assert told == [None, 12, 2]


def test_prometheus_reads_it_on_a_free_port() -> None:
    with LagListener(port=0) as listener:
        listener.onQueryProgress(progress_event(recorded()))
        with urllib.request.urlopen(f"http://127.0.0.1:{listener.port}/metrics", timeout=60) as got:
            page = got.read().decode()
        with pytest.raises(ConfigError, match="Use another port"):
            LagListener(port=listener.port)
    assert 'logbus_query_bytes_behind{id="a5f158a1-' in page
    assert listener.port is None

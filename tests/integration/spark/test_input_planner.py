"""The planner that prefetches small micro-batches, on real brokers and without Spark."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_logbus.client import Cluster
from spark_logbus.datasource import input_planner
from spark_logbus.datasource.columns import ColumnChoice, full_schema
from spark_logbus.datasource.input_planner import InputPlanner, MicroBatchInput
from spark_logbus.datasource.options import parse_options
from spark_logbus.datasource.task import read_partition
from spark_logbus.errors import CorruptRecordBatchError, DataLossError
from spark_logbus.model import OffsetRange
from spark_logbus.spark.driver import DriverConnections
from tests.helpers import frozen, wait_until
from tests.servers.broker import broker_process
from tests.servers.cluster import Logbus

COLUMNS = ColumnChoice(full_schema(include_headers=True))


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allows for a busy machine; tests of what takes too long set their own."""
    monkeypatch.setattr(input_planner, "_PATIENCE_S", 60)


@contextmanager
def planner_of(logbus: Logbus, **options: str) -> Iterator[InputPlanner]:
    given = {"zookeeper": logbus.zookeeper, "subscribe": "t", **options}
    parsed = parse_options(given, streaming=True)
    connections = DriverConnections(logbus.zookeeper)
    with ThreadPoolExecutor(1) as background:
        yield InputPlanner(parsed, COLUMNS, connections, background)
    connections.close()


def all_of(logbus: Logbus, topic: str) -> tuple[list[OffsetRange], dict[str, str]]:
    """Ranges of all that the topic has, and its id."""
    spans = logbus.spans(topic)
    ranges = [OffsetRange(topic_partition, *span) for topic_partition, span in spans.items()]
    return ranges, {topic: logbus.admin.describe([topic])[topic].topic_id}


def by_task(planned: MicroBatchInput) -> pa.Table:
    """Reads what the tasks read."""
    batches = [
        batch
        for partition in planned.partitions
        for batch in read_partition(partition, COLUMNS, fail_on_data_loss=True)
    ]
    return pa.Table.from_batches(batches, COLUMNS.arrow_schema())


@pytest.fixture
def filled(logbus: Logbus) -> str:
    topic = logbus.topic(partitions=2)
    logbus.produce(topic, ["a", None, "c"], headers=[("h", b"1"), ("h", None)])
    logbus.produce(topic, ["x" * 1_000] * 10, partition=1, key="k")
    return topic


def test_prefetched_rows_are_those_of_the_one_task(logbus: Logbus, filled: str) -> None:
    ranges, topic_ids = all_of(logbus, filled)
    with planner_of(logbus) as planner:
        planner.begin(ranges, topic_ids)
        for planned in (planner.plan(ranges, topic_ids), planner.plan(ranges, topic_ids)):
            assert len(planned.partitions) == 1
            assert planned.rows is not None
            read = by_task(planned)
            assert read.num_rows == 13
            assert pa.Table.from_batches(planned.rows).equals(read)


@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        ({"maxPrefetchBytes": "10000"}, 1),
        ({"minPartitions": "3"}, 3),
        ({"maxRecordsPerPartition": "12"}, 2),
        ({"maxBytesPerInputPartition": "6k"}, 2),
    ],
)
def test_tasks_read_what_is_large_or_cut(
    logbus: Logbus, filled: str, options: dict[str, str], tasks: int
) -> None:
    ranges, topic_ids = all_of(logbus, filled)
    with planner_of(logbus, **options) as planner:
        planner.begin(ranges, topic_ids)
        planned = planner.plan(ranges, topic_ids)
    assert planned.rows is None
    assert len(planned.partitions) >= tasks
    assert by_task(planned).num_rows == 13


def test_a_prefetch_of_other_ranges_is_given_up(logbus: Logbus, filled: str) -> None:
    """Begins the next micro-batch; after a restart another one is replayed first."""
    ranges, topic_ids = all_of(logbus, filled)
    with planner_of(logbus) as planner:
        planner.begin(ranges, topic_ids)
        planned = planner.plan(ranges[:1], topic_ids)
    assert planned.rows is not None
    assert sum(batch.num_rows for batch in planned.rows) == 3


@pytest.mark.parametrize(
    "how", ["deleted", "recreated", pytest.param("beyond the end", marks=pytest.mark.long)]
)
def test_a_loss_is_left_to_the_tasks(logbus: Logbus, filled: str, how: str) -> None:
    ranges, topic_ids = all_of(logbus, filled)
    match how:
        case "deleted":
            logbus.admin.delete_topic(filled)
        case "recreated":
            logbus.admin.delete_topic(filled)
            logbus.topic(name=filled, partitions=2)
            logbus.produce(filled, ["other"] * 20)
            logbus.produce(filled, ["other"] * 20, partition=1)
        case "beyond the end":
            ranges = [OffsetRange(one.topic_partition, one.start, one.end + 1) for one in ranges]
    with planner_of(logbus) as planner:
        planner.begin(ranges, topic_ids)
        planned = planner.plan(ranges, topic_ids)
    assert planned.rows is None
    with pytest.raises(DataLossError):
        by_task(planned)


@pytest.mark.parametrize("at", ["a broker that stands still", "a damaged record batch"])
def test_faults_are_left_to_the_tasks(
    tmp_path: Path,
    chroot: str,
    at: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        broker_process(tmp_path, chroot) as broker,
        Cluster.from_zookeeper(chroot) as cluster,
    ):
        logbus = Logbus(chroot, cluster)
        topic = logbus.topic(name="t")
        logbus.produce(topic, ["whole"])
        whole, topic_ids = all_of(logbus, topic)
        logbus.produce(topic, ["damaged" * 50])
        ranges, _ = all_of(logbus, topic)
        caplog.set_level(logging.DEBUG, input_planner.__name__)

        def was_left() -> bool:
            return "tasks read" in caplog.text.lower()

        with planner_of(logbus) as planner, ThreadPoolExecutor() as pool:
            assert planner.plan(ranges, topic_ids).rows
            if at == "a broker that stands still":
                monkeypatch.setattr(input_planner, "_PATIENCE_S", 0.1)
                with frozen(broker.pid):
                    planner.begin(ranges, topic_ids)
                    planning = pool.submit(planner.plan, ranges, topic_ids)
                    wait_until(was_left, message="the end of the patience")
                planned = planning.result(60)
                assert by_task(planned).num_rows == 2
                monkeypatch.setattr(input_planner, "_PATIENCE_S", 60)
            else:
                [log] = (broker.directory / "data" / "t-0").glob("*.log")
                data = bytearray(log.read_bytes())
                data[-20] ^= 1
                log.write_bytes(data)
                planned = planner.plan(ranges, topic_ids)
                assert was_left()
                with pytest.raises(CorruptRecordBatchError):
                    by_task(planned)
            assert planned.rows is None
            if at == "a broker that stands still":
                assert planner.plan(whole, topic_ids).rows is None, "one is left to tasks"
                wait_until(
                    lambda: bool(planner.plan(whole, topic_ids).rows),
                    message="the end of the late prefetch",
                )
            assert planner.plan(whole, topic_ids).rows


def test_slow_prefetches_leave_ever_more_micro_batches_to_tasks(
    logbus: Logbus, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges, topic_ids = all_of(logbus, filled)
    held = threading.Event()
    with planner_of(logbus) as planner:
        small = planner._small

        def slow(*arguments: Any) -> list[pa.RecordBatch] | None:
            held.wait(60)
            return small(*arguments)

        monkeypatch.setattr(planner, "_small", slow)
        monkeypatch.setattr(input_planner, "_PATIENCE_S", 0.01)
        for left in (1, 2, 4):
            held.clear()
            assert planner.plan(ranges, topic_ids).rows is None, "this one was waited for"
            assert planner._late is not None
            held.set()
            assert planner._late.result(60).rows is None, "what was given up reads no more"
            begun = [planner.plan(ranges, topic_ids).rows is not None for _ in range(left)]
            assert not any(begun)
        monkeypatch.setattr(input_planner, "_PATIENCE_S", 60)
        assert planner.plan(ranges, topic_ids).rows
        assert planner.plan(ranges, topic_ids).rows

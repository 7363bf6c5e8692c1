"""Micro-batches whose rows the planner hands to Spark: which ones, and that they are the same."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from spark_logbus.client import Producer
from tests.servers.cluster import Logbus
from tests.servers.spark import (
    MODES,
    PREFETCHED,
    PROJECT,
    TASKS,
    Streams,
    finish,
    in_both_modes,
    in_one_mode,
    input_partitions,
)


def numbered(count: int, start: int = 0) -> list[str]:
    return [f"{number:05d}" for number in range(start, start + count)]


@pytest.mark.long
@in_one_mode
def test_each_micro_batch_is_prefetched_or_not_by_its_size(
    logbus: Logbus, streams: Streams
) -> None:
    topic = logbus.topic()
    small, large = numbered(10), [value * 400 for value in numbered(10, 100)]
    for values in (small, large, small):
        logbus.produce(topic, values)
    read = streams.run(
        subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="10",
        maxPrefetchBytes="10k",
    )  # fmt: skip
    assert read == sorted([*small, *large, *small])
    assert streams.tasks == [[True], [False], [True]]


@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        pytest.param({}, [True], marks=pytest.mark.slow, id="none"),
        pytest.param({"minPartitions": "2"}, [False, False], id="minPartitions"),
        pytest.param({"maxRecordsPerPartition": "6"}, [False, False], id="maxRecordsPerPartition"),
        pytest.param({"maxRecordsPerPartition": "10"}, [True], id="maxRecordsPerPartition, unmet"),
    ],
)
@in_one_mode
@pytest.mark.long
def test_options_that_ask_for_more_tasks_get_them(
    logbus: Logbus, streams: Streams, options: dict[str, str], tasks: list[bool]
) -> None:
    topic = logbus.topic()
    logbus.produce(topic, numbered(10))
    assert streams.run(subscribe=topic, startingOffsets="earliest", **options) == numbered(10)
    assert streams.tasks == [tasks]


HEADERS: list[Any] = [
    None, [], [("h", b"1")], [("h", None), ("h", b""), ("", b"x")], [("größe", b"\0" * 40)] * 3,
]  # fmt: skip


@in_both_modes
def test_rows_are_those_that_were_sent_over_several_arrow_batches(
    logbus: Logbus, streams: Streams
) -> None:
    """Each column with each kind of value, in record batches with and without keys and headers."""
    topic = logbus.topic(partitions=2)
    began_us = 1_700_000_000_123_456
    sent: list[tuple[Any, ...]] = []
    with Producer(logbus.cluster) as producer:
        for number in range(6_000):
            partition, plain = number % 2, number // 1_000 % 2 == 0
            key = None if plain or number % 3 == 0 else b"k%d" % number
            value = (None, b"", b"v%d" % number, "größer".encode() * 5)[number // 2 % 4]
            headers = None if plain else HEADERS[number // 2 % 5]
            timestamp_us = began_us + number
            producer.send(
                topic, value, key=key, partition=partition, headers=headers,
                timestamp_us=timestamp_us,
            )  # fmt: skip
            if number % 500 == 499:
                producer.flush()
            told = [tuple(header) for header in headers] if headers else None
            sent.append((partition, number // 2, key, value, topic, timestamp_us, 0, told))
        producer.flush()
    source = streams.source(subscribe=topic, startingOffsets="earliest", includeHeaders="true")
    in_order = ("partition", "offset", "key", "value", "topic")
    finish(
        streams.start(
            source.selectExpr(*in_order, "unix_micros(timestamp)", "timestampType", "headers")
        )
    )
    assert streams.tasks == [[streams.mode == PREFETCHED]]
    read = [
        (*row[:-1], None if row[-1] is None else [tuple(header) for header in row[-1]])
        for row in streams.rows
    ]
    assert sorted(read, key=lambda row: row[:2]) == sorted(sent, key=lambda row: row[:2])


@in_both_modes
@pytest.mark.long
def test_a_stream_of_one_column(spark: SparkSession, logbus: Logbus, streams: Streams) -> None:
    topic = logbus.topic()
    logbus.produce(topic, numbered(3))
    options = {"zookeeper": logbus.zookeeper, "startingOffsets": "earliest", **MODES[streams.mode]}
    source = spark.readStream.format("logbus").options(**options).schema("offset long")
    finish(streams.start(source.load(topic)))
    assert [tuple(row) for row in streams.rows] == [(0,), (1,), (2,)]
    assert streams.tasks == [[streams.mode == PREFETCHED]]


@pytest.mark.long
def test_progress_is_the_same_in_both_modes(
    spark: SparkSession, logbus: Logbus, tmp_path: Path
) -> None:
    topic = logbus.topic(partitions=2)
    for start in range(0, 30, 10):
        logbus.produce(topic, numbered(10, start))
    logbus.produce(topic, numbered(5), partition=1)
    told: dict[str, list[Any]] = {}
    for mode in MODES:
        streams = Streams(spark, logbus, tmp_path / mode, mode=mode)
        source = streams.source(
            subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="15"
        )
        query = finish(streams.start(source))
        told[mode] = [
            (progress["batchId"], one["numInputRows"], one["startOffset"], one["endOffset"],
             one["latestOffset"])
            for progress in query.recentProgress for one in progress["sources"]
        ]  # fmt: skip
        assert streams.tasks == [[mode == PREFETCHED]] * 3
    assert told[PREFETCHED] == told[TASKS]
    read = [(rows, json.loads(latest)["bytesBehind"]) for _, rows, _, _, latest in told[TASKS]]
    assert [rows for rows, _ in read if rows] == [15, 15, 5]
    assert read[0][1] > 0
    assert read[-1][1] == 0


@pytest.mark.parametrize(
    ("streams", "later"),
    [
        (PREFETCHED, TASKS),
        pytest.param(PREFETCHED, PREFETCHED, marks=pytest.mark.slow),
        pytest.param(TASKS, PREFETCHED, marks=pytest.mark.long),
    ],
    indirect=["streams"],
)
def test_a_micro_batch_is_replayed_alike_in_any_mode(
    spark: SparkSession, logbus: Logbus, streams: Streams, tmp_path: Path, later: str
) -> None:
    """Replays a micro-batch that was planned, written to the checkpoint and read, not committed."""
    topic = logbus.topic()
    logbus.produce(topic, numbered(10))
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "6"}

    def fail(batch: int) -> None:
        if batch == 1:
            raise RuntimeError("a crash")

    streams.before_batch = fail
    with pytest.raises(StreamingQueryException, match="a crash"):
        streams.run(**options)
    assert streams.values() == numbered(6)
    logbus.produce(topic, numbered(3, 100))
    replayed = Streams(spark, logbus, tmp_path, mode=later)
    seen: list[list[str]] = []
    replayed.before_batch = lambda _: seen.append(replayed.values())
    assert replayed.run(**options) == [*numbered(4, 6), *numbered(3, 100)]
    assert seen[1] == numbered(4, 6), "another micro-batch than the one that was written"
    assert replayed.tasks == [[later == PREFETCHED]] * 2


@in_one_mode
def test_a_task_reads_what_spark_has_lost(
    spark: SparkSession, logbus: Logbus, streams: Streams
) -> None:
    """The block of rows goes with the executor or the disk that kept it."""
    topic = logbus.topic(partitions=2)
    logbus.produce(topic, numbered(10))
    logbus.produce(topic, numbered(10, 100), partition=1)
    rows: list[list[str]] = []

    def lose_and_collect(frame: DataFrame, batch_id: int) -> None:
        assert input_partitions(frame) == [True]
        rows.append(sorted(row["value"].decode() for row in frame.collect()))
        remove_rows(spark, frame)
        rows.append(sorted(row["value"].decode() for row in frame.collect()))

    source = streams.source(subscribe=topic, startingOffsets="earliest")
    query = source.writeStream.foreachBatch(lose_and_collect).trigger(availableNow=True).start()
    streams.queries.append(query)
    finish(query)
    assert rows == [[*numbered(10), *numbered(10, 100)]] * 2


def remove_rows(spark: SparkSession, frame: DataFrame) -> None:
    """Have Spark drop the block. Py4J cannot call these methods: it would load all that their
    classes mention, of which PySpark lacks some."""
    jvm = spark._jvm
    assert jvm is not None
    rdd = frame._jdf.queryExecution().toRdd()
    while rdd.getClass().getSimpleName() != "DataSourceRDD":
        rdd = rdd.dependencies().apply(0).rdd()
    block = rdd.partitions()[0].inputPartition().get().blockId().get()

    def named(name: str) -> Any:
        return jvm.java.lang.Class.forName(name)

    def call(target: Any, owner: str, method: str, result: Any, *arguments: tuple[Any, Any]) -> Any:
        kinds = jvm.java.util.ArrayList()
        for kind, _ in arguments:
            kinds.add(kind)
        types = jvm.java.lang.invoke.MethodType.methodType(result, kinds)
        lookup = jvm.java.lang.invoke.MethodHandles.publicLookup()
        handle = lookup.findVirtual(named(owner), method, types)
        given = jvm.java.util.ArrayList()
        for value in (target, *(value for _, value in arguments)):
            given.add(value)
        return handle.invokeWithArguments(given)

    manager_class = "org.apache.spark.storage.BlockManager"
    env = spark.sparkContext._jsc.sc().env()
    manager = call(env, "org.apache.spark.SparkEnv", "blockManager", named(manager_class))
    boolean = jvm.java.lang.Boolean.TYPE
    block_class = named("org.apache.spark.storage.BlockId")
    nothing = jvm.java.lang.Void.TYPE
    call(manager, manager_class, "removeBlock", nothing, (block_class, block), (boolean, True))
    option = named("scala.Option")
    assert call(manager, manager_class, "getStatus", option, (block_class, block)).isEmpty()


@pytest.mark.long
def test_another_pyspark_makes_tasks_read_and_says_so_once(logbus: Logbus, tmp_path: Path) -> None:
    topic = logbus.topic()
    logbus.produce(topic, numbered(10))
    log = tmp_path / "log"
    command = [sys.executable, "-m", "tests.integration.spark.changed_pyspark_program"]
    with log.open("wb") as output:
        done = subprocess.run(
            [*command, logbus.zookeeper, topic],
            cwd=PROJECT, stdout=subprocess.PIPE, stderr=output, timeout=200, check=False,
        )  # fmt: skip
    text = log.read_text(errors="replace")
    assert done.returncode == 0, text[-3000:]
    told = json.loads(done.stdout)
    assert told == {"rows": numbered(10), "tasks": [[False], [False]]}
    said = re.findall("Small micro-batches are read by tasks.*", text)
    assert said == [
        "Small micro-batches are read by tasks, which takes longer: this PySpark has no "
        "_SimpleStreamReaderWrapper with getCache."
    ]

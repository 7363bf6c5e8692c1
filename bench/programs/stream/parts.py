"""What a micro-batch of logbus consists of beside Spark's work: its calls, made without Spark."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa

from bench.kit.result import Metrics, Rounds
from bench.kit.rounds import in_turn
from bench.programs.stream.contenders import Contender, LogbusSource
from bench.programs.stream.measuring import PARTITIONS, WARM_UP_BATCHES, Bench, check_count
from spark_logbus.client import Cluster, FetchedColumns, Producer, RangeReader
from spark_logbus.datasource.batch_sizer import TARGET_BYTES, TARGET_ROWS
from spark_logbus.datasource.columns import ColumnChoice, full_schema
from spark_logbus.datasource.input_partition import RangesPartition
from spark_logbus.datasource.options import parse_options
from spark_logbus.datasource.rows import RowAssembler
from spark_logbus.datasource.stream_driver import StreamDriver
from spark_logbus.datasource.task import read_ranges
from spark_logbus.spark.driver import DriverConnections

# Records of a micro-batch, and of each record batch: as they come at 5,000 and at 50,000 a second.
SIZES = {"idle": (0, 0), "small: 700 records": (700, 25), "large: 10,000 records": (10_000, 250)}
_COLUMNS = ColumnChoice(full_schema(include_headers=False))
_PAYLOAD = ("key", "value", "timestamp")


def parts(bench: Bench) -> Rounds:
    """Measures the calls of a query's planner, and the reading that it or a task does."""
    contenders = [replace(bench.logbus, name=name) for name in SIZES]

    def measure(contender: Contender, counts: bool) -> Metrics:
        assert isinstance(contender, LogbusSource)
        batches = bench.batches if counts else WARM_UP_BATCHES
        with bench.topic(contender, partitions=PARTITIONS) as topic:
            found = list(_micro_batches(contender, topic, bench.shape.value_bytes, batches))
        return {name: statistics.median(each[name] for each in found) for name in found[0]}

    return in_turn(contenders, measure, rounds=bench.rounds)


def _micro_batches(
    contender: LogbusSource, topic: str, value_bytes: int, batches: int
) -> Iterator[Metrics]:
    """Milliseconds of each call, one micro-batch after the other."""
    records, piece = SIZES[contender.name]
    values = pa.record_batch({"value": pa.array([b"v" * value_bytes] * piece, pa.binary())})
    given = {"zookeeper": contender.system.address, "subscribe": topic}
    if contender.group is not None:
        given["group"] = contender.group
    options = parse_options(given, streaming=True)
    link = DriverConnections(contender.system.address, group=contender.group)
    assembler = RowAssembler(_COLUMNS)
    with Producer(contender.system.client) as producer, ThreadPoolExecutor(2) as background:
        driver = StreamDriver(
            options, connections=link, columns=_COLUMNS, background=background, prefetch=False
        )
        try:
            end = driver.latest(driver.initial(), limited=False)
            for _ in range(batches):
                for number in range(records // piece if piece else 0):
                    producer.send_arrow(topic, values, partition=number % PARTITIONS)
                producer.flush()
                watch = _Watch()
                start, end = end, driver.latest(end, limited=False)
                times = {"latestOffset": watch.lap_ms()}
                if start != end:
                    [planned] = driver.plan_input(start, end).partitions
                    times["partitions"] = watch.lap_ms()
                    assert isinstance(planned, RangesPartition)
                    read = read_ranges(planned, link.cluster(), _COLUMNS, fail_on_data_loss=True)
                    check_count(contender, sum(one.num_rows for one in read), records)
                    whole = watch.lap_ms()
                    fetched = list(_fetched(planned, link.cluster()))
                    watch.lap_ms()
                    assembler.build(fetched)
                    times["rows"] = watch.lap_ms()
                    times["fetch"] = whole - times["rows"]
                yield times
        finally:
            driver.close()


def _fetched(partition: RangesPartition, cluster: Cluster) -> Iterator[FetchedColumns]:
    """What rows are made of."""
    for one in partition.ranges:
        topic_id = partition.topic_ids[one.topic_partition.topic]
        with RangeReader(cluster, one, topic_id=topic_id) as reader:
            while True:
                columns = reader.next_columns(
                    _PAYLOAD, enough_rows=TARGET_ROWS, enough_bytes=TARGET_BYTES
                )
                if columns is None:
                    break
                yield columns


class _Watch:
    def __init__(self) -> None:
        self._at = time.perf_counter()

    def lap_ms(self) -> float:
        before, self._at = self._at, time.perf_counter()
        return 1_000 * (self._at - before)

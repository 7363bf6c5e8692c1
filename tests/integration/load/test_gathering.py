"""Large loads: files of what each task reads, or of what is gathered by directory."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_logbus.client import Producer
from spark_logbus.load import (
    FileFormat,
    LayoutChoice,
    LoadConfig,
    Period,
    ReprocessConfig,
    run_load,
    run_reprocess,
)
from spark_logbus.load.read.shuffle import WORTH_BYTES
from tests.integration.load.loaded_directory import LoadedDirectory
from tests.servers.cluster import Logbus

DAY_US = 86_400_000_000
VALUE_BYTES = 64 << 10
RECORDS = WORTH_BYTES // 2 // VALUE_BYTES + 8  # of a partition: for files of four days
SAMPLED = "sample"
BY_DAY = LayoutChoice()


class Large(LoadedDirectory):
    """A topic of two partitions with so many bytes that a task reads each."""

    def __init__(self, spark: SparkSession, logbus: Logbus, root: Path, **config: str) -> None:
        self._spark, self._logbus, self._root = spark, logbus, root
        self.topic = logbus.topic(partitions=2, **config)
        self.directory = root / self.topic

    def produce(self, *, days: int) -> None:
        """Records of so many days, in the order of their time, alike in both partitions."""
        values = pa.array([bytes(VALUE_BYTES)] * RECORDS)
        times = [DAY_US * (n * days // RECORDS) for n in range(RECORDS)]
        keys = pa.array([str(n).encode() for n in range(RECORDS)])
        moments = pa.array(times, pa.timestamp("us", "UTC"))
        table = pa.table({"key": keys, "value": values, "timestamp": moments})
        with Producer(self._logbus.cluster) as producer:
            for partition in range(2):
                producer.send_arrow(self.topic, table, partition=partition)

    def load(self, layout: LayoutChoice = BY_DAY) -> tuple[int, tuple[str, ...]]:
        """The number of records, and the steps."""
        config = LoadConfig(self.topic, str(self._root), self._logbus.zookeeper, layout=layout)
        loaded = run_load(self._spark, config)
        assert loaded.commit is not None
        return loaded.commit.records, tuple(loaded.steps)

    def reprocess(self, *, dry_run: bool = False) -> tuple[int, tuple[str, ...]]:
        """The number of records of all that is there, and the steps."""
        config = ReprocessConfig(
            topic=self.topic,
            warehouse=str(self._root),
            zookeeper=self._logbus.zookeeper,
            start="earliest",
            dry_run=dry_run,
        )
        done = run_reprocess(self._spark, config)
        return done.records, tuple(done.steps)


@pytest.fixture
def large(spark: SparkSession, logbus: Logbus, tmp_path: Path) -> Large:
    return Large(spark, logbus, tmp_path)


def test_each_task_writes_what_it_reads_of_few_days(large: Large) -> None:
    large.produce(days=2)
    records, steps = large.load()
    assert records == 2 * RECORDS
    assert SAMPLED in steps
    assert large.files == ["date=1970-01-01"] * 2 + ["date=1970-01-02"] * 2


@pytest.mark.long
def test_what_is_read_again_is_gathered_only_where_files_would_be_small(large: Large) -> None:
    large.produce(days=2)
    large.load()
    records, steps = large.reprocess(dry_run=True)
    assert (records, SAMPLED in steps) == (0, False)
    records, steps = large.reprocess()
    assert records == 2 * RECORDS
    assert SAMPLED in steps
    assert large.files == ["date=1970-01-01"] * 2 + ["date=1970-01-02"] * 2


def test_many_days_are_gathered_into_a_file_each(large: Large) -> None:
    large.produce(days=5)
    records, steps = large.load()
    assert records == 2 * RECORDS
    assert SAMPLED in steps
    assert large.files == [f"date=1970-01-0{day}" for day in range(1, 6)]


@pytest.mark.long
def test_without_directories_each_task_writes_a_file(large: Large) -> None:
    large.produce(days=5)
    records, steps = large.load(LayoutChoice(period=Period.NONE, format=FileFormat.ORC))
    assert records == 2 * RECORDS
    assert SAMPLED not in steps
    assert large.files == [".", "."]


@pytest.mark.long
def test_a_compacted_topic_is_gathered_without_a_sample(
    spark: SparkSession, logbus: Logbus, tmp_path: Path
) -> None:
    compacted = Large(spark, logbus, tmp_path, cleanup_policy="compact")
    compacted.produce(days=1)
    records, steps = compacted.load()
    assert records == 2 * RECORDS
    assert SAMPLED not in steps


def test_a_load_of_few_bytes_takes_no_sample(large: Large, logbus: Logbus) -> None:
    for day in range(2):
        logbus.produce(large.topic, ["a"], timestamp_us=day * DAY_US)
    records, steps = large.load()
    assert (records, SAMPLED in steps) == (2, False)
    assert large.files == ["date=1970-01-01", "date=1970-01-02"]

"""A query that copies a topic exactly once, and whose checkpoint is put back to earlier states."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Final

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

from tests.servers.cluster import Logbus
from tests.servers.spark import finish

pytestmark = pytest.mark.long

LIMIT: Final = 40
BATCHES: Final = 4


class Copy:
    """The topics, and the query that copies values without keys from one to the other."""

    def __init__(self, spark: SparkSession, logbus: Logbus, directory: Path) -> None:
        self._spark = spark
        self._logbus = logbus
        self.checkpoint = directory / "checkpoint"
        self._whole = directory / "whole"
        self.source = logbus.topic(partitions=2)
        self.target = logbus.topic(partitions=2)
        self._sent = 0
        self.name: str | None = None

    def produce(self, *counts: int) -> None:
        """Sends ``count`` records to each partition; all values have one length."""
        for partition, count in enumerate(counts):
            numbers = range(self._sent, self._sent + count)
            self._logbus.produce(self.source, [f"{n:06d}" for n in numbers], partition=partition)
            self._sent += count

    def run(self, **options: str) -> None:
        frame = self._spark.readStream.format("logbus").options(
            zookeeper=self._logbus.zookeeper, subscribe=self.source, startingOffsets="earliest",
            maxOffsetsPerTrigger=str(LIMIT),
        )  # fmt: skip
        writer = frame.load().select("value").writeStream.format("logbus").options(**options)
        writer = writer.options(zookeeper=self._logbus.zookeeper, topic=self.target)
        if self.name is None:
            writer = writer.option("checkpointLocation", str(self.checkpoint))
        else:
            writer = writer.queryName(self.name)
        finish(writer.trigger(availableNow=True).start())

    def keep(self) -> None:
        shutil.copytree(self.checkpoint, self._whole)

    def put_back(self, *, planned: int, done: int) -> None:
        """The state in which so many micro-batches were planned, and so many of them done."""
        shutil.rmtree(self.checkpoint)
        shutil.copytree(self._whole, self.checkpoint)
        for folder, left in (("offsets", planned), ("commits", done)):
            for path in (self.checkpoint / folder).iterdir():
                if int(path.name.strip(".").split(".")[0]) >= left:
                    path.unlink()

    def copied(self) -> list[str]:
        return [value for part in self._logbus.values(self.target) for value in part]

    def assert_whole(self) -> None:
        assert Counter(self.copied()) == Counter(f"{n:06d}" for n in range(self._sent))


def test_a_query_whose_checkpoint_is_behind_passes_no_record_over(
    spark: SparkSession, logbus: Logbus, tmp_path: Path
) -> None:
    copy = Copy(spark, logbus, tmp_path)
    copy.produce(80, 80)
    copy.run()
    copy.keep()
    copy.assert_whole()
    # With nothing new, the same micro-batches are planned, so they are known.
    for planned, done in [(BATCHES, BATCHES - 1), (2, 1)]:
        copy.put_back(planned=planned, done=done)
        copy.run()
        copy.assert_whole()
    # With as many records in each, of other partitions; or with more of them.
    copy.produce(10, 150)
    before = Counter(copy.copied())
    for planned, done, differs in [
        (1, 1, "other inputs"),
        (3, 3, "numbers of records|other inputs"),
    ]:
        copy.put_back(planned=planned, done=done)
        with pytest.raises(StreamingQueryException, match=differs) as failed:
            copy.run()
        assert f"Version {done} " in str(failed.value)
        assert "WriteMismatchError" in str(failed.value)
        assert f'up to {{"{copy.source}": ' in str(failed.value)
        assert Counter(copy.copied()) == before
    # The remedy: the newest state.
    copy.put_back(planned=BATCHES, done=BATCHES)
    copy.run()
    copy.assert_whole()


def test_a_checkpoint_that_a_setting_places_is_compared_as_well(
    spark: SparkSession, logbus: Logbus, tmp_path: Path
) -> None:
    """Finds it below the directory for all queries, by the query's name."""
    copy = Copy(spark, logbus, tmp_path)
    copy.name = copy.checkpoint.name
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path))
    try:
        copy.produce(LIMIT, 0)
        copy.run()
        copy.keep()
        copy.put_back(planned=0, done=0)
        copy.produce(0, LIMIT)
        with pytest.raises(StreamingQueryException, match="made of other inputs"):
            copy.run()
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
    assert Counter(copy.copied()) == Counter(f"{n:06d}" for n in range(LIMIT))


def test_a_version_of_an_application_that_is_another_write_is_refused(
    spark: SparkSession, logbus: Logbus
) -> None:
    topic = logbus.topic(partitions=3)

    def write(rows: int, version: int, **options: str) -> None:
        frame = spark.range(rows).selectExpr("cast(id as string) AS key", "'x' AS value")
        writer = frame.write.format("logbus").options(zookeeper=logbus.zookeeper, topic=topic)
        writer = writer.options(txnAppId="nightly", txnVersion=str(version), **options)
        writer.mode("append").save()

    for version in (3, 4, 3, 4):
        write(20, version)
    for rows, version in [(21, 4), (0, 3), (5, 2), (20, 2)]:
        with pytest.raises(PySparkException, match="WriteMismatchError"):
            write(rows, version)
    write(21, 4, repetition="dropped")
    write(21, 5)
    assert sum(map(len, logbus.values(topic))) == 61

"""Why the source does not take pushed filters: what Spark does with a reader that takes them.

When a test here fails after an upgrade of PySpark, pushing down may have become possible.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    Filter,
    GreaterThan,
    InputPartition,
)

from tests.servers.cluster import Logbus

ENABLED = "spark.sql.python.filterPushdown.enabled"


class NarrowingReader(DataSourceReader):
    """The numbers 0 to 9, from a start that a filter may raise, as a range of offsets would be.

    It gives every filter back, so that Spark evaluates each of them again.
    """

    def __init__(self) -> None:
        self._start = 0

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for one in filters:
            if isinstance(one, GreaterThan):
                self._start = max(self._start, one.value + 1)
        return filters

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self._start)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return ((number,) for number in range(partition.value, 10))


class NarrowingSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "narrowing"

    def schema(self) -> str:
        return "n int"

    def reader(self, schema: object) -> NarrowingReader:
        return NarrowingReader()


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[SparkSession]:
    spark.dataSource.register(NarrowingSource)
    spark.conf.set(ENABLED, "true")
    yield spark
    spark.conf.unset(ENABLED)


@pytest.mark.long
def test_spark_carries_pushed_filters_over_to_other_actions(pushdown: SparkSession) -> None:
    """Right would be 6 and 10. The second action does not ask the reader again, so the reader can
    do nothing about it; giving the filters back does not help, because the rows are missing."""
    frame = pushdown.read.format("narrowing").load()
    assert frame.filter("n > 3").count() == 6
    assert frame.count() == 6


@pytest.mark.long
def test_spark_mixes_the_filters_of_one_plan_up(pushdown: SparkSession) -> None:
    """Right would be 6 + 2: the last filter that was pushed counts for both sides."""
    frame = pushdown.read.format("narrowing").load()
    assert frame.filter("n > 3").union(frame.filter("n > 7")).count() == 4


def test_a_filtering_reader_cannot_read_without_pushdown(
    pushdown: SparkSession,
) -> None:
    pushdown.conf.set(ENABLED, "false")
    with pytest.raises(AnalysisException, match="filterPushdown"):
        pushdown.read.format("narrowing").load().count()


@pytest.mark.parametrize("enabled", ["true", "false"])
@pytest.mark.long
def test_a_logbus_dataframe_that_is_used_again_counts_right(
    pushdown: SparkSession, logbus: Logbus, enabled: str
) -> None:
    pushdown.conf.set(ENABLED, enabled)
    topic = logbus.topic()
    logbus.produce(topic, ["v"] * 10)
    frame = pushdown.read.format("logbus").option("zookeeper", logbus.zookeeper).load(topic)
    late = frame.filter("offset > 3")
    assert late.count() == 6
    assert frame.count() == 10
    assert late.union(frame.filter("offset > 7")).count() == 8
    assert frame.filter("offset >= 2 AND partition = 0 AND timestamp > '2020-01-01'").count() == 8
    assert frame.count() == 10

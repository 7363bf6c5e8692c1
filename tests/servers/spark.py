"""A Spark session for the tests of the connector, one for the whole run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.servers.cluster import Logbus
from tests.servers.driver_session import patient

PROJECT = Path(__file__).parents[2]


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    """Runs one. Two cores; workers find the packages where the tests found them."""
    paths = [str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    session = patient(
        SparkSession.builder.master("local[2]")
        .appName("logbus-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "768m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "Asia/Kolkata")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with spark_session() as session:
        yield session


PREFETCHED: Final = "prefetched"
TASKS: Final = "tasks"
MODES: Final[Mapping[str, Mapping[str, str]]] = {
    PREFETCHED: {"maxPrefetchBytes": "64m"},
    TASKS: {"maxPrefetchBytes": "0"},
}
"""How the records of a small micro-batch reach Spark, and the options that make them go so."""

in_both_modes = pytest.mark.parametrize("streams", MODES, indirect=True)
"""A test that every run has in both; else ``tasks`` is left to ``--slow``."""

in_both_modes_at_length = pytest.mark.parametrize(
    "streams", [PREFETCHED, pytest.param(TASKS, marks=pytest.mark.long)], indirect=True
)
"""A test about what differs between the two: ``--all`` runs it in both."""

in_one_mode = pytest.mark.parametrize("streams", [PREFETCHED], indirect=True)
"""A test in which no records are read."""


def input_partitions(frame: DataFrame) -> list[bool]:
    """Returns, for each task that reads a source in this micro-batch, True if the planner has
    handed over its rows, so that it needs no Python worker."""
    found: list[bool] = []
    rdds = [frame._jdf.queryExecution().toRdd()]
    while rdds:
        rdd = rdds.pop()
        if rdd.getClass().getSimpleName() == "DataSourceRDD":
            texts = [one.inputPartition().toString() for one in rdd.partitions()]
            assert all("PythonStreamingInputPartition" in text for text in texts)
            found += ["python-stream-" in text for text in texts]
        dependencies = rdd.dependencies()
        rdds += [dependencies.apply(number).rdd() for number in range(dependencies.size())]
    return found


class Streams:
    """Streaming queries into the memory sink, with a checkpoint that survives the query.

    ``mode`` is one of ``MODES``: its options are a source's unless it is given others.
    """

    def __init__(
        self, spark: SparkSession, logbus: Logbus, directory: Path, *, mode: str = PREFETCHED
    ) -> None:
        self._spark = spark
        self._logbus = logbus
        self.mode = mode
        self.checkpoint = directory / "checkpoint"
        self.queries: list[StreamingQuery] = []
        self.before_batch: Callable[[int], None] = lambda _: None
        """Called with each micro-batch's number when it is planned, and perhaps prefetched, but
        before tasks read records."""
        self.tasks: list[list[bool]] = []
        """For each micro-batch of the last query, what ``input_partitions`` says of its tasks."""

    def source(self, **options: str) -> DataFrame:
        reader = self._spark.readStream.format("logbus").option("zookeeper", self._logbus.zookeeper)
        return reader.options(**{**MODES[self.mode], **options}).load()

    def start(
        self, frame: DataFrame, *, available_now: bool = True, once: bool = False
    ) -> StreamingQuery:
        writer = (
            frame.writeStream.foreachBatch(self._collect)
            .option("checkpointLocation", str(self.checkpoint))
            .outputMode("append")
        )
        if once:
            writer = writer.trigger(once=True)
        elif available_now:
            writer = writer.trigger(availableNow=True)
        self.rows: list[Any] = []
        self.tasks = []
        query = writer.start()
        self.queries.append(query)
        return query

    def _collect(self, frame: DataFrame, batch_id: int) -> None:
        self.tasks.append(input_partitions(frame))
        assert self.mode == PREFETCHED or not any(self.tasks[-1]), self.tasks
        self.before_batch(batch_id)
        self.rows += frame.collect()

    def run(self, **options: str) -> list[str]:
        """One AvailableNow run; the values that it read, sorted."""
        query = self.start(self.source(**options))
        finish(query)
        return self.values()

    def values(self) -> list[str]:
        return sorted(row["value"].decode() for row in self.rows)


def finish(query: StreamingQuery, *, timeout_s: int = 90) -> StreamingQuery:
    assert query.awaitTermination(timeout_s), "the query did not end"
    return query


@pytest.fixture(params=[PREFETCHED, pytest.param(TASKS, marks=pytest.mark.slow)])
def streams(
    spark: SparkSession, logbus: Logbus, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Streams]:
    made = Streams(spark, logbus, tmp_path, mode=request.param)
    yield made
    for query in made.queries:
        query.stop()

"""A Spark session and a cluster for the tests of the connector, one of each for the whole run."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_logbus.client import (
    Admin,
    Cluster,
    Producer,
    ProducerConfig,
    RangeReader,
    TopicDescription,
)
from spark_logbus.coordination.groups.offsets import CommittedOffset, GroupOffsets
from spark_logbus.coordination.groups.rewinds import GroupRewinds
from spark_logbus.local.cluster import EmbeddedCluster
from spark_logbus.model import Latest, OffsetRange, TopicPartition
from spark_logbus.schemas.registry import SchemaRegistry
from spark_logbus.zookeeper import Session

PROJECT = Path(__file__).parents[2]
_WHOLE = ProducerConfig(linger_ms=600_000)  # until the flush, however slow the machine
_numbers = itertools.count(1)

Header = tuple[str, bytes | None]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Two cores; workers find the packages where the tests found them."""
    paths = [str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    session = (
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


@dataclass(frozen=True)
class Logbus:
    """A running cluster and what tests do with it."""

    zookeeper: str
    cluster: Cluster

    @property
    def admin(self) -> Admin:
        return Admin(self.cluster)

    def topic_name(self) -> str:
        """One that no other test has."""
        return f"topic-{next(_numbers)}"

    def register(self, subject: str, schema: str) -> int:
        """The schema's id."""
        with Session(self.zookeeper, client_name="tests", expects_cluster=True) as session:
            return SchemaRegistry(session).register(subject, schema).schema_id

    def topic(self, *, partitions: int = 1, name: str | None = None, **config: str) -> str:
        name = name or self.topic_name()
        # Retention goes by the records' timestamps, and some tests write old ones.
        dotted = {"retention.ms": "-1"}
        dotted |= {key.replace("_", "."): value for key, value in config.items()}
        self.admin.create_topic(name, partitions=partitions, config=dotted)
        return name

    def produce(
        self,
        topic: str,
        values: Iterable[str | None],
        *,
        partition: int | None = 0,
        key: str | None = None,
        headers: Sequence[Header] | None = None,
        timestamp_us: int | None = None,
    ) -> None:
        """One append; one record batch, unless there is more than fits."""
        with Producer(self.cluster, _WHOLE) as producer:
            futures = [
                producer.send(
                    topic,
                    None if value is None else value.encode(),
                    key=None if key is None else key.encode(),
                    partition=partition,
                    headers=headers,
                    timestamp_us=timestamp_us,
                )
                for value in values
            ]
            producer.flush()
            for future in futures:
                future.result(60)

    def ends(self, topic: str) -> dict[TopicPartition, int]:
        return {topic_partition: ends[1] for topic_partition, ends in self.spans(topic).items()}

    def spans(self, topic: str) -> dict[TopicPartition, tuple[int, int]]:
        described: TopicDescription = self.admin.describe([topic], ends=True)[topic]
        found = {}
        for number, partition in described.partitions.items():
            assert partition.ends is not None
            ends = (partition.ends.log_start_offset, partition.ends.high_watermark)
            found[TopicPartition(topic, number)] = ends
        return found

    def values(self, topic: str) -> list[list[str]]:
        """What consumers see of each partition, in its order; waits for leaders that are away."""
        partitions = self.admin.describe([topic], ends=False)[topic].partitions
        ends = self.admin.list_offsets(
            {TopicPartition(topic, number): Latest() for number in sorted(partitions)}
        )
        return [
            [
                value.decode()
                for batch in RangeReader(self.cluster, OffsetRange(topic_partition, 0, end or 0))
                for value in batch.arrow_batch.column("value").to_pylist()
            ]
            for topic_partition, end in ends.items()
        ]

    def size_bytes(self, topic_partition: TopicPartition) -> int:
        ends = (
            self.admin.describe([topic_partition.topic], ends=True)[topic_partition.topic]
            .partitions[topic_partition.partition]
            .ends
        )
        assert ends is not None
        return ends.size_bytes

    def committed(self, group: str) -> dict[TopicPartition, int]:
        with Session(self.zookeeper, client_name="test") as session:
            entries: Mapping[TopicPartition, CommittedOffset] = GroupOffsets(session).committed(
                group
            )
            return {topic_partition: entry.offset for topic_partition, entry in entries.items()}

    def rewind(self, group: str, positions: Mapping[TopicPartition, int]) -> None:
        with Session(self.zookeeper, client_name="test") as session:
            GroupRewinds(session).record(group, positions, reason="test", actor="test")


@pytest.fixture(scope="session")
def cluster_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the servers of ``logbus`` have their files."""
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="session")
def logbus(cluster_directory: Path) -> Iterator[Logbus]:
    """Two brokers, shared by all tests: each makes its own topics."""
    with (
        EmbeddedCluster(cluster_directory, brokers=2) as embedded,
        Cluster.from_zookeeper(embedded.zookeeper) as cluster,
    ):
        yield Logbus(embedded.zookeeper, cluster)


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
    """Of each task that reads a source for this micro-batch: True if its rows are there already,
    handed over by the planner, so that it needs no Python worker."""
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


@pytest.fixture
def group() -> str:
    """A group's name that no other test has."""
    return f"group-{next(_numbers)}"


@pytest.fixture(params=[PREFETCHED, pytest.param(TASKS, marks=pytest.mark.slow)])
def streams(
    spark: SparkSession, logbus: Logbus, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Streams]:
    made = Streams(spark, logbus, tmp_path, mode=request.param)
    yield made
    for query in made.queries:
        query.stop()

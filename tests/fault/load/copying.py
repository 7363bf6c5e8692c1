"""A streaming query that copies a topic into another one, exactly once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from spark_logbus.client import Cluster
from spark_logbus.model import TopicPartition
from tests.fault.load.checks import read_all
from tests.fault.load.participants import Participant
from tests.fault.load.records import Content


class Copying(Participant):
    """Runs the query, which is to fail where anything is lost. It is told to stop when nobody
    writes any more, and copies the rest first."""

    is_slow = True

    def __init__(
        self, spark: SparkSession, zookeeper: str, source: str, target: str, directory: Path
    ) -> None:
        super().__init__("copying-query")
        self._spark = spark
        self._zookeeper = zookeeper
        self._source = source
        self._target = target
        self._checkpoint = directory / "checkpoint"

    def start(self) -> None:
        """Starts the query, for which Spark looks at the session of the calling thread."""
        rows = (
            self._spark.readStream.format("logbus")
            .options(zookeeper=self._zookeeper, subscribe=self._source)
            .options(startingOffsets="earliest", failOnDataLoss="true")
            .load()
        )
        self._query = (
            rows.select("key", "value")
            .writeStream.format("logbus")
            .options(zookeeper=self._zookeeper, topic=self._target)
            .option("checkpointLocation", str(self._checkpoint))
            .start()
        )
        super().start()

    def work(self) -> None:
        query = self._query
        try:
            while not self.stopping.wait(0.5):
                assert query.isActive, query.exception()
                last = query.lastProgress
                self.progress = 0 if last is None else last["batchId"]
            query.processAllAvailable()
        finally:
            query.stop()


def check_copy(cluster: Cluster, content: Content, copied: Sequence[TopicPartition]) -> None:
    """All records are in the copy, each once."""
    found = Counter(record for records in read_all(cluster, copied).values() for record in records)
    assert found == Counter(record for records in content.values() for record in records)

"""Makes the cluster of release 0.1.0 that later releases must go on with.

    git worktree add /tmp/old 8bbbb5f
    PYTHONPATH=/tmp/old python tests/compat/make_stored_cluster.py

It runs with that release only, and refuses to replace what it made. ``cluster-0.1.0.tar.gz`` holds

- ``broker-1`` and ``broker-2``: the data directories of a broker that was stopped and of one that
  was killed; partition 0 of each topic is the first one's, partition 1 the second one's,
- ``checkpoints``: of three streaming queries, which all read the topic ``events``,
- ``zookeeper.json``: the lasting nodes below the chroot, with their content,
- ``expected.json``: what went in, and what was read and committed.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import spark_logbus.cluster as old  # type: ignore[import-not-found]
from kazoo.client import KazooClient
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from spark_logbus.client import Admin, Cluster, Consumer, ConsumerConfig, Producer
from spark_logbus.model import TopicPartition

ARCHIVE = Path(__file__).parent / "data" / "cluster-0.1.0.tar.gz"

PARTITIONS = (0, 1)
TEN_YEARS_MS = str(10 * 365 * 86_400_000)
FOR_EVER = {
    "retention.ms": "-1",
    "index.interval.bytes": "256",
    "producer.id.expiration.ms": TEN_YEARS_MS,
}
EVENTS = {**FOR_EVER, "segment.bytes": "2048"}
TABLE = {
    **FOR_EVER,
    "segment.bytes": "1024",
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": TEN_YEARS_MS,
}
SETTINGS = {"compaction": {"check_interval_ms": 200}}

LIMIT = "12"  # records in a micro-batch
CRASH = 6  # the second micro-batch after the first rewind


class Queries:
    """Streaming queries that read all of ``events``, each with a checkpoint and a group."""

    def __init__(self, spark: SparkSession, zookeeper: str, checkpoints: Path) -> None:
        self._spark = spark
        self._zookeeper = zookeeper
        self._checkpoints = checkpoints

    def run(self, group: str, *, crash: int = -1) -> list[str]:
        """Returns what one AvailableNow run reads, but for the micro-batch that crashes."""
        values: list[str] = []

        def collect(frame: DataFrame, batch_id: int) -> None:
            rows = [row["value"].decode() for row in frame.collect()]
            if batch_id == crash:
                raise RuntimeError("a crash before the micro-batch was committed")
            values.extend(rows)

        reader = self._spark.readStream.format("logbus").options(
            zookeeper=self._zookeeper,
            subscribe="events",
            group=group,
            startingOffsets="earliest",
            maxOffsetsPerTrigger=LIMIT,
        )
        writer = reader.load().writeStream.foreachBatch(collect)
        writer = writer.option("checkpointLocation", str(self._checkpoints / group))
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        except StreamingQueryException:
            assert crash >= 0
        else:
            assert crash < 0
        return sorted(values)


def main() -> None:
    if ARCHIVE.exists():
        raise SystemExit(f"{ARCHIVE} is there already; what old releases stored is kept.")
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        embedded = old.EmbeddedCluster(work / "cluster", brokers=2, settings=SETTINGS)
        with embedded, Cluster.from_zookeeper(embedded.zookeeper) as cluster:
            expected = _live(embedded.zookeeper, cluster, work / "checkpoints")
            embedded.brokers[1].kill()
            embedded.brokers[0].stop()
            nodes = dict(_nodes(embedded.zookeeper))
        for number in (1, 2):
            shutil.move(work / "cluster" / f"broker-{number}" / "data", work / f"broker-{number}")
        _write(work, {"expected.json": expected, "zookeeper.json": nodes})


def _live(zookeeper: str, cluster: Cluster, checkpoints: Path) -> dict[str, Any]:
    admin = Admin(cluster)
    admin.create_topic("events", partitions=2, config=EVENTS)
    admin.create_topic("table", partitions=2, config=TABLE)
    admin.create_topic("quiet", partitions=2, config=FOR_EVER)
    _append_events(cluster, 0, 18)
    _append_events(cluster, 18, 30)  # by another producer
    table = _append_table(cluster)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    queries = Queries(spark.getOrCreate(), zookeeper, checkpoints)
    read = {"crashed": queries.run("crashed"), "rewound": queries.run("rewound")}
    _rewind(zookeeper, "crashed", "--by-count", "10")
    read["crashed"] += queries.run("crashed", crash=CRASH)
    _append_events(cluster, 30, 35)
    read["idle"] = queries.run("idle")
    _rewind(zookeeper, "rewound", "--to-offset", "25")
    _commit_as_consumer(cluster, zookeeper)
    return {"events": 35, "table": table, "read": read, "reader": {"0": 7, "1": 9}}


def _append_events(cluster: Cluster, start: int, end: int) -> None:
    with Producer(cluster) as producer:
        for number in range(start, end):
            for partition in PARTITIONS:
                value = b"%d-%05d" % (partition, number)
                producer.send("events", value, key=b"k%d" % (number % 3), partition=partition)
            if number % 4 == 3:
                producer.flush()


def _append_table(cluster: Cluster) -> dict[str, dict[str, str | None]]:
    """The newest value of each key; waits until older ones are compacted away."""
    newest: dict[str, dict[str, str | None]] = {str(partition): {} for partition in PARTITIONS}
    with Producer(cluster) as producer:
        for number in range(60):
            for partition in PARTITIONS:
                key = f"key-{number % 5}"
                value = None if number == 56 else f"value-{number}"
                producer.send(
                    "table",
                    None if value is None else value.encode(),
                    key=key.encode(),
                    partition=partition,
                )
                newest[str(partition)][key] = value
            producer.flush()
    while any(_count(cluster, TopicPartition("table", number)) > 30 for number in PARTITIONS):
        threading.Event().wait(0.1)
    return newest


def _count(cluster: Cluster, topic_partition: TopicPartition) -> int:
    with Consumer(cluster) as consumer:
        consumer.assign([topic_partition])
        count = 0
        while consumer.position(topic_partition) < 60:
            count += sum(batch.arrow_batch.num_rows for batch in consumer.poll_arrow(1.0))
        return count


def _commit_as_consumer(cluster: Cluster, zookeeper: str) -> None:
    with Consumer(cluster, ConsumerConfig(group="reader", zookeeper=zookeeper)) as consumer:
        consumer.assign(TopicPartition("events", partition) for partition in PARTITIONS)
        consumer.commit({TopicPartition("events", 0): 7, TopicPartition("events", 1): 9})


def _rewind(zookeeper: str, group: str, *target: str) -> None:
    program = [sys.executable, "-m", "spark_logbus.cli", "groups", "rewind", group, *target]
    subprocess.run([*program, "--execute", "--zookeeper", zookeeper], check=True)


def _nodes(zookeeper: str) -> Iterator[tuple[str, str]]:
    """All nodes that outlive their sessions, parents first, by their path below the chroot."""
    client = KazooClient(hosts=zookeeper)
    client.start()
    try:
        paths = [""]
        while paths:
            path = paths.pop()
            data, stat = client.get(path or "/")
            if stat.ephemeralOwner:
                continue
            if path:
                yield path, data.decode()
            paths += sorted(f"{path}/{name}" for name in client.get_children(path or "/"))
    finally:
        client.stop()
        client.close()


def _write(work: Path, described: dict[str, Any]) -> None:
    with tarfile.open(ARCHIVE, "w:gz") as archive:
        for name in ("broker-1", "broker-2", "checkpoints"):
            archive.add(work / name, name)
        for name, content in described.items():
            data = json.dumps(content, indent=1).encode()
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


if __name__ == "__main__":
    main()

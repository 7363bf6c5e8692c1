"""Compaction as users meet it: real brokers that compact by themselves, clients and Spark."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from spark_logbus.client import Admin, ClientConfig, Cluster, Producer, ProducerConfig, RangeReader
from spark_logbus.client.fetch.records import records_of
from spark_logbus.coordination.cluster.topics import TopicRegistry
from spark_logbus.errors import ConfigError, DataLossError, InvalidRequestError
from spark_logbus.load import LoadConfig, run_load
from spark_logbus.local.cluster import BrokerProcess, EmbeddedCluster
from spark_logbus.model import AtTimestamp, Compression, Latest, OffsetRange, TopicPartition
from spark_logbus.zookeeper import Session
from tests.helpers import paths_below, process_is_gone, wait_until

CONFIG = ClientConfig(client_id="test", retry_backoff_ms=10, retry_backoff_max_ms=100)
SETTINGS = {"compaction": {"check_interval_ms": 100}}
TOPIC = {
    "cleanup.policy": "compact",
    "segment.bytes": "20000",
    "min.cleanable.dirty.ratio": "0.01",
    "retention.ms": "-1",
}
KEYS = 40
T0_US = 1_700_000_000_000_000


class Sent(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_us: int


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    directory = tmp_path_factory.mktemp("cluster")
    with EmbeddedCluster(directory, brokers=1, settings=SETTINGS) as embedded:
        yield embedded


@pytest.fixture
def cluster(brokers: EmbeddedCluster) -> Iterator[Cluster]:
    with Cluster.from_zookeeper(brokers.zookeeper, CONFIG) as connected:
        yield connected


def produce(
    cluster: Cluster,
    topic: str,
    count: int,
    *,
    start: int = 0,
    compression: Compression = Compression.NONE,
) -> list[Sent]:
    """Records ``start`` up to ``start + count`` by number, every tenth of them a tombstone."""
    sent = []
    config = ProducerConfig(compression=compression, batch_bytes=8_000, linger_ms=20)
    with Producer(cluster, config) as producer:
        for number in range(start, start + count):
            record = Sent(
                b"key-%d" % (number * 7 % KEYS),
                None if number % 10 == 9 else b"%d-" % number + bytes(50),
                (("n", b"%d" % number),) if number % 3 == 0 else (),
                T0_US + number * 1000,
            )
            producer.send(
                topic,
                record.value,
                key=record.key,
                headers=record.headers,
                timestamp_us=record.timestamp_us,
                partition=0,
            )
            sent.append(record)
            if number % 100 == 99:  # one append, which is never cut over segments
                producer.flush(30)
        producer.flush(30)
    return sent


def read(cluster: Cluster, topic: str, start: int = 0) -> dict[int, Sent]:
    topic_partition = TopicPartition(topic, 0)
    end = Admin(cluster).list_offsets({topic_partition: Latest()})[topic_partition]
    assert end is not None
    found = {}
    with RangeReader(cluster, OffsetRange(topic_partition, start, end)) as reader:
        for fetched in reader:
            for record in records_of(fetched):
                found[record.offset] = Sent(
                    record.key, record.value, record.headers, record.timestamp_us
                )
    return found


def newest_of(sent: list[Sent]) -> dict[bytes | None, Sent]:
    return {record.key: record for record in sent}


def is_compacted(broker: BrokerProcess, topic: str) -> bool:
    """Tells whether all but the active segment is clean."""
    directory = broker.directory / "data" / f"{topic}-0"
    history = directory / "compaction"
    if not history.exists():
        return False
    clean_end = history.read_text().splitlines()[-2].split()[0]
    return max(directory.glob("*.log")).stem == clean_end.zfill(20)


def wait_until_compacted(
    broker: BrokerProcess, cluster: Cluster, topic: str, sent: list[Sent]
) -> dict[int, Sent]:
    """Waits until all but the active segment is clean; then little more than the newest is left."""
    wait_until(
        partial(is_compacted, broker, topic), deadline_s=60, message="the log to be compacted"
    )
    found = read(cluster, topic)
    assert len(found) < KEYS + 600
    check(found, sent)
    return found


def check(found: dict[int, Sent], sent: list[Sent]) -> None:
    assert list(found) == sorted(found)
    for offset, record in found.items():
        assert record == sent[offset], f"offset {offset} holds another record than was sent"
    assert newest_of(list(found.values())) == newest_of(sent)


@pytest.mark.parametrize("compression", list(Compression))
@pytest.mark.long
def test_a_topic_is_compacted_by_itself_and_reads_right(
    brokers: EmbeddedCluster, cluster: Cluster, spark: SparkSession, compression: Compression
) -> None:
    topic = f"compacted-{compression.name.lower()}"
    admin, topic_partition = Admin(cluster), TopicPartition(topic, 0)
    admin.create_topic(topic, partitions=1, config=TOPIC)
    sent = produce(cluster, topic, 3000, compression=compression)
    found = wait_until_compacted(brokers.brokers[0], cluster, topic, sent)
    assert admin.list_offsets({topic_partition: Latest()})[topic_partition] == 3000

    # A removed offset is read from like any other, and so are times and ranges.
    gone = next(offset for offset in range(3000) if offset not in found)
    assert min(read(cluster, topic, gone)) == min(o for o in found if o > gone)
    for number in (0, 1500, 2999):
        at = AtTimestamp(T0_US + number * 1000)
        expected = min(o for o in found if o >= number)
        assert admin.list_offsets({topic_partition: at})[topic_partition] == expected
    pieces, _ = admin.split(OffsetRange(topic_partition, 0, 3000), target_bytes=2000)
    assert pieces[0].start == 0
    assert pieces[-1].end == 3000

    frame = (
        spark.read.format("logbus")
        .option("zookeeper", brokers.zookeeper)
        .option("includeHeaders", "true")
        .option("minPartitions", "4")
        .load(topic)
    )
    rows = {row["offset"]: row for row in frame.collect()}
    assert sorted(rows) == sorted(found)
    for offset, record in found.items():
        assert (rows[offset]["key"], rows[offset]["value"]) == (record.key, record.value)
        headers = [(pair["key"], pair["value"]) for pair in rows[offset]["headers"] or ()]
        assert tuple(headers) == record.headers
    assert frame.where(f"offset >= {gone}").count() == sum(offset >= gone for offset in found)


@pytest.mark.parametrize("loads", [1, pytest.param(3, marks=pytest.mark.long)])
def test_a_compacted_topic_is_loaded_into_a_warehouse(
    brokers: EmbeddedCluster, cluster: Cluster, spark: SparkSession, tmp_path: Path, loads: int
) -> None:
    """Each load brings the records that are left of its offsets, and is checked all the same."""
    topic, broker = f"loaded-{loads}", brokers.brokers[0]
    config = LoadConfig(topic, str(tmp_path), brokers.zookeeper)

    def load(*, allow_gaps: bool = False) -> int:
        commit = run_load(spark, replace(config, allow_gaps=allow_gaps)).commit
        assert commit is not None
        return commit.records

    def loaded() -> list[int]:
        table = spark.read.parquet(str(tmp_path / topic))
        return sorted(row["offset"] for row in table.select("offset").collect())

    Admin(cluster).create_topic(topic, partitions=1, config=TOPIC)
    sent = produce(cluster, topic, 1000)
    first = sorted(wait_until_compacted(broker, cluster, topic, sent))
    assert len(first) < 1000
    assert load() == len(first)
    assert loaded() == first
    if loads == 1:
        return

    sent += produce(cluster, topic, 700, start=1000)
    second = wait_until_compacted(broker, cluster, topic, sent)
    new = sorted(offset for offset in second if offset >= 1000)
    assert load() == len(new) < 700
    assert loaded() == [*first, *new]

    # Whose policy is another by now cannot be told from one that lost records.
    sent += produce(cluster, topic, 700, start=1700)
    third = wait_until_compacted(broker, cluster, topic, sent)
    Admin(cluster).alter_topic(topic, put={"cleanup.policy": "delete"})
    with pytest.raises(DataLossError, match=r"not compacted.* use --allow-gaps"):
        load()
    new += sorted(offset for offset in third if offset >= 1700)
    load(allow_gaps=True)
    assert loaded() == [*first, *new]


def test_records_without_a_key_are_refused_with_the_remedy(cluster: Cluster) -> None:
    Admin(cluster).create_topic("keys-only", partitions=1, config=TOPIC)
    with Producer(cluster) as producer:
        future = producer.send("keys-only", b"value")
        with pytest.raises(InvalidRequestError, match=r"'keys-only' is compacted .* give every"):
            future.result(60)


def test_a_policy_that_does_not_exist_is_refused(cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match="did you mean compact"):
        Admin(cluster).create_topic("typo", partitions=1, config={"cleanup.policy": "compcat"})


def test_the_policy_changes_without_a_restart(brokers: EmbeddedCluster, cluster: Cluster) -> None:
    topic = "changing"
    Admin(cluster).create_topic(topic, partitions=1, config=TOPIC | {"cleanup.policy": "delete"})
    sent = produce(cluster, topic, 1500)
    assert len(read(cluster, topic)) == 1500
    with Session(brokers.zookeeper, client_name="test") as session:
        TopicRegistry(session).configure(topic, TOPIC)
        sent += produce(cluster, topic, 500, start=1500)
        wait_until_compacted(brokers.brokers[0], cluster, topic, sent)
        TopicRegistry(session).configure(topic, TOPIC | {"cleanup.policy": "delete"})
    sent += produce(cluster, topic, 500, start=2000)
    check(read(cluster, topic), sent)


# -- killed in the middle -----------------------------------------------------------------


def compacting_child(broker: BrokerProcess) -> int:
    """The process id of the broker's compacting child; 0 if it has none just now."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            command = (entry / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(parent) == broker.pid and b"spark_logbus.compactor" in command:
            return int(entry.name)
    return 0


def signal_child(broker: BrokerProcess, cluster: Cluster, sent: list[Sent], number: int = 0) -> int:
    """Send it to a compacting child of topic t, whose process id this is; 0 only looks for one.
    More is produced where it has ended before it was met."""

    def child() -> int:
        found = compacting_child(broker)
        if found:
            with suppress(ProcessLookupError):
                os.kill(found, number)
                return found
        if is_compacted(broker, "t"):
            sent.extend(produce(cluster, "t", 2000, start=len(sent)))
        return 0

    return wait_until(child, deadline_s=60, message="a compaction")


@pytest.fixture
def lone(tmp_path: Path) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(tmp_path, brokers=1, settings=SETTINGS) as embedded:
        yield embedded


def leftovers(broker: BrokerProcess) -> list[str]:
    names = [path.name for path in paths_below(broker.directory / "data")]
    return [n for n in names if n.endswith((".cleaned", ".swap", ".job", ".reports", ".deleted"))]


def test_a_killed_compaction_changes_nothing_and_is_done_again(lone: EmbeddedCluster) -> None:
    broker = lone.brokers[0]
    with Cluster.from_zookeeper(lone.zookeeper, CONFIG) as cluster:
        Admin(cluster).create_topic("t", partitions=1, config=TOPIC)
        sent = produce(cluster, "t", 2000)
        signal_child(broker, cluster, sent, signal.SIGKILL)
        check(read(cluster, "t"), sent)
        wait_until_compacted(broker, cluster, "t", sent)
        wait_until(lambda: not leftovers(broker))


@pytest.mark.long
def test_a_broker_killed_while_it_compacts(lone: EmbeddedCluster) -> None:
    broker = lone.brokers[0]
    with Cluster.from_zookeeper(lone.zookeeper, CONFIG) as cluster:
        Admin(cluster).create_topic("t", partitions=1, config=TOPIC)
        sent: list[Sent] = []
        for _ in range(3):
            sent += produce(cluster, "t", 1500, start=len(sent))
            child = signal_child(broker, cluster, sent)
            broker.kill()
            wait_until(partial(process_is_gone, child), message="the child to die too")
            broker.start()
            check(read(cluster, "t"), sent)
        wait_until_compacted(broker, cluster, "t", sent)
        wait_until(lambda: not leftovers(broker))


@pytest.mark.long
def test_a_broker_that_stops_ends_its_compaction_first(lone: EmbeddedCluster) -> None:
    broker = lone.brokers[0]
    with Cluster.from_zookeeper(lone.zookeeper, CONFIG) as cluster:
        Admin(cluster).create_topic("t", partitions=1, config=TOPIC)
        sent = produce(cluster, "t", 2000)
        child = signal_child(broker, cluster, sent)
        broker.stop()
        assert process_is_gone(child)
        assert not leftovers(broker)
        assert (broker.directory / "data" / "clean-shutdown").exists()
        broker.start()
        wait_until_compacted(broker, cluster, "t", sent)


@pytest.mark.long
def test_a_deleted_topic_ends_its_compaction(lone: EmbeddedCluster) -> None:
    """The process would keep the files open that it reads, and their space with them."""
    broker = lone.brokers[0]
    with Cluster.from_zookeeper(lone.zookeeper, CONFIG) as cluster:
        Admin(cluster).create_topic("t", partitions=1, config=TOPIC)
        sent = produce(cluster, "t", 2000)
        # It is busy for long with a large log.
        child = signal_child(broker, cluster, sent, signal.SIGSTOP)
        Admin(cluster).delete_topic("t")
        wait_until(partial(process_is_gone, child), message="the child to be ended")
        wait_until(lambda: not leftovers(broker))

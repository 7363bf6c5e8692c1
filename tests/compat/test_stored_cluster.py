"""A cluster that release 0.1.0 stored goes on: its logs, its groups and its queries' checkpoints.

See ``make_stored_cluster`` for what it holds. Nothing of that release is needed to run this.
"""

from __future__ import annotations

import itertools
import json
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_logbus.broker import Broker
from spark_logbus.client import Admin, Cluster, Consumer, ConsumerConfig, Producer
from spark_logbus.coordination.groups.offsets import GroupOffsets
from spark_logbus.coordination.groups.rewinds import GroupRewinds
from spark_logbus.model import AtTimestamp, Latest, RewindMark, TopicPartition
from spark_logbus.record import RecordBatchHeader, split
from spark_logbus.zookeeper import Session
from tests.helpers import wait_until
from tests.servers.broker import broker_here, connect, leads
from tests.servers.spark import MODES
from tests.servers.zookeeper import put, session

ARCHIVE = Path(__file__).parent / "data" / "cluster-0.1.0.tar.gz"
E0, E1 = TopicPartition("events", 0), TopicPartition("events", 1)
STOPPED, KILLED = 0, 1  # how the broker of each partition ended


@dataclass(frozen=True)
class Stored:
    """The cluster of 0.1.0, run by brokers of this release."""

    directory: Path
    expected: dict[str, Any]
    zookeeper: str
    brokers: tuple[Broker, Broker]
    cluster: Cluster

    @property
    def events(self) -> int:
        """Count of records that were appended to each partition of ``events``."""
        return int(self.expected["events"])

    def log(self, topic_partition: TopicPartition) -> Path:
        """The directory of a partition's log; it has the number of its broker."""
        return self.directory / f"broker-{topic_partition.partition + 1}" / str(topic_partition)

    def read(self, topic_partition: TopicPartition) -> list[tuple[int, bytes | None, bytes | None]]:
        """Offset, key and value of everything that is there."""
        with Consumer(self.cluster) as consumer:
            consumer.assign([topic_partition])
            end = Admin(self.cluster).list_offsets({topic_partition: Latest()})[topic_partition]
            assert end is not None
            rows: list[tuple[int, bytes | None, bytes | None]] = []
            while consumer.position(topic_partition) < end:
                for batch in consumer.poll_arrow(1.0):
                    keys = batch.arrow_batch.column("key").to_pylist()
                    values = batch.arrow_batch.column("value").to_pylist()
                    rows += zip(batch.offsets().to_pylist(), keys, values, strict=True)
            return rows

    def append_events(self, *numbers: int) -> None:
        with Producer(self.cluster) as producer:
            for number in numbers:
                for partition in (0, 1):
                    value, key = event(partition, number), b"k%d" % (number % 3)
                    producer.send("events", value, key=key, partition=partition)


def event(partition: int, number: int) -> bytes:
    return b"%d-%05d" % (partition, number)


def events(start: int, end: int) -> list[str]:
    """The values ``[start, end)`` of both partitions, sorted."""
    return [event(partition, n).decode() for partition in (0, 1) for n in range(start, end)]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Directory of what was stored, before anything of this release has touched it."""
    with tarfile.open(ARCHIVE) as archive:
        # Pythons before 3.11.4 have no filters, and those from 3.12 on ask for one.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(tmp_path)
    return tmp_path


@pytest.fixture
def stored(directory: Path, chroot: str) -> Iterator[Stored]:
    nodes: Mapping[str, str] = json.loads((directory / "zookeeper.json").read_text())
    for path, data in nodes.items():
        put(chroot, path, data.encode())
    with ExitStack() as stack:
        brokers = [
            stack.enter_context(broker_here(directory / f"broker-{n}", chroot, broker_id=n))
            for n in (1, 2)
        ]
        cluster = stack.enter_context(Cluster.from_zookeeper(chroot))
        expected = json.loads((directory / "expected.json").read_text())
        yield Stored(directory, expected, chroot, (brokers[0], brokers[1]), cluster)


@pytest.fixture
def opened(stored: Stored) -> Iterator[Session]:
    with session(stored.zookeeper) as live:
        yield live


# -- logs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", [STOPPED, KILLED])
def test_every_record_is_read_once(stored: Stored, partition: int) -> None:
    assert stored.read(TopicPartition("events", partition)) == [
        (number, b"k%d" % (number % 3), event(partition, number)) for number in range(stored.events)
    ]
    quiet = TopicPartition("quiet", partition)
    assert stored.read(quiet) == []


@pytest.mark.parametrize("partition", [STOPPED, KILLED])
def test_a_compacted_log_has_the_newest_value_of_each_key(stored: Stored, partition: int) -> None:
    rows = stored.read(TopicPartition("table", partition))
    newest = {key: value for _, key, value in rows}
    assert newest == {
        key.encode(): None if value is None else value.encode()
        for key, value in stored.expected["table"][str(partition)].items()
    }
    assert len(rows) < 60, "it was compacted"


def test_old_indexes_are_used_as_they_are(directory: Path, request: pytest.FixtureRequest) -> None:
    before = {path: path.read_bytes() for path in directory.glob("broker-*/*/*.index")}
    stored: Stored = request.getfixturevalue("stored")
    sealed = [path for path in before if len(list(path.parent.glob("*.log"))) > 1]
    assert sealed
    for partition in (STOPPED, KILLED):
        at = TopicPartition("events", partition)
        middle, _ = _record_batches(stored.log(at))[0]
        found = Admin(stored.cluster).list_offsets({at: AtTimestamp(middle.base_timestamp_us)})
        assert found == {at: middle.base_offset}
    assert {path: path.read_bytes() for path in sealed} == {path: before[path] for path in sealed}


@pytest.mark.parametrize("partition", [STOPPED, KILLED])
def test_a_producers_repeated_append_is_recognised(stored: Stored, partition: int) -> None:
    at = TopicPartition("events", partition)
    header, last = _record_batches(stored.log(at))[-1]
    assert header.producer_id >= 0
    with connect(stored.brokers[partition]) as wire:
        wait_until(lambda: leads(wire, "events", partition))
        [result] = wire.append("events", partition, last).results
    assert (result.error, result.base_offset) == (None, header.base_offset)
    stored.append_events(stored.events)
    rows = stored.read(at)
    assert [offset for offset, _, _ in rows] == list(range(stored.events + 1))
    assert rows[-1][2] == event(partition, stored.events)


def _record_batches(log: Path) -> list[tuple[RecordBatchHeader, memoryview]]:
    """Record batches of the newest segment."""
    return list(split(memoryview(max(log.glob("*.log")).read_bytes()), allow_tail=False))


# -- moves --------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", [STOPPED, KILLED])
def test_partitions_move_to_the_other_broker(stored: Stored, partition: int) -> None:
    """Their logs have no leader epochs and no id of their own yet, and one has compacted parts."""
    moved = [TopicPartition(topic, partition) for topic in ("events", "table", "quiet")]
    before = {each: stored.read(each) for each in moved}
    _, last = _record_batches(stored.log(moved[0]))[-1]
    target = stored.brokers[1 - partition]
    admin = Admin(stored.cluster)
    admin.move_partitions(dict.fromkeys(moved, target.address.broker_id))
    wait_until(lambda: not admin.describe_moves())
    assert {each: stored.read(each) for each in moved} == before
    stored.append_events(stored.events)
    assert stored.read(moved[0])[-1] == (
        stored.events, b"k%d" % (stored.events % 3), event(partition, stored.events)
    )  # fmt: skip
    with connect(target) as wire:
        [result] = wire.append("events", partition, last).results
    assert result.error is None
    assert len(stored.read(moved[0])) == stored.events + 1, "a repeated append is recognised"


# -- groups -------------------------------------------------------------------------------


def test_group_offsets_are_taken_up_and_committed(stored: Stored, opened: Session) -> None:
    config = ConsumerConfig(group="reader", zookeeper=stored.zookeeper)
    with Consumer(stored.cluster, config) as consumer:
        consumer.assign([E0, E1])
        assert {str(at.partition): consumer.position(at) for at in (E0, E1)} == (
            stored.expected["reader"]
        )
        consumer.commit({E0: 20})
    found = GroupOffsets(opened).committed("reader")
    assert {at: committed.offset for at, committed in found.items()} == {E0: 20, E1: 9}
    assert {committed.rewind_epoch for committed in found.values()} == {0}


def test_rewinds_are_remembered_and_counted_on(stored: Stored, opened: Session) -> None:
    offsets, rewinds = GroupOffsets(opened), GroupRewinds(opened)
    [first] = rewinds.history("rewound")
    assert (first.mark, first.positions) == (RewindMark(1), {E0: 25, E1: 25})
    assert {committed.rewind_epoch for committed in offsets.committed("rewound").values()} == {1}
    offsets.commit("rewound", {E0: 26}, actor="test", expected_mark=first.mark)
    second = rewinds.record("rewound", {E1: 3}, reason="test", actor="test")
    assert second.epoch == 2
    assert rewinds.history("rewound") == [first, second]
    assert [offsets.committed("rewound")[at].offset for at in (E0, E1)] == [26, 3]


# -- streaming queries --------------------------------------------------------------------


class Query:
    """Stored query, gone on with."""

    def __init__(self, spark: SparkSession, stored: Stored, group: str, *, mode: str) -> None:
        self._spark = spark
        self._mode = mode
        self._zookeeper = stored.zookeeper
        self._group = group
        self._checkpoint = stored.directory / "checkpoints" / group
        self.first: list[str] = []
        """What the first micro-batch of the last run read."""

    def run(self) -> list[str]:
        """Returns what an AvailableNow run reads, sorted."""
        batches: list[list[str]] = []

        def collect(frame: DataFrame, batch_id: int) -> None:
            batches.append([row["value"].decode() for row in frame.collect()])

        reader = self._spark.readStream.format("logbus").options(
            zookeeper=self._zookeeper,
            subscribe="events",
            group=self._group,
            startingOffsets="earliest",
            maxOffsetsPerTrigger="12",
            **MODES[self._mode],
        )
        writer = reader.load().writeStream.foreachBatch(collect)
        writer = writer.option("checkpointLocation", str(self._checkpoint))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(90), "the query did not end"
        self.first = sorted(batches[0]) if batches else []
        return sorted(itertools.chain.from_iterable(batches))

    def offsets(self) -> list[dict[str, Any]]:
        """The source's offset of each micro-batch."""
        logs = sorted((self._checkpoint / "offsets").glob("[0-9]*"), key=lambda log: int(log.name))
        return [json.loads(log.read_text().splitlines()[-1]) for log in logs]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.long
def test_queries_go_on_from_their_checkpoints(
    spark: SparkSession, stored: Stored, mode: str
) -> None:
    """One had crashed after a rewind, one has a rewind to follow, and one has read everything."""
    crashed, rewound, idle = (
        Query(spark, stored, name, mode=mode) for name in ("crashed", "rewound", "idle")
    )
    read = stored.expected["read"]

    assert crashed.run() == events(26, 35)
    assert crashed.first == events(26, 30), "the micro-batch that crashed, as it was planned"
    rewound_then = events(20, 30)
    assert Counter(read["crashed"] + events(26, 35)) == Counter(events(0, 35) + rewound_then)
    assert rewound.run() == events(25, 35)
    assert rewound.run() == [], "the rewind is followed once"
    assert rewound.offsets()[-1]["rewind_epoch"] == 1

    before = idle.offsets()
    assert "generation" in before[-1]
    assert idle.run() == []
    assert idle.offsets() == before, "the offset means the same under its new name"
    assert read["idle"] == events(0, 35)

    with session(stored.zookeeper) as opened:
        GroupRewinds(opened).record("crashed", {E0: 34}, reason="test", actor="test")
    stored.append_events(35)
    assert crashed.run() == sorted([*events(35, 36), event(0, 34).decode()])
    assert crashed.offsets()[-1]["rewind_epoch"] == 2
    assert idle.run() == events(35, 36)
    with session(stored.zookeeper) as opened:
        for group in ("crashed", "idle"):
            committed = GroupOffsets(opened).committed(group)
            assert {at: one.offset for at, one in committed.items()} == {E0: 36, E1: 36}

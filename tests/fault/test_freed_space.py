"""A deleted topic's space comes back within seconds, on a real broker that was put to all uses."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from spark_logbus.client import Admin, Cluster, RangeReader
from spark_logbus.errors import NotLeaderError, UnknownTopicError
from spark_logbus.local.cluster import BrokerProcess
from spark_logbus.model import OffsetRange, TopicPartition
from spark_logbus.protocol import Api, FetchResponse
from tests.builders.compaction import Keyed, keyed_batch
from tests.builders.record_batches import joined
from tests.helpers import wait_until
from tests.servers.broker import broker_process, connect, create_topic, failure
from tests.servers.peers import MIB, stopped_reader
from tests.servers.wire import Wire, fetch_request

STORED_MIB = 36
SEGMENT_MIB = 12  # more than a socket's buffers hold
CONFIG = {"segment.bytes": str(SEGMENT_MIB * MIB + 4096), "retention.ms": "-1"}
T0 = TopicPartition("t", 0)


def space_of_deleted(broker: BrokerProcess) -> float:
    """MiB in files of the broker's that have no name any more and that it has open."""
    found: dict[int, int] = {}
    for entry in Path(f"/proc/{broker.pid}/fd").iterdir():
        try:
            if str(entry.readlink()).endswith(" (deleted)"):
                status = entry.stat()
                found[status.st_ino] = status.st_blocks * 512
        except FileNotFoundError:
            continue
    return sum(found.values()) / MIB


def space_of_segments(directory: Path) -> float:
    """MiB in a log's segment files, compacted ones that are still being written included."""
    found = 0
    for path in directory.glob("*.log*"):
        with suppress(FileNotFoundError):  # renamed or deleted since it was listed
            found += path.stat().st_blocks * 512
    return found / MIB


def logs_of(broker: BrokerProcess) -> list[str]:
    return sorted(path.name for path in (broker.directory / "data").iterdir() if path.is_dir())


def fill(wire: Wire, topic: str, *, acks: str, config: dict[str, str]) -> None:
    create_topic(wire, topic, config={**CONFIG, **config})
    megabyte = keyed_batch(Keyed(b"key", bytes(MIB - 600)))
    for _ in range(STORED_MIB // 4):
        wire.append(topic, 0, joined(*[megabyte] * 4), acks=acks)


def test_a_deleted_topic_frees_its_space(tmp_path: Path, chroot: str) -> None:
    with (
        broker_process(tmp_path, chroot) as broker,
        Cluster.from_zookeeper(chroot) as cluster,
        connect(broker) as wire,
        connect(broker) as waiting,
    ):
        fill(wire, "t", acks="flushed", config={})
        fill(wire, "unflushed", acks="written", config={"flush.ms": "600000"})
        wire.fetch("unflushed", 0, 0)
        with (
            stopped_reader(broker, fetches=2) as stopped,
            RangeReader(cluster, OffsetRange(T0, 0, STORED_MIB)) as by_mapping,
        ):
            first = next(by_mapping)
            waiting.send(Api.FETCH, fetch_request("t", 0, STORED_MIB, wait_ms=60_000))
            admin = Admin(cluster)
            admin.delete_topic("t")
            admin.delete_topic("unflushed")
            wait_until(lambda: logs_of(broker) == [], deadline_s=60)
            answered = waiting.answer(Api.FETCH, FetchResponse).results[0]
            assert isinstance(failure(answered.error), NotLeaderError | UnknownTopicError)
            wait_until(lambda: space_of_deleted(broker) < SEGMENT_MIB + 1, deadline_s=60)
            assert space_of_deleted(broker) > SEGMENT_MIB - 1, "what the stopped reader is sent"
            stopped.go_on()
            assert int(stopped.result()) == SEGMENT_MIB * len(
                keyed_batch(Keyed(b"key", bytes(MIB - 600)))
            )
            wait_until(lambda: space_of_deleted(broker) == 0, deadline_s=60)
            assert first.arrow_batch.column("value")[0].as_py() == bytes(MIB - 600)
        assert broker.running


@pytest.mark.parametrize("policy", ["delete", "compact"])
@pytest.mark.long
def test_retention_and_compaction_free_space(tmp_path: Path, chroot: str, policy: str) -> None:
    settings = {"compaction": {"check_interval_ms": 100}}
    with (
        broker_process(tmp_path, chroot, settings=settings) as broker,
        Cluster.from_zookeeper(chroot) as cluster,
        connect(broker) as wire,
    ):
        fill(wire, "t", acks="flushed", config={"min.cleanable.dirty.ratio": "0.9"})
        with RangeReader(cluster, OffsetRange(T0, 0, STORED_MIB)) as reader:
            assert sum(each.arrow_batch.num_rows for each in reader) == STORED_MIB
        for offset in range(STORED_MIB):
            wire.fetch("t", 0, offset, max_bytes=1)
        directory = tmp_path / "data" / str(T0)
        Admin(cluster).alter_topic(
            "t",
            put={
                "cleanup.policy": policy,
                "retention.bytes": "1",
                "min.cleanable.dirty.ratio": "0.1",
            },
        )

        wait_until(lambda: space_of_segments(directory) < SEGMENT_MIB + 2, deadline_s=60)
        wait_until(lambda: space_of_deleted(broker) == 0, deadline_s=60)

"""Brokers that are filled and drained by the command line, with all records at their offsets."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from spark_logbus.client import Admin, Bootstrap, Cluster, Consumer, Producer
from spark_logbus.model import Earliest, TopicPartition
from tests.helpers import wait_until
from tests.servers.broker import broker_process
from tests.servers.command import command_at
from tests.servers.metrics import health, port_of, scrape, value

PARTITIONS, RECORDS = 4, 2_000


def test_a_broker_joins_is_filled_and_takes_over_all(
    tmp_path: Path,
    chroot: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = command_at(chroot, capfd, monkeypatch)
    with (
        broker_process(tmp_path / "1", chroot, broker_id=1),
        Cluster.from_zookeeper(chroot) as cluster,
    ):
        admin = Admin(cluster)
        admin.create_topic("t", partitions=PARTITIONS)
        with Producer(cluster) as producer:
            for number in range(RECORDS):
                producer.send("t", b"%d" % number * 100, partition=number % PARTITIONS)
        before = records(cluster)
        assert sum(map(len, before.values())) == RECORDS
        with broker_process(tmp_path / "2", chroot, broker_id=2) as second:
            wait_until(lambda: len(Bootstrap.from_zookeeper(chroot).brokers) == 2)
            leveled = command("cluster", "rebalance", "--execute", "--throttle", "0")
            assert leveled.code == 0, leveled
            assert "Moved 2 partitions, " in leveled.out
            assert Counter(leaders(admin)) == {1: 2, 2: 2}
            drained = command("cluster", "drain", "1", "--execute")
            assert drained.code == 0, drained
            assert "Moved 2 partitions, " in drained.out
            assert "Broker 1 has nothing more." in drained.out
            assert leaders(admin) == [2, 2, 2, 2]
            size = sum(each.size_bytes for each in admin.describe_cluster().brokers)
            found = scrape(second)
            assert (value(found, "move_received_bytes_total") or 0) >= size > RECORDS * 100
            assert (value(found, "moves_in"), value(found, "moves_failed")) == (0, 0)
            assert records(cluster) == before
            with Producer(cluster) as producer:
                last = producer.send("t", b"last", partition=0).result()
            assert last.offset == RECORDS // PARTITIONS


def test_a_broker_without_room_gets_nothing(
    tmp_path: Path,
    chroot: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = command_at(chroot, capfd, monkeypatch)
    full = {"moves": {"reserve_bytes": 1 << 49}}
    with (
        broker_process(tmp_path / "1", chroot, broker_id=1),
        Cluster.from_zookeeper(chroot) as cluster,
    ):
        admin = Admin(cluster)
        admin.create_topic("t", partitions=1)
        with Producer(cluster) as producer:
            producer.send("t", b"x")
        with broker_process(tmp_path / "2", chroot, broker_id=2, settings=full) as second:
            wait_until(lambda: len(Bootstrap.from_zookeeper(chroot).brokers) == 2)
            ended = command("topics", "move", "t", "--to", "2", "--execute")
            assert ended.code == 1, ended
            assert "t-0 was not moved: Broker 2 has no room for t-0" in ended.out
            (move,) = admin.describe_moves()
            assert "no room" in move.error
            found = wait_until(lambda: health(port_of(second))[1]["notes"])
            assert "The move of t-0 from broker 1 to broker 2 has failed: Broker 2" in found[0]
            assert value(scrape(second), "moves_failed") == 1
            assert "has no room" in command("cluster").out
            assert command("topics", "move", "t", "--cancel").code == 0
        with Producer(cluster) as producer:
            assert producer.send("t", b"y").result().offset == 1


def leaders(admin: Admin) -> list[int | None]:
    wait_until(lambda: not admin.describe_moves())
    return [each.leader_id for _, each in sorted(admin.describe(["t"])["t"].partitions.items())]


def records(cluster: Cluster) -> dict[int, list[tuple[int, bytes | None]]]:
    """Offsets and values of all records, by partition."""
    found: dict[int, list[tuple[int, bytes | None]]] = {}
    wanted = [TopicPartition("t", number) for number in range(PARTITIONS)]
    with Consumer(cluster) as consumer:
        consumer.assign(wanted)
        for each in wanted:
            consumer.seek(each, Earliest())
        while sum(map(len, found.values())) < RECORDS:
            for record in consumer.poll():
                found.setdefault(record.partition, []).append((record.offset, record.value))
    return found

"""A broker that is started without the logs that it had, or with older ones."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from spark_logbus.client import Admin, Cluster, Consumer, ConsumerConfig, Producer
from spark_logbus.coordination.cluster.partition_states import PartitionStates
from spark_logbus.coordination.groups.offsets import GroupOffsets
from spark_logbus.errors import LogMissingError, OffsetOutOfRangeError
from spark_logbus.local.cluster import BrokerProcess
from spark_logbus.model import Earliest, LastRecords, TopicPartition
from spark_logbus.zookeeper import Session
from tests.builders.record_batches import record_batch
from tests.fault.test_broker_life import read_all
from tests.helpers import wait_until
from tests.servers.broker import broker_process, connect, create_topic, failure, is_led
from tests.servers.metrics import health, port_of, scrape, value, wait_for_health
from tests.servers.wire import Wire

PARTITIONS = 3
AT_FIRST = 5  # record batches of two records in each partition
GONE_ON = 2_000_000_000_000


@pytest.fixture
def broker(tmp_path: Path, chroot: str) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path / "broker", chroot) as broker:
        with connect(broker) as wire:
            create_topic(wire, "t", partitions=PARTITIONS)
        append(broker, *[partition for partition in range(PARTITIONS) for _ in range(AT_FIRST)])
        yield broker


def data_of(broker: BrokerProcess) -> Path:
    return broker.directory / "data"


def append(broker: BrokerProcess, *partitions: int) -> list[int]:
    with connect(broker) as wire:
        results = [wire.append("t", number, record_batch(2)).results[0] for number in partitions]
    assert [result.error for result in results] == [None] * len(results)
    return [result.base_offset for result in results]


def is_refused(wire: Wire, partition: int) -> LogMissingError | None:
    error = wire.append("t", partition, record_batch(2)).results[0].error
    found = None if error is None else error.to_exception()
    return found if isinstance(found, LogMissingError) else None


def is_read(wire: Wire, partition: int) -> bool:
    return wire.fetch("t", partition, 0).results[0].length > 0


def check_refused(broker: BrokerProcess, *partitions: int) -> None:
    """Partitions without logs are refused by every way in, and that is told; all others are served
    whole."""
    with connect(broker) as wire:
        for partition in range(PARTITIONS):
            if partition in partitions:
                error = wait_until(partial(is_refused, wire, partition))
                assert error is not None
                assert f"logbus topics give-up t --partition {partition}" in error.message
                assert "Mount its disk" in error.message
                refused = failure(wire.fetch("t", partition, 0).results[0].error)
                assert isinstance(refused, LogMissingError)
            else:
                wait_until(partial(is_read, wire, partition))
                assert len(read_all(wire, partition)) >= AT_FIRST
    reasons = wait_for_health(port_of(broker), 503)["reasons"]
    assert len(reasons) == len(partitions)
    assert all("give-up" in reason for reason in reasons)
    assert value(scrape(broker), "partitions_refused") == len(partitions)
    assert value(scrape(broker), "partitions_offline") == len(partitions)


def restarted(broker: BrokerProcess) -> str:
    """Start the stopped broker; what it said until it was ready."""
    before = broker.log_file.stat().st_size
    broker.start()
    return broker.log_file.read_text()[before:]


def check_whole(broker: BrokerProcess, *, batches: int = AT_FIRST) -> None:
    with connect(broker) as wire:
        wait_until(lambda: is_led(wire, "t"))
        for partition in range(PARTITIONS):
            assert read_all(wire, partition) == [2 * number for number in range(batches)]
    wait_until(lambda: health(port_of(broker))[0] == 200)


def logbus(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "spark_logbus.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.long
def test_a_missing_directory_is_refused_until_it_is_back(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    broker.stop()
    (data_of(broker) / "t-1").rename(tmp_path / "away")
    restarted(broker)
    check_refused(broker, 1)
    assert not (data_of(broker) / "t-1").exists(), "where the disk is to be mounted"
    broker.stop()
    restarted(broker)  # the checkpoint goes on knowing of it
    check_refused(broker, 1)
    assert broker.log_file.read_text().count("Partition t-1 is not served") == 2
    broker.stop()
    (tmp_path / "away").rename(data_of(broker) / "t-1")
    restarted(broker)
    check_whole(broker)
    assert append(broker, 0, 1, 2) == [2 * AT_FIRST] * 3


def test_a_missing_data_directory_is_refused_until_it_is_back(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    broker.stop()
    data_of(broker).rename(tmp_path / "away")
    restarted(broker)
    check_refused(broker, 0, 1, 2)
    assert not list(data_of(broker).glob("t-*"))
    broker.stop()
    shutil.rmtree(data_of(broker))
    (tmp_path / "away").rename(data_of(broker))
    restarted(broker)
    check_whole(broker)
    assert append(broker, 0, 1, 2) == [2 * AT_FIRST] * 3


@pytest.mark.long
def test_a_restored_backup_is_refused_where_records_are_missing(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    broker.stop()
    shutil.copytree(data_of(broker), tmp_path / "backup")
    restarted(broker)
    with connect(broker) as wire:
        wait_until(lambda: is_led(wire, "t"))
    append(broker, 2, 2)
    broker.stop()
    data_of(broker).rename(tmp_path / "newest")
    shutil.copytree(tmp_path / "backup", data_of(broker))
    restarted(broker)
    check_refused(broker, 2)
    assert "ends at offset 10, and reached 14" in health(port_of(broker))[1]["reasons"][0]
    broker.stop()
    shutil.rmtree(data_of(broker))
    (tmp_path / "newest").rename(data_of(broker))
    restarted(broker)
    with connect(broker) as wire:
        wait_until(lambda: is_led(wire, "t"))
        assert read_all(wire, 2) == [2 * number for number in range(AT_FIRST + 2)]


@pytest.mark.long
def test_a_kill_is_no_reason_to_refuse_a_log(
    broker: BrokerProcess, tmp_path: Path, chroot: str
) -> None:
    """Ends are noted while the broker runs, not only when it stops."""
    broker.stop()
    shutil.copytree(data_of(broker), tmp_path / "backup")
    restarted(broker)
    with connect(broker) as wire:
        wait_until(lambda: is_led(wire, "t"))
    append(broker, *[0] * 20)
    with Session(chroot, client_name="test") as session:
        states = PartitionStates(session)
        wait_until(lambda: states.states("t")[0].end == 2 * (AT_FIRST + 20))
    broker.kill()
    restarted(broker)
    with connect(broker) as wire:
        wait_until(lambda: is_led(wire, "t"))
        assert read_all(wire, 0) == [2 * number for number in range(AT_FIRST + 20)]
    broker.kill()
    shutil.rmtree(data_of(broker))
    shutil.copytree(tmp_path / "backup", data_of(broker))
    restarted(broker)
    check_refused(broker, 0)


@pytest.mark.long
def test_a_given_up_log_continues_after_all_its_offsets(broker: BrokerProcess, chroot: str) -> None:
    lost, kept = TopicPartition("t", 1), TopicPartition("t", 0)
    refusal = logbus("topics", "give-up", "t", "-z", chroot)
    assert refusal.returncode == 1
    assert "no partition is refused" in refusal.stderr
    with Session(chroot, client_name="test") as session, Cluster.from_zookeeper(chroot) as cluster:
        topic_id = cluster.topic("t", cluster.retry_deadline()).topic_id
        groups = GroupOffsets(session)
        groups.commit("g", {lost: 6, kept: 6}, actor="test", topic_ids={"t": topic_id})
        broker.stop()
        shutil.rmtree(data_of(broker) / "t-1")
        restarted(broker)
        check_refused(broker, 1)
        for words in (["--partition", "0"], ["--partition", "7"]):
            assert logbus("topics", "give-up", "t", *words, "-z", chroot).returncode == 1
        shown = logbus("topics", "give-up", "t", "-z", chroot)
        assert shown.returncode == 0
        assert "Nothing was changed" in shown.stdout
        row = rf"t +1 +1 +{2 * AT_FIRST} +6 +- +{GONE_ON}\n"
        assert re.search(row, shown.stdout)
        check_refused(broker, 1)
        done = logbus("topics", "give-up", "t", "--execute", "-z", chroot)
        assert done.returncode == 0
        assert f"t-1 is served again, from offset {GONE_ON:,} on." in done.stdout
        assert append(broker, 1, 0) == [GONE_ON, 2 * AT_FIRST]
        assert wait_until(lambda: health(port_of(broker))[0] == 200)

        config = ConsumerConfig(group="g", zookeeper=chroot)
        with Consumer(cluster, config) as consumer:
            consumer.assign([lost])
            with pytest.raises(OffsetOutOfRangeError, match=f"Offset 6 of t-1.*{GONE_ON}"):
                consumer.poll_arrow(60)
            consumer.seek(lost, GONE_ON + 3)  # beyond the end: no silent wait either
            with pytest.raises(OffsetOutOfRangeError):
                consumer.poll_arrow(60)
    broker.stop()
    restarted(broker)
    with connect(broker) as wire:
        wait_until(lambda: is_led(wire, "t"))
        assert wire.fetch("t", 1, GONE_ON).results[0].high_watermark == GONE_ON + 2


def produce(cluster: Cluster, topic: str, count: int) -> list[int | None]:
    with Producer(cluster) as producer:
        sent = [producer.send(topic, b"%d" % number) for number in range(count)]
    return [each.result(60).offset for each in sent]


@pytest.mark.long
def test_a_restored_backup_is_used_and_goes_on_behind_what_is_lost(
    broker: BrokerProcess, tmp_path: Path, chroot: str
) -> None:
    """Four of 14 records are newer than the backup: those alone are lost, and everybody is told."""
    short = TopicPartition("u", 0)
    with Session(chroot, client_name="test") as session, Cluster.from_zookeeper(chroot) as cluster:
        admin = Admin(cluster)
        topic_id = admin.create_topic("u", partitions=1).topic_id
        offsets = GroupOffsets(session)
        offsets.commit("early", {short: 4}, actor="test", topic_ids={"u": topic_id})
        offsets.commit("late", {short: 13}, actor="test", topic_ids={"u": topic_id})
        produce(cluster, "u", 10)
        broker.stop()
        shutil.copytree(data_of(broker), tmp_path / "backup")
        restarted(broker)
        # A producer that goes on over all of it, and so knows of records that are lost.
        with Producer(cluster) as producer:
            for _ in range(4):
                producer.send("u", b"lost").result(60)
            broker.stop()
            shutil.rmtree(data_of(broker))
            shutil.copytree(tmp_path / "backup", data_of(broker))
            restarted(broker)
            wait_until(lambda: value(scrape(broker), "partitions_refused") == 1)
            shown = logbus("topics", "give-up", "u", "-z", chroot)
            assert re.search(rf"u +0 +1 +14 +13 +10 +{GONE_ON}\n", shown.stdout)
            assert "stay readable" in shown.stdout
            assert value(scrape(broker), "partitions_refused") == 1
            done = logbus("topics", "give-up", "u", "--execute", "-z", chroot)
            said = f"u-0 is served again, from offset {GONE_ON:,} on, with what it has up to"
            assert f"{said} offset 10." in done.stdout
            assert producer.send("u", b"new").result(60).offset == GONE_ON
        assert produce(cluster, "u", 1) == [GONE_ON + 1]
        assert wait_until(lambda: health(port_of(broker))[0] == 200)
    for again in (False, True):
        if again:
            broker.kill()
            restarted(broker)
            with connect(broker) as wire:
                wait_until(lambda: is_led(wire, "u"))
        with Cluster.from_zookeeper(chroot) as cluster:
            admin = Admin(cluster)
            for group, lag, state in (("early", 6 + 2, "ok"), ("late", 2, "records lost")):
                [position] = admin.describe_group(group).positions
                assert (position.lag, position.state) == (lag, state)
            assert admin.list_offsets({short: LastRecords(3)})[short] == 9
            with Consumer(cluster, ConsumerConfig(start=Earliest())) as consumer:
                consumer.assign([short])
                assert [each.offset for each in consumer.poll(60)] == list(range(10))
                assert consumer.metrics()["records_lag"] == 2
                with pytest.raises(OffsetOutOfRangeError, match=f"from 10 on were lost.*{GONE_ON}"):
                    consumer.poll(60)
            with Consumer(cluster, ConsumerConfig(out_of_range="earliest")) as consumer:
                consumer.assign([short])
                consumer.seek(short, 12)
                assert next(iter(consumer)).offset == GONE_ON
        read = logbus("consume", "u", "-f", "%o\n", "-z", chroot)
        assert read.returncode == 0
        assert read.stdout.split() == [str(at) for at in (*range(10), GONE_ON, GONE_ON + 1)]
        assert "from offset 10 on were lost" in read.stderr
        assert re.search(r"u +1 +1 +12 ", logbus("topics", "list", "-z", chroot).stdout)
    broker.stop()
    assert logbus("verify", str(data_of(broker))).returncode == 0

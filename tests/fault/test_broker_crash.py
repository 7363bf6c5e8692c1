"""A broker is killed at random moments under producers and readers, or its machine loses power.

After every crash the log is read back: each acknowledged record is at its offset, so is each
record that a reader was handed, no offset ever changed its record, offsets are dense, and the
records of one producer are in order. A producer repeats what was not acknowledged, so a record
may be there more than once; one that is sent without repeating may not.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from spark_logbus.client import Cluster
from spark_logbus.coordination import paths
from spark_logbus.local.cluster import BrokerProcess
from spark_logbus.protocol import Api, MetadataRequest, MetadataResponse
from tests.builders.record_batches import record_batch
from tests.fakes.disk import NOTHING, RandomSurvival
from tests.fault.crash_load import (
    PARTITIONS,
    TOPIC,
    Once,
    Participant,
    Publisher,
    Reader,
    Repeating,
    Truth,
)
from tests.fault.forgetful_broker import ForgetfulBroker
from tests.helpers import wait_until
from tests.servers.broker import SESSION_MS, broker_process, connect, create_topic, is_led
from tests.servers.wire import Wire, append_request

# Whether a producer that repeats may leave a record twice: without idempotence it may.
DUPLICATES: Final = False
# Small, so that crashes meet rolls, retired indexes and batches of several requests too.
_BROKER = {"zookeeper_session_ms": SESSION_MS}
_LOG = {"segment_bytes": 1 << 20, "index_interval_bytes": 256}
# What a round appends to a partition is less, or the check of the ends fails.
_KEPT_BYTES = 16 << 20

Crash = Callable[[random.Random], None]


def bounds(wire: Wire) -> tuple[dict[int, int], dict[int, int]]:
    """Log start offset and high watermark of each partition."""
    response = wire.call(Api.METADATA, MetadataRequest([TOPIC], ends=True), MetadataResponse)
    ends = [(each.partition, each.ends) for each in response.topics[0].partitions]
    known = [(partition, each) for partition, each in ends if each is not None]
    assert len(known) == PARTITIONS
    return (
        {partition: each.log_start_offset for partition, each in known},
        {partition: each.high_watermark for partition, each in known},
    )


def end_session(zookeeper: str) -> None:
    """Do what ZooKeeper does a second after a crash, so that rounds need not wait for it."""
    client = KazooClient(hosts=zookeeper)
    client.start()
    try:
        with suppress(NoNodeError):
            client.delete(paths.broker(1))
    finally:
        client.stop()
        client.close()


def crash_and_check(
    broker: BrokerProcess, zookeeper: str, crash: Crash, *, rounds: int, seed: int
) -> None:
    chance = random.Random(seed)
    truth = Truth()
    with connect(broker) as wire:
        create_topic(wire, TOPIC, partitions=PARTITIONS)
    with Cluster.from_zookeeper(zookeeper) as cluster:
        publishers: list[Publisher] = [
            *(Repeating(n, seed + n, cluster) for n in range(1, 5)),
            Once(5, seed + 5, lambda: connect(broker)),
        ]
        readers = [Reader(n, cluster) for n in range(4)]
        everyone: list[Participant] = [*publishers, *readers]
        for each in everyone:
            each.start()
        try:
            for number in range(rounds):
                under_load(everyone, chance)
                crash(chance)
                known = [each.acknowledged for each in publishers]
                known += [each.seen for each in readers]
                before = [len(found) for found in known]
                end_session(zookeeper)
                broker.start()
                with connect(broker) as wire:
                    wait_until(lambda: is_led(wire, TOPIC))
                    starts, ends = bounds(wire)
                assert all(starts[n] <= end for n, end in enumerate(truth.ends()))
                truth.extend(cluster, ends)
                for found, count in zip(known, before, strict=True):
                    truth.settle(found, lost_after=count)
                if number % 20 == 19:
                    truth.check_again(cluster)
        finally:
            for each in everyone:
                each.stopping.set()
            for each in everyone:
                each.join(90)
        assert [each.error for each in everyone] == [None] * len(everyone)
        with connect(broker) as wire:
            _, ends = bounds(wire)
        truth.extend(cluster, ends)
        truth.check_again(cluster)
    for found in known:
        truth.settle(found, lost_after=len(found))
        assert found == []
    for publisher in publishers:
        if isinstance(publisher, Repeating):
            assert publisher.progress == publisher.sent, "in the end all were acknowledged"
    repeated = truth.check_history(publishers, duplicates=DUPLICATES)
    print(  # noqa: T201 - shown with -s: what the run was worth
        f"{rounds} crashes, {sum(truth.ends())} records, {repeated} of them more than once, "
        f"{sum(each.progress for each in readers)} read"
    )


def under_load(everyone: Sequence[Participant], chance: random.Random) -> None:
    """Return at some moment in the middle of it all, after everyone got on."""
    before = [each.progress for each in everyone]
    wait_until(
        lambda: all(
            each.progress >= start + 20 or each.error
            for each, start in zip(everyone, before, strict=True)
        ),
        deadline_s=60,
        message="everyone to get on",
    )
    assert [each.error for each in everyone] == [None] * len(everyone)
    threading.Event().wait(chance.random() / 5)


def kill_and_check(directory: Path, zookeeper: str, *, rounds: int, seed: int) -> None:
    broker = BrokerProcess(
        1, directory, zookeeper=zookeeper, settings={"broker": _BROKER, "log": _LOG}
    )
    broker.start()
    try:
        crash_and_check(broker, zookeeper, lambda _: broker.kill(), rounds=rounds, seed=seed)
    finally:
        broker.kill()


def cut_power_and_check(directory: Path, zookeeper: str, *, rounds: int, seed: int) -> None:
    log = {**_LOG, "retention_bytes": _KEPT_BYTES}
    broker = ForgetfulBroker(
        directory, zookeeper=zookeeper, settings={"broker": _BROKER, "log": log}
    )

    def crash(chance: random.Random) -> None:
        survival = NOTHING if chance.random() < 0.5 else RandomSurvival(chance.randrange(1 << 30))
        broker.lose_power(survival)

    broker.start()
    try:
        crash_and_check(broker, zookeeper, crash, rounds=rounds, seed=seed)
    finally:
        broker.kill()


@pytest.mark.parametrize("rounds", [1, pytest.param(3, marks=pytest.mark.long)])
def test_what_was_acknowledged_or_read_survives_kill_9(
    tmp_path: Path, chroot: str, rounds: int
) -> None:
    kill_and_check(tmp_path, chroot, rounds=rounds, seed=1)


@pytest.mark.long
def test_what_was_written_and_never_flushed_survives_kill_9(tmp_path: Path, chroot: str) -> None:
    data = record_batch()
    with broker_process(tmp_path, chroot) as broker:
        with connect(broker) as wire:
            create_topic(wire, "t", config={"flush.ms": "3600000"})
            for _ in range(10):
                wire.append("t", 0, data, acks="written")
                wire.send(Api.APPEND, append_request("t", 0, data, acks="none"), data)
            last = wire.append("t", 0, data, acks="written").results[0]
            assert last.base_offset == 20
            assert not wire.fetch("t", 0, 0).results[0].length, "it was flushed"
        broker.kill()
        broker.start()
        with connect(broker) as wire:
            wait_until(lambda: is_led(wire, "t"))
            assert wire.fetch("t", 0, 0).results[0].length == 21 * len(data)
            assert wire.append("t", 0, data).results[0].base_offset == 21


@pytest.mark.parametrize("rounds", [1, pytest.param(3, marks=pytest.mark.long)])
def test_what_was_acknowledged_or_read_survives_power_loss(
    tmp_path: Path, chroot: str, rounds: int
) -> None:
    cut_power_and_check(tmp_path, chroot, rounds=rounds, seed=2)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("crash", [kill_and_check, cut_power_and_check])
def test_nothing_is_lost_in_200_crashes(
    tmp_path: Path, chroot: str, crash: Callable[..., None]
) -> None:
    crash(tmp_path, chroot, rounds=200, seed=300)

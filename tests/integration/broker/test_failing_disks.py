"""The disk of a leader dies or is full, and others that are in sync lead."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_logbus.client import Cluster, Producer, ProducerConfig
from spark_logbus.errors import LogbusError, PartitionOfflineError
from spark_logbus.model import Acks
from tests.helpers import wait_until
from tests.servers.kill_points import KillPoints
from tests.servers.replicas import BrokerProcesses, create, numbers, send

BROKERS = (1, 2, 3)
LASTING_MS = 10_000  # a session, which is to outlast a busy machine's pauses


@pytest.fixture
def points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KillPoints:
    points = KillPoints(tmp_path / "points")
    for variable, value in points.environment.items():
        monkeypatch.setenv(variable, value)
    return points


@pytest.fixture
def brokers(points: KillPoints, tmp_path: Path, chroot: str) -> Iterator[BrokerProcesses]:
    three = BrokerProcesses(tmp_path, chroot, BROKERS, session_ms=LASTING_MS)
    try:
        three.start(*BROKERS)
        yield three
    finally:
        three.end_all()


@pytest.fixture
def cluster(brokers: BrokerProcesses) -> Iterator[Cluster]:
    with brokers.connect() as cluster:
        yield cluster


def test_a_leader_whose_disk_dies_is_replaced_and_comes_back_when_it_works_again(
    brokers: BrokerProcesses, cluster: Cluster, points: KillPoints
) -> None:
    """The process lives on, in sync by all that its session tells; a producer notices nothing."""
    leader = create(brokers, cluster, partitions=3)
    others = sorted({*BROKERS} - {leader})
    stopping, sent = threading.Event(), [0]
    failures: list[LogbusError] = []

    def produce() -> None:
        try:
            config = ProducerConfig(acks=Acks.REPLICATED, linger_ms=0)
            with Producer(cluster, config) as producer:
                while not stopping.is_set():
                    producer.send("t", b"%08d" % sent[0], partition=0).result(60)
                    sent[0] += 1
        except LogbusError as error:
            failures.append(error)

    def wait_for_more() -> None:
        before = sent[0]
        wait_until(lambda: failures or sent[0] > before + 20)
        assert failures == []

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        wait_for_more()
        with points.failing_flushes(brokers.processes[leader].pid):
            now = brokers.wait_until_led(not_by=leader)
            assert now.leader in others
            assert leader not in now.in_sync
            wait_for_more()
            assert brokers.processes[leader].running
        brokers.wait_until_in_sync(*BROKERS)
        assert brokers.state().leader == now.leader, "the lead stays where it is"
        wait_for_more()
    finally:
        stopping.set()
        thread.join(60)
    assert failures == []
    assert numbers(cluster, sent[0]) == [*range(sent[0])]
    brokers.wait_until_in_sync(*BROKERS)
    for each in others:
        brokers.processes[each].kill()
    brokers.wait_until_led(by=leader)
    assert numbers(cluster, sent[0]) == [*range(sent[0])], "its log has all that the others had"


def test_a_leader_that_is_alone_in_sync_keeps_the_lead_when_its_disk_dies(
    brokers: BrokerProcesses, cluster: Cluster, points: KillPoints
) -> None:
    leader = create(brokers, cluster)
    send(cluster, range(50))
    for each in {*BROKERS} - {leader}:
        brokers.processes[each].kill()
    brokers.wait_until_in_sync(leader)
    wait_until(lambda: numbers(cluster, 50) == [*range(50)])
    with points.failing_flushes(brokers.processes[leader].pid):
        with pytest.raises(PartitionOfflineError):
            send(cluster, range(50, 51), acks=Acks.FLUSHED)
        state = brokers.state()
        assert (state.leader, state.in_sync) == (leader, [leader])
        assert numbers(cluster, 50) == [*range(50)], "what it has can be read"

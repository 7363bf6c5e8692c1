"""Partitions with several replicas move between brokers, which are killed and stopped meanwhile."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from spark_logbus.client import Admin, Cluster, Producer, ProducerConfig
from spark_logbus.errors import BrokerUnavailableError
from spark_logbus.model import Acks
from tests.helpers import wait_until
from tests.servers.replicas import T0, BrokerProcesses, create_at, numbers, send

BROKERS = (1, 2, 3, 4)


@pytest.fixture
def brokers(processes: BrokerProcesses) -> BrokerProcesses:
    processes.restore()
    return processes


@pytest.fixture
def cluster(brokers: BrokerProcesses) -> Iterator[Cluster]:
    with brokers.connect() as cluster:
        yield cluster


def create(brokers: BrokerProcesses, cluster: Cluster, *replicas: int, count: int = 500) -> int:
    """A topic whose partition is at these brokers and has numbers; returns who leads it."""
    create_at(brokers, cluster, *replicas)
    send(cluster, range(count))
    return brokers.state().leader


def move(cluster: Cluster, *to: int, throttle: int = 0) -> None:
    Admin(cluster).move_partitions({T0: to}, throttle)


def move_without(brokers: BrokerProcesses, cluster: Cluster, away: int, *to: int) -> None:
    """Begins a move for which one of its brokers, which stands still, is waited for."""

    def is_begun() -> bool:
        brokers.signal(away, signal.SIGSTOP)
        try:
            move(cluster, *to)
        except BrokerUnavailableError:  # it was not registered just then
            brokers.signal(away, signal.SIGCONT)
            return False
        return True

    wait_until(is_begun, message=f"a move to broker {away}, which stands still")


@contextmanager
def writing(cluster: Cluster, start: int) -> Iterator[Callable[[], int]]:
    """Sends one number after the other; the callable ends that and returns how many there are."""
    ended, count = threading.Event(), start

    def write() -> None:
        nonlocal count
        with Producer(cluster, ProducerConfig(acks=Acks.REPLICATED)) as producer:
            while not ended.is_set():
                producer.send("t", b"%08d" % count, partition=0).result(60)
                count += 1

    with ThreadPoolExecutor(1) as executor:
        written = executor.submit(write)

        def end() -> int:
            ended.set()
            written.result(60)
            return count

        try:
            yield end
        finally:
            ended.set()


@pytest.mark.parametrize(
    ("replicas", "to"),
    [
        ((1, 2, 3), (1, 2, 4)),  # another follower
        ((1, 2, 3), (2, 4, 3)),  # without the leader
        ((1, 2), (3, 4)),  # all are new
        ((1,), (1, 2, 3)),  # more replicas
        ((1, 2, 3), (2,)),  # fewer
        ((1, 2), (2, 1)),  # another preferred leader
    ],
)
def test_a_partition_moves_while_it_is_written(
    brokers: BrokerProcesses, cluster: Cluster, replicas: tuple[int, ...], to: tuple[int, ...]
) -> None:
    """Each record that was acknowledged is there once, and who lost its replica has no log more."""
    create(brokers, cluster, *replicas)
    with writing(cluster, 500) as end:
        move(cluster, *to)
        state = brokers.wait_until_at(*to)
        assert state.leader in to
        count = end()
    send(cluster, range(count, count + 100))
    assert numbers(cluster, count + 100) == [*range(count + 100)]
    for each in {*replicas} - {*to}:
        brokers.wait_until_without_log(each)
    if len(to) > 1:  # what the new ones have is good for an election
        brokers.processes[brokers.state().leader].kill()
        assert brokers.wait_until_led().leader in to
        assert numbers(cluster, count + 100) == [*range(count + 100)]


def test_a_move_that_is_cancelled_leaves_nothing_behind(
    brokers: BrokerProcesses, cluster: Cluster
) -> None:
    """A new replica is in sync by then. It is not any more, and its copy goes."""
    create(brokers, cluster, 1, 2)
    admin = Admin(cluster)
    move_without(brokers, cluster, 4, 1, 3, 4)
    brokers.wait_until_in_sync(1, 2, 3)
    assert admin.cancel_moves([T0]) == {T0}
    brokers.wait_until_at(1, 2)
    brokers.wait_until_without_log(3)
    brokers.signal(4, signal.SIGCONT)
    send(cluster, range(500, 600))
    wait_until(lambda: 4 in brokers.registered(admin), message="broker 4 to be registered")
    # What was in sync in the move before does not end another one.
    move(cluster, 1, 3, 4)
    brokers.wait_until_at(1, 3, 4)
    assert numbers(cluster, 600) == [*range(600)]


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_new_broker_is_elected_while_another_holds_up_its_move(
    brokers: BrokerProcesses, cluster: Cluster, is_cancelled: bool
) -> None:
    """Broker 3 alone is left with what was acknowledged, and leads on after its own death."""
    create(brokers, cluster, 1)
    move_without(brokers, cluster, 4, 3, 4)
    brokers.wait_until_in_sync(1, 3)
    send(cluster, range(500, 600))
    brokers.processes[1].kill()
    brokers.wait_until_led(by=3)
    assert brokers.topic().partitions[0] == [1, 3]
    brokers.processes[3].kill()
    brokers.start(3)
    brokers.wait_until_led(by=3)
    send(cluster, range(600, 700))
    brokers.start(1)
    brokers.wait_until_in_sync(1, 3)
    if is_cancelled:
        assert Admin(cluster).cancel_moves([T0]) == {T0}
        brokers.wait_until_at(1, 3)
    else:
        brokers.signal(4, signal.SIGCONT)
        brokers.wait_until_at(3, 4)
        brokers.wait_until_without_log(1)
    assert numbers(cluster, 700) == [*range(700)]


@pytest.mark.parametrize("who", ["leader", "new", "leaving"])
def test_a_broker_is_killed_in_a_move(brokers: BrokerProcesses, cluster: Cluster, who: str) -> None:
    """The move goes on when a broker leads, and ends when all to whom it goes are there."""
    leader = create(brokers, cluster, 1, 2, 3, count=2_000)
    (stays, leaves) = [each for each in (1, 2, 3) if each != leader]
    killed = {"leader": leader, "new": 4, "leaving": leaves}[who]
    with writing(cluster, 2_000) as end:
        move(cluster, stays, leader, 4, throttle=20_000)
        if who == "new":
            wait_until(lambda: brokers.has_log(4), message="a copy")
        brokers.processes[killed].kill()
        if who == "leader":
            brokers.wait_until_led(not_by=leader)
        Admin(cluster).move_partitions({T0: (stays, leader, 4)}, 0)  # no throttle from now on
        if who != "leaving":
            brokers.start(killed)
        brokers.wait_until_at(stays, leader, 4)
        count = end()
    if who == "leaving":
        brokers.start(killed)
        brokers.wait_until_without_log(killed)
    assert numbers(cluster, count) == [*range(count)]


@pytest.mark.long
@pytest.mark.parametrize("killed", [1, 2])
def test_a_move_goes_on_after_a_kill(
    brokers: BrokerProcesses, cluster: Cluster, killed: int
) -> None:
    """Kills the broker while there are records to copy, and again when it is nearly done."""
    create_at(brokers, cluster, 1, config={"segment.bytes": "100000"})
    send(cluster, range(2_500), padding=1_000)
    move(cluster, 2, throttle=400_000)
    for size_bytes in (100_000, 1_400_000):
        wait_until(lambda: directory_bytes(brokers.data(2) / "t-0") > size_bytes)  # noqa: B023
        brokers.processes[killed].kill()
        brokers.start(killed)
    brokers.wait_until_led(by=2)
    send(cluster, range(2_500, 2_510))
    assert numbers(cluster, 2_510) == [*range(2_510)]


def directory_bytes(directory: Path) -> int:
    """Size of what is in a directory, of which files may go meanwhile; 0 without one."""
    size = 0
    with suppress(FileNotFoundError):
        for file in directory.iterdir():
            size += file.stat().st_size
    return size

"""Leaders of replicated partitions are killed, stopped and restarted, and others are elected."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from spark_logbus.client import Admin, Cluster, Producer, ProducerConfig
from spark_logbus.errors import LogbusError, UnknownTopicError
from spark_logbus.model import Acks, Latest, TopicPartition
from tests.helpers import frozen, wait_until
from tests.servers.command import command_at
from tests.servers.replicas import T0, BrokerProcesses, create, numbers, send

BROKERS = (1, 2, 3)


@pytest.fixture
def brokers(processes: BrokerProcesses) -> BrokerProcesses:
    processes.restore()
    return processes


@pytest.fixture
def cluster(brokers: BrokerProcesses) -> Iterator[Cluster]:
    with brokers.connect() as cluster:
        yield cluster


def test_another_is_elected_in_the_place_of_a_leader_that_is_killed(
    brokers: BrokerProcesses, cluster: Cluster
) -> None:
    """Records that were acknowledged are there, and the old leader comes back as a follower."""
    leader = create(brokers, cluster)
    send(cluster, range(1_000))
    before = brokers.state()
    brokers.processes[leader].kill()
    now = brokers.wait_until_led(not_by=leader)
    assert now.leader_epoch > before.leader_epoch
    assert leader not in brokers.wait_until_in_sync(*{*BROKERS} - {leader}).in_sync
    assert numbers(cluster, 1_000) == [*range(1_000)]
    send(cluster, range(1_000, 2_000))
    brokers.start(leader)
    brokers.wait_until_in_sync(*BROKERS)
    assert brokers.state().leader == now.leader
    assert numbers(cluster, 2_000) == [*range(2_000)]


@pytest.mark.parametrize("processes", [4_000], indirect=True)
def test_a_new_leader_shows_only_what_the_other_replica_has(
    brokers: BrokerProcesses, cluster: Cluster
) -> None:
    leader = create(brokers, cluster)
    send(cluster, range(10))
    brokers.processes[leader].kill()
    now = brokers.wait_until_led(not_by=leader).leader
    (other,) = {*BROKERS} - {leader, now}
    brokers.wait_until_in_sync(now, other)
    send(cluster, range(10, 20))
    with frozen(brokers.processes[other].pid):  # for less than its session lasts
        send(cluster, range(20, 30), acks=Acks.FLUSHED)
        assert Admin(cluster).list_offsets({T0: Latest()}) == {T0: 20}
    wait_until(lambda: Admin(cluster).list_offsets({T0: Latest()}) == {T0: 30})


@pytest.mark.parametrize("processes", [4_000], indirect=True)
def test_a_leader_that_was_stopped_comes_back_and_is_cut_back(
    brokers: BrokerProcesses, cluster: Cluster
) -> None:
    """A leader sleeps beyond its session. What only it had goes, nothing that was replicated."""
    leader = create(brokers, cluster)
    send(cluster, range(100))
    others = {*BROKERS} - {leader}
    for each in others:  # for less than their sessions last, so they stay in sync
        brokers.signal(each, signal.SIGSTOP)
    send(cluster, range(900, 910), acks=Acks.WRITTEN)  # it may be on its way to them already
    send(cluster, range(950, 960), acks=Acks.WRITTEN)
    brokers.signal(leader, signal.SIGSTOP)
    for each in others:
        brokers.signal(each, signal.SIGCONT)
    now = brokers.wait_until_led(not_by=leader)
    brokers.signal(leader, signal.SIGCONT)
    send(cluster, range(100, 200))
    brokers.wait_until_in_sync(*BROKERS)
    assert brokers.state().leader == now.leader
    for each in others:
        brokers.processes[each].kill()
    brokers.wait_until_led(by=leader)
    found = numbers(cluster, 200)
    assert [each for each in found if each < 900] == [*range(200)]
    assert not {*found} & {*range(950, 960)}


def test_all_brokers_restart_at_once(brokers: BrokerProcesses, cluster: Cluster) -> None:
    create(brokers, cluster, partitions=3)
    send(cluster, range(500))
    for process in brokers.processes.values():
        process.kill()
    brokers.start(*BROKERS)
    brokers.wait_until_led()
    for each in range(3):
        brokers.wait_until_in_sync(*BROKERS, where=TopicPartition("t", each))
    assert numbers(cluster, 500) == [*range(500)]
    send(cluster, range(500, 600))
    assert numbers(cluster, 600) == [*range(600)]


def test_a_producer_notices_nothing_of_a_rolling_restart(
    brokers: BrokerProcesses, cluster: Cluster
) -> None:
    """Each broker gives its leads away before it stops; nothing fails, is lost or comes twice."""
    create(brokers, cluster, partitions=3)
    stopping, sent = threading.Event(), [0, 0, 0]
    failures: list[LogbusError] = []

    def produce() -> None:
        config = ProducerConfig(acks=Acks.REPLICATED, linger_ms=0)
        try:
            with Producer(cluster, config) as producer:
                while not stopping.is_set():
                    futures = [
                        producer.send("t", b"%08d" % sent[each], partition=each)
                        for each in range(3)
                    ]
                    for each, future in enumerate(futures):
                        future.result(60)
                        sent[each] += 1
        except LogbusError as error:
            failures.append(error)

    def went_on(before: list[int]) -> bool:
        return all(now > then for now, then in zip(sent, before, strict=True))

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        for each in BROKERS:
            before = list(sent)
            brokers.processes[each].stop()
            brokers.start(each)
            for number in range(3):
                brokers.wait_until_in_sync(*BROKERS, where=TopicPartition("t", number))
            wait_until(partial(went_on, before))
    finally:
        stopping.set()
        thread.join(60)
    assert failures == []
    for number in range(3):
        where = TopicPartition("t", number)
        assert numbers(cluster, sent[number], where) == [*range(sent[number])]


def test_a_partition_goes_back_to_its_preferred_leader_when_that_is_asked_for(
    brokers: BrokerProcesses,
    cluster: Cluster,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    preferred = create(brokers, cluster)
    brokers.processes[preferred].kill()
    other = brokers.wait_until_led(not_by=preferred).leader
    logbus = command_at(brokers.zookeeper, capfd, monkeypatch)
    refused = logbus("topics", "elect", "t", "--preferred")
    assert refused.code == 1
    assert f"Broker {preferred}, the preferred leader of t-0, is not in sync" in refused.out
    brokers.start(preferred)
    brokers.wait_until_in_sync(*BROKERS)
    send(cluster, range(100))
    assert brokers.state().leader == other
    assert logbus("topics", "elect", "t", "--preferred").code == 0
    assert brokers.wait_until_led(by=preferred).leader == preferred
    again = logbus("topics", "elect", "t", "-p", "0", "--preferred", "--json")  # it leads already
    assert json.loads(again.out) == {"topic": "t", "partition": 0, "problem": None}
    assert logbus("topics", "elect", "t").code == 2, "it does not say who"
    assert Admin(cluster).elect_preferred("t") == {0: None}
    with pytest.raises(UnknownTopicError, match="no partition 3"):
        Admin(cluster).elect_preferred("t", [3])
    assert brokers.wait_until_in_sync(*BROKERS).leader == preferred
    assert numbers(cluster, 100) == [*range(100)]


def test_a_broker_whose_disk_was_emptied_copies_everything_anew(
    brokers: BrokerProcesses, cluster: Cluster
) -> None:
    """A leader comes back before anybody was elected, or after: its log is not the one in sync."""
    leader = create(brokers, cluster)
    send(cluster, range(500))
    brokers.empty_disk(leader)
    brokers.start(leader)
    brokers.wait_until_led(not_by=leader)
    brokers.wait_until_in_sync(*BROKERS)
    for each in {*BROKERS} - {leader}:
        brokers.processes[each].kill()
    brokers.wait_until_led(by=leader)
    assert numbers(cluster, 500) == [*range(500)]


def test_nobody_leads_when_the_last_log_in_sync_is_lost(
    brokers: BrokerProcesses, cluster: Cluster
) -> None:
    """Brokers that were not in sync lack what was acknowledged, so they wait for an operator."""
    leader = create(brokers, cluster)
    others = sorted({*BROKERS} - {leader})
    for each in others:
        brokers.processes[each].kill()
    brokers.wait_until_in_sync(leader)
    send(cluster, range(100), acks=Acks.FLUSHED)
    wait_until(lambda: brokers.state().end)
    brokers.empty_disk(leader)
    brokers.start(*others)
    brokers.start(leader)
    refused = wait_until(lambda: brokers.state().refused)
    assert refused is not None
    assert "its log" in refused
    state = brokers.state()
    assert (state.leader, state.in_sync) == (leader, [leader])
    assert not any(brokers.serves(each) for each in BROKERS)


def test_the_only_one_in_sync_says_that_it_has_lost_its_log_though_it_did_not_lead(
    brokers: BrokerProcesses, cluster: Cluster
) -> None:
    """Leaders that have lost their logs leave it to the others in sync. One of those has lost its
    own, too, and the broker with some of the records was not in sync."""
    leader = create(brokers, cluster)
    second, third = sorted({*BROKERS} - {leader})
    send(cluster, range(60))
    brokers.processes[third].kill()
    brokers.wait_until_in_sync(leader, second)
    send(cluster, range(60, 100))
    wait_until(lambda: (brokers.state().committed or 0) >= 60, message="it is noted")
    for each in (second, leader):
        brokers.signal(each, signal.SIGSTOP)
    for each in (second, leader):
        brokers.empty_disk(each)
    before = brokers.state()
    assert sorted(before.in_sync) == sorted([leader, second]), "nobody was left to drop one"
    brokers.start(leader)
    brokers.wait_until_in_sync(second)
    brokers.start(second, third)
    refused = wait_until(lambda: brokers.state().refused, message="the only one in sync refuses")
    assert "logbus topics elect t --partition 0 --unclean" in (refused or "")
    state = brokers.state()
    assert (state.leader, state.in_sync) == (second, [second])
    plan = Admin(cluster).elect_unclean("t", execute=True)
    assert [(each.elected, each.in_sync) for each in plan.rows] == [(third, (second,))]
    brokers.wait_until_led(by=third)
    brokers.wait_until_in_sync(*BROKERS)

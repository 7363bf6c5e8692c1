"""Partitions of which nobody in sync lives are led by brokers that lack some of them."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_logbus.client import (
    Admin,
    AtomicWrites,
    Cluster,
    Consumer,
    ConsumerConfig,
    WriteIdentity,
)
from spark_logbus.errors import InvalidRequestError, OffsetOutOfRangeError
from spark_logbus.lost_ends import go_on_at
from spark_logbus.model import Acks, BrokerAddress, Latest
from spark_logbus.record.stage_id import WRITE_BITS
from tests.helpers import wait_until
from tests.integration.broker.test_replicas import stage
from tests.servers.command import command_at
from tests.servers.replicas import T0, BrokerProcesses, create, numbers, send

BROKERS = (1, 2, 3)
#: Offset at which partitions go on that have lost less than a million million records.
BEHIND = go_on_at(1)


@pytest.fixture
def brokers(processes: BrokerProcesses) -> BrokerProcesses:
    processes.restore()
    return processes


@pytest.fixture
def cluster(brokers: BrokerProcesses) -> Iterator[Cluster]:
    with brokers.connect() as cluster:
        yield cluster


def read_on(consumer: Consumer, count: int) -> list[int]:
    found: list[int] = []

    def has_come() -> bool:
        found.extend(int(each.value or b"") for each in consumer.poll(0.2))
        return len(found) >= count

    wait_until(has_come, message=f"{count} records")
    return found


def numbers_around_the_loss(cluster: Cluster, before: int, after: int) -> list[int]:
    """Reads all that is there; in between the consumer is told of what is lost."""
    with Consumer(cluster, ConsumerConfig()) as consumer:
        consumer.assign([T0])
        consumer.seek(T0, "earliest")
        found = read_on(consumer, before)
        with pytest.raises(OffsetOutOfRangeError, match=f"from {before} "):
            read_on(consumer, 1)
        consumer.seek(T0, BEHIND)
        return found + read_on(consumer, after)


def log_of(brokers: BrokerProcesses, broker: int) -> str:
    return (brokers.processes[broker].directory / "broker.out").read_text()


def test_an_operator_has_a_broker_elected_that_lacks_records(
    brokers: BrokerProcesses,
    cluster: Cluster,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logbus = command_at(brokers.zookeeper, capfd, monkeypatch)
    leader = create(brokers, cluster)
    second, third = sorted({*BROKERS} - {leader})
    send(cluster, range(250))
    brokers.processes[third].kill()
    brokers.wait_until_in_sync(leader, second)
    send(cluster, range(250, 400))
    wait_until(lambda: (brokers.state().end or 0) >= 400, message="the end is noted")

    # As long as one that is in sync runs, nobody is elected unclean.
    assert "No partition of t needs an unclean election" in (
        logbus("topics", "elect", "t", "--unclean", "--execute").refusal
    )
    for each in (leader, second):
        brokers.processes[each].kill()
    brokers.start(third)
    wait_until(lambda: [each.broker_id for each in _running(cluster)] == [third])
    before = brokers.state()
    dry = logbus("topics", "elect", "t", "-p", "0", "--unclean")
    assert dry.code == 0, dry
    assert "Dry run" in dry.out
    assert "150 at least" in dry.out
    shown = json.loads(logbus("topics", "elect", "t", "--unclean", "--json").out)
    assert shown == {
        "topic": "t", "partition": 0, "in_sync": before.in_sync, "reached": 400,
        "committed": before.committed, "ends": {str(third): 250}, "elected": third,
        "goes_on_at": BEHIND,
    }  # fmt: skip
    assert brokers.state() == before
    with pytest.raises(InvalidRequestError, match=f"Broker {leader} is not running"):
        Admin(cluster).elect_unclean("t", [0], broker=leader)

    done = logbus("topics", "elect", "t", "--unclean", "--execute")
    assert done.code == 0, done
    assert f"t-0 is led by broker {third}" in done.out
    assert brokers.wait_until_led(by=third).in_sync == [third]
    assert "The records from there on are lost: those up to 400" in log_of(brokers, third)
    again = Admin(cluster).elect_unclean("t", [0], execute=True)
    assert (again.rows, len(again.problems)) == ((), 1)

    # What those that come back have more is cut off, and told.
    brokers.start(leader, second)
    brokers.wait_until_in_sync(*BROKERS)
    for each in (leader, second):
        assert "The records of t-0 from offset 250 up to 400 are cut off here" in (
            log_of(brokers, each)
        )
    send(cluster, range(1000, 1050))
    assert Admin(cluster).list_offsets({T0: Latest()}) == {T0: BEHIND + 50}
    brokers.processes[third].kill()
    brokers.wait_until_led(not_by=third)
    assert numbers_around_the_loss(cluster, 250, 50) == [*range(250), *range(1000, 1050)]


def _running(cluster: Cluster) -> list[BrokerAddress]:
    cluster.invalidate("t")
    Admin(cluster).describe(["t"], ends=False)
    return cluster.brokers


def test_a_topic_that_allows_it_is_led_by_the_broker_with_the_longest_log(
    brokers: BrokerProcesses, cluster: Cluster
) -> None:
    leader = create(brokers, cluster)
    Admin(cluster).alter_topic(
        "t", put={"unclean.leader.election": "true", "min.insync.replicas": "1"}
    )
    shorter, longer = (each for each in _assigned(cluster) if each != leader)
    send(cluster, range(100))
    brokers.processes[shorter].kill()
    brokers.wait_until_in_sync(leader, longer)
    send(cluster, range(100, 200))
    brokers.processes[longer].kill()
    brokers.wait_until_in_sync(leader)
    send(cluster, range(200, 300), acks=Acks.FLUSHED)
    brokers.processes[leader].kill()
    brokers.start(shorter, longer)
    brokers.wait_until_led(by=longer)
    brokers.wait_until_in_sync(shorter, longer)
    send(cluster, range(1000, 1010))
    assert numbers_around_the_loss(cluster, 200, 10) == [*range(200), *range(1000, 1010)]
    brokers.start(leader)
    brokers.wait_until_in_sync(*BROKERS)
    assert "as its topic has unclean.leader.election=true" in log_of(brokers, longer)
    assert "from offset 200 up to 300 are cut off here" in log_of(brokers, leader)


def _assigned(cluster: Cluster) -> tuple[int, ...]:
    return Admin(cluster).describe(["t"], ends=False)["t"].partitions[0].replicas


@pytest.mark.parametrize("restored", [False, True], ids=["emptied", "restored"])
def test_a_replicated_partition_whose_last_log_in_sync_is_lost_is_given_up(
    brokers: BrokerProcesses,
    cluster: Cluster,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    restored: bool,
) -> None:
    """Brokers that run and were not in sync follow what goes on: empty, or a backup that has less
    than they."""
    leader = create(brokers, cluster)
    others = sorted({*BROKERS} - {leader})
    data, backup = brokers.data(leader), tmp_path / "backup"
    send(cluster, range(50))
    if restored:
        brokers.processes[leader].kill()
        shutil.copytree(data, backup, ignore=shutil.ignore_patterns("*.sock"))
        brokers.start(leader)
        brokers.wait_until_in_sync(*BROKERS)
        assert Admin(cluster).elect_preferred("t") == {0: None}
        brokers.wait_until_led(by=leader)
    send(cluster, range(50, 100))
    for each in others:
        brokers.processes[each].kill()
    brokers.wait_until_in_sync(leader)
    wait_until(lambda: (brokers.state().end or 0) >= 100, message="the end is noted")
    brokers.empty_disk(leader)
    if restored:
        shutil.copytree(backup, data)
    brokers.start(*others, leader)
    wait_until(lambda: brokers.state().refused, message="the leader refuses its log")
    logbus = command_at(brokers.zookeeper, capfd, monkeypatch)
    done = logbus("topics", "give-up", "t", "--execute")
    assert done.code == 0, done
    behind = go_on_at(100)
    brokers.wait_until_led(by=leader)
    brokers.wait_until_in_sync(*BROKERS)
    send(cluster, range(1000, 1010))
    brokers.processes[leader].kill()
    brokers.wait_until_led(not_by=leader)
    if restored:
        assert numbers_around_the_loss(cluster, 50, 10) == [*range(50), *range(1000, 1010)]
        assert "from offset 50 up to 100 are cut off here" in log_of(brokers, others[0])
    else:
        assert numbers(cluster, 10) == [*range(1000, 1010)]
        aside = [*brokers.data(others[0]).glob(f"*{brokers.topic().id}*.stray")]
        assert len(aside) == 1, "what it had is kept"
    assert Admin(cluster).list_offsets({T0: Latest()}) == {T0: behind + 10}


def test_a_decided_write_that_the_elected_broker_has_not_is_told_and_hides_nothing(
    brokers: BrokerProcesses, cluster: Cluster
) -> None:
    leader = create(brokers, cluster)
    second, third = sorted({*BROKERS} - {leader})
    send(cluster, range(10))
    brokers.processes[third].kill()
    brokers.wait_until_in_sync(leader, second)
    writes, write = AtomicWrites(cluster), secrets.randbits(WRITE_BITS)
    identity = WriteIdentity(writer="me", version=1)
    decision = writes._decision(identity, write, [stage(cluster, "t", write, 1, range(0, 180, 3))])
    promises = writes._prepare(identity, decision)
    assert writes._decide(identity, decision, promises, None) is None
    for each in (leader, second):  # before anybody has it published
        brokers.processes[each].kill()
    brokers.start(third)
    wait_until(lambda: [each.broker_id for each in _running(cluster)] == [third])
    assert len(Admin(cluster).elect_unclean("t", execute=True).rows) == 1
    brokers.wait_until_led(by=third)
    told = f"The write {write} of me was committed, and cannot be published in t-0"
    wait_until(lambda: told in log_of(brokers, third), message="the loss is told")
    Admin(cluster).alter_topic("t", put={"min.insync.replicas": "1"})
    send(cluster, range(1000, 1005))
    assert numbers_around_the_loss(cluster, 10, 5) == [*range(10), *range(1000, 1005)]

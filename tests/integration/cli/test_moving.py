"""``topics move``, ``cluster drain`` and ``rebalance``, beside a broker that is registered only."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_logbus.client import Admin, Cluster
from spark_logbus.coordination.cluster.brokers import BrokerRegistry
from spark_logbus.coordination.cluster.moves import HandOver, PartitionMoves
from spark_logbus.coordination.cluster.partition_states import PartitionStates
from spark_logbus.coordination.cluster.topics import TopicRegistry
from spark_logbus.coordination.payloads import MovePayload, PartitionState
from spark_logbus.model import BrokerAddress, TopicPartition
from spark_logbus.zookeeper import Session
from tests.helpers import wait_until
from tests.servers.broker import broker_process
from tests.servers.command import Command, command_at
from tests.servers.ports import reserved_port


class World:
    """A topic with two partitions on broker 1; what broker 2 would do is done by hand."""

    def __init__(self, chroot: str, admin: Admin, session: Session) -> None:
        self.chroot = chroot
        self.admin = admin
        self.session = session
        self.states = PartitionStates(session)
        self.moves = PartitionMoves(session)

    def hand_over(self, partition: int) -> None:
        where = TopicPartition("t", partition)
        state = self.states.states_of([where])[where]
        assert isinstance(state, PartitionState)
        record = TopicRegistry(self.session).get("t")
        assert record is not None
        since_us = record.moves[where.partition].since_us
        self.moves.hand_over(
            HandOver(where, record.topic_id, 1, state.leader_epoch, 2, "x", 0, since_us)
        )

    def moving(self) -> set[int]:
        return {each.topic_partition.partition for each in self.admin.describe_moves()}

    def start(self, *words: str) -> subprocess.Popen[str]:
        """A command in a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "spark_logbus.cli", *words],
            env={**os.environ, "LOGBUS_ZOOKEEPER": self.chroot},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip


@pytest.fixture
def world(tmp_path: Path, chroot: str) -> Iterator[World]:
    with broker_process(tmp_path, chroot, broker_id=1), Cluster.from_zookeeper(chroot) as cluster:
        admin = Admin(cluster)
        admin.create_topic("t", partitions=2)
        with reserved_port() as port, Session(chroot, client_name="test") as session:
            BrokerRegistry(session).register(BrokerAddress(2, "127.0.0.1", port), version="test")
            yield World(chroot, admin, session)


@pytest.fixture
def command(
    world: World, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Command:
    return command_at(world.chroot, capfd, monkeypatch)


PLAN = "TOPIC  PARTITION  SIZE-BYTES  FROM  TO\nt              0           0     1   2\n"


def test_a_plan_is_shown_and_done_only_with_execute(world: World, command: Command) -> None:
    dry = command("topics", "move", "t", "-p", "0", "--to", "2")
    assert dry.code == 0
    assert dry.out == PLAN + (
        "Dry run: 1 partition, 0 B would be moved. Nothing was changed; add --execute to do it.\n"
    )
    assert world.moving() == set()
    done = command(
        "topics", "move", "--topic", "t", "-p", "0", "--to", "2", "--throttle", "70MB", "-x",
        "--no-wait",
    )  # fmt: skip
    assert done.code == 0
    assert done.out == PLAN + (
        "The brokers are moving 1 partition, 0 B; `logbus cluster` shows how far they are.\n"
    )
    wait_until(lambda: world.moving() == {0})
    assert [each.throttle for each in world.admin.describe_moves()] == [70_000_000]
    again = command("topics", "move", "t", "-p", "0", "--to", "2")
    assert again.out == "On the way already: 1 partition.\n"
    there = command("topics", "move", "t", "-p", "1", "--to", "1")
    assert there.out.startswith("Nothing to move")


def test_it_waits_and_says_what_has_failed(world: World) -> None:
    command = world.start("topics", "move", "t", "--to", "2", "--execute", "--json")
    wait_until(lambda: world.moving() == {0, 1})
    world.hand_over(0)
    standing = world.moves.begin("t", {1: MovePayload(to=[2], since_us=1)}).moves[1]
    topic_id = world.admin.describe(["t"], ends=False)["t"].topic_id
    why = "The disk of broker 2 has no room."
    world.moves.fail(TopicPartition("t", 1), topic_id=topic_id, move=standing, error=why)
    out, err = command.communicate(timeout=60)
    assert command.returncode == 1
    *plan, end = map(json.loads, out.splitlines())
    assert plan == [
        {"topic": "t", "partition": each, "size_bytes": 0, "from": [1], "to": [2]}
        for each in (0, 1)
    ]
    assert end == {
        "moved": [{"topic": "t", "partition": 0}],
        "failed": [{"topic": "t", "partition": 1, "error": why}],
        "stayed": [],
        "copied_bytes": 0,
    }
    assert f"t-1 was not moved: {why}\n" in err
    assert "1 of 2 partitions, 0 B of 0 B" in err


def test_an_interrupt_leaves_the_moves_going(world: World) -> None:
    command = world.start("cluster", "drain", "1", "--execute")
    assert command.stderr is not None
    told = command.stderr.readline()  # the first line on how far it is
    assert told.startswith("0 of 2 partitions, 0 B of 0 B")
    command.send_signal(signal.SIGINT)
    out, _ = command.communicate(timeout=60)
    assert command.returncode == 130
    assert "Interrupted: the brokers go on moving" in out
    assert world.moving() == {0, 1}
    # Done again, it waits for those.
    again = world.start("cluster", "drain", "1", "--execute")
    assert again.stderr is not None
    assert again.stderr.readline().startswith("0 of 2 partitions")
    for partition in (0, 1):
        world.hand_over(partition)
    out, _ = again.communicate(timeout=60)
    assert out.startswith("On the way already: 2 partitions.\n")
    assert out.endswith("Stop it, and then: logbus cluster forget 1 --execute\n")
    assert again.returncode == 0


def test_moves_are_cancelled_and_said_to_be(world: World, command: Command) -> None:
    world.admin.move_partitions({TopicPartition("t", each): 2 for each in (0, 1)})
    wait_until(lambda: world.moving() == {0, 1})
    cancelled = command("topics", "move", "t", "--cancel", "-p", "1")
    assert cancelled.out == "TOPIC  PARTITION  MOVE\nt              1  cancelled\n"
    rows = command("topics", "move", "t", "--cancel", "--json").out
    assert json.loads(rows) == {"topic": "t", "partition": 0, "move": "cancelled"}
    none = command("topics", "move", "t", "--cancel")
    assert (none.code, none.err) == (0, "No partition of t is on its way.\n")


def test_what_stands_is_shown_by_describe_and_cluster(world: World, command: Command) -> None:
    world.admin.move_partitions({TopicPartition("t", each): 2 for each in (0, 1)}, throttle=9)
    standing = world.moves.begin("t", {1: MovePayload(to=[2], since_us=1)}).moves[1]
    topic_id = world.admin.describe(["t"], ends=False)["t"].topic_id
    world.moves.fail(TopicPartition("t", 1), topic_id=topic_id, move=standing, error="No room.")
    wait_until(lambda: any(each.error for each in world.admin.describe_moves()))
    described = command("topics", "describe", "t").out
    assert "  to 2 failed: No room.\n" in described
    (topic,) = map(json.loads, command("topics", "describe", "t", "--json").out.splitlines())
    first, second = (each["move"] for each in topic["partitions"])
    assert (first["to"], first["throttle"], first["error"]) == ([2], 9, None)
    assert (second["to"], second["error"]) == ([2], "No room.")
    shown = command("cluster")
    assert "No room.\n" in shown.out
    assert "; 1 move under way, 1 failed." in shown.out
    moves = json.loads(command("cluster", "--json").out)["moves"]
    assert [(each["partition"], each["from"], each["to"]) for each in moves] == [
        (0, 1, [2]), (1, 1, [2]),
    ]  # fmt: skip


def test_a_broker_is_drained_and_gets_back_in(world: World, command: Command) -> None:
    dry = command("cluster", "drain", "1")
    assert dry.code == 0
    assert "Dry run: 2 partitions, 0 B would be moved." in dry.out
    assert not any(each.drained for each in world.admin.describe_cluster().brokers)
    assert command("cluster", "drain", "1", "-x", "--no-wait").code == 0
    wait_until(lambda: world.moving() == {0, 1})
    assert " drained\n" in command("cluster").out
    assert command("cluster", "drain", "1", "--undo").out == (
        "New partitions may be placed on broker 1 again.\n"
    )
    assert command("cluster", "drain", "1", "--undo").out == "Broker 1 was not being drained.\n"


def test_brokers_are_leveled(world: World, command: Command) -> None:
    plan = command("cluster", "rebalance")
    assert plan.out.startswith(PLAN)
    assert command("cluster", "rebalance", "--execute", "--no-wait").code == 0
    wait_until(lambda: world.moving() == {0})
    assert command("cluster", "rebalance").out == "On the way already: 1 partition.\n"
    assert command("cluster", "rebalance", "-x", "--no-wait", "--throttle", "7").code == 0
    wait_until(lambda: [each.throttle for each in world.admin.describe_moves()] == [7])
    world.hand_over(0)
    wait_until(lambda: not world.admin.describe_moves())
    assert command("cluster", "rebalance").out == "Nothing to move: the brokers are level.\n"


REFUSED = {
    "topics move --to 2": "name one topic",
    "topics move t --topic t --to 2": "name one topic",
    "topics move t": "either --to or --cancel",
    "topics move t --to 2 --cancel": "either --to or --cancel",
    "topics move t --to 2,x": "--to takes ids of brokers",
    "topics move t --to -2": "--to takes ids of brokers",
    "topics move t --to 2 --throttle fast": "expected a number of bytes",
    "topics move t --to 9": "no broker 9; there are: 1, 2",
    "topics move u --to 2": "no topic 'u'",
    "topics move t -p 7 --to 2": "no partition 7; it has 2",
    "topics move u --cancel": "no topic 'u'",
    "cluster drain 9": "no broker 9",
}


def test_what_is_refused(command: Command) -> None:
    for words, said in REFUSED.items():
        ended = command(*words.split())
        assert ended.code in {1, 2}, words
        assert said in ended.err, words

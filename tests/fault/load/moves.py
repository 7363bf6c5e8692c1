"""Moves of partitions under load, each with a fault of its own."""

from __future__ import annotations

import logging
import os
import random
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from spark_logbus.client import Admin, Cluster
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.cluster.topics import TopicRegistry
from spark_logbus.coordination.payloads import MovePayload
from spark_logbus.errors import BrokerUnavailableError
from spark_logbus.model import TopicPartition
from spark_logbus.zookeeper import Session
from tests.fault.load.machines import SESSION_S, Machines, pause
from tests.fault.load.participants import Everyone
from tests.fault.load.records import WAIT_S
from tests.helpers import wait_until

logger = logging.getLogger(__name__)

THROTTLE: Final = 4_000_000  # bytes a second: a move takes about one
_LONG_S: Final = 2 * SESSION_S


class Moves:
    """Begins and ends moves, and sees what becomes of them in ZooKeeper."""

    def __init__(self, cluster: Cluster, session: Session) -> None:
        self._admin = Admin(cluster)
        self._topics = TopicRegistry(session)

    def begin(self, moves: Mapping[TopicPartition, int]) -> None:
        begin(self._admin, moves, THROTTLE)

    def cancel(self, where: TopicPartition) -> bool:
        """Returns whether it was cancelled before it had arrived."""
        return where in self._admin.cancel_moves([where])

    def broker_of(self, where: TopicPartition) -> int:
        (broker_id,) = self._record(where).partitions[where.partition]
        return broker_id

    def standing(self, where: TopicPartition) -> MovePayload | None:
        return self._record(where).moves.get(where.partition)

    def _record(self, where: TopicPartition) -> TopicRecord:
        record = self._topics.get(where.topic)
        assert record is not None
        return record

    def wait_until_over(self, where: TopicPartition) -> int:
        """The broker that has the partition at the end, and serves it; a failure fails here."""

        def over() -> bool:
            move = self.standing(where)
            assert move is None or not move.error, move
            return move is None

        wait_until(over, deadline_s=WAIT_S, message=f"the move of {where} to be over")
        broker_id = self.broker_of(where)
        wait_until(
            lambda: self.is_served_by(where, broker_id),
            deadline_s=WAIT_S, message=f"broker {broker_id} to serve {where}",
        )  # fmt: skip
        return broker_id

    def is_served_by(self, where: TopicPartition, broker_id: int) -> bool:
        described = self._admin.describe([where.topic])[where.topic]
        part = described.partitions[where.partition]
        return part.leader_id == broker_id and part.ends is not None


def begin(admin: Admin, moves: Mapping[TopicPartition, int], throttle: int) -> None:
    """Begins moves as soon as their targets run."""

    def begun() -> bool:
        try:
            admin.move_partitions(moves, throttle)
        except BrokerUnavailableError:
            return False
        return True

    wait_until(begun, deadline_s=WAIT_S, message=f"{moves} to begin")


@contextmanager
def moves_of(machines: Machines, cluster: Cluster) -> Iterator[Moves]:
    with Session(machines.zookeeper, client_name="test", operation_timeout_ms=60_000) as session:
        yield Moves(cluster, session)


@dataclass(frozen=True)
class Move:
    """A move that is under way while a fault happens."""

    machines: Machines
    moves: Moves
    chance: random.Random
    where: TopicPartition
    source: int
    target: int
    stopped: int = 0  # the broker that has come to a point

    @property
    def third(self) -> int:
        (broker_id,) = self.machines.brokers.keys() - {self.source, self.target}
        return broker_id

    def some_time(self) -> float:
        """Returns less than a session may be silent."""
        return self.chance.random() * SESSION_S / 2


Fault = Callable[[Move], None]


def nothing(_: Move) -> None:
    pass


def source_killed(move: Move) -> None:
    move.machines.kill(move.source)


def target_killed(move: Move) -> None:
    move.machines.kill(move.target)


def third_killed(move: Move) -> None:
    move.machines.kill(move.third)


def both_killed(move: Move) -> None:
    move.machines.kill(move.source, move.target, away_s=move.some_time())


def source_pauses(move: Move) -> None:
    move.machines.stand_still(move.source, move.some_time())


def source_sleeps(move: Move) -> None:
    move.machines.stand_still(move.source, _LONG_S)


def target_pauses(move: Move) -> None:
    move.machines.stand_still(move.target, move.some_time())


def target_sleeps(move: Move) -> None:
    move.machines.stand_still(move.target, _LONG_S)


def zookeeper_killed(move: Move) -> None:
    move.machines.kill_zookeeper(away_s=move.some_time())


def zookeeper_away(move: Move) -> None:
    move.machines.kill_zookeeper(away_s=_LONG_S)


def source_and_zookeeper_killed(move: Move) -> None:
    move.machines.brokers[move.source].kill()
    move.machines.kill_zookeeper()
    move.machines.brokers[move.source].start()


def cancelled(move: Move) -> None:
    if move.moves.cancel(move.where):
        assert move.moves.standing(move.where) is None
        assert move.moves.broker_of(move.where) == move.source


def stopped_killed(move: Move) -> None:
    move.machines.kill(move.stopped)


def stopped_sleeps(move: Move) -> None:
    move.machines.stand_still(move.stopped, _LONG_S)


def at_point(point: str, then: Fault) -> Fault:
    """A fault while a broker stands still at a point, before it goes on if it is still there."""

    def fault(move: Move) -> None:
        stopped = move.machines.wait_for_point(point, move.where.topic)
        try:
            then(replace(move, stopped=stopped))
        finally:
            os.kill(move.machines.brokers[stopped].pid, signal.SIGCONT)

    fault.__name__ = f"{then.__name__} at {point}"
    _POINTS[fault] = point
    return fault


_POINTS: dict[Fault, str] = {}

#: At random moments.
FAULTS: Final[Sequence[Fault]] = [
    nothing, source_killed, target_killed, third_killed, both_killed, source_pauses, source_sleeps,
    target_pauses, target_sleeps, zookeeper_killed, zookeeper_away, source_and_zookeeper_killed,
    cancelled,
]  # fmt: skip

#: At moments that chance meets rarely.
AT_POINTS: Final[Sequence[Fault]] = [
    at_point("copying", stopped_killed),
    at_point("handing-over", stopped_killed),
    at_point("handing-over", stopped_sleeps),
    at_point("handing-over", cancelled),
    at_point("handing-over", target_killed),
    at_point("handing-over", zookeeper_away),
    at_point("handed-over", stopped_killed),
    at_point("handed-over", stopped_sleeps),
    at_point("handed-over", zookeeper_killed),
    at_point("taking", stopped_killed),
    at_point("taking", stopped_sleeps),
    at_point("taking", source_killed),
    at_point("taken", stopped_killed),
    at_point("taken", both_killed),
    at_point("setting-aside", stopped_killed),
    at_point("set-aside", stopped_killed),
]


class Rounds:
    """Moves partitions to brokers chosen by chance, one or some at a time, with faults."""

    def __init__(
        self,
        machines: Machines,
        moves: Moves,
        everyone: Everyone,
        partitions: Sequence[TopicPartition],
        seed: int,
    ) -> None:
        self._machines = machines
        self._moves = moves
        self._everyone = everyone
        self._partitions = partitions
        self._chance = random.Random(seed)

    def run(self, number: int, fault: Fault, *, moving: bool = True) -> None:
        chance, where = self._chance, self._partitions[number % len(self._partitions)]
        beside = chance.sample(self._partitions, chance.randint(0, 2))
        targets = {one: self._target(one) for one in dict.fromkeys([where, *beside])}
        source = self._moves.broker_of(where)
        move = Move(self._machines, self._moves, chance, where, source, targets[where])
        told = ", ".join(f"{one} to {to}" for one, to in targets.items())
        logger.info("Round %d: %s; %s.", number, told, getattr(fault, "__name__", fault))
        point = _POINTS.get(fault)
        if point is not None:
            self._machines.points.arm(point, where.topic)
        if moving:
            self._moves.begin(targets)
        if point is None:
            pause(chance.random() * chance.choice([0.3, 1.5]))
        fault(move)
        if moving and self._moves.broker_of(where) == source:
            self._moves.begin({where: move.target})  # anew, if it was cancelled
        for one, target in targets.items():
            at = self._moves.wait_until_over(one)
            assert not moving or at == target
        self._everyone.get_on()
        self._machines.alive()

    def _target(self, where: TopicPartition) -> int:
        return self._chance.choice(
            sorted(self._machines.brokers.keys() - {self._moves.broker_of(where)})
        )

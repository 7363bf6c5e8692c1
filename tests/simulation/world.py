"""A simulated cluster: three brokers, ZooKeeper, clients and faults, in one thread.

One seed is one schedule. Each step one of them does something; while it waits, for ZooKeeper or
another broker, others act in nested steps. So whatever a broker does between two such waits is
done at once, and between them anything may happen, also that its process dies.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

from spark_logbus.coordination import paths
from spark_logbus.coordination.payloads import TopicPayload, encode
from spark_logbus.errors import CoordinationError
from tests.fakes.clock import ManualClock
from tests.fakes.disk import NOTHING, PowerCutError, RandomSurvival
from tests.simulation.broker import T0, TOPIC_ID, Node, Process, replacements
from tests.simulation.clients import Client, Producer, Writer
from tests.simulation.witness import BrokenPromiseError, Witness
from tests.simulation.zookeeper import Fate, SimulatedSession, Tree

STEPS = 100
_MOST_NESTED = 3
_NESTED = 0.2  # of the moments in which others may act, those in which they do
_MOST_FAULTS = 6
_ROUNDS = 60  # to come to rest when there are no more faults
_THREADS = {
    "tick": 4, "fetch": 10, "look_at_members": 3, "flush": 5, "note_ends": 0.7, "follow_up": 0.7,
    "hand_over": 0.4,
}  # fmt: skip
_CLIENT = 12
_SOON = 0.7
_FAULT = 0.5


def _is_down(node: Node) -> bool:
    return node.process is None and not node.starts


class _InOrder(RandomSurvival):
    """Choice of the first of the unsynced writes, of which the last may be torn. What is torn in
    the middle is damage, which tests of the log have."""

    _is_over = False

    def of_write(self, data: bytes) -> bytes:
        found = b"" if self._is_over else super().of_write(data)
        self._is_over = self._is_over or len(found) < len(data)
        return found

    def of_truncation(self) -> bool:
        self._is_over = self._is_over or not super().of_truncation()
        return not self._is_over


class Action(NamedTuple):
    """Event that may happen in a step, more often the more it weighs."""

    weight: float
    name: str
    act: Callable[[], None]
    may: Callable[[], bool] = lambda: True


class World:
    """One schedule, by its ``seed``."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        random.seed(seed)  # of backoffs
        self.clock = ManualClock()
        self.tree = Tree()
        self.broken: set[tuple[int, int]] = set()  # links, from a follower to a leader
        self.built: list[Process] = []
        self.uninterrupted = 0
        self.faults = 0
        self._acting: list[Process] = []
        self._loses = False
        #: What was done, step by step; nested steps are indented.
        self.trace: list[str] = []
        self.failure: BaseException | None = None
        least = self.random.choice(["1", "2"])
        payload = TopicPayload(
            id=TOPIC_ID, partitions={0: [1, 2, 3]}, config={"min.insync.replicas": least}
        )
        self.tree.put(paths.topic(T0.topic), encode(payload))
        self.tree.put(paths.BROKERS)
        self.nodes = {each: Node(each, self) for each in (1, 2, 3)}
        self.witness = Witness(self)
        self.clients: list[Client] = [Producer(self, 1), Producer(self, 2), Writer(self)]
        self._actions = self._all_actions()

    def _all_actions(self) -> list[Action]:
        actions = [
            Action(weight, f"{thread} {node.id}", self._bound(node, thread),
                   partial(self._may_run, node, thread))
            for thread, weight in _THREADS.items()
            for node in self.nodes.values()
        ]  # fmt: skip
        actions += [
            Action(_CLIENT, f"client {number}", partial(self._client, each))
            for number, each in enumerate(self.clients)
        ]
        actions.append(Action(2, "time passes", self._long))
        actions.append(Action(2, "late request", self.tree.arrive, lambda: bool(self.tree.late)))
        faults: dict[str, Callable[[Node], None]] = {
            "kill": Node.kill, "power cut": self._power, "expire": self._expire, "cut": self._cut,
            "break links": self._break, "emptied disk": self._empty,
        }  # fmt: skip
        for node in self.nodes.values():
            actions.append(Action(6, f"restart {node.id}", node.start, partial(_is_down, node)))
            actions.append(Action(3, f"heal {node.id}", partial(self._heal, node),
                                  partial(self._is_cut, node)))  # fmt: skip
            actions.append(Action(3, f"session {node.id} ends", partial(self._forget, node),
                                  partial(self._is_known, node)))  # fmt: skip
            actions += [
                Action(_FAULT, f"{what} {node.id}", partial(self._fault, partial(fault, node)),
                       partial(self._may_fail, node))
                for what, fault in faults.items()
            ]  # fmt: skip
        actions.append(Action(2 * _FAULT, "the leader is killed",
                              partial(self._fault, self._kill_leader), self._may_fail))  # fmt: skip
        actions += [
            Action(_FAULT, what, partial(self._fault, fault), self._may_fail)
            for what, fault in (("power cut of all", self._power_of_all), ("losses", self._losses))
        ]
        return actions

    # -- running --------------------------------------------------------------------------

    def run(self, steps: int = STEPS) -> None:
        """Raises BrokenPromiseError, or whatever a broker did not foresee."""
        logger = logging.getLogger("spark_logbus")
        logger.addHandler(self.witness)
        try:
            with replacements(self):
                for node in self.nodes.values():
                    node.start()
                self._rest(lambda: self._members() == 3)
                self.faults = _MOST_FAULTS
                for _ in range(steps):
                    self.step()
                self._end()
        finally:
            logger.removeHandler(self.witness)

    def step(self) -> None:
        possible = [each for each in self._actions if each.may()]
        (action,) = self.random.choices(possible, [each.weight for each in possible])
        self.clock.advance(self.random.random() * 0.3)
        self._do(action.name, action.act)

    def _do(self, name: str, action: Callable[[], None]) -> None:
        self.trace.append("  " * len(self._acting) + name)
        with suppress(PowerCutError, CoordinationError):  # it died, or its thread tries again
            action()
        self.witness.look()

    def processes(self) -> list[Process]:
        return [each.process for each in self.nodes.values() if each.process is not None]

    def _client(self, client: Client) -> None:
        """Has a client act, and mostly what it asks for done soon."""
        client.act()
        process = client.asks
        if process is not None and not process.is_dead and self.random.random() < _SOON:
            followers = [each for each in self.nodes.values() if each is not process.node]
            self._do(f"  flush {process.node.id}", self._bound(process.node, "flush"))
            for node in [*followers, *followers]:
                if self.random.random() < _SOON:
                    self._do(f"  fetch {node.id}", self._bound(node, "fetch"))

    @staticmethod
    def _may_run(node: Node, thread: str) -> bool:
        return node.process is not None and thread not in node.process.busy

    def _bound(self, node: Node, thread: str) -> Callable[[], None]:
        def act() -> None:
            process = node.process
            if process is None or thread in process.busy:
                return
            process.busy.add(thread)
            try:
                with self.acting(process):
                    getattr(process, thread)()
            finally:
                process.busy.discard(thread)

        return act

    @contextmanager
    def acting(self, process: Process) -> Iterator[None]:
        """Has it be that process which waits when somebody does, and dies then if it is dead."""
        self._acting.append(process)
        try:
            yield
        finally:
            self._acting.pop()

    # -- while somebody waits -------------------------------------------------------------

    def pause(self) -> None:
        process = self._acting[-1] if self._acting else None
        if (
            self.faults_begun
            and not self.uninterrupted
            and len(self._acting) <= _MOST_NESTED
            and self.random.random() < _NESTED
        ):
            for _ in range(self.random.randint(1, 3)):
                self.step()
        if process is not None and process.is_dead:
            raise PowerCutError

    def wait_for(self, predicate: Callable[[], Any], timeout_s: float) -> Any:
        """Waits until a condition holds; what it takes for that goes on meanwhile."""
        process = self._acting[-1] if self._acting else None
        for _ in range(self.random.randint(3, 12) if len(self._acting) <= _MOST_NESTED else 0):
            if predicate():
                break
            node = self.random.choice([*self.nodes.values()])
            thread = self.random.choice(["tick", "fetch", "fetch", "flush", "look_at_members"])
            self._do(f"{thread} {node.id}", self._bound(node, thread))
            if process is not None and process.is_dead:
                raise PowerCutError
        found = predicate()
        if not found:
            self.clock.advance(timeout_s)
        return found

    def fate(self) -> Fate:
        if not self._loses or self.random.random() < 0.8:
            return Fate.ANSWERED
        return self.random.choice([Fate.REPLY_LOST, Fate.LOST, Fate.LATE])

    def loses_reply(self) -> bool:
        return self._loses and self.random.random() < 0.1

    @contextmanager
    def building(self, process: Process) -> Iterator[None]:
        self.built.append(process)
        try:
            yield
        finally:
            self.built.pop()

    def new_session(self) -> SimulatedSession:
        node = self.built[-1].node
        return SimulatedSession(node.id, self.tree, self, self.clock, lambda: node.cut)

    # -- faults ---------------------------------------------------------------------------

    @property
    def faults_begun(self) -> bool:
        return self.faults > 0

    def _may_fail(self, node: Node | None = None) -> bool:
        return self.faults > 1 and (node is None or node.process is not None)

    def _fault(self, fault: Callable[[], None]) -> None:
        self.faults -= 1
        fault()

    def _power(self, node: Node) -> None:
        lost = self.random.random() < 0.5
        node.cut_power(NOTHING if lost else _InOrder(self.random.getrandbits(30)))

    def _kill_leader(self) -> None:
        for node in self.nodes.values():
            if node.process is not None and node.process.led is not None:
                node.kill()

    def _is_known(self, node: Node) -> bool:
        return _is_down(node) and paths.broker(node.id) in self.tree.nodes

    def _forget(self, node: Node) -> None:
        """Has ZooKeeper notice that a broker is gone."""
        self.tree.expire(self.tree.nodes[paths.broker(node.id)].ephemeralOwner)

    def _power_of_all(self) -> None:
        for node in self.nodes.values():
            if not node.starts:
                self._power(node)

    def _expire(self, node: Node) -> None:
        if node.process is not None:
            self.tree.expire(node.process.session.session_id)

    def _cut(self, node: Node) -> None:
        node.cut = True

    def _break(self, node: Node) -> None:
        links = [(a, b) for a in self.nodes for b in self.nodes if node.id in (a, b) and a != b]
        self.broken.update(self.random.sample(links, self.random.randint(1, len(links))))

    def _empty(self, node: Node) -> None:
        """Empties the disk, if another that is in sync has its log."""
        state = self.witness.state
        if state is not None and any(
            other.log_id and other.log_id == state.replicas.get(other.id)
            for other in self.nodes.values()
            if other is not node and other.id in state.in_sync
        ):
            node.empty_disk()

    def _is_cut(self, node: Node) -> bool:
        return node.cut or any(node.id in each for each in self.broken)

    def _heal(self, node: Node) -> None:
        node.cut = False
        self.broken = {each for each in self.broken if node.id not in each}

    def _losses(self) -> None:
        self._loses = not self._loses

    def _long(self) -> None:
        self.clock.advance(self.random.choice([0.5, 1.0, 2.0]))

    # -- the beginning and the end --------------------------------------------------------

    def _members(self) -> int:
        state = self.witness.state
        return 0 if state is None else len(state.in_sync)

    def _rest(self, is_done: Callable[[], bool]) -> None:
        """Lets all do their work, one after the other, until a condition holds."""
        for _ in range(_ROUNDS):
            for thread in ("tick", "fetch", "flush", "fetch", "look_at_members", "settle"):
                for node in self.nodes.values():
                    self._do(f"{thread} {node.id}", self._bound(node, thread))
            if is_done():
                return
            self.clock.advance(0.7)
        raise BrokenPromiseError(f"it does not come to rest: {self.witness.state}")

    def _end(self) -> None:
        """Ends all faults; then all is to become whole, and to be written to."""
        self.faults, self._loses = 0, False
        while self.tree.late:
            self.tree.arrive()
        for node in self.nodes.values():
            self._heal(node)
            node.start()
        producer, *_ = self.clients
        assert isinstance(producer, Producer)
        before = producer.sequence

        def is_whole() -> bool:
            if producer.sequence <= before + 1:
                producer.act()
            for node in self.nodes.values():
                self._do(f"follow_up {node.id}", self._bound(node, "follow_up"))
            pending = self.tree.children(paths.PENDING_WRITES)
            return (
                producer.sequence > before + 1
                and self._members() == 3
                and not pending
                and len({each.high_watermark for each in self.processes()}) == 1
                and all(
                    each.log is not None and each.log.ends().log_end_offset == each.high_watermark
                    for each in self.processes()
                )
            )

        self._rest(is_whole)
        self.witness.look_at_the_end()

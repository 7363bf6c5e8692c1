"""Marks of brokers that are being drained: no new partition is placed on them.

A mark is a node that outlives the broker and everybody else, until it is taken away. It moves
nothing by itself, and what the broker leads goes on being served.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from spark_logbus.coordination import paths
from spark_logbus.coordination.payloads import DrainedPayload, encode
from spark_logbus.errors import InvalidRequestError
from spark_logbus.retry import Deadline
from spark_logbus.zookeeper.nodes import Nodes
from spark_logbus.zookeeper.session import Session
from spark_logbus.zookeeper.transactions import Create, Delete
from spark_logbus.zookeeper.unreadable import foreign_node


class DrainedBrokers:
    """Reads, sets and clears the marks. Thread-safe."""

    def __init__(self, session: Session) -> None:
        self._nodes = Nodes(session)
        self._unreadable = session.unreadable

    def mark(self, broker_id: int, *, since_us: int) -> None:
        """Places no new partition on the broker from now on; does nothing where that is so."""
        path = paths.drained_broker(broker_id)

        def attempt(deadline: Deadline) -> None:
            if not self._nodes.exists(path, deadline=deadline):
                create = Create(path, encode(DrainedPayload(since_us=since_us)))
                self._nodes.transact(f"drain broker {broker_id}", [create], deadline=deadline)

        self._nodes.ensure(paths.DRAINED)
        self._nodes.repeat(f"drain broker {broker_id}", attempt)

    def clear(self, broker_id: int) -> bool:
        """Takes the mark of a broker away; returns whether there was one."""
        path = paths.drained_broker(broker_id)
        there = False

        def attempt(deadline: Deadline) -> None:
            nonlocal there
            if self._nodes.exists(path, deadline=deadline):
                there = True
                what = f"end the drain of broker {broker_id}"
                self._nodes.transact(what, [Delete(path)], deadline=deadline)

        self._nodes.repeat(f"end the drain of broker {broker_id}", attempt)
        return there

    def ids(self) -> set[int]:
        """Returns the ids of the marked brokers. A node of another name is reported."""
        found = set()
        for name in self._nodes.children(paths.DRAINED) or ():
            broker_id, path = paths.number_of(name), f"{paths.DRAINED}/{name}"
            if broker_id is None or str(broker_id) != name:
                self._unreadable.met(
                    path, foreign_node(path, "drained broker"), instead="It is passed over."
                )
            else:
                found.add(broker_id)
        return found


def takers(live: Collection[int], drained: Collection[int]) -> Sequence[int]:
    """Returns the live brokers that new partitions may be placed on. Raises InvalidRequestError
    where all of them are being drained."""
    found = sorted({*live} - {*drained})
    if live and not found:
        named = ", ".join(map(str, sorted(live)))
        raise InvalidRequestError(
            f"All running brokers are being drained ({named}), so no partition can be placed on "
            f"one. Start another broker, or end that: logbus cluster drain {min(live)} --undo."
        )
    return found

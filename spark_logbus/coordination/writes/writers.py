"""Atomic writers' decisions in ZooKeeper: one node a writer, and a list of those to look after.

A decision and its entry in the list are one transaction. Brokers find what is not published yet in
the list, publish their part, and take it out when nothing is left; the writer's node stays, for it
says what was decided last.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from msgspec.structs import replace

from spark_logbus.coordination import paths
from spark_logbus.coordination.payloads import decode, encode
from spark_logbus.coordination.writes import decisions
from spark_logbus.coordination.writes.decisions import (
    Age,
    DecidedWrite,
    Outcome,
    Proposal,
    WriterState,
    check_decided,
)
from spark_logbus.coordination.writes.promises import token_of
from spark_logbus.errors import InvalidRequestError, WriteNotPreparedError
from spark_logbus.retry import Deadline
from spark_logbus.zookeeper.nodes import ConflictError, Node, Nodes
from spark_logbus.zookeeper.session import Session
from spark_logbus.zookeeper.transactions import (
    MAX_TRANSACTION_BYTES,
    Check,
    Create,
    Delete,
    Operation,
    SetData,
)
from spark_logbus.zookeeper.unreadable import CorruptNodeError, foreign_node

logger = logging.getLogger(__name__)


class PendingWrites(NamedTuple):
    """The writers whose last write is not known to be published everywhere.

    ``states`` are by writer. ``unusable`` are writers whose nodes cannot be followed up, with the
    number of the write that was decided, None where that cannot be read either.
    """

    states: dict[str, WriterState]
    unusable: dict[str, int | None]


class WriterRegistry:
    """Decides writes and lists those to look after. Thread-safe."""

    def __init__(self, session: Session, *, stamp_us: Callable[[], int] | None = None) -> None:
        """``stamp_us`` is the time to write down for what happens now, of a clock that is guarded;
        without it the session's."""
        self._nodes = Nodes(session)
        self._stamp_us = stamp_us or session.clock.now_us
        self._unreadable = session.unreadable

    def decide(
        self, writer: str, proposal: Proposal, *, admit: Callable[[], None] = lambda: None
    ) -> Outcome:
        """Decide the proposed write if the writer's state lets it. ``admit`` is called before
        anything is decided, and raises what stands against it.

        Raises WriteFencedError, WriteMismatchError, WriteNotPreparedError, CoordinationError, and
        InvalidRequestError for a decision that does not fit into a node."""
        return self._change(writer, proposal, aborting=False, admit=admit)

    def abort(self, writer: str, proposal: Proposal) -> Outcome:
        return self._change(writer, proposal, aborting=True, admit=lambda: None)

    def peek(self, writer: str, proposal: Proposal) -> Outcome:
        """Returns what ``decide`` would say, and changes nothing."""
        deadline = self._nodes.session.deadline()
        path = paths.writer(writer)
        self._nodes.sync(deadline=deadline)
        node = self._nodes.get(path, deadline=deadline)
        now = decisions.NOTHING if node is None else _state(node, path)
        return decisions.decide(now, proposal, now_us=self._stamp_us())

    def _change(
        self, writer: str, proposal: Proposal, *, aborting: bool, admit: Callable[[], None]
    ) -> Outcome:
        path, entry = paths.writer(writer), paths.pending_write(writer)
        description = f"{'abort' if aborting else 'decide'} a write of {writer}"
        change = decisions.abort if aborting else decisions.decide
        promises = (
            {}
            if aborting
            else {paths.promise(broker_id): token for broker_id, token in proposal.promises.items()}
        )

        def attempt(deadline: Deadline) -> Outcome:
            nodes = self._nodes.get_many(
                [path, entry, paths.PENDING_WRITES, *promises], deadline=deadline
            )
            if nodes[paths.PENDING_WRITES] is None:
                self._nodes.ensure(paths.WRITERS, deadline=deadline)
                self._nodes.ensure(paths.PENDING_WRITES, deadline=deadline)
            node = nodes[path]
            now = decisions.NOTHING if node is None else _state(node, path)
            outcome = change(now, proposal, now_us=self._stamp_us())
            if outcome.state is None:
                return outcome
            operations = [_write(path, node, outcome.state)]
            if not aborting:
                admit()
                operations += [_kept(nodes[each], each, token) for each, token in promises.items()]
                operations.append(_listed(nodes[entry], entry))
            self._nodes.transact(description, operations, deadline=deadline)
            return outcome

        return self._nodes.repeat(description, attempt)

    def find_decided(self, writer: str, write: int) -> DecidedWrite | None:
        """The decision about the write, if it is the last of its writer; at once where it is seen
        without being sure of the newest. Raises CoordinationError."""
        path = paths.writer(writer)
        deadline = self._nodes.session.deadline()
        for sure in (False, True):
            if sure:
                self._nodes.sync(deadline=deadline)
            node = self._nodes.get(path, deadline=deadline)
            last = None if node is None else _state(node, path).last
            if last is not None and last.write == write:
                return last
        return None

    def pending(self) -> PendingWrites:
        """The writers to look after, and their states. Nodes that nobody can follow up are told
        once, and cost their writers only."""
        deadline = self._nodes.session.deadline()
        self._nodes.sync(deadline=deadline)
        names = self._nodes.children(paths.PENDING_WRITES, deadline=deadline) or []
        writers: dict[str, str] = {}
        for name in names:
            entry = f"{paths.PENDING_WRITES}/{name}"
            writer = paths.writer_of(name)
            if writer is None:
                foreign = foreign_node(entry, "writer")
                self._unreadable.met(entry, foreign, instead="It is passed over.")
            else:
                writers[paths.writer(writer)] = writer
        found = PendingWrites({}, {})
        for path, node in self._nodes.get_many(writers, deadline=deadline).items():
            writer, state = writers[path], decisions.NOTHING
            try:
                if node is not None:
                    state = decode(WriterState, node.data, path=path)
                    _usable(state, path)
            except CorruptNodeError as error:
                last = state.last
                found.unusable[writer] = None if last is None else last.write
                self._unreadable.met(path, error, instead="Its last write is not published.")
            else:
                found.states[writer] = state
                self._unreadable.in_order(path)
        return found

    def published(
        self, writer: str, write: int, done: Mapping[str, Sequence[int]]
    ) -> WriterState | None:
        """Note that these partitions of the write are published, by topic; the state then, None
        if the writer is not to be looked after any more."""
        path, entry = paths.writer(writer), paths.pending_write(writer)
        description = f"note what is published of a write of {writer}"

        def attempt(deadline: Deadline) -> WriterState | None:
            nodes = self._nodes.get_many([path, entry], deadline=deadline)
            node = nodes[path]
            now = decisions.NOTHING if node is None else _state(node, path)
            new = decisions.published(now, write, done)
            state = new or now
            operations: list[Operation] = []
            if new is not None:
                operations.append(_write(path, node, new))
            elif node is not None:
                operations.append(Check(path, node.version))
            if nodes[entry] is not None and not state.unpublished:
                operations.append(Delete(entry))
            if new is not None or len(operations) > 1:
                self._nodes.transact(description, operations, deadline=deadline)
            return state if state.unpublished else None

        return self._nodes.repeat(description, attempt)

    def forget(self, *, now_us: int, keep_us: int, keep_once_us: int) -> int:
        """Remove the states of writers that have nothing pending and are old by ``decisions.age``,
        of those that write once after the second time; the number of them. ``now_us`` is to be a
        time that is believed."""
        deadline = self._nodes.session.deadline()
        pending = set(self._nodes.children(paths.PENDING_WRITES, deadline=deadline) or [])
        names = self._nodes.children(paths.WRITERS, deadline=deadline) or []
        writers = [paths.writer_of(name) for name in names if name not in pending]
        by_path = [paths.writer(writer) for writer in writers if writer is not None]
        removed = 0
        for path, node in self._nodes.get_many(by_path, deadline=deadline).items():
            try:
                if node is None:
                    continue
                state = _state(node, path)
                age = decisions.age(
                    state, now_us=now_us, keep_us=keep_once_us if state.once else keep_us
                )
                if age is Age.KEPT:
                    continue
                change: Operation = Delete(path, node.version)
                if age is Age.OLD:
                    change = _write(path, node, replace(state, old_us=now_us))
                self._nodes.transact(f"forget {path}", [change], deadline=deadline)
                removed += age is Age.FORGOTTEN
            except ConflictError:
                continue  # it has written, or another broker was first
            except CorruptNodeError as error:
                logger.error("A writer's state is left as it is: %s", error)
        return removed


def _kept(node: Node | None, path: str, token: str) -> Operation:
    """The condition that a promise stands. WriteNotPreparedError if it does not."""
    stands: str | None = None
    if node is not None:
        with suppress(CorruptNodeError):  # its broker writes over it when it is asked anew
            stands = token_of(node.data, path)
    if node is None or stands != token:
        raise WriteNotPreparedError(
            f"Broker {path.rpartition('/')[2]} has promised to keep what it has of a write, and "
            f"has let that go since: its promise was {token[:40]!r}, now it is {stands!r}. Prepare "
            "the write again."
        )
    return Check(path, node.version)


def _listed(entry: Node | None, path: str) -> Operation:
    """The entry of a decision, made or kept. It is checked, not only read: when nothing of the last
    decision is left to publish, a broker takes the entry away and leaves the writer's node as it
    is."""
    return Create(path) if entry is None else Check(path, entry.version)


def _write(path: str, node: Node | None, state: WriterState) -> Operation:
    data = encode(state)
    if len(data) > MAX_TRANSACTION_BYTES - 10_000:
        raise InvalidRequestError(
            f"The decision about a write takes {len(data)} bytes, more than one node of ZooKeeper "
            "holds: it has too many tasks and partitions. Write with fewer tasks (coalesce)."
        )
    return Create(path, data) if node is None else SetData(path, data, node.version)


def _state(node: Node, path: str) -> WriterState:
    return _usable(decode(WriterState, node.data, path=path), path)


def _usable(state: WriterState, path: str) -> WriterState:
    """Raises CorruptNodeError for a decision that nobody could follow up: earlier releases took
    some."""
    if state.last is not None:
        try:
            check_decided(state.last)
        except InvalidRequestError as error:
            raise CorruptNodeError(
                f"The ZooKeeper node {path} holds a decision about a write that no broker can "
                f"follow up: {error} Remove the node by hand, and its namesake below "
                f"{paths.PENDING_WRITES}."
            ) from error
    return state

"""Atomic writers' states in memory, in the place of ZooKeeper's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

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
)
from spark_logbus.coordination.writes.promises import PromiseRegistry, Promises
from spark_logbus.coordination.writes.writers import (
    PendingWrites,
    WriterRegistry,
    _usable,
)


class MemoryPromises:
    """A stand-in for ``PromiseRegistry``."""

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.token: str | None = None

    def read(self) -> str | None:
        return self.token

    def write(self, token: str) -> None:
        self.token = token


def promises_of(broker_id: int) -> Promises:
    return Promises(cast(PromiseRegistry, MemoryPromises(broker_id)))


class MemoryWriters:
    """Keeps the bytes that ``WriterRegistry`` would keep, by path. One thread."""

    def __init__(self, *, stamp_us: Callable[[], int] = lambda: 1) -> None:
        self.stamp_us = stamp_us
        self.nodes: dict[str, bytes] = {}
        self.unusable: dict[str, int | None] = {}

    def as_registry(self) -> WriterRegistry:
        return cast(WriterRegistry, self)

    def state(self, writer: str) -> WriterState:
        path = paths.writer(writer)
        data = self.nodes.get(path)
        if data is None:
            return decisions.NOTHING
        return _usable(decode(WriterState, data, path=path), path)

    def decide(
        self, writer: str, proposal: Proposal, *, admit: Callable[[], None] = lambda: None
    ) -> Outcome:
        outcome = decisions.decide(self.state(writer), proposal, now_us=self.stamp_us())
        if outcome.state is not None:
            admit()
        return self._kept(writer, outcome)

    def abort(self, writer: str, proposal: Proposal) -> Outcome:
        return self._kept(
            writer, decisions.abort(self.state(writer), proposal, now_us=self.stamp_us())
        )

    def peek(self, writer: str, proposal: Proposal) -> Outcome:
        return decisions.decide(self.state(writer), proposal, now_us=self.stamp_us())

    def find_decided(self, writer: str, write: int) -> DecidedWrite | None:
        last = self.state(writer).last
        return last if last is not None and last.write == write else None

    def pending(self) -> PendingWrites:
        names = {paths.writer_of(path.rpartition("/")[2]) for path in self.nodes}
        states = {name: self.state(name) for name in names if name is not None}
        return PendingWrites(
            {name: state for name, state in states.items() if state.unpublished}, self.unusable
        )

    def published(
        self, writer: str, write: int, done: Mapping[str, Sequence[int]]
    ) -> WriterState | None:
        state = decisions.published(self.state(writer), write, done)
        self._kept(writer, Outcome(state))
        return state

    def forget(self, *, now_us: int, keep_us: int, keep_once_us: int) -> int:
        removed = 0
        for path in list(self.nodes):
            writer = paths.writer_of(path.rpartition("/")[2])
            state = self.state(writer or "")
            if state.unpublished:
                continue
            age = decisions.age(
                state, now_us=now_us, keep_us=keep_once_us if state.once else keep_us
            )
            if age is Age.OLD:
                self.nodes[path] = encode(replace(state, old_us=now_us))
            elif age is Age.FORGOTTEN:
                del self.nodes[path]
                removed += 1
        return removed

    def _kept(self, writer: str, outcome: Outcome) -> Outcome:
        if outcome.state is not None:
            self.nodes[paths.writer(writer)] = encode(outcome.state)
        return outcome

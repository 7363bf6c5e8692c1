"""The witness of a simulation: knows what was promised to clients, and looks if it holds."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from spark_logbus.coordination import paths
from spark_logbus.coordination.payloads import PartitionState, decode
from spark_logbus.coordination.writes.decisions import WriterState
from spark_logbus.record.stage_id import write_of
from tests.simulation.broker import T0, Process, Record
from tests.simulation.clients import Writer

if TYPE_CHECKING:
    from tests.simulation.world import World

_WRITE_BATCHES = 2
_STATE = paths.partition_state(T0)
_WRITER = paths.writer(Writer.NAME)


class BrokenPromiseError(BaseException):
    """Promise to a client that does not hold. Not an Exception: no broker may carry on after it."""


class Witness(logging.Handler):
    """Looks after each step. What the brokers log as lost, or did not foresee, is a failure too.

    ``seen`` is what was below the high watermark of a replica that is served, by offset.
    """

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world
        self.seen: dict[int, Record] = {}
        self._places: dict[tuple[int, int], int] = {}  # of what was acknowledged
        self._acknowledges: dict[int, int] = {}  # broker by leader epoch
        self.decided: dict[int, int] = {}  # versions by write
        self._looked: dict[int, tuple[object, ...]] = {}
        self._state: tuple[object, PartitionState | None] = (None, None)
        self.logged = ""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info is not None or record.levelno >= logging.CRITICAL or "lost" in text:
            trace = "" if record.exc_info is None else f": {record.exc_info[1]!r}"
            self.logged = self.logged or text + trace

    def acknowledged(
        self, producer: int, sequence: int, offset: int, *, broker: int, epoch: int
    ) -> None:
        known = self._places.setdefault((producer, sequence), offset)
        if known != offset:
            self._fail(f"{producer}/{sequence} was acknowledged at {known} and at {offset}")
        if (leader := self._acknowledges.setdefault(epoch, broker)) != broker:
            self._fail(f"brokers {leader} and {broker} acknowledge in epoch {epoch}")
        found = Record(offset + 1, producer, sequence)
        if (record := self.seen.setdefault(offset, found)) != found:
            self._fail(f"{found} was acknowledged at {offset}, where consumers see {record}")

    @property
    def state(self) -> PartitionState | None:
        entry = self._world.tree.nodes.get(_STATE)
        if entry is not self._state[0]:
            state = None if entry is None else decode(PartitionState, entry.data, path=_STATE)
            self._state = (entry, state)
        return self._state[1]

    @property
    def writer(self) -> WriterState | None:
        entry = self._world.tree.nodes.get(_WRITER)
        return None if entry is None else decode(WriterState, entry.data, path=_WRITER)

    def look(self) -> None:
        """Raises BrokenPromiseError."""
        if self.logged:
            self._fail(self.logged)
        for process in self._world.processes():
            log = process.log
            if log is None:
                continue
            process.node.log_id = log.log_id or ""
            now = (log._writer.tail, log._state.view, self.state, len(self.seen), *process.shown)
            before = self._looked.get(process.node.id, ())
            if len(before) < len(now) or any(a is not b for a, b in zip(now, before, strict=True)):
                self._look_at(process)
                self._looked[process.node.id] = now

    def _look_at(self, process: Process) -> None:
        log, state, where = process.log, self.state, f"broker {process.node.id}"
        assert log is not None
        records, visible = process.records(), process.high_watermark
        for offset, record in records.items():
            if offset < visible and self.seen.setdefault(offset, record) != record:
                self._fail(
                    f"{where} shows {record} at {offset}, where {self.seen[offset]} was seen"
                )
        if visible:
            self._look_at_writes(where, records, visible)
        is_member = state is not None and process.node.id in state.in_sync
        if is_member and state is not None and state.replicas.get(process.node.id) == log.log_id:
            for offset, record in self.seen.items():
                if records.get(offset) != record or record.end > log.flushed_end:
                    self._fail(
                        f"{where} is in sync by {state}, and has {records.get(offset)} at "
                        f"{offset} with {log.flushed_end} flushed, where {record} was acknowledged "
                        "or seen"
                    )

    def _look_at_writes(self, where: str, records: dict[int, Record], visible: int) -> None:
        writes: dict[int, list[int]] = {}
        for offset, record in records.items():
            if offset < visible and write_of(record.producer):
                writes.setdefault(write_of(record.producer), []).append(record.sequence)
        for write, sequences in writes.items():
            if sequences != [*range(_WRITE_BATCHES)]:
                self._fail(f"{where} shows {sequences} of the write {write} below {visible}")
        state = self.writer
        if state is not None and state.last is not None:
            self.decided.setdefault(state.last.write, state.last.version)
        if undecided := writes.keys() - self.decided.keys():
            self._fail(f"{where} shows the writes {undecided}, which are not decided")

    def look_at_the_end(self) -> None:
        """Looks at what is to hold when all brokers run and have all there is."""
        records = [each.records() for each in self._world.processes()]
        if any(each != records[0] for each in records):
            self._fail(f"the logs differ at the end: {records}")
        placed = [(each.producer, each.sequence) for each in records[0].values()]
        if len({*placed}) < len(placed):
            self._fail(f"a record is there twice: {sorted(placed)}")
        writes = {write_of(each.producer) for each in records[0].values()} - {0}
        if missing := self.decided.keys() - writes:
            self._fail(f"of the decided writes, {missing} are not there")

    def _fail(self, why: str) -> None:
        raise BrokenPromiseError(why)

"""Schema ids that record batches may have: those of the subject of their topic's values.

An id never changes its meaning, so one that a subject was seen to have is accepted from then on,
without ZooKeeper. One that is not known is looked up, on a thread of its own, and the append waits.
That a subject lacks an id is remembered for a second, and there are only so many look-ups in a
second, so that nobody can have ZooKeeper asked for each record batch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Executor
from typing import Final, NamedTuple

from spark_logbus.clock import Clock
from spark_logbus.coordination.subjects import SubjectIds
from spark_logbus.errors import (
    CoordinationError,
    LimitExceededError,
    LogbusError,
    UnknownSchemaIdError,
)
from spark_logbus.zookeeper import CorruptNodeError

#: Whoever registers a schema after its id was refused has the id taken so long after at the latest.
REMEMBER_MISS_S: Final = 1.0
#: Of one broker: far more than schemas are registered, and nothing to ZooKeeper.
MAX_LOOK_UPS_PER_S: Final = 20

ReadSubjects = Callable[[Iterable[str]], Mapping[str, SubjectIds | CorruptNodeError]]


class SchemaUse(NamedTuple):
    """A record batch's schema id, which is to be one of the subject's."""

    subject: str
    schema_id: int


class _Miss(NamedTuple):
    at: float
    error: LogbusError | None  # why it could not be looked up; None: the subject lacks the id


class KnownSchemaIds:
    """Thread-safe; whether an id is known is seen without a lock.

    ``read`` is called in ``executor``, one call at a time if that has one thread. ``connected``
    says whether ZooKeeper would answer now.
    """

    def __init__(
        self,
        read: ReadSubjects,
        *,
        connected: Callable[[], bool],
        executor: Executor,
        clock: Clock,
    ) -> None:
        self._read = read
        self._connected = connected
        self._executor = executor
        self._clock = clock
        self._known: dict[str, frozenset[int]] = {}
        self._lock = threading.Lock()
        self._misses: dict[SchemaUse, _Miss] = {}
        self._asked: dict[SchemaUse, list[Callable[[], None]]] = {}
        self._second = 0.0  # when the count began
        self._look_ups = 0

    def is_known(self, use: SchemaUse) -> bool:
        return use.schema_id in self._known.get(use.subject, ())

    def accept(self, use: SchemaUse, *, topic: str) -> bool:
        """True if the subject has the id, False if that is to be looked up. Raises
        UnknownSchemaIdError, and what a look-up failed with less than a second ago;
        CoordinationError and LimitExceededError where none is possible now."""
        if self.is_known(use):
            return True
        now = self._clock.monotonic()
        with self._lock:
            miss = self._misses.get(use)
            if miss is not None and now - miss.at < REMEMBER_MISS_S:
                raise _unknown(use, topic) if miss.error is None else miss.error.again()
            if use in self._asked:
                return False
            if self.is_known(use):  # by now
                return True
            if not self._connected():
                raise CoordinationError(
                    f"ZooKeeper cannot be asked now whether the subject {use.subject!r} has a "
                    f"schema with the id {use.schema_id}, which a record batch for the topic "
                    f"{topic!r} has; try again."
                )
            if now - self._second < 1.0 and self._look_ups >= MAX_LOOK_UPS_PER_S:
                raise LimitExceededError(
                    f"Schema ids were looked up {self._look_ups} times within a second; try again "
                    "later."
                )
        return False

    def look_up(self, uses: Collection[SchemaUse], then: Callable[[], None]) -> None:
        """Have ``accept`` know about ``uses``, and call ``then``: at once where nothing has to be
        asked, else in the executor."""
        with self._lock:
            under_way = next((use for use in uses if use in self._asked), None)
            if under_way is not None:  # what it leaves open is looked up after it
                self._asked[under_way].append(then)
                return
            waiting = [use for use in dict.fromkeys(uses) if not self.is_known(use)]
            if waiting:
                for use in waiting:
                    self._asked[use] = []
                self._asked[waiting[0]].append(then)
                self._count()
        if not waiting:
            then()
            return
        try:
            self._executor.submit(self._look_up, waiting)
        except RuntimeError:  # the broker stops
            self._answer(waiting, {}, CoordinationError("The broker is about to stop."))

    def _count(self) -> None:
        now = self._clock.monotonic()
        if now - self._second >= 1.0:
            self._second, self._look_ups = now, 0
        self._look_ups += 1

    def _look_up(self, uses: Collection[SchemaUse]) -> None:
        try:
            found = self._read({use.subject for use in uses})
        except LogbusError as error:
            self._answer(uses, {}, error.again())
        except BaseException:
            self._answer(uses, {}, CoordinationError("Schema ids could not be looked up."))
            raise
        else:
            self._answer(uses, found, None)

    def _answer(
        self,
        uses: Collection[SchemaUse],
        found: Mapping[str, SubjectIds | CorruptNodeError],
        error: LogbusError | None,
    ) -> None:
        now = self._clock.monotonic()
        with self._lock:
            for subject, ids in found.items():
                if isinstance(ids, SubjectIds):
                    self._known[subject] = self._known.get(subject, frozenset()) | ids.all_ids
            self._misses = {
                use: miss for use, miss in self._misses.items() if now - miss.at < REMEMBER_MISS_S
            }
            callbacks: list[Callable[[], None]] = []
            for use in uses:
                callbacks += self._asked.pop(use)
                if not self.is_known(use):
                    unreadable = found.get(use.subject)
                    why = unreadable if isinstance(unreadable, CorruptNodeError) else error
                    self._misses[use] = _Miss(now, why)
        for then in callbacks:
            then()


def _unknown(use: SchemaUse, topic: str) -> UnknownSchemaIdError:
    return UnknownSchemaIdError(
        f"The subject {use.subject!r}, which has the schemas of the values in the topic {topic!r}, "
        f"has no schema with the id {use.schema_id}. Register the schema under that subject, and "
        "write with the id that it gets."
    )

"""Moves to this broker that are given up, until ZooKeeper has noted why."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from spark_logbus.broker.replica.assignments import WantedReplica
from spark_logbus.broker.replica.removal import fields_about
from spark_logbus.coordination.cluster.moves import PartitionMoves
from spark_logbus.errors import LogbusError, UnknownTopicError
from spark_logbus.model import TopicPartition

logger = logging.getLogger(__name__)


@dataclass
class _Failure:
    """A move that is given up, and why.

    ``frees_disk``: what was copied is to be deleted then, as the disk has no room for it.
    """

    wanted: WantedReplica
    why: str
    frees_disk: bool
    noted: bool = False


class FailedMoves:
    """Gives up moves. Thread-safe.

    ``free_disk`` is called with a move of which ZooKeeper has noted that the disk has no room for
    it.
    """

    def __init__(
        self, moves: PartitionMoves, *, free_disk: Callable[[WantedReplica], None]
    ) -> None:
        self._moves = moves
        self._free_disk = free_disk
        self._lock = threading.Lock()
        self._failures: dict[TopicPartition, _Failure] = {}

    def add(self, wanted: WantedReplica, why: str, *, frees_disk: bool = False) -> None:
        """Gives up a move; ``note`` has ZooKeeper note it."""
        where = wanted.topic_partition
        with self._lock:
            self._failures[where] = _Failure(wanted, why, frees_disk)
        logger.error("%s does not move here: %s", where, why, extra=fields_about(where))

    def has(self, wanted: WantedReplica) -> bool:
        """Tells if that very move is given up."""
        failure = self._failures.get(wanted.topic_partition)
        return failure is not None and failure.wanted.is_same(wanted)

    @property
    def are_noted(self) -> bool:
        with self._lock:
            return all(failure.noted for failure in self._failures.values())

    def forget_those_before(self, wanted: Mapping[TopicPartition, WantedReplica]) -> None:
        """Forgets the moves that are noted, and over."""
        with self._lock:
            for where, failure in list(self._failures.items()):
                now = wanted.get(where)
                if failure.noted and (now is None or not now.is_same(failure.wanted)):
                    del self._failures[where]

    def note(self) -> None:
        """Has ZooKeeper note what is not noted yet, as far as it answers."""
        with self._lock:
            failures = [each for each in self._failures.values() if not each.noted]
        for failure in failures:
            wanted = failure.wanted
            assert wanted.move is not None, "only moves are given up"
            try:
                has_failed = self._moves.fail(
                    wanted.topic_partition,
                    topic_id=wanted.topic_id,
                    move=wanted.move,
                    error=failure.why,
                )
                failure.noted = True
                # Else the leader may have handed it over by what it was told before.
                if has_failed and failure.frees_disk:
                    self._free_disk(wanted)
            except UnknownTopicError:
                failure.noted = True  # deleted; the news of it is under way
            except LogbusError as error:
                logger.debug("%s", error)

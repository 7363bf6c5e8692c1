"""A subscription: a consumer reads its share of the partitions that its group reads together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from spark_logbus.client.consumer.group.member import GroupMember
from spark_logbus.client.shortened import shortened
from spark_logbus.errors import CoordinationError, GroupHeldError
from spark_logbus.model import TopicPartition
from spark_logbus.retry import Deadline

logger = logging.getLogger(__name__)

PartitionsCallback = Callable[[list[TopicPartition]], Any]


def ignore(_: list[TopicPartition]) -> None:
    """Does nothing: the callback where none is given."""


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Functions that the consumer's thread calls while it is asked for records.

    ``on_assigned``: these are read from now on. ``on_revoked``: these are given up now; what was
    handed out of them can still be committed. ``on_lost``: these are read by others, perhaps since
    some time, because ZooKeeper has not heard of this consumer.
    """

    on_assigned: PartitionsCallback = ignore
    on_revoked: PartitionsCallback = ignore
    on_lost: PartitionsCallback = ignore


class Subscription:
    """Keeps what a consumer reads in step with what it owns. Not thread-safe.

    ``read`` has the consumer read exactly these partitions; ``commit`` has it commit what it has
    handed out of those that it is about to give up.
    """

    def __init__(
        self,
        member: GroupMember,
        callbacks: Callbacks,
        *,
        read: Callable[[Iterable[TopicPartition]], None],
        commit: Callable[[Collection[TopicPartition]], None],
    ) -> None:
        #: To be looked at for each record: see ``GroupMember.next_check_at``.
        self.member = member
        self._callbacks = callbacks
        self._read = read
        self._commit = commit
        self._reads: frozenset[TopicPartition] = frozenset()

    @property
    def needs_rebalance(self) -> bool:
        """True if ``rebalance`` is to be called before anything is handed out."""
        return self.member.needs_rebalance

    def rebalance(self, deadline: Deadline) -> bool:
        """Releases partitions that are assigned to others, and claims those assigned here, as far
        as that can be done now; False if the membership is not confirmed by ``deadline``. Raises
        GroupHeldError, and what the callbacks raise."""
        member = self.member
        if not member.needs_rebalance:
            return True
        if not member.is_certain(deadline.remaining_s):
            return False
        member.begin()
        try:
            self._settle()
        except BaseException:
            member.look_again()
            raise
        return True

    def _settle(self) -> None:
        member = self.member
        if member.evicted:
            self._lose(self._reads)
            member.rejoin()
        owned = member.ownership.owned
        self._lose(self._reads - owned)
        to_read = member.to_read
        try:
            self._give_up(owned - to_read)
            claimed = member.claim(to_read - owned)
        except GroupHeldError:
            raise
        except CoordinationError as failure:
            logger.warning("The partitions of a group are shared anew later: %s", failure)
            member.look_again()
            claimed = frozenset()
        self._take(((owned & to_read) | claimed) - self._reads)

    def _lose(self, partitions: frozenset[TopicPartition]) -> None:
        if partitions:
            self._set(self._reads - partitions)
            logger.warning("Lost %s to others of the group.", shortened(sorted(partitions)))
            self._callbacks.on_lost(sorted(partitions))

    def _give_up(self, partitions: frozenset[TopicPartition]) -> None:
        if not partitions:
            return
        read = partitions & self._reads
        try:
            if read:
                self._commit(read)
                self._callbacks.on_revoked(sorted(read))
        finally:
            self._set(self._reads - read)
            self.member.ownership.release(partitions)

    def _take(self, partitions: frozenset[TopicPartition]) -> None:
        if partitions:
            self._set(self._reads | partitions)
            self._callbacks.on_assigned(sorted(partitions))

    def _set(self, partitions: frozenset[TopicPartition]) -> None:
        self._reads = partitions
        self._read(sorted(partitions))

    def close(self) -> None:
        """Give everything up. What cannot be said to ZooKeeper ends with the session. Raises what
        the callbacks raise, and ProcessForkedError in a forked process."""
        self.member.require_own_process()
        try:
            with _told_later():
                if self.member.connected and self.member.ownership.owned >= self._reads:
                    self._give_up(self._reads)
                else:
                    self._lose(self._reads)
        finally:
            with _told_later():
                self.member.leave()


@contextmanager
def _told_later() -> Iterator[None]:
    try:
        yield
    except CoordinationError as failure:
        logger.warning("The group learns of this consumer's end later: %s", failure)

"""A consumer's share of its group: what it owns, kept in step with the group's assignment.

Imported when a consumer subscribes: most users of clients never talk to ZooKeeper.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from spark_logbus.clock import elapsed
from spark_logbus.coordination.cluster.lease import Lease
from spark_logbus.coordination.groups.assignment import Assignor
from spark_logbus.coordination.groups.membership import GroupMembership, Subscribed
from spark_logbus.coordination.groups.partition_owners import PartitionOwnership
from spark_logbus.errors import CoordinationError
from spark_logbus.forks import follow_forks
from spark_logbus.model import TopicPartition
from spark_logbus.zookeeper import Session, SessionState
from spark_logbus.zookeeper.nodes import ConflictError

logger = logging.getLogger(__name__)

# Between attempts to claim what its last owner still has: a watch ends the wait sooner, but tells
# nothing of a process that was killed on this machine.
_LOOK_AGAIN_S: Final = 2.0
_IDLE_LOOKS: Final = 4  # in the time after which one that asks for nothing is left out


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """Settings that a member brings to its group."""

    name: str
    topics: Subscribed
    assignor: Assignor
    max_poll_interval_ms: int


class GroupMember:
    """One member of a group, in a ZooKeeper session that is its own. For the consumer's thread.

    A consumer that asks for nothing for too long is taken out of the group, on the session's
    worker; it is to ``rejoin`` then, having lost all.
    """

    def __init__(self, session: Session, group: str, settings: MemberSettings) -> None:
        self._session = session
        self._group = group
        self._settings = settings
        self.ownership = PartitionOwnership(session, group, member=settings.name)
        self._membership = self._new_membership()
        self._lease = Lease(
            timeout_ms=session.granted_ms,
            ask=lambda limit_s: self._membership.holds(limit_s),
            description="this consumer's membership",
            waits="it hands out nothing",
        )
        #: By ``elapsed``: before that, records may be handed out without a further look. Others
        #: than the consumer's thread only set it to zero, after they have changed something.
        self.next_check_at = 0.0
        self._changed = False
        self._look_again_at = math.inf
        self._commit_at = math.inf
        self._asked_at = elapsed()
        self._leaving = threading.Lock()
        self._left = False
        #: True once it was taken out of the group because it asked for nothing.
        self.evicted = False
        follow_forks(self)

    def after_fork(self) -> None:
        """Let nothing more be handed out in the child."""
        self.next_check_at = 0.0

    def require_own_process(self) -> None:
        """Raise ProcessForkedError in a forked process, whose parent is the member."""
        self._session.require_own_process()

    def _new_membership(self) -> GroupMembership:
        return GroupMembership(
            self._session,
            self._group,
            member=self._settings.name,
            topics=self._settings.topics,
            assignor=self._settings.assignor,
            on_change=self._change,
        )

    def join(self) -> None:
        """Raises CoordinationError."""
        self._session.set_state_hook(self._session_is)
        self._membership.join()
        self._lease.start()
        self._watch_idleness()

    def rejoin(self) -> None:
        """Joins once more, after it was evicted. Raises CoordinationError."""
        membership = self._new_membership()
        membership.join()
        self._membership, self.evicted = membership, False
        self._watch_idleness()

    def leave(self) -> None:
        """Let go of everything. Raises CoordinationError; it all ends with the session anyway."""
        self._lease.stop()
        try:
            with self._leaving:
                self._left = True
                if not self.evicted and self.connected:
                    self._withdraw()
        finally:
            self._lease.join()

    @property
    def connected(self) -> bool:
        """ZooKeeper can be asked at the moment."""
        return self._session.state is SessionState.CONNECTED

    def _withdraw(self) -> None:
        self._membership.leave()
        self.ownership.release(self.ownership.owned)

    def _change(self) -> None:
        self._changed = True
        self.next_check_at = 0.0

    def _session_is(self, state: SessionState, granted_ms: int) -> None:
        self._lease.session_is(state, granted_ms)
        self._change()  # ``next_check_at`` may be of a longer lease

    # -- asked all the time -----------------------------------------------------------------

    @property
    def needs_rebalance(self) -> bool:
        """True if the consumer is to look at what it owns before it hands out anything more. Raises
        ProcessForkedError in a forked process."""
        now = elapsed()
        if now < self.next_check_at:
            return False
        self.require_own_process()
        self._asked_at = now
        often_s = self._settings.max_poll_interval_ms / 1000 / _IDLE_LOOKS
        self.next_check_at = min(
            self._lease.until, self._look_again_at, self._commit_at, now + often_s
        )
        # Looked at after that: what changes from here on sets it to zero again.
        if self._changed or now >= self._look_again_at or not self._lease.current():
            self.next_check_at = 0.0
            return True
        return False

    def commit_at(self, at: float) -> None:
        """Have the consumer look up then, by ``elapsed``, though nothing else has changed."""
        self._commit_at = at
        self.next_check_at = 0.0

    def is_certain(self, timeout_s: float) -> bool:
        """Waits until ZooKeeper confirms that the member's node is of the present session; after a
        new session nothing is owned."""
        if self._lease.current() or self.evicted:
            return True
        decided = threading.Event()
        self._lease.when_decided(decided.set)
        decided.wait(timeout_s)
        return self._lease.current()

    # -- idleness -------------------------------------------------------------------------

    def _watch_idleness(self) -> None:
        limit_ms = self._settings.max_poll_interval_ms
        self._session.worker.submit(self._look_for_idleness, delay_ms=limit_ms // _IDLE_LOOKS)

    def _look_for_idleness(self) -> None:
        limit_ms = self._settings.max_poll_interval_ms
        with self._leaving:
            if self._left or self.evicted:
                return
            if elapsed() - self._asked_at < limit_ms / 1000:
                self._watch_idleness()
                return
            logger.warning(
                "The consumer %s of the group %s has not asked for records for %d ms "
                "(max_poll_interval_ms); the others share what it had until it asks again.",
                self._settings.name, self._group, limit_ms,
            )  # fmt: skip
            self.evicted = True
            self._change()
            try:
                self._withdraw()
            except CoordinationError as failure:
                logger.warning("The group learns of that later: %s", failure)

    # -- what is owned ----------------------------------------------------------------------

    def begin(self) -> None:
        """Begins to note changes anew: those from now on are looked at again."""
        self._changed = False
        self._look_again_at = math.inf

    @property
    def to_read(self) -> frozenset[TopicPartition]:
        """Partitions that the newest assignment gives this member."""
        return self._membership.assigned

    def claim(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Owns ``partitions`` as far as they are free, and returns those; the others are tried
        again, when their owners have let go. Raises GroupHeldError."""
        if not partitions:
            return frozenset()
        try:
            claimed = self.ownership.claim(
                partitions, on_condition=self._membership.condition(), watch=self._freed
            )
        except ConflictError:
            self._change()
            return frozenset()
        if claimed.taken:
            self.look_again()
        return claimed.owned

    def look_again(self) -> None:
        """Has the consumer look again after a while, whether anything has changed or not."""
        self._look_again_at = elapsed() + _LOOK_AGAIN_S
        self.next_check_at = 0.0

    def _freed(self, _: object) -> None:
        self._change()

"""Gives way to other brokers that are in sync, where the disk here fails a partition that it leads.

A broker that lives and is in sync keeps its leads, whatever its disk does. So one whose log takes
nothing any more, or cannot be opened or taken, leaves the in-sync set itself: then one of the
others is elected. It comes back as a follower when its disk works again. It stays where no other
that is in sync runs: what it has can be read, or is the only copy.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from spark_logbus.broker.replica.assignments import Assigned
from spark_logbus.broker.replica.removal import fields_about
from spark_logbus.coordination.cluster.partition_states import MAX_CLAIMS, PartitionStates
from spark_logbus.coordination.cluster.topic_records import LeadershipClaim
from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.model import TopicPartition

logger = logging.getLogger(__name__)

# A disk that refused something may take it a second later, as where descriptors were wanting.
_TRIES: Final = 2


class GivingWay:
    """Leaves leads in ZooKeeper. Used by one thread."""

    def __init__(self, broker_id: int, states: PartitionStates) -> None:
        self._broker_id = broker_id
        self._states = states
        self._failures: dict[TopicPartition, int] = {}  # to take the lead, in a row
        self._failed: dict[TopicPartition, Assigned] = {}  # since the last look

    def others_in_sync(self, assigned: Assigned) -> set[int]:
        """Returns the other brokers that may lead a partition, as far as that is known: those to
        which it is still to move are in sync, too, and not elected if the move is cancelled."""
        state = assigned.state
        if not isinstance(state, PartitionState):
            return set()
        return ({*state.in_sync} & {*assigned.brokers}) - {self._broker_id}

    def failed(self, assigned: Assigned) -> None:
        """Notes that a partition could not be led here for a fault of its disk."""
        self._failed[assigned.topic_partition] = assigned

    def leave_failed(self, tried: Iterable[Assigned], live: Collection[int]) -> None:
        """Leaves, of what was tried since the last call, that which has failed again and others can
        lead that are in sync and live. Raises CoordinationError."""
        failed, self._failed = self._failed, {}
        for each in tried:
            if each.topic_partition in failed:
                count = self._failures.get(each.topic_partition, 0)
                self._failures[each.topic_partition] = count + 1
            else:
                self._failures.pop(each.topic_partition, None)
        leaving = {
            where: each.record.topic_id
            for where, each in failed.items()
            if self._failures.get(where, 0) >= _TRIES
            and not self.others_in_sync(each).isdisjoint(live)
        }
        for where in self.leave(leaving, live):
            self._failures.pop(where, None)

    def leave(
        self, topic_ids: Mapping[TopicPartition, str], live: Collection[int]
    ) -> list[TopicPartition]:
        """Has ZooKeeper note that others are to lead, of many partitions at a time; returns those
        of which it has. Raises CoordinationError."""
        left: list[TopicPartition] = []
        claims = [LeadershipClaim(where, topic_id) for where, topic_id in topic_ids.items()]
        for start in range(0, len(claims), MAX_CLAIMS):
            some = claims[start : start + MAX_CLAIMS]
            found = self._states.leave_all(some, broker_id=self._broker_id, live=live)
            for where, state in found.items():
                if not isinstance(state, PartitionState):
                    logger.info("Not leaving %s: %s", where, state, extra=fields_about(where))
                    continue
                left.append(where)
                logger.error(
                    "%s is not led here any more, for its disk is not in order: one of the brokers "
                    "%s, which are in sync, is to be elected.",
                    where, ", ".join(map(str, state.in_sync)), extra=fields_about(where),
                )  # fmt: skip
        return left

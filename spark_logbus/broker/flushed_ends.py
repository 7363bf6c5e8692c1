"""Notes in ZooKeeper how far each log has come, so that one which comes back shorter is noticed.

A thread of its own writes flushed ends, of logs that have moved, every few seconds; appends never
wait for it. So what stands in ZooKeeper is a lower bound: a log that ends before it has lost
records. Of partitions with several replicas the high watermark is noted too: a replica that ends
before it is not elected, and a leader that comes back shows that much at once. While ZooKeeper is
away nothing is noted, and the next pass makes up for it.
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import Final

from spark_logbus.broker.replica.in_sync import InSync
from spark_logbus.broker.replica.manager import ReplicaManager
from spark_logbus.broker.replica.states import LeaderPartition
from spark_logbus.clock import Clock
from spark_logbus.coordination.cluster.partition_states import PartitionStates
from spark_logbus.coordination.cluster.topic_records import Reached
from spark_logbus.errors import CoordinationError
from spark_logbus.model import TopicPartition
from spark_logbus.threads import Periodic
from spark_logbus.zookeeper import Session, SessionState

logger = logging.getLogger(__name__)

_PASS_EVERY_S: Final = 5.0
# Of the time, a pass may take this share at most: with very many logs they become rarer.
_MAX_SHARE: Final = 0.05
# A ZooKeeper that does not answer holds up the broker's stop for no longer.
_LAST_PASS_S: Final = 3.0
# In one transaction: well below what ZooKeeper takes at once, and others wait but milliseconds.
_AT_ONCE: Final = 250


class FlushedEndNotes:
    """Notes the flushed ends of the logs that are led here, on a thread of its own.

    When ``thread`` is stopped they are noted once more, if ZooKeeper answers soon: stop it when
    appends have ended.
    """

    def __init__(
        self,
        replica_manager: ReplicaManager,
        states: PartitionStates,
        session: Session,
        *,
        in_sync: InSync,
        clock: Clock,
    ) -> None:
        self._in_sync = in_sync
        self._replica_manager = replica_manager
        self._states = states
        self._session = session
        self._clock = clock
        self._noted: dict[TopicPartition, Reached] = {}
        self.thread = Periodic(
            "flushed-ends",
            self._note_at_intervals,
            pause_s=_PASS_EVERY_S,
            failure="The ends of the logs could not be noted in ZooKeeper.",
            at_end=self._note_last,
            join_s=_LAST_PASS_S,
        )

    def _note_at_intervals(self) -> float:
        began = self._clock.monotonic()
        self._note_or_warn()
        return max(_PASS_EVERY_S, (self._clock.monotonic() - began) / _MAX_SHARE)

    def _note_last(self) -> None:
        for led in self._replica_manager.led().values():
            led.log.flush()
        self._note_or_warn()

    def _note_or_warn(self) -> None:
        if self._session.state is not SessionState.CONNECTED:
            return  # an attempt would only wait
        try:
            self.note()
        except CoordinationError as error:
            logger.info("The ends of the logs are noted in ZooKeeper later: %s", error)

    def note(self) -> None:
        """One pass. Raises CoordinationError; what was noted until then counts."""
        now = {
            topic_partition: Reached(
                led.log.topic_id,
                led.leader_epoch,
                led.log.flushed_end,
                committed=self._committed(led),
            )
            for topic_partition, led in self._replica_manager.led().items()
        }
        self._noted = {
            topic_partition: at
            for topic_partition, at in self._noted.items()
            if topic_partition in now
        }
        moved = iter(
            [
                (topic_partition, at)
                for topic_partition, at in now.items()
                if self._noted.get(topic_partition) != at
            ]
        )
        while part := dict(islice(moved, _AT_ONCE)):
            self._states.note_ends(part)
            self._noted.update(part)

    def _committed(self, led: LeaderPartition) -> int | None:
        """The high watermark of a partition with several replicas, of which no other has less; None
        of one that is on this disk alone."""
        if self._in_sync.members(led) is None:
            return None
        return min(led.log.ends().high_watermark, led.log.flushed_end)

"""Opens the logs of partitions that this broker is to follow."""

from __future__ import annotations

import logging
from collections.abc import Callable

from spark_logbus.broker.replica.applying import FollowedLog
from spark_logbus.broker.replica.assignments import WantedReplica
from spark_logbus.broker.replica.removal import fields_about
from spark_logbus.broker.replica.watermark import HighWatermarks
from spark_logbus.coordination.cluster.partition_states import PartitionStates
from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.errors import LogbusError, NotLeaderError, PartitionOfflineError, StorageError
from spark_logbus.log import LogDirectory, PartitionLog, WantedLog
from spark_logbus.zookeeper import CorruptNodeError

logger = logging.getLogger(__name__)


class NoRoomError(StorageError):
    """The disk has no room for a partition that is to be copied here."""


class NotToBeFollowedError(StorageError):
    """The log that is here, or the leader's, is none with which a copy may begin."""


class LogOpener:
    """Opens, makes or mends the log of a partition before it is followed. Used by one thread.

    ``require_room`` raises NoRoomError unless so many bytes of a partition have room on the disk.
    ``lives`` tells if a broker is registered.
    """

    def __init__(
        self,
        broker_id: int,
        *,
        logs: LogDirectory,
        states: PartitionStates,
        watermarks: HighWatermarks,
        require_room: Callable[[WantedReplica, int], None],
        lives: Callable[[int], bool],
    ) -> None:
        self._broker_id = broker_id
        self._logs = logs
        self._states = states
        self._watermarks = watermarks
        self._require_room = require_room
        self._lives = lives

    def open(self, wanted: WantedReplica) -> FollowedLog | None:
        """Returns the log, ready to follow its leader's; None if the partition has no leader yet,
        or is led here soon.

        Raises CoordinationError, NotToBeFollowedError, and what the disk refuses.
        """
        where = wanted.topic_partition
        state = wanted.state or self._states.states_of([where])[where]
        if isinstance(state, CorruptNodeError):
            raise state
        if state is None or state.leader == self._broker_id:
            return None
        if state.refused is not None:
            raise NotToBeFollowedError(
                f"Broker {state.leader} does not serve {where}: {state.refused}"
            )
        self._watermarks.follow(where, 0)
        try:
            log = self._log_of(wanted, state)
            if log.log_id is None:
                raise StorageError(
                    f"{where} cannot be followed: its disk refuses to keep an id for the log in "
                    f"{log.directory}. Look whether it is full."
                )
            # Nothing comes any more of what was begun while it was led here.
            log.fence(
                state.leader_epoch - 1,
                NotLeaderError(
                    f"Broker {self._broker_id} does not lead {where} any more: broker "
                    f"{state.leader} does, in epoch {state.leader_epoch}. Refresh the metadata and "
                    "ask that one."
                ),
            )
            log.publishing.leave_to_leader()
            if wanted.move is None:
                # What is on this disk beyond that may be nowhere else; the leader tells soon.
                log.replication.begin(state.committed or 0)
        except BaseException:
            if not wanted.is_of_several:
                self._watermarks.forget(where)
            raise
        logger.info(
            "Following %s, which %s, in epoch %d from offset %d on.",
            where,
            f"broker {state.leader} leads"
            if wanted.move is None
            else f"moves here from broker {state.leader}",
            state.leader_epoch, log.ends().log_end_offset, extra=fields_about(where),
        )  # fmt: skip
        return FollowedLog(
            wanted,
            log,
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            logs=self._logs,
            watermarks=self._watermarks,
            is_copy=log.is_copy,
            require_room=lambda size_bytes: self._require_room(wanted, size_bytes),
        )

    def _log_of(self, wanted: WantedReplica, state: PartitionState) -> PartitionLog:
        where = wanted.topic_partition
        log = self._logs.ensure_all([wanted_log(wanted)])[where]
        if isinstance(log, PartitionOfflineError):  # what is there is kept, whatever it is
            self._require_leader(wanted, state, log.message)
            log = self._logs.start_over(wanted_log(wanted), keep_files=True)
        if isinstance(log, LogbusError):
            raise log.again()
        if log.epochs.latest > state.leader_epoch:
            raise NotToBeFollowedError(
                f"Broker {self._broker_id} has a log of {where} in {log.directory} that was led in "
                f"epoch {log.epochs.latest}, and ZooKeeper knows of none after "
                f"{state.leader_epoch}. Was ZooKeeper restored from an older state? Move that "
                "directory away while the broker is stopped, if its records are not needed."
            )
        if wanted.move is not None and not log.is_copy:
            # It may have led since ZooKeeper's state was saved, and be the only one with what it
            # took then.
            log = self._logs.start_over(wanted_log(wanted), keep_files=True)
        if log.damaged:
            # The leader has it, and it is copied again. It may have been told of as flushed.
            self._require_leader(wanted, state, f"the records {log.damaged[0]} are damaged")
            self._logs.renew_log_id(log)
            if log.damaged[0].start > log.ends().log_start_offset:
                log.truncate_to(log.damaged[0].start, below_watermark=True)
            else:
                log = self._logs.start_over(wanted_log(wanted), keep_files=True)
        return log

    def _require_leader(self, wanted: WantedReplica, state: PartitionState, why: str) -> None:
        """Raises NotToBeFollowedError for an assigned replica whose leader does not live: if that
        never comes back, what is whole in the log here may be all that is left, and this broker be
        elected with it."""
        if wanted.move is None and not self._lives(state.leader):
            raise NotToBeFollowedError(
                f"The log of {wanted.topic_partition} on broker {self._broker_id} is left as it is "
                f"until its leader, broker {state.leader}, is registered in ZooKeeper: {why}"
            )


def wanted_log(wanted: WantedReplica) -> WantedLog:
    where, config = wanted.topic_partition, wanted.record.config
    return WantedLog(where, wanted.topic_id, config, follows=True, reopens=True)

"""Elects this broker leader of partitions though it is not in sync with those who led them.

Theory of operation. Nobody who is in sync lives, so the partition is offline, and stays so until
one of them is back. Who has it led all the same, an operator or the topic's own configuration,
gives up what the elected log lacks. The broker whose log it is looks whether that is needed and
possible, and writes itself into the partition's state, on the condition that nobody has led it
since that was looked at. So whoever can reach the port can have this broker lead what it has, of
what is offline, and nothing else.

What was given an offset, was acknowledged and read perhaps, is lost and not replaced: the log goes
on behind all that may have been there, as one does that is given up. The state says where, and is
written first; so a broker that dies in between does it when it is back. Readers that are in between
are told of lost records.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from typing import Final, NamedTuple

from spark_logbus.broker.replica.following import Following
from spark_logbus.broker.replica.manager import ReplicaManager
from spark_logbus.broker.replica.removal import fields_about
from spark_logbus.coordination.cluster.leader_rules import able_to_lead, behind_all, listed
from spark_logbus.coordination.cluster.partition_states import PartitionStates
from spark_logbus.coordination.cluster.topic_records import LeadershipClaim, TopicRecord
from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.errors import (
    InvalidRequestError,
    LogbusError,
    LogMissingError,
    StorageError,
    UnknownTopicError,
)
from spark_logbus.log import LogDirectory, PartitionLog
from spark_logbus.model import TopicPartition
from spark_logbus.protocol import ReplicaStanding
from spark_logbus.zookeeper import CorruptNodeError

logger = logging.getLogger(__name__)

_ON_AN_OPERATORS_WORD: Final = "as an operator has asked for"


class Candidate(NamedTuple):
    """A partition as it stands here and in ZooKeeper; ``problem`` is the reason why this broker
    cannot be elected, if there is one."""

    state: PartitionState | None
    log: PartitionLog | None
    problem: LogbusError | None = None

    @property
    def standing(self) -> ReplicaStanding | None:
        """Returns what is told of it; None where nobody has led it, or that is not known."""
        state, log = self.state, self.log
        if state is None:
            return None
        standing = ReplicaStanding(
            state.leader,
            state.leader_epoch,
            [*state.in_sync],
            known_end=-1 if state.end is None else state.end,
            committed=-1 if state.committed is None else state.committed,
        )
        if log is not None:
            ends = log.ends()
            standing.log_start, standing.log_end = ends.log_start_offset, ends.log_end_offset
            standing.last_epoch = log.epochs.latest
            standing.go_on_at = behind_all(state, ends.log_end_offset)
        return standing


class UncleanElections:
    """Looks at what this broker could lead, and has it do so. Thread-safe.

    ``topic`` gives a topic as this broker knows it, ``live`` asks ZooKeeper for the brokers that
    are registered. ``end_promises`` has what a broker has prepared of atomic writes prepared anew.
    """

    def __init__(
        self,
        broker_id: int,
        *,
        replica_manager: ReplicaManager,
        logs: LogDirectory,
        states: PartitionStates,
        following: Following,
        topic: Callable[[str], TopicRecord | None],
        live: Callable[[], Collection[int]],
        end_promises: Callable[[int], None],
    ) -> None:
        self._broker_id = broker_id
        self._replica_manager = replica_manager
        self._logs = logs
        self._states = states
        self._following = following
        self._topic = topic
        self._live = live
        self._end_promises = end_promises

    def look(
        self, topic: str, partitions: Iterable[int], topic_id: str | None = None
    ) -> dict[int, Candidate]:
        """Looks at partitions of a topic. Raises UnknownTopicError, CoordinationError."""
        record = self._topic(topic)
        if record is None or topic_id not in (None, record.topic_id):
            raise UnknownTopicError(
                f"Broker {self._broker_id} knows of no topic {topic!r}"
                + (f" with the id {topic_id}." if topic_id is not None else ".")
            )
        wheres = [TopicPartition(topic, each) for each in partitions]
        known = [each for each in wheres if each.partition in record.partitions]
        states, live = self._states.states_of(known), self._live()
        return {each.partition: self._look_at(each, record, states, live) for each in wheres}

    def _look_at(
        self,
        where: TopicPartition,
        record: TopicRecord,
        states: dict[TopicPartition, PartitionState | CorruptNodeError | None],
        live: Collection[int],
    ) -> Candidate:
        state = states.get(where)
        if isinstance(state, CorruptNodeError):
            return Candidate(None, None, state)
        log = self._logs.get(where)
        if log is not None and log.topic_id != record.topic_id:
            log = None
        problem = self._needless(where, record, state, live) or self._unfit(where, state, log)
        return Candidate(state, log, problem)

    def _needless(
        self,
        where: TopicPartition,
        record: TopicRecord,
        state: PartitionState | None,
        live: Collection[int],
    ) -> LogbusError | None:
        """Says why nobody needs to be elected, or not this broker."""
        me, assigned = self._broker_id, record.partitions.get(where.partition)
        if assigned is None:
            return UnknownTopicError(
                f"The topic {where.topic!r} has no partition {where.partition}."
            )
        if len(assigned) == 1:
            return InvalidRequestError(
                f"{where} has one replica, so no other broker has its log. If that is lost: logbus "
                f"topics give-up {where.topic} --partition {where.partition}."
            )
        if me not in assigned:
            return InvalidRequestError(
                f"Broker {me} cannot be elected leader of {where}: that is assigned to the brokers "
                f"{listed(assigned)}."
            )
        if state is None:
            return InvalidRequestError(
                f"Nobody has led {where} yet: whoever is assigned to it begins by itself."
            )
        if able := able_to_lead(state, live):
            return InvalidRequestError(
                f"{where} needs no unclean election: of the brokers in sync, {listed(able)} run, "
                "and one of them leads or is to be elected."
            )
        if me in state.in_sync:
            return InvalidRequestError(
                f"Broker {me} refuses {where}, of which it alone is in sync: {state.refused or ''} "
                f"Elect another, or give up what is lost: logbus topics give-up {where.topic} "
                f"--partition {where.partition}."
            )
        return None

    def _unfit(
        self, where: TopicPartition, state: PartitionState | None, log: PartitionLog | None
    ) -> LogbusError | None:
        """Says why the log that is here is none to lead with."""
        if log is None:
            failed = self._logs.failed().get(where)
            return failed or LogMissingError(f"Broker {self._broker_id} has no log of {where}.")
        if (offline := log.offline) is not None:
            return offline
        if log.ends().log_end_offset == 0 and state is not None and (state.end or 0) > 0:
            return LogMissingError(
                f"Broker {self._broker_id} has nothing of {where}, whose log had reached "
                f"{state.end}: everything would be lost."
            )
        return None

    def ask(
        self,
        where: TopicPartition,
        topic_id: str | None,
        leader_epoch: int,
        *,
        why: str = _ON_AN_OPERATORS_WORD,
    ) -> Future[PartitionState]:
        """Has this broker lead a partition that was led in that epoch last, and soon serve it.

        The future has the state that was written, or raises NotLeaderError if another has led it
        since, InvalidRequestError, UnknownTopicError, StorageError, CoordinationError. It can be
        cancelled until it is begun with.
        """
        done = Future[PartitionState]()

        def elect() -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                done.set_result(self._elect(where, topic_id, leader_epoch, why))
            except LogbusError as error:
                done.set_exception(error)
            except Exception as error:
                logger.exception("%s could not be led.", where)
                text = f"{where} could not be led: {type(error).__name__}: {error}"
                done.set_exception(StorageError(text))

        self._replica_manager.do_first(elect)
        return done

    def _elect(
        self, where: TopicPartition, topic_id: str | None, leader_epoch: int, why: str
    ) -> PartitionState:
        state, log, problem = self.look(where.topic, [where.partition], topic_id)[where.partition]
        if problem is not None:
            raise problem
        assert state is not None
        assert log is not None
        # What the old leader has prepared, and this log may lack, is not decided after this.
        self._end_promises(state.leader)
        self._following.release(where)  # who leads and follows has it followed on if need be
        if log.flushed_end < log.ends().log_end_offset:
            log.flush()
        if (offline := log.offline) is not None:  # the flush has failed
            raise offline.again()
        end = log.flushed_end
        claim = LeadershipClaim(
            where, log.topic_id, end=end, log_id=log.log_id or "", after_epoch=log.epochs.latest
        )
        elected = self._states.elect_unclean(
            claim, broker_id=self._broker_id, leader_epoch=leader_epoch, live=self._live
        )
        self._replica_manager.elections.unclean.add()
        known = max(state.end or 0, state.committed or 0)
        logger.error(
            "Broker %d is elected leader of %s in epoch %d, %s, though it was not in sync: brokers "
            "%s were, and are away or lack their logs. Its log ends at %d. The records from there "
            "on are lost: %s, and what came after the last note of that. It goes on at %d.",
            self._broker_id, where, elected.leader_epoch, why, listed(state.in_sync), end,
            f"those up to {known} at least" if known > end else "none that are known of",
            elected.go_on_at, extra=fields_about(where),
        )  # fmt: skip
        self._replica_manager.states_changed({where.topic})
        return elected

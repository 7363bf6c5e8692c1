"""Takes the lead of partitions, in ZooKeeper first, then here, and leaves it to others.

A broker takes the lead of what ZooKeeper says that it leads, after a restart say, always in a new
epoch; and it is elected in the place of a leader that is gone. Either way it knows all that is
decided of atomic writes before it serves the partition, and keeps that from consumers until it is
whole.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from spark_logbus.broker.decided_shares import PartitionShare
from spark_logbus.broker.replica.assignments import Assigned
from spark_logbus.broker.replica.giving_way import GivingWay
from spark_logbus.broker.replica.removal import fields_about
from spark_logbus.broker.replica.states import LeaderPartition, ReplicaEvent, Replicas
from spark_logbus.coordination.cluster.partition_states import LeadResult, PartitionStates
from spark_logbus.coordination.cluster.topic_records import LeadershipClaim, TopicRecord
from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.errors import (
    LogbusError,
    NotLeaderError,
    PartitionOfflineError,
    StorageError,
    UnknownTopicError,
)
from spark_logbus.log import LogDirectory, PartitionLog, WantedLog
from spark_logbus.model import TopicPartition
from spark_logbus.zookeeper import CorruptNodeError

logger = logging.getLogger(__name__)


_Result = PartitionState | LogbusError
_Lead = Callable[[Sequence[LeadershipClaim]], Mapping[TopicPartition, _Result]]


class LeadListener(Protocol):
    """Keeps what goes with the lead of a partition, such as who is in sync."""

    def lead(self, led: LeaderPartition, state: PartitionState) -> None:
        """Begins with a partition that is led from now on, before anybody finds it. Raises
        StorageError."""


class Leadership:
    """Leads partitions, or refuses to. ``take`` and ``elect`` are for one thread, ``check_epochs``
    for another.

    ``partition_changed`` is called when a partition has new records, or is not served here.
    """

    def __init__(
        self,
        broker_id: int,
        *,
        logs: LogDirectory,
        states: PartitionStates,
        replicas: Replicas,
        leads: LeadListener,
        partition_changed: Callable[[TopicPartition], None],
    ) -> None:
        self._broker_id = broker_id
        self._logs = logs
        self._states = states
        self._replicas = replicas
        self._leads = leads
        self._notify = partition_changed
        self._giving_way = GivingWay(broker_id, states)

    def check_epochs(self) -> bool:
        """Leads those partitions anew that another broker has led since, which had the id for a
        while and is gone. Returns True if one is not led any more, and is to be taken again.
        Raises CoordinationError."""
        overtaken = False
        by_topic: dict[str, list[TopicPartition]] = {}
        for topic_partition in self._replicas.leading():
            by_topic.setdefault(topic_partition.topic, []).append(topic_partition)
        for topic, topic_partitions in by_topic.items():
            try:
                states = self._states.states(topic)
                for topic_partition in topic_partitions:
                    state = states.get(topic_partition.partition)
                    if state is not None:
                        overtaken |= self._check_epoch(topic_partition, state)
            except (CorruptNodeError, UnknownTopicError) as error:
                logger.debug("The epochs of %s are left as they are: %s", topic, error)
        return overtaken

    def _check_epoch(self, topic_partition: TopicPartition, state: PartitionState) -> bool:
        led, newest = self._replicas.leader(topic_partition), state.leader_epoch
        if led is None or led.leader_epoch == newest:
            return False
        if state.leader != self._broker_id and newest > led.leader_epoch:
            self.step_down(topic_partition, led, state)
            return True
        if led.log.flushed_end < (state.end or 0):
            # The other broker's log has come further: this one is opened anew, and refused; or it
            # is left to that broker, if the partition was moved there.
            self._change_led(topic_partition, led, ReplicaEvent.OVERTAKE)
            return True
        claim = _claim(topic_partition, led.log)
        taken = self._states.lead_all([claim], broker_id=self._broker_id)[topic_partition]
        if isinstance(taken, NotLeaderError):
            self._change_led(topic_partition, led, ReplicaEvent.HAND_OVER)
            self._notify(topic_partition)
            return True
        if isinstance(taken, PartitionOfflineError):  # it has led with another log
            self._change_led(topic_partition, led, ReplicaEvent.OVERTAKE)
            return True
        if isinstance(taken, LogbusError):
            raise taken.again()
        again = LeaderPartition(led.log, taken.leader_epoch)
        self._end_epochs_before(again)
        with self._replicas.lock:
            if self._replicas.leader(topic_partition) is not led:
                return False
            self._leads.lead(again, taken)
            self._replicas.change(topic_partition, ReplicaEvent.LEAD, leader=again)
        logger.warning(
            "%s was led by another broker meanwhile, in epoch %d; leading it in epoch %d.",
            topic_partition, newest, taken.leader_epoch, extra=fields_about(topic_partition),
        )  # fmt: skip
        return False

    def _change_led(
        self,
        topic_partition: TopicPartition,
        led: LeaderPartition,
        event: ReplicaEvent,
    ) -> bool:
        """Changes a partition if it is still led as ``led``; returns whether it was."""
        with self._replicas.lock:
            still = self._replicas.leader(topic_partition) is led
            if still:
                self._replicas.change(topic_partition, event)
            return still

    def let_go(
        self, topic_partition: TopicPartition, led: LeaderPartition, *, follows: bool = False
    ) -> bool:
        """Leads a partition no more, which is another broker's, and perhaps follows that; returns
        False if it was not led as ``led`` any more."""
        event = ReplicaEvent.FOLLOW if follows else ReplicaEvent.HAND_OVER
        return self._change_led(topic_partition, led, event)

    def step_down(
        self, topic_partition: TopicPartition, led: LeaderPartition, state: PartitionState
    ) -> None:
        """Leads a partition no more of which another broker has the lead. On return nothing more
        comes into its log from clients."""
        error = NotLeaderError(
            f"Broker {self._broker_id} does not lead {topic_partition} any more: broker "
            f"{state.leader} does, in epoch {state.leader_epoch}. Refresh the metadata and ask "
            "that one."
        )
        # In this order: a hand-over that comes to nothing lifts its own fence of what is still led.
        was_led = self.let_go(topic_partition, led, follows=True)
        led.log.fence(led.leader_epoch, error)
        if was_led:
            self._notify(topic_partition)
            logger.warning(
                "%s is led by broker %d in epoch %d, no more by this one.",
                topic_partition, state.leader, state.leader_epoch,
                extra=fields_about(topic_partition),
            )  # fmt: skip

    def others_in_sync(self, assigned: Assigned) -> set[int]:
        """Returns the other brokers that may lead a partition, as far as that is known."""
        return self._giving_way.others_in_sync(assigned)

    def leave_offline(
        self, offline: Mapping[TopicPartition, LeaderPartition], live: Collection[int]
    ) -> None:
        """Leaves what is led with logs that are offline to others that are in sync, all together,
        where one of those lives. Raises CoordinationError."""
        topic_ids = {where: led.log.topic_id for where, led in offline.items()}
        for topic_partition in self._giving_way.leave(topic_ids, live):
            led = offline[topic_partition]
            if self.let_go(topic_partition, led, follows=True):
                self._notify(topic_partition)
            led.log.fence(
                led.leader_epoch,
                NotLeaderError(
                    f"Broker {self._broker_id} does not lead {topic_partition} any more: its log "
                    "is offline. Refresh the metadata and ask the leader that is elected."
                ),
            )

    def take(
        self,
        assigned: Sequence[Assigned],
        decided: Mapping[TopicPartition, Sequence[PartitionShare]],
        term: object,
        live: Collection[int],
    ) -> bool:
        """Leads partitions that ZooKeeper says this broker leads, or nobody ever led, all together;
        returns False when that failed for one, or this broker has resigned since the ``term``
        began. ``decided`` are the shares of atomic writes that are not known to be published. What
        it fails to lead again and again it leaves to others that are in sync and live. Raises
        CoordinationError."""

        def lead(claims: Sequence[LeadershipClaim]) -> Mapping[TopicPartition, LeadResult]:
            return self._states.lead_all(claims, broker_id=self._broker_id)

        done = self._take(assigned, self._logs_of(assigned), decided, term, lead)
        self._giving_way.leave_failed(assigned, live)
        return done

    def elect(
        self,
        partitions: Sequence[Assigned],
        decided: Mapping[TopicPartition, Sequence[PartitionShare]],
        term: object,
        live: Collection[int],
    ) -> None:
        """Takes the lead of partitions whose leaders are gone, all together, where no other has
        done it before. Raises CoordinationError."""
        copies: list[WantedLog] = []

        def lead(claims: Sequence[LeadershipClaim]) -> Mapping[TopicPartition, _Result]:
            states = self._states.elect_all(claims, broker_id=self._broker_id, live=live)
            # Not before: one that is not elected is a copy still, which goes on as such.
            led = [
                replace(each, follows=False, reopens=False)
                for each in copies
                if isinstance(states.get(each.topic_partition), PartitionState)
            ]
            opened = self._logs.ensure_all(led) if led else {}
            failed = {where: log for where, log in opened.items() if isinstance(log, LogbusError)}
            return {**states, **failed}

        for each in partitions:
            log = self._logs.get(each.topic_partition)
            if log is not None and log.flushed_end < log.ends().log_end_offset:
                # It would seem to be missing, and nothing else would have it flushed.
                log.flush()
        wanted = [
            WantedLog(
                each.topic_partition,
                each.record.topic_id,
                each.record.config,
                each.state.committed if isinstance(each.state, PartitionState) else None,
                follows=self._broker_id not in each.brokers,
                reopens=True,
            )
            for each in partitions
        ]
        copies += [each for each in wanted if each.follows]
        found = self._logs.ensure_all(wanted)
        logs = [found[each.topic_partition] for each in partitions]
        self._take(partitions, logs, decided, term, lead, elects=True)

    def _take(
        self,
        assigned: Sequence[Assigned],
        found: Sequence[PartitionLog | LogbusError],
        decided: Mapping[TopicPartition, Sequence[PartitionShare]],
        term: object,
        lead: _Lead,
        *,
        elects: bool = False,
    ) -> bool:
        done = True
        logs: dict[TopicPartition, PartitionLog] = {}
        for each, log in zip(assigned, found, strict=True):
            if isinstance(log, LogbusError):
                done = self._is_settled(each, log, elects=elects) and done
                continue
            led = self._replicas.leader(each.topic_partition)
            if led is not None and led.log is log:
                continue
            if (flaw := self._flaw(each, log)) is not None:
                done = self._is_settled(each, flaw, elects=elects) and done
                continue
            try:
                for decision in decided.get(each.topic_partition, ()):
                    if decision.topic_id == each.record.topic_id:
                        log.publishing.expect(decision)
            except StorageError as error:
                done = self._is_settled(each, error, elects=elects) and done
                continue
            logs[each.topic_partition] = log
        if not logs:
            return done
        states = lead([_claim(where, log) for where, log in logs.items()])
        for each in assigned:
            state = states.get(each.topic_partition)
            if isinstance(state, LogbusError):
                done = self._is_settled(each, state, elects=elects) and done
            elif state is not None:
                led = LeaderPartition(logs[each.topic_partition], state.leader_epoch)
                done = self._serve(each, led, state, term) and done
        return done

    def _flaw(self, assigned: Assigned, log: PartitionLog) -> LogbusError | None:
        """Returns the reason why another that is in sync is to lead rather than this log."""
        if log.log_id is None and not self._is_alone(assigned):
            return StorageError(
                f"{assigned.topic_partition} cannot be led: its disk refuses to keep an id for the "
                f"log in {log.directory}. Look whether it is full."
            )
        return log.offline if self._giving_way.others_in_sync(assigned) else None

    def _is_alone(self, assigned: Assigned) -> bool:
        """True if no other broker is known to be in sync."""
        state = assigned.state
        return not isinstance(state, PartitionState) or not {*state.in_sync} - {self._broker_id}

    def _is_settled(self, assigned: Assigned, error: LogbusError, *, elects: bool) -> bool:
        """Tells why a partition is not led; returns False when it is to be tried again. Raises
        CoordinationError."""
        topic_partition = assigned.topic_partition
        if elects:
            logger.info(
                "Not elected leader of %s: %s",
                topic_partition, error, extra=fields_about(topic_partition),
            )  # fmt: skip
            if isinstance(error, PartitionOfflineError) and self._is_alone(assigned):
                # Nobody else may lead, and somebody has to learn of that.
                self._refuse(topic_partition, assigned.record, error)
            return True
        if isinstance(error, CorruptNodeError):  # reported by who met it
            logger.debug("Not leading %s: %s", topic_partition, error)
        elif isinstance(error, UnknownTopicError):
            logger.info("Not taking %s, it was deleted just now: %s", topic_partition, error)
            return True
        elif isinstance(error, NotLeaderError):
            logger.info("Not taking %s, it is another broker's: %s", topic_partition, error)
            return True
        elif isinstance(error, PartitionOfflineError):
            self._refuse(topic_partition, assigned.record, error)
        else:
            self._cannot_serve(assigned, error)
        return False

    def _cannot_serve(self, assigned: Assigned, error: LogbusError) -> None:
        """Tells that a partition is not led here, which others are to lead if that goes on."""
        self._giving_way.failed(assigned)
        where = assigned.topic_partition
        logger.error("Cannot serve %s: %s", where, error, extra=fields_about(where))

    def _serve(
        self,
        assigned: Assigned,
        led: LeaderPartition,
        state: PartitionState,
        term: object,
    ) -> bool:
        topic_partition = assigned.topic_partition
        self._end_epochs_before(led)
        with self._replicas.lock:
            if self._replicas.term is not term:
                return False  # another broker may have led since, in a later epoch
            before = self._replicas.get(topic_partition).leader
            if before is None or before.log is not led.log:
                led.log.add_listener(lambda: self._notify(topic_partition))
            try:
                self._leads.lead(led, state)
            except StorageError as error:  # of this log alone
                self._cannot_serve(assigned, error)
                return False
            led.log.advance_high_watermark()  # which a leader may have held back here before
            # Last: who finds it may append, and wait for records.
            self._replicas.change(
                topic_partition, ReplicaEvent.LEAD, topic_id=led.log.topic_id, leader=led
            )
        logger.info(
            "Leading %s in epoch %d.",
            topic_partition, led.leader_epoch, extra=fields_about(topic_partition),
        )  # fmt: skip
        return True

    def _end_epochs_before(self, led: LeaderPartition) -> None:
        """Takes nothing more of what was begun in an earlier epoch: it would come behind this
        one's, and no follower takes that."""
        led.log.fence(
            led.leader_epoch - 1,
            NotLeaderError(
                f"Broker {self._broker_id} leads {led.log.topic_partition} in epoch "
                f"{led.leader_epoch} by now; refresh the metadata and try again."
            ),
        )

    def _logs_of(self, assigned: Sequence[Assigned]) -> list[PartitionLog | LogbusError]:
        """Returns the partitions' logs; one that was refused and given up goes on, or a new one."""
        found = self._logs.ensure_all(
            [
                WantedLog(
                    each.topic_partition,
                    each.record.topic_id,
                    each.record.config,
                    each.state.end or 0 if isinstance(each.state, PartitionState) else None,
                    known_id=self._known_id(each),
                    reopens=self._reopens(each),
                )
                for each in assigned
                if not isinstance(each.state, CorruptNodeError)
            ]
        )
        return [self._log_or_error(each, found) for each in assigned]

    def _reopens(self, assigned: Assigned) -> bool:
        """True if a log that is offline is to be opened anew: nobody reads it, and others have its
        records."""
        is_led = self._replicas.leader(assigned.topic_partition) is not None
        return not is_led and bool(self._giving_way.others_in_sync(assigned))

    def _known_id(self, assigned: Assigned) -> str:
        """Returns the id of the log with which the partition was led last; empty if that is not
        known, or that log was given up and the one that is here has gone on behind it."""
        state, log = assigned.state, self._logs.get(assigned.topic_partition)
        if not isinstance(state, PartitionState) or state.leader != self._broker_id:
            return ""
        if {*state.in_sync} - {self._broker_id}:
            return ""  # others are in sync: they may lead, and this broker learns it in ZooKeeper
        if log is not None and state.go_on_at is not None and log.flushed_end >= state.go_on_at:
            return ""
        return state.replicas.get(state.leader, "")

    def _log_or_error(
        self, assigned: Assigned, found: Mapping[TopicPartition, PartitionLog | LogbusError]
    ) -> PartitionLog | LogbusError:
        state = assigned.state
        if isinstance(state, CorruptNodeError):
            return state
        log = found[assigned.topic_partition]
        if not isinstance(log, PartitionOfflineError) or state is None or state.go_on_at is None:
            return log
        try:
            return self._logs.go_on(
                assigned.topic_partition,
                topic_id=assigned.record.topic_id,
                config=assigned.record.config,
                base_offset=max(state.go_on_at, state.end or 0),
                keep=state.keep,
            )
        except LogbusError as error:
            return error

    def _refuse(
        self, topic_partition: TopicPartition, record: TopicRecord, error: PartitionOfflineError
    ) -> None:
        """Reports once, in the log and in ZooKeeper, that the partition is not served."""
        topic, partition = topic_partition.topic, topic_partition.partition
        if len(record.partitions[partition]) > 1:
            error = type(error)(
                f"{error.message} Or have another broker lead that has some of it: "
                f"logbus topics elect {topic} --partition {partition} --unclean."
            )
        known = self._replicas.get(topic_partition)
        if known.error is not None and (known.topic_id, known.error.message) == (
            record.topic_id, error.message,
        ):  # fmt: skip
            return
        try:
            self._states.refuse(
                topic_partition,
                broker_id=self._broker_id,
                topic_id=record.topic_id,
                why=error.message,
                end=self._logs.known_end(topic_partition, topic_id=record.topic_id),
                kept_end=self._logs.kept_end(topic_partition, topic_id=record.topic_id),
            )
        except (UnknownTopicError, NotLeaderError):
            return  # deleted or moved just now; the news of it is under way
        self._replicas.change(
            topic_partition, ReplicaEvent.REFUSE, topic_id=record.topic_id, error=error.again()
        )
        self._notify(topic_partition)
        logger.error("%s", error, extra=fields_about(topic_partition))


def _claim(topic_partition: TopicPartition, log: PartitionLog) -> LeadershipClaim:
    return LeadershipClaim(
        topic_partition,
        log.topic_id,
        end=log.flushed_end,
        log_id=log.log_id or "",
        after_epoch=log.epochs.latest,
    )

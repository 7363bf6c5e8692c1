"""Leads the partitions that ZooKeeper assigns to this broker, and lets go of the others."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from spark_logbus.broker.decided_shares import PartitionShare, decided_shares
from spark_logbus.broker.metadata_cache import TopicsImage
from spark_logbus.broker.replica.removal import TopicRemoval, fields_about
from spark_logbus.broker.replica.states import (
    LeaderPartition,
    ReplicaEvent,
    Replicas,
    ReplicaState,
)
from spark_logbus.coordination.cluster.partition_states import MAX_CLAIMS, PartitionStates
from spark_logbus.coordination.cluster.topic_records import (
    LeadershipClaim,
    TopicRecord,
)
from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.coordination.writes.writers import WriterRegistry
from spark_logbus.errors import (
    CoordinationError,
    LogbusError,
    NotLeaderError,
    PartitionOfflineError,
    StorageError,
    UnknownTopicError,
)
from spark_logbus.log import LogDirectory, PartitionLog, WantedLog
from spark_logbus.model import TopicPartition
from spark_logbus.retry import Backoff
from spark_logbus.threads import Periodic
from spark_logbus.zookeeper import CorruptNodeError

logger = logging.getLogger(__name__)

_RETRY = Backoff(first_ms=1_000, max_ms=30_000)
_SHOWN = 10  # partitions that one line of the log names
# Between looks at refused partitions: whoever gives one up waits for that.
_REFUSED_RETRY_S = 2.0
_REFUSED_LOOK_S = 0.002  # to look at 10,000 of them takes ZooKeeper about a second


def sole_replica(_: TopicPartition, end: int) -> int:
    """Returns the high watermark of a partition without followers: the end of what is safe here.

    That is the flushed end, or the log end where flushing is left to the operating system.
    """
    return end


class _Assigned(NamedTuple):
    """A partition that this broker is to lead, and its state as ZooKeeper has it."""

    topic_partition: TopicPartition
    record: TopicRecord
    state: PartitionState | CorruptNodeError | None


class ReplicaManager:
    """Applies each image of the topics on a thread of its own; lookups are lock-free. Thread-safe.

    A partition is served as soon as its leadership stands in ZooKeeper, and goes on being served
    while ZooKeeper is away. One whose log is not there, though it was led before, or ends before
    what ZooKeeper knows, is refused until it is given up (see ``PartitionStates.give_up``). What is
    gone from ZooKeeper is removed or kept (see ``removal``).

    A broker that lost its id resigns: it leads nothing, applies nothing and so deletes nothing
    until it leads again, then in new leader epochs.

    ``partition_changed`` is called when a partition has new records, or is led here no longer.
    """

    def __init__(
        self,
        broker_id: int,
        *,
        logs: LogDirectory,
        states: PartitionStates,
        writers: WriterRegistry,
        partition_changed: Callable[[TopicPartition], None],
    ) -> None:
        self._broker_id = broker_id
        self._logs = logs
        self._states = states
        self._writers = writers
        self._notify = partition_changed
        self._replicas = Replicas()
        self._removal = TopicRemoval(logs, self._replicas)
        # Stands for the time since this broker has its id; None while another one has it.
        self._term: object | None = object()
        self._newest: TopicsImage | None = None
        self._is_due = False  # the newest image is to be applied, perhaps again
        self._applied = TopicsImage({}, session_id=0)
        self._tries = 0  # to apply the newest image
        self._logged_held: list[TopicPartition] = []
        self.thread = Periodic(
            "replica-manager",
            self._apply_newest,
            pause_s=math.inf,
            failure="The partitions could not be brought in line with ZooKeeper.",
        )

    def update(self, image: TopicsImage) -> None:
        """Brings the partitions in line with ``image``, soon and on another thread."""
        self._newest = image
        self._apply_soon()

    def _apply_soon(self) -> None:
        self._is_due = True
        self.thread.wake()

    def resign(self) -> None:
        """Leads nothing from now on: another broker has the id."""
        with self._replicas.lock:
            self._term = None
            led = self._replicas.resign()
        self.thread.wake()
        for topic_partition in led:
            self._notify(topic_partition)

    def lead_again(self) -> None:
        """Takes the partitions in new leader epochs: the id is this broker's again."""
        self._term = object()
        self._apply_soon()

    def check_epochs(self) -> None:
        """Leads those partitions anew that another broker has led since, which had the id for a
        while and is gone. Raises CoordinationError."""
        by_topic: dict[str, list[TopicPartition]] = {}
        for topic_partition in self.led():
            by_topic.setdefault(topic_partition.topic, []).append(topic_partition)
        for topic, topic_partitions in by_topic.items():
            try:
                states = self._states.states(topic)
                for topic_partition in topic_partitions:
                    state = states.get(topic_partition.partition)
                    if state is not None:
                        self._check_epoch(topic_partition, state)
            except (CorruptNodeError, UnknownTopicError) as error:
                logger.debug("The epochs of %s are left as they are: %s", topic, error)

    def _check_epoch(self, topic_partition: TopicPartition, state: PartitionState) -> None:
        led, newest = self.find(topic_partition), state.leader_epoch
        if led is None or led.leader_epoch == newest:
            return
        if led.log.flushed_end < (state.end or 0):
            # The other broker's log has come further: this one is opened anew, and refused.
            self._change_led(topic_partition, led, ReplicaEvent.OVERTAKE)
            self._apply_soon()
            return
        epoch = self._states.lead(
            topic_partition,
            broker_id=self._broker_id,
            topic_id=led.log.topic_id,
            end=led.log.flushed_end,
        ).leader_epoch
        again = LeaderPartition(led.log, epoch)
        self._change_led(topic_partition, led, ReplicaEvent.LEAD, again)
        logger.warning(
            "%s was led by another broker meanwhile, in epoch %d; leading it in epoch %d.",
            topic_partition, newest, epoch, extra=fields_about(topic_partition),
        )  # fmt: skip

    def _change_led(
        self,
        topic_partition: TopicPartition,
        led: LeaderPartition,
        event: ReplicaEvent,
        again: LeaderPartition | None = None,
    ) -> None:
        """Changes a partition if it is still led as ``led``."""
        with self._replicas.lock:
            if self.find(topic_partition) is led:
                self._replicas.change(topic_partition, event, leader=again)

    # -- lookups --------------------------------------------------------------------------

    def leader_of(self, topic_partition: TopicPartition) -> LeaderPartition:
        """Returns the log and epoch of a partition that is led here.

        Raises NotLeaderError, or the reason why this broker does not lead a partition of its own:
        LogMissingError, PartitionOfflineError.
        """
        led = self._replicas.leader(topic_partition)
        if led is None:
            error = self._replicas.get(topic_partition).error
            if error is not None:
                raise error.again()
            raise NotLeaderError(
                f"Broker {self._broker_id} does not lead {topic_partition}; "
                "refresh the metadata and ask its leader."
            )
        return led

    def find(self, topic_partition: TopicPartition) -> LeaderPartition | None:
        return self._replicas.leader(topic_partition)

    def led(self) -> dict[TopicPartition, LeaderPartition]:
        """Returns all that are led here, as of now."""
        return self._replicas.leading()

    def refused(self) -> dict[TopicPartition, StorageError]:
        """Returns the partitions that would be led here if their logs were whole, with the error of
        each."""
        return {
            topic_partition: replica.error
            for topic_partition, replica in self._replicas.in_state(ReplicaState.REFUSED).items()
            if replica.error is not None
        }

    # -- applying images ------------------------------------------------------------------

    def _apply_newest(self) -> float:
        """Applies the newest image; returns the seconds until that is to be tried again."""
        if self._is_due:
            self._is_due = False  # before the image is taken, which may be followed by another
            self._tries = 0
        image, term = self._newest, self._term
        if term is None:
            self._hold_all()
        if term is None or image is None:
            return math.inf
        self._tries += 1
        try:
            if self._apply(image, term):
                return math.inf
        except Exception:
            logger.exception("The partitions could not be brought in line with ZooKeeper.")
        return self._pause_s()

    def _pause_s(self) -> float:
        pause_s, refused = _RETRY.pause_s(self._tries), len(self.refused())
        if not refused:
            return pause_s
        return min(pause_s, _REFUSED_RETRY_S + refused * _REFUSED_LOOK_S)

    def _apply(self, image: TopicsImage, term: object) -> bool:
        """Brings the logs in line with ``image``; returns False when something is to be tried
        again."""
        for record in image.removed_since(self._applied):
            gone = self._assigned_here(record)
            self._removal.remove_or_keep(record, gone, before=self._applied, now=image)
            for topic_partition in gone:
                self._notify(topic_partition)
        self._applied = image
        done = self._removal.remove_deleted(image.topics)
        try:
            states = self._states_to_lead(image.topics.values())
            decided = decided_shares(self._writers.pending().states) if states else {}
            assigned = [
                _Assigned(topic_partition, record, states.get(topic_partition))
                for record in image.topics.values()
                for topic_partition in self._assigned_here(record)
            ]
            for start in range(0, len(assigned), MAX_CLAIMS):
                if self.thread.stopping.is_set() or self._term is not term:
                    return False
                some = assigned[start : start + MAX_CLAIMS]
                done = self._take(some, decided, term) and done
        except CoordinationError as error:
            logger.warning("Not all partitions can be led yet, trying again: %s", error)
            return False
        self._log_held()
        return done

    def _hold_all(self) -> None:
        for each in self._logs.logs():
            self._logs.pause_deletion(each.topic_partition, topic_id=each.topic_id)

    def _log_held(self) -> None:
        refused = self.refused()
        held = sorted(
            each.topic_partition
            for each in self._logs.logs()
            if each.deletion_paused and each.topic_partition not in refused
        )
        if held and held != self._logged_held:
            logger.warning(
                "ZooKeeper has no topic, or none with a configuration that can be used, for %d of "
                "the logs here (%s%s): all their records are kept. If ZooKeeper has lost its data, "
                "restore that; if the topics were deleted while this broker was away, remove the "
                "directories while it is stopped.",
                len(held), ", ".join(map(str, held[:_SHOWN])), ", ..." * (len(held) > _SHOWN),
            )  # fmt: skip
        self._logged_held = held

    def _assigned_here(self, record: TopicRecord) -> list[TopicPartition]:
        return [
            TopicPartition(record.name, partition)
            for partition, brokers in record.partitions.items()
            if brokers[:1] == [self._broker_id]
        ]

    def _states_to_lead(
        self, records: Iterable[TopicRecord]
    ) -> dict[TopicPartition, PartitionState | CorruptNodeError | None]:
        """Reads the states in ZooKeeper of the partitions that are to be led here and are not."""
        return self._states.states_of(
            topic_partition
            for record in records
            for topic_partition in self._assigned_here(record)
            if (led := self.find(topic_partition)) is None or led.log.topic_id != record.topic_id
        )

    def _take(
        self,
        assigned: Sequence[_Assigned],
        decided: Mapping[TopicPartition, Sequence[PartitionShare]],
        term: object,
    ) -> bool:
        """Leads the partitions, all together; returns False when that failed for one, or this
        broker has resigned since the ``term`` began. ``decided`` are the shares of atomic writes
        that are not known to be published. Raises CoordinationError."""
        done = True
        logs: dict[TopicPartition, PartitionLog] = {}
        for each, log in zip(assigned, self._logs_of(assigned), strict=True):
            if isinstance(log, LogbusError):
                done = self._is_settled(each, log) and done
                continue
            led = self.find(each.topic_partition)
            if led is not None and led.log is log:
                continue
            for decision in decided.get(each.topic_partition, ()):
                if decision.topic_id == each.record.topic_id:
                    log.publishing.expect(decision)
            logs[each.topic_partition] = log
        if not logs:
            return done
        states = self._states.lead_all(
            [LeadershipClaim(where, log.topic_id, log.flushed_end) for where, log in logs.items()],
            broker_id=self._broker_id,
        )
        for each in assigned:
            state = states.get(each.topic_partition)
            if isinstance(state, LogbusError):
                done = self._is_settled(each, state) and done
            elif state is not None:
                led = LeaderPartition(logs[each.topic_partition], state.leader_epoch)
                done = self._serve(each.topic_partition, led, term) and done
        return done

    def _is_settled(self, assigned: _Assigned, error: LogbusError) -> bool:
        """Tells why a partition is not led; returns False when it is to be tried again. Raises
        CoordinationError."""
        topic_partition = assigned.topic_partition
        if isinstance(error, CorruptNodeError):  # reported by who met it
            logger.debug("Not leading %s: %s", topic_partition, error)
        elif isinstance(error, UnknownTopicError):
            logger.info("Not taking %s, it was deleted just now: %s", topic_partition, error)
            return True
        elif isinstance(error, PartitionOfflineError):
            self._refuse(topic_partition, assigned.record, error)
        else:
            logger.error(
                "Cannot serve %s: %s", topic_partition, error, extra=fields_about(topic_partition)
            )
        return False

    def _serve(self, topic_partition: TopicPartition, led: LeaderPartition, term: object) -> bool:
        with self._replicas.lock:
            if self._term is not term:
                return False  # another broker may have led since, in a later epoch
            before = self._replicas.get(topic_partition).leader
            if before is None or before.log is not led.log:
                led.log.add_listener(lambda: self._notify(topic_partition))
            # Last: who finds it may append, and wait for records.
            self._replicas.change(
                topic_partition, ReplicaEvent.LEAD, topic_id=led.log.topic_id, leader=led
            )
        logger.info(
            "Leading %s in epoch %d.",
            topic_partition, led.leader_epoch, extra=fields_about(topic_partition),
        )  # fmt: skip
        return True

    def _logs_of(self, assigned: Sequence[_Assigned]) -> list[PartitionLog | LogbusError]:
        """Returns the partitions' logs; one that was refused and given up goes on, or a new one."""
        found = self._logs.ensure_all(
            [
                WantedLog(
                    each.topic_partition,
                    each.record.topic_id,
                    each.record.config,
                    each.state.end or 0 if isinstance(each.state, PartitionState) else None,
                )
                for each in assigned
                if not isinstance(each.state, CorruptNodeError)
            ]
        )
        return [self._log_or_error(each, found) for each in assigned]

    def _log_or_error(
        self, assigned: _Assigned, found: Mapping[TopicPartition, PartitionLog | LogbusError]
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
        except UnknownTopicError:
            return  # deleted just now; the news of it is under way
        self._replicas.change(
            topic_partition, ReplicaEvent.REFUSE, topic_id=record.topic_id, error=error.again()
        )
        self._notify(topic_partition)
        logger.error("%s", error, extra=fields_about(topic_partition))

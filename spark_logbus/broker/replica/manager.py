"""Leads the partitions that ZooKeeper assigns to this broker, and lets go of the others."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spark_logbus.broker.decided_shares import PartitionShare, decided_shares
from spark_logbus.broker.metadata_cache import TopicsImage
from spark_logbus.coordination.cluster.topic_records import (
    LeadershipClaim,
    PartitionState,
    TopicRecord,
)
from spark_logbus.coordination.cluster.topics import MAX_CLAIMS, TopicRegistry
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
from spark_logbus.zookeeper import CorruptNodeError

logger = logging.getLogger(__name__)

_State = PartitionState | CorruptNodeError | None

_RETRY = Backoff(first_ms=1_000, max_ms=30_000)
_SHOWN = 10  # partitions that one line of the log names
# Between looks at refused partitions: whoever gives one up waits for that.
_REFUSED_RETRY_S = 2.0
_REFUSED_LOOK_S = 0.002  # to look at 10,000 of them takes ZooKeeper about a second


@dataclass(frozen=True, slots=True)
class LeaderPartition:
    """A partition that this broker leads, under a leader epoch."""

    log: PartitionLog
    leader_epoch: int


def sole_replica(_: TopicPartition, end: int) -> int:
    """The high watermark of a partition without followers: the end of what is safe here.

    That is the flushed end, or the log end where flushing is left to the operating system.
    """
    return end


def require_id(topic: str, topic_id: str | None, led: LeaderPartition) -> None:
    """Raise UnknownTopicError if ``topic_id`` is given and is of another topic of that name than
    the one that is led here."""
    if topic_id not in (None, led.log.topic_id):
        raise UnknownTopicError(
            f"The topic {topic} that is meant has the id {topic_id}, the one of that name here "
            f"has the id {led.log.topic_id}."
        )


@dataclass(frozen=True, slots=True)
class Refused:
    """A partition that is not served, because its log here is missing or too short."""

    topic_id: str
    error: StorageError


class _Assigned(NamedTuple):
    """A partition that this broker is to lead, and its state as ZooKeeper has it."""

    topic_partition: TopicPartition
    record: TopicRecord
    state: _State


class ReplicaManager:
    """Applies each image of the topics on a thread of its own; lookups are lock-free. Thread-safe.

    A partition is served as soon as its leadership stands in ZooKeeper, and goes on being served
    while ZooKeeper is away. One whose log is not there, though it was led before, or ends before
    what ZooKeeper knows, is refused until it is given up (see ``TopicRegistry.give_up``).

    A topic's logs are removed only when it is seen to disappear within one ZooKeeper session. Logs
    of topics that ZooKeeper does not know at the start, or no longer knows in a new session, are
    left alone, also by retention and compaction: ZooKeeper may have lost them. So are those of a
    topic whose node disappears when it could not be read: nobody deleted the topic, somebody
    cleared the node away.

    A broker that lost its id resigns: it leads nothing, applies nothing and so deletes nothing
    until it leads again, then in new leader epochs.

    ``partition_changed`` is called when a partition has new records, or is led here no longer.
    """

    def __init__(
        self,
        broker_id: int,
        *,
        logs: LogDirectory,
        topics: TopicRegistry,
        writers: WriterRegistry,
        partition_changed: Callable[[TopicPartition], None],
    ) -> None:
        self._broker_id = broker_id
        self._logs = logs
        self._topics = topics
        self._writers = writers
        self._notify = partition_changed
        self._led: dict[TopicPartition, LeaderPartition] = {}
        # Led before the id was lost:
        self._led_before: dict[TopicPartition, LeaderPartition] = {}
        self._resigned = False
        self._resignations = 0
        self._refused: dict[TopicPartition, Refused] = {}
        # Of deleted topics, with the topic's id, while the disk does not let them go:
        self._to_remove: dict[TopicPartition, str] = {}
        self._applied = TopicsImage({}, session_id=0)
        self._newest: TopicsImage | None = None
        self._pending: TopicsImage | None = None  # the newest, when it is to be applied (again)
        self._logged_held: list[TopicPartition] = []
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="replica-manager", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=30)

    def update(self, image: TopicsImage) -> None:
        """Bring the partitions in line with ``image``, soon and on another thread."""
        with self._changed:
            self._pending = self._newest = image
            self._changed.notify()

    def resign(self) -> None:
        """Lead nothing from now on: another broker has the id."""
        with self._changed:
            self._resigned = True
            self._resignations += 1
            led, self._led = self._led, {}
            self._led_before.update(led)
            self._changed.notify()
        for topic_partition in led:
            self._notify(topic_partition)

    def check_epochs(self) -> None:
        """Lead those partitions anew that another broker has led since, which had the id for a
        while and is gone. Raises CoordinationError."""
        by_topic: dict[str, list[TopicPartition]] = {}
        for topic_partition in self.led():
            by_topic.setdefault(topic_partition.topic, []).append(topic_partition)
        for topic, topic_partitions in by_topic.items():
            try:
                states = self._topics.states(topic)
                for topic_partition in topic_partitions:
                    state = states.get(topic_partition.partition)
                    if state is not None:
                        self._check_epoch(topic_partition, state)
            except (CorruptNodeError, UnknownTopicError) as error:
                logger.debug("The epochs of %s are left as they are: %s", topic, error)

    def _check_epoch(self, topic_partition: TopicPartition, state: PartitionState) -> None:
        led, newest = self._led.get(topic_partition), state.leader_epoch
        if led is None or led.leader_epoch == newest:
            return
        if led.log.flushed_end < (state.end or 0):
            # The other broker's log has come further: this one is opened anew, and refused.
            with self._changed:
                if self._led.get(topic_partition) is led:
                    del self._led[topic_partition]
                self._pending = self._newest
                self._changed.notify()
            return
        epoch = self._topics.lead(
            topic_partition,
            broker_id=self._broker_id,
            topic_id=led.log.topic_id,
            end=led.log.flushed_end,
        ).leader_epoch
        with self._changed:
            if self._led.get(topic_partition) is led:
                self._led[topic_partition] = LeaderPartition(led.log, epoch)
        logger.warning(
            "%s was led by another broker meanwhile, in epoch %d; leading it in epoch %d.",
            topic_partition, newest, epoch, extra=_about(topic_partition),
        )  # fmt: skip

    def lead_again(self) -> None:
        """The id is this broker's again: take the partitions in new leader epochs."""
        with self._changed:
            self._resigned = False
            self._pending = self._newest
            self._changed.notify()

    def leader_of(self, topic_partition: TopicPartition) -> LeaderPartition:
        """The log and epoch of a partition that is led here.

        Raises NotLeaderError, or the reason why this broker does not lead a partition of its own:
        LogMissingError, PartitionOfflineError.
        """
        led = self._led.get(topic_partition)
        if led is None:
            refused = self._refused.get(topic_partition)
            if refused is not None:
                raise refused.error.again()
            raise NotLeaderError(
                f"Broker {self._broker_id} does not lead {topic_partition}; "
                "refresh the metadata and ask its leader."
            )
        return led

    @property
    def count(self) -> int:
        return len(self._led)

    def find(self, topic_partition: TopicPartition) -> LeaderPartition | None:
        return self._led.get(topic_partition)

    def led(self) -> dict[TopicPartition, LeaderPartition]:
        """All that are led here, as of now."""
        return dict(self._led)

    def refused(self) -> dict[TopicPartition, StorageError]:
        """Partitions that would be led here if their logs were whole, and the error of each."""
        return {
            topic_partition: refused.error
            for topic_partition, refused in self._refused.copy().items()
        }

    # -- applying images ------------------------------------------------------------------

    def _run(self) -> None:
        unfinished: TopicsImage | None = None
        tries = 0
        while True:
            with self._changed:
                if self._pending is None and not self._stopping:
                    self._changed.wait(None if unfinished is None else self._pause_s(tries))
                if self._stopping:
                    return
                news, self._pending = self._pending, None
            image = news or unfinished
            if self._resigned:
                self._hold_all()
            if image is None or self._resigned:
                unfinished = None
                continue
            tries = 1 if news else tries + 1
            try:
                unfinished = None if self._apply(image) else image
            except Exception:
                logger.exception("The partitions could not be brought in line with ZooKeeper.")
                unfinished = image

    def _pause_s(self, tries: int) -> float:
        pause_s, refused = _RETRY.pause_s(tries), len(self._refused)
        if not refused:
            return pause_s
        return min(pause_s, _REFUSED_RETRY_S + refused * _REFUSED_LOOK_S)

    def _apply(self, image: TopicsImage) -> bool:
        """Bring the logs in line with ``image``; False when something is to be tried again."""
        for record in image.removed_since(self._applied):
            self._let_go(record, kept=self._why_kept(record, image))
        self._applied = image
        done = self._remove_deleted(image.topics)
        resignations = self._resignations
        try:
            states = self._states(image.topics.values())
            decided = decided_shares(self._writers.pending().states) if states else {}
            assigned = [
                _Assigned(topic_partition, record, states.get(topic_partition))
                for record in image.topics.values()
                for topic_partition in self._ours(record)
            ]
            for start in range(0, len(assigned), MAX_CLAIMS):
                if self._stopping or self._resigned:
                    return False
                some = assigned[start : start + MAX_CLAIMS]
                done = self._take(some, decided, resignations) and done
        except CoordinationError as error:
            logger.warning("Not all partitions can be led yet, trying again: %s", error)
            return False
        self._log_held()
        return done

    def _hold_all(self) -> None:
        for each in self._logs.logs():
            self._logs.pause_deletion(each.topic_partition, topic_id=each.topic_id)

    def _log_held(self) -> None:
        held = sorted(
            each.topic_partition
            for each in self._logs.logs()
            if each.deletion_paused and each.topic_partition not in self._refused
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

    def _ours(self, record: TopicRecord) -> list[TopicPartition]:
        return [
            TopicPartition(record.name, partition)
            for partition, brokers in record.partitions.items()
            if brokers[:1] == [self._broker_id]
        ]

    def _states(self, records: Iterable[TopicRecord]) -> dict[TopicPartition, _State]:
        """The states in ZooKeeper of the partitions that are ours and not led yet."""
        return self._topics.states_of(
            topic_partition
            for record in records
            for topic_partition in self._ours(record)
            if (led := self._led.get(topic_partition)) is None
            or led.log.topic_id != record.topic_id
        )

    def _take(
        self,
        assigned: Sequence[_Assigned],
        decided: Mapping[TopicPartition, Sequence[PartitionShare]],
        resignations: int,
    ) -> bool:
        """Lead the partitions, all together; False when that failed for one, or this broker has
        resigned once more since. ``decided`` is what of atomic writes is to be published, as far as
        that is not known to be done. Raises CoordinationError."""
        done = True
        logs: dict[TopicPartition, PartitionLog] = {}
        for each, log in zip(assigned, self._logs_of(assigned), strict=True):
            if isinstance(log, LogbusError):
                done = self._is_settled(each, log) and done
                continue
            led = self._led.get(each.topic_partition)
            if led is not None and led.log is log:
                continue
            for decision in decided.get(each.topic_partition, ()):
                if decision.topic_id == each.record.topic_id:
                    log.publishing.expect(decision.share)
            logs[each.topic_partition] = log
        if not logs:
            return done
        states = self._topics.lead_all(
            [LeadershipClaim(where, log.topic_id, log.flushed_end) for where, log in logs.items()],
            broker_id=self._broker_id,
        )
        for each in assigned:
            state = states.get(each.topic_partition)
            if isinstance(state, LogbusError):
                done = self._is_settled(each, state) and done
            elif state is not None:
                led = LeaderPartition(logs[each.topic_partition], state.leader_epoch)
                done = self._serve(each.topic_partition, led, resignations) and done
        return done

    def _is_settled(self, assigned: _Assigned, error: LogbusError) -> bool:
        """Tell why a partition is not led; False when it is to be tried again. Raises
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
                "Cannot serve %s: %s", topic_partition, error, extra=_about(topic_partition)
            )
        return False

    def _serve(
        self, topic_partition: TopicPartition, led: LeaderPartition, resignations: int
    ) -> bool:
        with self._changed:
            if self._resignations != resignations:
                return False  # another broker may have led since, in a later epoch
            before = self._led_before.pop(topic_partition, None)
            if before is None or before.log is not led.log:
                led.log.add_listener(lambda: self._notify(topic_partition))
            self._refused.pop(topic_partition, None)
            self._led[topic_partition] = led  # last: who finds it may append, and wait for records
        logger.info(
            "Leading %s in epoch %d.",
            topic_partition, led.leader_epoch, extra=_about(topic_partition),
        )  # fmt: skip
        return True

    def _logs_of(self, assigned: Sequence[_Assigned]) -> list[PartitionLog | LogbusError]:
        """The partitions' logs; those that are refused and given up go on, or new ones do."""
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
            go_on = self._logs.go_on if state.keep else self._logs.start_over
            return go_on(
                assigned.topic_partition,
                topic_id=assigned.record.topic_id,
                config=assigned.record.config,
                base_offset=max(state.go_on_at, state.end or 0),
            )
        except LogbusError as error:
            return error

    def _refuse(
        self, topic_partition: TopicPartition, record: TopicRecord, error: PartitionOfflineError
    ) -> None:
        """Report once, in the log and in ZooKeeper, that the partition is not served."""
        known = self._refused.get(topic_partition)
        if known and (known.topic_id, known.error.message) == (record.topic_id, error.message):
            return
        try:
            self._topics.refuse(
                topic_partition,
                broker_id=self._broker_id,
                topic_id=record.topic_id,
                why=error.message,
                end=self._logs.known_end(topic_partition, topic_id=record.topic_id),
                kept_end=self._logs.kept_end(topic_partition, topic_id=record.topic_id),
            )
        except UnknownTopicError:
            return  # deleted just now; the news of it is under way
        self._refused[topic_partition] = Refused(record.topic_id, error.again())
        self._notify(topic_partition)
        logger.error("%s", error, extra=_about(topic_partition))

    def _why_kept(self, record: TopicRecord, image: TopicsImage) -> str | None:
        """The reason to keep the logs of a topic that is gone; None if it was deleted."""
        if image.session_id != self._applied.session_id:
            return "since its session was lost"
        return None if record.readable else "where its topic's node could not be read any more"

    def _let_go(self, record: TopicRecord, *, kept: str | None) -> None:
        for topic_partition in self._ours(record):
            with self._changed:  # or ``check_epochs`` could put it back
                self._led.pop(topic_partition, None)
            self._refused.pop(topic_partition, None)
            self._notify(topic_partition)
            if kept is not None:
                self._logs.pause_deletion(topic_partition, topic_id=record.topic_id)
                logger.warning(
                    "%s is gone from ZooKeeper %s. All its records are kept, whatever its "
                    "retention was, in case it was not deleted; remove the directory if it was.",
                    topic_partition,
                    kept,
                )
                continue
            self._led_before.pop(topic_partition, None)
            self._to_remove[topic_partition] = record.topic_id

    def _remove_deleted(self, topics: Mapping[str, TopicRecord]) -> bool:
        """Remove the logs of deleted topics; False when the disk refuses one, for now."""
        for topic_partition, topic_id in list(self._to_remove.items()):
            now = topics.get(topic_partition.topic)
            if now is not None and now.topic_id == topic_id:  # of a ZooKeeper put back, say
                del self._to_remove[topic_partition]
        if not self._to_remove:
            return True
        try:
            errors = self._logs.remove(self._to_remove)
        except LogbusError as error:
            errors = dict.fromkeys(self._to_remove, error)
        for topic_partition in list(self._to_remove):
            about = _about(topic_partition)
            if topic_partition in errors:
                logger.error(
                    "Cannot remove %s yet: %s",
                    topic_partition, errors[topic_partition], extra=about,
                )  # fmt: skip
            else:
                del self._to_remove[topic_partition]
                logger.info("Removed %s: its topic was deleted.", topic_partition, extra=about)
        return not self._to_remove


def _about(topic_partition: TopicPartition) -> dict[str, object]:
    """Fields for logs that are read by machines."""
    return {"topic": topic_partition.topic, "partition": topic_partition.partition}

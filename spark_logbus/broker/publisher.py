"""Publishes what atomic writes have staged in partitions that are led here, once it is decided.

The one who writes asks for it. If it does not, because it died, the broker finds the decision by
itself: a thread looks at the list of decided writes every few seconds, publishes its part, and
notes in ZooKeeper what is published. When nothing of a write is left, all brokers forget it.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final

from spark_logbus.broker.decided_shares import DecidedWrites, PartitionShare, shares_of
from spark_logbus.broker.replica.in_sync import InSync
from spark_logbus.broker.replica.manager import ReplicaManager
from spark_logbus.broker.replica.states import LeaderPartition
from spark_logbus.clock import Clock
from spark_logbus.coordination.cluster.lease import Lease
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.cluster.topics import TopicRegistry
from spark_logbus.coordination.writes.decisions import DecidedWrite, WriterState
from spark_logbus.coordination.writes.promises import Promise, Promises
from spark_logbus.coordination.writes.writers import PendingWrites, WriterRegistry
from spark_logbus.errors import (
    BrokerUnavailableError,
    CoordinationError,
    InvalidRequestError,
    LogbusError,
    NotAuthorizedError,
    NotLeaderError,
    RequestTimeoutError,
    StagedDataLostError,
    WriteNotDecidedError,
)
from spark_logbus.log import DecidedShare, LogDirectory, PartitionLog, StagedBy
from spark_logbus.metrics import Counter
from spark_logbus.model import TopicPartition
from spark_logbus.record.stage_id import StageIds, stage_id
from spark_logbus.threads import Periodic
from spark_logbus.times import US_PER_MS
from spark_logbus.zookeeper import Session, SessionState

logger = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 2.0
# The one who wrote is usually there to have its write published.
_LEAVE_TO_WRITER_S: Final = 3.0
# Copies that run side by side, and from how much on that is worth the threads.
_COPIERS: Final = 4
_SIDE_BY_SIDE_FROM_BYTES: Final = 16 << 20
_FLUSH_WAIT_S: Final = 60.0
# For followers to have what is prepared, which they have been copying since it was staged.
_REPLICAS_WAIT_S: Final = 2.0
_FORGET_EVERY_S: Final = 600.0
_WHOEVER: Final = StagedBy()  # of all that is staged, nothing is another's
# A writer that writes once is remembered for as long as a request of its may be under way.
_REMEMBER_ONCE_MS: Final = 3_600_000


class Publisher:
    """Publishes, prepares and discards atomic writes, and follows up decisions on a thread of its
    own. Thread-safe; the broker starts and stops ``thread``."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        *,
        logs: LogDirectory,
        writers: WriterRegistry,
        topics: TopicRegistry,
        lease: Lease,
        session: Session,
        clock: Clock,
        retention_ms: int,
        promises: Promises,
        in_sync: InSync,
        secured: bool = False,
    ) -> None:
        """``secured``: some brokers ask who decides a write."""
        self._in_sync = in_sync
        self._secured = secured
        self._replica_manager = replica_manager
        self._logs = logs
        self._writers = writers
        self._topics = topics
        self._lease = lease
        self._session = session
        self._clock = clock
        self._retention_ms = retention_ms
        self.promises = promises
        #: Decisions that this broker has made or met.
        self.decided = DecidedWrites()
        self._seen: dict[int, float] = {}  # decided writes, and when they were met first
        self._forgot_at = clock.monotonic()
        #: Writes that are decided and not published everywhere, as of the last look.
        self.pending = 0
        #: Shares that were decided and are not on the disk any more.
        self.lost = Counter()
        self.thread = Periodic(
            "publisher",
            self._look_or_warn,
            pause_s=_LOOK_EVERY_S,
            failure="Decided writes could not be looked after.",
        )

    # -- publishing -----------------------------------------------------------------------

    def prepare(
        self, shares: Sequence[PartitionShare], *, anew: bool = False
    ) -> tuple[str, list[LogbusError | None]]:
        """Tells of each share if all of it is staged, or published, and on the disks of all
        replicas in sync: None, else the reason. Returns too the promise by which it is kept: with
        ``anew``, one that ZooKeeper was asked about. Raises CoordinationError."""
        self._require_lease()
        promise = self.promises.current(anew=anew)

        def check(each: PartitionShare) -> None:
            led = self._led(each)
            led.log.publishing.check(each, promise.number, leader_epoch=led.leader_epoch)
            # Whoever is elected can publish it then; who joins has what is promised.
            self._in_sync.wait_until_staged(
                led, each.write, timeout_s=max(0.0, deadline - self._clock.monotonic())
            )

        deadline = self._clock.monotonic() + _REPLICAS_WAIT_S
        return promise.token, [_attempt(check, each) for each in shares]

    def _led(self, share: PartitionShare) -> LeaderPartition:
        return self._replica_manager.leader_of(share.topic_partition).of_topic(share.topic_id)

    def _shares_of(self, decision: DecidedWrite, writer: str) -> Iterator[PartitionShare]:
        return shares_of(decision, writer, secured=self._secured)

    def publish_decided(
        self,
        shares: Sequence[PartitionShare],
        *,
        writer: str,
        admit: Callable[[str], None] = lambda _: None,
    ) -> list[LogbusError | None]:
        """Publishes shares of one write that a client says is decided, as ``publish`` does.
        ``admit`` is called with the writer that has decided it, and raises what stands against it.
        Raises WriteNotDecidedError, CoordinationError."""
        if not shares:
            return []
        write = shares[0].write
        found = self.decided.find(write, writer) or self._look_up(write, writer)
        if found is None:
            raise WriteNotDecidedError(
                f"The write {write} is not decided, or it is over: nothing of it is published. "
                "Decide it first; if it was, all of it is visible."
            )
        admit(found[0])
        known = {each.topic_partition: each for each in self._shares_of(found[1], found[0])}
        to_publish = [each for each in shares if each.topic_partition in known]
        for each in to_publish:
            stands = known[each.topic_partition]
            if (each.topic_id, each.attempts, each.records) != (
                stands.topic_id, stands.attempts, stands.records,
            ):  # fmt: skip
                raise InvalidRequestError(
                    f"What is to be published of the write {write} in {each.topic_partition} is "
                    f"not what was decided: {stands.records} records of the topic with the "
                    f"id {stands.topic_id}, by {len(stands.attempts)} attempts of tasks."
                )
        done = self.publish([known[each.topic_partition] for each in to_publish])
        outcomes = dict(zip((each.topic_partition for each in to_publish), done, strict=True))

        def require_published(each: PartitionShare) -> None:
            self._led(each).log.publishing.require_published(each)

        return [
            outcomes[each.topic_partition]
            if each.topic_partition in outcomes
            else _attempt(require_published, each)
            for each in shares
        ]

    def _look_up(self, write: int, writer: str) -> tuple[str, DecidedWrite] | None:
        """Ask ZooKeeper for the decision about a write; with its writer that is one read."""
        if writer:
            decision = self._writers.find_decided(writer, write)
            if decision is not None:
                self.decided.add(writer, decision)
        else:
            self._note_decided(self._writers.pending())
        return self.decided.find(write, writer)

    def _note_decided(self, found: PendingWrites) -> None:
        for writer, state in found.states.items():
            if state.last is not None:
                self.decided.add(writer, state.last)

    def publish(self, shares: Sequence[PartitionShare]) -> list[LogbusError | None]:
        """Append what of them is not in the logs yet, and make it visible when all replicas in sync
        have flushed it; for each None or the reason why not. Takes as long as copying them does."""
        self._require_lease()
        for write, owned in {(each.write, each.owned) for each in shares}:
            self._logs.closed_writes.add(write, owned)
        flushes = _Flushes()

        def append(each: PartitionShare) -> None:
            led = self._led(each)
            published = led.log.publishing.publish(each, leader_epoch=led.leader_epoch)
            led.log.replication.when_replicated(
                published.end,
                flushes.expect(each.topic_partition),
                truncations=published.truncations,
            )

        outcomes = self._for_each(shares, append)
        flushed = flushes.wait(_FLUSH_WAIT_S)
        for number, each in enumerate(shares):
            if outcomes[number] is None:
                outcomes[number] = flushed[each.topic_partition]
                if outcomes[number] is None:
                    outcomes[number] = _attempt(self._finish, each)
        self._require_lease()  # or another broker may have the id by now, and not this log
        return outcomes

    def _finish(self, share: PartitionShare) -> None:
        led = self._replica_manager.find(share.topic_partition)
        if led is not None:
            led.log.publishing.finish(share.write)

    def _for_each(
        self, shares: Sequence[PartitionShare], append: Callable[[PartitionShare], None]
    ) -> list[LogbusError | None]:
        """Publishes several at a time if they are large: one thread's copying fills no disk."""
        staged_bytes = 0
        for each in shares:
            led = self._replica_manager.find(each.topic_partition)
            if led is not None:
                staged_bytes += led.log.staging.size_bytes(each.write)
        if len(shares) == 1 or staged_bytes < _SIDE_BY_SIDE_FROM_BYTES:
            return [_attempt(append, each) for each in shares]
        with ThreadPoolExecutor(_COPIERS, thread_name_prefix="publisher-copy") as copiers:
            return list(copiers.map(partial(_attempt, append), shares))

    def _all_led(self) -> list[LeaderPartition]:
        """Returns the partitions that are led here. What is staged in any other log stays: its
        leader, or who leads it next, knows what it is for."""
        leader = self._replica_manager.find
        return [
            led
            for log in self._logs.logs()
            if (led := leader(log.topic_partition)) is not None and led.log is log
        ]

    def _require_lease(self) -> None:
        if not self._lease.current():
            raise self._lease.refusal or BrokerUnavailableError(
                "ZooKeeper has not said yet that this broker has its id still; try again."
            )

    # -- dropping -------------------------------------------------------------------------

    def discard(
        self,
        write: int,
        attempt: int | None = None,
        *,
        writer: str = "",
        by: StagedBy = _WHOEVER,
        may_discard: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """Drop what the write has staged on this broker, or what one attempt of its tasks has, as
        far as it is ``by`` them who ask, and they ``may_discard`` something of its topic. They say
        that it is the ``writer``'s.

        What is decided stays, and so does what may be decided yet by a promise of this broker's:
        that is let go first. Raises InvalidRequestError for what is decided, NotAuthorizedError for
        what is not theirs, CoordinationError.
        """
        producer_id = None if attempt is None else stage_id(write, attempt)
        if producer_id is None:
            self._logs.closed_writes.add(write, by.owned)
        found = [led for led in self._all_led() if led.log.staging.holds(write, producer_id)]
        theirs = [
            led
            for led in found
            if may_discard(led.log.topic_partition.topic)
            and led.log.staging.is_by(write, by.writer, by.owned)
        ]
        self._discard(write, producer_id, theirs, writer)
        if len(theirs) < len(found):
            raise NotAuthorizedError(
                f"What the write {write} has staged belongs to another principal, or is for a "
                "topic that you may not write: that stays."
            )

    def _discard(
        self,
        write: int,
        producer_id: int | None,
        holding: Sequence[LeaderPartition],
        writer: str,
    ) -> None:
        if not holding:
            return
        self._require_lease()
        promise = self.promises.current()
        if any(led.log.staging.is_promised(write, promise.number) for led in holding):
            promise = self.promises.renew()  # before it is read what is decided
        found = self._writers.pending()
        self._note_decided(found)
        decided = _Decided(found)
        known = self.decided.find(write, writer)
        refused: list[TopicPartition] = []
        for led in holding:
            log, epoch = led.log, led.leader_epoch
            if known is not None and producer_id is not None:
                counts = producer_id in StageIds.of(write, known[1].attempts)
                keep = counts and decided.keep(write, known[0])
            else:
                part = None if known is None else known[1].topics.get(log.topic_partition.topic)
                of_it = part is not None and log.topic_partition.partition in part.records
                of_it = of_it or known is None
                keep = of_it and decided.keep(write, log.staging.writer_of(write))
            if keep or write in log.staging.decided:
                refused.append(log.topic_partition)
            elif producer_id is None:
                log.staging.discard_undecided(write, promise.number, leader_epoch=epoch)
            else:
                log.staging.discard_attempt(producer_id, promise.number, leader_epoch=epoch)
        if refused:
            raise InvalidRequestError(
                f"The write {write} is decided, so what it has staged for {refused[0]} is "
                "published and not dropped."
            )

    # -- decisions that nobody follows up -------------------------------------------------

    def _look_or_warn(self) -> None:
        if self._session.state is not SessionState.CONNECTED:
            return  # an attempt would only wait
        try:
            self.look()
        except CoordinationError as error:
            logger.info("Decided writes are looked after later: %s", error)

    def look(self) -> None:
        """One look at the list. Raises CoordinationError."""
        all_led = self._all_led()
        logs = self._logs.logs()
        now_us = self._logs.clock.time.now_us()
        promise: Promise | None = None
        if self._lease.current():  # else another broker may have the id, and its promises
            promise = self.promises.current()
            if any(led.log.staging.has_expired_promises(now_us, promise.number) for led in all_led):
                promise = self.promises.renew()  # before it is read what is decided
        known = {log: dict(log.staging.decided) for log in logs}
        found = self._writers.pending()
        self._note_decided(found)
        decided = _Decided(found)
        states = found.states
        self.pending = len(states) + len(found.unusable)
        now = self._clock.monotonic()
        self._seen = {write: self._seen.get(write, now) for write in decided.writes}
        # Only what was known before the list was read: what came since may be missing in it.
        settled = {
            write: share
            for shares in known.values()
            for write, share in shares.items()
            if not decided.keep(write, share.writer)
        }
        led_logs = {led.log for led in all_led}
        self._follow([log for log in logs if log not in led_logs], states, settled)
        for led in all_led:
            led.log.publishing.settle(settled)
            if promise is not None:
                led.log.staging.expire(
                    now_us,
                    keep=decided.keep,
                    promise=promise.number,
                    leader_epoch=led.leader_epoch,
                )
        for writer, state in states.items():
            if self.thread.stopping.is_set() or self._session.state is not SessionState.CONNECTED:
                return
            if state.last is None or now - self._seen[state.last.write] >= _LEAVE_TO_WRITER_S:
                try:
                    self._follow_up(writer, state)
                except LogbusError as error:  # whatever is wrong with one, the others go on
                    logger.warning("A write of %s is looked after later: %s", writer, error)
                except Exception:
                    logger.exception("A write of %s could not be looked after.", writer)
        if now - self._forgot_at >= _FORGET_EVERY_S:
            self._forgot_at = now
            self._forget()

    def _follow(
        self,
        logs: Sequence[PartitionLog],
        states: Mapping[str, WriterState],
        settled: Mapping[int, DecidedShare],
    ) -> None:
        """Has logs that others lead remember what of a decided write they have, as long as it is
        published: this broker may be the next to lead."""
        followed = {log.topic_partition: log for log in logs}
        for log in logs:
            log.publishing.forget(settled)
        for writer, state in states.items() if followed else ():
            if state.last is None:
                continue
            with suppress(InvalidRequestError):  # told of where it is followed up
                for share in self._shares_of(state.last, writer):
                    copy = followed.get(share.topic_partition)
                    if copy is not None and copy.topic_id == share.topic_id:
                        copy.publishing.remember(share)

    def _follow_up(self, writer: str, state: WriterState) -> None:
        decision = state.last
        if decision is None:
            self._writers.published(writer, 0, {})
            return
        done: defaultdict[str, list[int]] = defaultdict(list)
        records = self._topics.each_of(list(decision.topics))
        ours: list[PartitionShare] = []
        for each in self._shares_of(decision, writer):
            topic, partition = each.topic_partition.topic, each.topic_partition.partition
            record = records[topic]
            # Where its node cannot be read, its log is served as before, if it is.
            deleted = record is None or (
                isinstance(record, TopicRecord) and record.topic_id != each.topic_id
            )
            if deleted:
                done[topic].append(partition)  # deleted, and what was staged with it
            elif self._replica_manager.find(each.topic_partition) is not None:
                ours.append(each)
        for each, outcome in zip(ours, self.publish(ours) if ours else (), strict=True):
            topic, partition = each.topic_partition.topic, each.topic_partition.partition
            if outcome is None:
                done[topic].append(partition)
            elif isinstance(outcome, StagedDataLostError):
                self.lost.add(1)
                done[topic].append(partition)
                led = self._replica_manager.find(each.topic_partition)
                if led is not None:
                    led.log.publishing.settle({each.write: each})  # or it hid what comes after it
                logger.critical(
                    "The write %d of %s was committed, and cannot be published in %s: %s",
                    decision.write, writer, each.topic_partition, outcome,
                )  # fmt: skip
            elif not isinstance(outcome, NotLeaderError):
                logger.warning("A decided write is published later: %s", outcome)
        if done or not decision.topics:
            self._writers.published(writer, decision.write, done)
        if done:
            logger.info(
                "Followed up on the write %d of %s: %d partitions.",
                decision.write, writer, sum(map(len, done.values())),
            )  # fmt: skip

    def _forget(self) -> None:
        """Forget writers that have long been silent; none while the clock is not believed, for
        what is forgotten is committed anew when it comes again."""
        time = self._logs.clock.time
        now_us = time.now_us()
        if not time.believed:
            return
        removed = self._writers.forget(
            now_us=now_us,
            keep_us=self._retention_ms * US_PER_MS,
            keep_once_us=_REMEMBER_ONCE_MS * US_PER_MS,
        )
        if removed:
            logger.debug("Forgot %d writers that have not written for long.", removed)


class _Decided:
    """The decided writes that are not known to be published everywhere, as ZooKeeper has them."""

    def __init__(self, found: PendingWrites) -> None:
        states = found.states.values()
        self.writes = {state.last.write for state in states if state.last is not None}
        self.writes |= {write for write in found.unusable.values() if write is not None}
        self._unreadable = {writer for writer, write in found.unusable.items() if write is None}

    def keep(self, write: int, writer: str) -> bool:
        """True if a write is decided; or if it may be, for all that can be read of its writer.
        ``writer`` is empty where it is not known whose write it is."""
        return write in self.writes or (
            bool(self._unreadable) and (not writer or writer in self._unreadable)
        )


def _attempt(action: Callable[[PartitionShare], None], each: PartitionShare) -> LogbusError | None:
    try:
        action(each)
    except LogbusError as error:
        return error.again()
    return None


class _Flushes:
    """Waits for the flushes of several logs. Thread-safe."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._missing: set[TopicPartition] = set()
        self._outcomes: dict[TopicPartition, LogbusError | None] = {}

    def expect(self, of: TopicPartition) -> Callable[[LogbusError | None], None]:
        with self._condition:
            self._missing.add(of)

        def flushed(error: LogbusError | None) -> None:
            with self._condition:
                self._missing.discard(of)
                self._outcomes[of] = error
                self._condition.notify_all()

        return flushed

    def wait(self, timeout_s: float) -> dict[TopicPartition, LogbusError | None]:
        with self._condition:
            self._condition.wait_for(lambda: not self._missing, timeout_s)
            late = RequestTimeoutError(
                "What was published was written but not flushed by all replicas in time; it will "
                "become visible."
            )
            return {**self._outcomes, **dict.fromkeys(self._missing, late)}

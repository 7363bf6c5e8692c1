"""The producer's memory: records on their way, per partition. No thread and no socket.

A record batch is *open* while records are appended to it, and *ready* once it is sealed: full,
lingered long enough, or wanted by a flush. Then it is taken for a request, and in the end settled,
or back in its old place. While the leader of its partition is away it may go to another partition
of the topic.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any, Final

from spark_logbus.client.config import ProducerConfig
from spark_logbus.client.producer.acknowledgements import (
    Acknowledgement,
    AppendedRange,
    RecordFuture,
)
from spark_logbus.client.producer.batches import QueuedBatch
from spark_logbus.client.producer.completion import AppendedBatches, NextStep, next_step
from spark_logbus.client.producer.failures import Failures
from spark_logbus.client.producer.lockless_appender import (
    APPENDERS_ARE_SAFE,
    AppenderKey,
    LocklessAppender,
)
from spark_logbus.client.producer.plain_writer import PLAIN_WRITER, PlainWriter
from spark_logbus.client.producer.topic_queues import PartitionQueue, TopicQueues
from spark_logbus.clock import Clock
from spark_logbus.errors import (
    BufferExhaustedError,
    LogbusError,
    OutOfOrderSequenceError,
    ProducerClosedError,
    RequestTimeoutError,
    UnknownProducerError,
)
from spark_logbus.model import Header, TopicPartition
from spark_logbus.record.rows.builder import RECORD_OVERHEAD_BYTES
from spark_logbus.retry import Backoff, Deadline

# Room for some hundreds of records, so that opening an appender is no part of the cost of each; and
# little beside the smallest sensible buffer, as what one topic has reserved no other can take.
_APPENDER_BYTES: Final = 128 << 10
_LEAST_APPENDER_BYTES: Final = 4 << 10


class Accumulator:
    """All partitions' queues, and the bound on their memory.

    Thread-safe: appending, flushing, closing and looking are for any thread, the rest is for the
    sender's. Acknowledgements are settled outside of the lock, because callers' callbacks run then.
    ``wake`` has the sender look at the queues soon, and ``failures`` is told of records that fail.
    Times are monotonic seconds.
    """

    def __init__(
        self,
        config: ProducerConfig,
        *,
        clock: Clock,
        wake: Callable[[], None],
        backoff: Backoff,
        failures: Failures,
    ) -> None:
        self._config = config
        self._clock = clock
        self._now_ns = clock.now_ns
        self._wake = wake
        self._backoff = backoff
        self._failures = failures
        self._linger_s = config.linger_ms / 1000
        self._delivery_timeout_s = config.delivery_timeout_ms / 1000
        self._buffer_bytes = config.buffer_bytes
        self._lock = threading.Lock()
        self._freed = threading.Condition(self._lock)
        self._lingering: deque[QueuedBatch] = deque()  # in the order they were opened
        self._unsettled: dict[QueuedBatch, PartitionQueue] = {}  # likewise
        self._sendable: dict[PartitionQueue, None] = {}
        self._closed = False
        self._reserved_bytes = 0  # with what appenders may still take
        self._closed_records = 0  # in record batches that take no more
        #: The owner of one puts values in without a call. Changed under the lock.
        self.appenders: dict[AppenderKey, LocklessAppender] = {}
        self._with_appender: dict[AppenderKey, QueuedBatch] = {}
        #: Numbers of records, for whoever asks.
        self.acknowledged = self.failed = self.retried = 0

    # -- appending, from any thread -------------------------------------------------------

    def append_value(
        self, topic_queues: TopicQueues, partition: int | None, value: bytes
    ) -> RecordFuture | None:
        """Appends a record that is a value and nothing else, as most are, at half of the cost, to
        a topic's ``partition`` or, with None, that whose turn it is.

        Returns None, and does nothing, unless it fits into the record batch that is open there and
        leaves room: then ``append_record`` has more to do. Opens an appender for those that follow,
        unless several threads send to this record batch.
        """
        size = RECORD_OVERHEAD_BYTES + len(value)
        with self._lock:
            queue = topic_queues.queue_for(partition)
            batch = queue.open
            if batch is None or self._closed:
                return None
            if batch.appender is not None:
                self._close_appender(batch)
            reserved = batch.reserved_bytes + size
            buffered = self._reserved_bytes + size
            if reserved >= topic_queues.batch_limit or buffered > self._buffer_bytes:
                return None
            now_ns = self._now_ns()
            number = batch.builder.append_value(value, now_ns // 1000)  # type: ignore[union-attr]
            batch.reserved_bytes = reserved
            self._reserved_bytes = buffered
            if partition is not None:
                batch.keyed = True
            if not batch.shared:
                self._open_appender(queue, batch, number + 1, named=partition is not None)
            return RecordFuture(batch.acknowledgement, 2 * (number + 1), now_ns)

    def has_taken(self, appender: LocklessAppender, end: int) -> bool:
        """Tells if the record that ends at ``end`` got into the record batch before its appender
        was closed."""
        with self._lock:
            return end <= appender.taken

    def append_record(
        self,
        topic_queues: TopicQueues,
        partition: int | None,
        value: Any,
        key: bytes | None,
        timestamp_us: int,
        headers: Sequence[Header] | None,
        size: int,
        writer: PlainWriter = PLAIN_WRITER,
    ) -> tuple[RecordFuture, bool]:
        """Appends one record of ``size`` bytes to the open record batch of a topic's ``partition``;
        None: of the one whose turn it is. ``writer`` has prepared the value; a record batch holds
        values of one writer.

        Waits for room. Tells as well if a record batch was opened or sealed with it. Raises
        ProducerClosedError, and BufferExhaustedError after ``max_block_ms`` without room.
        """
        news = False
        with self._lock:
            if self._closed or self._reserved_bytes + size > self._buffer_bytes:
                self._wait_for_room(size)
            queue = topic_queues.queue_for(partition)
            batch = queue.open
            if batch is not None and batch.appender is not None:
                self._close_appender(batch)
            if (
                batch is None
                or (reserved := batch.reserved_bytes + size) > topic_queues.batch_limit
                or batch.writer is not writer
            ):
                queue, batch = self._open_batch(topic_queues, partition, size, writer)
                reserved = batch.reserved_bytes + size
                news = True
            builder = batch.builder
            assert builder is not None
            number = builder.append(value, key, timestamp_us, headers)
            batch.reserved_bytes = reserved
            self._reserved_bytes += size
            if partition is not None:
                batch.keyed = True
            if reserved >= topic_queues.batch_limit:
                self._seal(queue)
                news = True
        if news:
            self._wake()
        return RecordFuture(batch.acknowledgement, 2 * (number + 1), 1000 * timestamp_us), news

    def append_encoded(
        self,
        topic_queues: TopicQueues,
        partition: int | None,
        data: memoryview,
        *,
        record_count: int,
    ) -> Acknowledgement:
        """Appends one encoded record batch, after the records that are there already; otherwise
        like ``append_record``."""
        with self._lock:
            self._wait_for_room(len(data))
            queue = topic_queues.queue_for(partition)
            if queue.open is not None:
                self._seal(queue)
            batch = self._new_batch(queue)
            batch.data = data
            batch.keyed = partition is not None
            batch.record_count = record_count
            self._closed_records += record_count
            batch.reserved_bytes = len(data)
            self._reserved_bytes += len(data)
            self._make_ready(queue, batch)
        self._wake()
        return batch.acknowledgement

    def _wait_for_room(self, size: int) -> None:
        """Waits under the lock until ``size`` bytes fit, or the buffer is empty."""
        deadline = None
        while True:
            self._close_appenders()  # and so have what they reserved
            if self._closed:
                raise ProducerClosedError("The producer is closed; make a new one to send more.")
            buffered = self._reserved_bytes
            if buffered == 0 or buffered + size <= self._buffer_bytes:
                return
            deadline = deadline or Deadline.after_ms(self._clock, self._config.max_block_ms)
            if deadline.expired:
                raise BufferExhaustedError(
                    f"No room for a record of {size} bytes within {self._config.max_block_ms} ms: "
                    f"{buffered} of {self._buffer_bytes} bytes wait for their brokers. "
                    "Send more slowly, raise buffer_bytes, or look after the brokers."
                )
            self._seal_all()
            self._wake()
            self._freed.wait(deadline.remaining_s)

    def _open_batch(
        self, topic_queues: TopicQueues, partition: int | None, size: int, writer: PlainWriter
    ) -> tuple[PartitionQueue, QueuedBatch]:
        """Returns an open record batch with room for what does not fit into the one that is open
        now, and its queue, which without a ``partition`` is the next one's."""
        queue = topic_queues.queue_for(partition)
        while (batch := queue.open) is not None:
            self._close_appender(batch)
            if batch.reserved_bytes + size <= topic_queues.batch_limit and batch.writer is writer:
                return queue, batch
            self._seal(queue)
            queue = topic_queues.queue_for(partition)
        batch = self._new_batch(queue)
        batch.builder = writer.new_builder()
        batch.writer = writer
        batch.keyed = False
        queue.open = batch
        self._lingering.append(batch)
        return queue, batch

    def _new_batch(self, queue: PartitionQueue) -> QueuedBatch:
        now = self._clock.monotonic()
        give_up_at = now + self._delivery_timeout_s
        batch = QueuedBatch(queue.topic_partition, opened_at=now, give_up_at=give_up_at)
        self._unsettled[batch] = queue
        return batch

    # -- appenders, under the lock --------------------------------------------------------

    def _open_appender(
        self, queue: PartitionQueue, batch: QueuedBatch, number: int, *, named: bool
    ) -> None:
        room = min(
            _APPENDER_BYTES,
            queue.topic_queues.batch_limit - batch.reserved_bytes - 1,  # a full one is sealed
            self._buffer_bytes - self._reserved_bytes,
        )
        if room < _LEAST_APPENDER_BYTES or not APPENDERS_ARE_SAFE:
            return
        if named and 2 * self._reserved_bytes > self._buffer_bytes:
            return  # with many partitions they would take all of it, and who needs room closes all
        batch.reserved_bytes += room
        self._reserved_bytes += room
        target = queue.topic_partition
        key = (target.topic, target.partition) if named else target.topic
        # A record batch that was moved to the partition whose turn it was has passed the turn on,
        # while records without a partition still find the appender of that one.
        if (before := self._with_appender.get(key)) is not None:
            self._close_appender(before)
        self._with_appender[key] = batch
        batch.appender = self.appenders[key] = LocklessAppender(
            batch.acknowledgement, key, owner=get_ident(), room=room, number=number
        )

    def _close_appender(self, batch: QueuedBatch) -> None:
        """Moves what the appender of an open record batch holds into it, if it has one."""
        appender = batch.appender
        if appender is None:
            return
        values, times_ns = appender.close()
        assert batch.builder is not None
        batch.builder.extend_values(values, times_ns)
        batch.appender = None
        del self.appenders[appender.key]
        self._with_appender.pop(appender.key, None)
        room = appender.room
        batch.reserved_bytes -= room
        self._reserved_bytes -= room
        batch.shared = appender.owner != get_ident()

    def _close_appenders(self) -> None:
        for batch in list(self._with_appender.values()):
            self._close_appender(batch)

    # -- sealing --------------------------------------------------------------------------

    def begin_flush(self) -> list[Acknowledgement]:
        """Makes all that was appended ready; returns the acknowledgements of what is not settled
        yet."""
        with self._lock:
            self._seal_all()
            waiting = [batch.acknowledgement for batch in self._unsettled]
        self._wake()
        return waiting

    def seal_lingering(self, now: float) -> None:
        """Seals the record batches that have waited for more records long enough."""
        with self._lock:
            while self._lingering:
                batch = self._lingering[0]
                queue = self._unsettled.get(batch)
                if queue is not None and queue.open is batch:
                    if batch.opened_at + self._linger_s > now:
                        return
                    self._seal(queue)
                self._lingering.popleft()

    def _seal_all(self) -> None:
        for batch in self._lingering:
            queue = self._unsettled.get(batch)
            if queue is not None and queue.open is batch:
                self._seal(queue)
        self._lingering.clear()

    def _seal(self, queue: PartitionQueue) -> None:
        """Closes the queue's open record batch; it is ready to be sent."""
        batch = queue.open
        if batch is not None and batch.builder is not None:
            self._take_whole(batch)
            queue.open = None
            self._make_ready(queue, batch)

    def _take_whole(self, batch: QueuedBatch) -> None:
        """Counts the records of an open record batch, which takes no more."""
        assert batch.builder is not None
        self._close_appender(batch)
        batch.record_count = len(batch.builder)
        self._closed_records += batch.record_count

    def _make_ready(self, queue: PartitionQueue, batch: QueuedBatch) -> None:
        queue.make_ready(batch)
        self._offer(queue)

    def _offer(self, queue: PartitionQueue) -> None:
        """Shows the queue to the sender, if something of it may be sent."""
        if queue.may_send:
            self._sendable[queue] = None
        else:
            self._sendable.pop(queue, None)

    def _forget(self, batches: Sequence[QueuedBatch]) -> None:
        """Frees the memory of record batches that are settled, or will be."""
        for batch in batches:
            if self._unsettled.pop(batch, None) is not None:
                self._reserved_bytes -= batch.reserved_bytes
        self._freed.notify_all()

    def _withdraw(self, batches: Sequence[QueuedBatch]) -> None:
        """Removes record batches from wherever they are, without settling them."""
        for batch in batches:
            queue = self._unsettled[batch]
            if queue.open is batch and batch.builder is not None:
                self._take_whole(batch)
                queue.open = None
            elif batch in queue.ready:
                queue.withdraw(batch)
                self._offer(queue)
            if queue.sequences is not None:
                queue.sequences.given_up(batch)
        if batches:
            self._forget(batches)

    # -- requests -------------------------------------------------------------------------

    def take_batches(
        self, queue: PartitionQueue, *, max_bytes: int, at_least_one: bool
    ) -> list[QueuedBatch]:
        """Takes record batches for one request, in order; they are on their way from now on."""
        with self._lock:
            taken = queue.take_batches(max_bytes=max_bytes, at_least_one=at_least_one)
            if taken:
                self._sendable.pop(queue, None)  # to stand behind all others
                self._offer(queue)
        return taken

    def complete(
        self,
        queue: PartitionQueue,
        batches: Sequence[QueuedBatch],
        outcome: AppendedBatches | LogbusError,
        *,
        now: float,
    ) -> NextStep:
        """Settles or requeues what was taken, now that its request is over."""
        sequences = queue.sequences
        if isinstance(outcome, AppendedBatches):
            self._acknowledge(queue, batches, outcome)
            return NextStep.ACKNOWLEDGE
        if queue.failure is not None and isinstance(
            outcome, OutOfOrderSequenceError | UnknownProducerError
        ):
            # Not there, because what was sent before it is not.
            self.requeue(queue, batches, not_before=queue.not_before, error=queue.failure)
            return NextStep.FOLLOW
        renumbered = sequences is not None and sequences.refused(batches, outcome)
        step = next_step(outcome, batches=len(batches), renumbered=renumbered)
        match step:
            case NextStep.ACKNOWLEDGE:
                self._acknowledge(queue, batches, AppendedBatches([None] * len(batches)))
            case NextStep.RENUMBER:
                self.requeue(queue, batches, not_before=now, error=outcome)
            case NextStep.RETRY:
                again_at = now + self._backoff.pause_s(batches[0].failures + 1)
                self.requeue(queue, batches, not_before=again_at, error=outcome)
            case NextStep.SEPARATE:
                for batch in batches:
                    batch.alone = True
                self.requeue(queue, batches, not_before=now, error=outcome)
            case NextStep.FAIL:
                self._fail_taken(queue, batches, outcome)
        return step

    def requeue(
        self,
        queue: PartitionQueue,
        batches: Sequence[QueuedBatch],
        *,
        not_before: float,
        error: LogbusError,
    ) -> None:
        """Returns what was taken to its old place, after a failed request."""
        self.retried += sum(batch.record_count for batch in batches)
        with self._lock:
            for batch in batches:
                batch.failures += 1
                batch.last_error = error
            queue.put_back([batch for batch in batches if batch in self._unsettled])
            queue.begin_drain(error)
            queue.not_before = not_before
            self._end_request(queue)

    def _acknowledge(
        self, queue: PartitionQueue, batches: Sequence[QueuedBatch], appended: AppendedBatches
    ) -> None:
        if queue.sequences is not None:
            queue.sequences.acknowledged(batches)
        with self._lock:
            self._forget(batches)
            if not queue.draining or queue.in_flight == 1:
                queue.not_before = 0.0
            self._end_request(queue)
        topic, partition = queue.topic_partition.topic, queue.topic_partition.partition
        self.acknowledged += sum(batch.record_count for batch in batches)
        for batch, base_offset in zip(batches, appended.base_offsets, strict=True):
            batch.acknowledgement.succeed(
                AppendedRange(
                    topic, partition, base_offset, batch.record_count, appended.append_time_us
                )
            )

    def _fail_taken(
        self, queue: PartitionQueue, batches: Sequence[QueuedBatch], error: LogbusError
    ) -> None:
        if queue.sequences is not None:
            queue.sequences.given_up(batches[0])
        if isinstance(error, UnknownProducerError):
            # Its number leads nowhere, because of what failed before: that is the reason.
            error = batches[0].last_error or error
        with self._lock:
            self._forget(batches)
            queue.begin_drain(error)
            queue.not_before = 0.0
            self._end_request(queue)
        for batch in batches:
            self._fail(batch, error)

    def fail_unsent(
        self,
        queue: PartitionQueue,
        failed: Sequence[tuple[QueuedBatch, LogbusError]],
        *,
        ends_request: bool,
    ) -> None:
        """Fails some of what was taken, unsent; ``ends_request`` if nothing of it is on its way."""
        with self._lock:
            self._forget([batch for batch, _ in failed])
            if ends_request:
                self._end_request(queue)
        for batch, error in failed:
            self._fail(batch, error)

    def _end_request(self, queue: PartitionQueue) -> None:
        queue.end_request()
        self._offer(queue)

    # -- leaders that are away ------------------------------------------------------------

    def exclude(self, queues: Sequence[PartitionQueue]) -> None:
        """Gives what need not wait for the leaders of these partitions to others of their topic,
        now and until ``include``. What was sent before stays: it may have arrived."""
        with self._lock:
            for queue in queues:
                queue.topic_queues.round_robin.exclude(queue.topic_partition.partition)
            for queue in queues:
                self._reroute(queue)

    def _reroute(self, queue: PartitionQueue) -> None:
        if queue.open is not None:
            self._close_appender(queue.open)
            if not queue.open.keyed:
                self._seal(queue)
        for batch in [batch for batch in queue.ready if batch.free]:
            queue.withdraw(batch)
            target = queue.topic_queues.queue_for(None)
            batch.move_to(target.topic_partition)
            self._unsettled[batch] = target
            self._make_ready(target, batch)
        self._offer(queue)

    def include(self, queue: PartitionQueue) -> None:
        """Lets the partition have its turn again."""
        with self._lock:
            queue.topic_queues.round_robin.include(queue.topic_partition.partition)

    # -- giving up ------------------------------------------------------------------------

    def fail_expired(
        self, now: float, *, reason: Callable[[TopicPartition], LogbusError | None]
    ) -> None:
        """Fails what has waited for longer than the delivery timeout, but not what is on its way:
        its request's own timeout decides first. ``reason`` tells for a partition what kept those
        that were never sent."""
        due = []
        with self._lock:
            for batch, queue in self._unsettled.items():
                if batch.give_up_at > now:
                    break
                if queue.waits(batch):
                    due.append(batch)
            self._withdraw(due)
        for batch in due:
            last = batch.last_error or reason(batch.topic_partition)
            self._fail(
                batch,
                RequestTimeoutError(
                    f"{batch.record_count} records for {batch.topic_partition} were not "
                    f"acknowledged within {self._config.delivery_timeout_ms} ms; last failure: "
                    f"{last or 'none.'}"
                ),
            )

    def fail_topic(self, topic: str, error: LogbusError) -> None:
        """Fails all that waits for ``topic``, for example because it was deleted."""
        with self._lock:
            due = [
                batch
                for batch, queue in self._unsettled.items()
                if queue.topic_partition.topic == topic and queue.waits(batch)
            ]
            self._withdraw(due)
        for batch in due:
            self._fail(batch, error)

    def abort(self, error: LogbusError) -> None:
        """Fails everything, also what is on its way."""
        with self._lock:
            due = list(self._unsettled)
            self._withdraw(due)
        for batch in due:
            self._fail(batch, error)

    def _fail(self, batch: QueuedBatch, error: LogbusError) -> None:
        self.failed += batch.record_count
        batch.acknowledgement.fail(error, records=batch.record_count, failures=self._failures)

    def give_up_in_child(self, error: LogbusError) -> None:
        """Fails everything in a forked process, whose parent goes on with it. Takes no lock, and
        puts a new one in the place of one that may be locked for ever."""
        self._lock = threading.Lock()
        self._closed = True
        self.appenders.clear()
        self._with_appender.clear()
        for batch in self._unsettled:
            batch.acknowledgement.fail_in_child(error)

    def close(self) -> None:
        """Refuses records from now on, also from those that wait for room. Idempotent."""
        with self._lock:
            self._closed = True
            self._close_appenders()
            self._freed.notify_all()

    # -- looking --------------------------------------------------------------------------

    def ready_queues(self) -> list[PartitionQueue]:
        """Queues with something ready that may be sent, longest waiting first."""
        with self._lock:
            return list(self._sendable)

    @property
    def buffered_bytes(self) -> int:
        """Size of the records that are not acknowledged yet."""
        return self._reserved_bytes - sum(one.room for one in list(self.appenders.values()))

    @property
    def record_count(self) -> int:
        """Number of records that were ever appended."""
        with self._lock:
            batches = [queue.open for queue in self._unsettled.values()]
            return self._closed_records + sum(
                len(batch.builder) + (0 if batch.appender is None else batch.appender.record_count)
                for batch in dict.fromkeys(batches)
                if batch is not None and batch.builder is not None
            )

    @property
    def empty(self) -> bool:
        """True if all that was appended is settled."""
        return not self._unsettled

    @property
    def oldest(self) -> QueuedBatch | None:
        """The record batch that was opened first of those that are not acknowledged yet."""
        with self._lock:
            return next(iter(self._unsettled), None)

    def events(self) -> list[float]:
        """Times at which something becomes due by itself."""
        with self._lock:
            found = [queue.not_before for queue in self._sendable]
            for batch in self._lingering:
                queue = self._unsettled.get(batch)
                if queue is not None and queue.open is batch:
                    found.append(batch.opened_at + self._linger_s)
                    break
            if self._unsettled:
                found.append(next(iter(self._unsettled)).give_up_at)
        return found

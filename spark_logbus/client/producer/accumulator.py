"""The producer's memory: records on their way, per partition. No thread and no socket.

A record batch is *open* while records are appended to it, *ready* once it is sealed (full,
lingered long enough, or wanted by a flush), then *taken* for a request, and in the end settled or
requeued, in its old place. Several requests of a partition may be on their way: numbers hold their
order, and a failure stops what would follow (see ``PartitionQueue``), so the order of a partition
holds under retries.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from spark_logbus.client.config import ProducerConfig
from spark_logbus.client.producer.acknowledgements import (
    Acknowledgement,
    AppendedRange,
    RecordFuture,
)
from spark_logbus.client.producer.batches import PartitionQueue, QueuedBatch
from spark_logbus.client.producer.completion import Appended, NextStep, next_step
from spark_logbus.client.producer.lane import LANES_ARE_SAFE, Lane
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
from spark_logbus.record.builder import RECORD_OVERHEAD_BYTES, ArrowBatchBuilder
from spark_logbus.retry import Backoff, Deadline

if TYPE_CHECKING:
    from spark_logbus.client.producer.values import ValueWriter

# Room for some hundreds of records, so that opening a lane is no part of the cost of each; and
# little beside the smallest sensible buffer, as what one topic has reserved no other can take.
_LANE_BYTES: Final = 128 << 10
_LEAST_LANE_BYTES: Final = 4 << 10


class Accumulator:
    """All partitions' queues, and the bound on their memory.

    Thread-safe: appending, flushing and closing are for any thread, the rest is for the
    sender's. ``wake`` has the sender look at the queues soon. Acknowledgements are settled
    outside the lock, because callers' callbacks run then. Times are monotonic seconds.
    """

    def __init__(
        self, config: ProducerConfig, *, clock: Clock, backoff: Backoff, wake: Callable[[], None]
    ) -> None:
        self._config = config
        self._clock = clock
        self._now_ns = clock.now_ns
        self._backoff = backoff
        self._wake = wake
        self._linger_s = config.linger_ms / 1000
        self._delivery_timeout_s = config.delivery_timeout_ms / 1000
        self._buffer_bytes = config.buffer_bytes
        self._lock = threading.Lock()
        self._freed = threading.Condition(self._lock)
        self._lingering: deque[QueuedBatch] = deque()  # in the order they were opened
        self._unsettled: dict[QueuedBatch, PartitionQueue] = {}  # likewise
        self._sendable: dict[PartitionQueue, None] = {}
        self._closed = False
        self._reserved_bytes = 0  # with what lanes may still take
        #: By topic; the owner of one puts values in without a call. Changed under the lock.
        self.lanes: dict[str, Lane] = {}

    # -- appending, from any thread -------------------------------------------------------

    def append_value(self, queues: Sequence[PartitionQueue], value: bytes) -> RecordFuture | None:
        """Append a record that is a value and nothing else, as most are, at half of the cost.

        None, and nothing is done, unless it fits into the record batch that is open for such
        records and leaves room there: then ``append_record`` has more to do. Opens a lane for those
        that follow, unless several threads send to this record batch.
        """
        size = RECORD_OVERHEAD_BYTES + len(value)
        if queues[queues[0].keyless.current].open is None:  # a look without the lock is worth it
            return None
        with self._lock:
            queue = queues[queues[0].keyless.current]
            batch = queue.open
            if batch is None or self._closed:
                return None
            if batch.lane is not None:
                self._close_lane(batch)
            reserved = batch.reserved_bytes + size
            buffered = self._reserved_bytes + size
            if reserved >= queue.batch_limit or buffered > self._buffer_bytes:
                return None
            now_ns = self._now_ns()
            number = batch.builder.append_value(value, now_ns // 1000)  # type: ignore[union-attr]
            batch.reserved_bytes = reserved
            self._reserved_bytes = buffered
            if not batch.shared:
                self._open_lane(queue, batch, number + 1)
            return RecordFuture(batch.acknowledgement, 2 * (number + 1), now_ns)

    def has_taken(self, lane: Lane, end: int) -> bool:
        """True if what its owner has put into a lane that was closed since, up to that length of
        its records, is in the record batch."""
        with self._lock:
            return end <= lane.taken

    def _open_lane(self, queue: PartitionQueue, batch: QueuedBatch, number: int) -> None:
        room = min(
            _LANE_BYTES,
            queue.batch_limit - batch.reserved_bytes - 1,  # a full one is sealed
            self._buffer_bytes - self._reserved_bytes,
        )
        if room < _LEAST_LANE_BYTES or not LANES_ARE_SAFE:
            return
        batch.reserved_bytes += room
        self._reserved_bytes += room
        lane = Lane(queue, batch.acknowledgement, owner=get_ident(), room=room, number=number)
        batch.lane = self.lanes[queue.topic_partition.topic] = lane

    def _close_lane(self, batch: QueuedBatch) -> None:
        """Take what came by the lane of an open record batch, if it has one."""
        lane = batch.lane
        if lane is None:
            return
        values, times_ns = lane.close()
        assert batch.builder is not None
        batch.builder.extend_values(values, times_ns)
        batch.lane = None
        del self.lanes[batch.topic_partition.topic]
        room = lane.room
        batch.reserved_bytes -= room
        self._reserved_bytes -= room
        batch.shared = lane.owner != get_ident()

    def _close_lanes(self) -> None:
        for lane in list(self.lanes.values()):
            if lane.queue.open is not None:
                self._close_lane(lane.queue.open)

    def append_record(
        self,
        queues: Sequence[PartitionQueue],
        partition: int | None,
        value: Any,
        key: bytes | None,
        timestamp_us: int,
        headers: Sequence[Header] | None,
        size: int,
        values: ValueWriter | None = None,
    ) -> tuple[RecordFuture, bool]:
        """Append one record of ``size`` bytes to the open record batch of a topic's ``partition``;
        None: of the one whose turn it is. A value is bytes, or a row for ``values``; a record batch
        holds either.

        Waits for room. Returns as well if a record batch was opened or sealed with it. Raises
        ProducerClosedError, and BufferExhaustedError after ``max_block_ms`` without room.
        """
        news = False
        with self._lock:
            if self._closed or self._reserved_bytes + size > self._buffer_bytes:
                self._wait_for_room(size)
            queue = queues[queues[0].keyless.current if partition is None else partition]
            batch = queue.open
            if batch is not None and batch.lane is not None:
                self._close_lane(batch)
            if (
                batch is None
                or (reserved := batch.reserved_bytes + size) > queue.batch_limit
                or batch.values is not values
            ):
                queue, batch = self._open_batch(queues, queue, partition, size, values)
                reserved = batch.reserved_bytes + size
                news = True
            builder = batch.builder
            assert builder is not None
            number = builder.append(value, key, timestamp_us, headers)
            batch.reserved_bytes = reserved
            self._reserved_bytes += size
            if partition is not None:
                batch.keyed = True
            if reserved >= queue.batch_limit:
                self._seal(queue)
                news = True
        if news:
            self._wake()
        return RecordFuture(batch.acknowledgement, 2 * (number + 1), 1000 * timestamp_us), news

    def append_encoded(
        self,
        queues: Sequence[PartitionQueue],
        partition: int | None,
        data: memoryview,
        *,
        record_count: int,
    ) -> Acknowledgement:
        """Append one encoded record batch, after the records that are there already; otherwise
        like ``append_record``."""
        with self._lock:
            self._wait_for_room(len(data))
            queue = queues[queues[0].keyless.current if partition is None else partition]
            if queue.open is not None:
                self._seal(queue)
            batch = self._new_batch(queue)
            batch.data = data
            batch.keyed = partition is not None
            batch.record_count = record_count
            batch.reserved_bytes = len(data)
            self._reserved_bytes += len(data)
            self._make_ready(queue, batch)
        self._wake()
        return batch.acknowledgement

    def begin_flush(self) -> list[Acknowledgement]:
        """Make all that was appended ready; the acknowledgements of what is not settled yet."""
        with self._lock:
            self._seal_all()
            waiting = [batch.acknowledgement for batch in self._unsettled]
        self._wake()
        return waiting

    def close(self) -> None:
        """Accept no more records, also from those that wait for room. Idempotent."""
        with self._lock:
            self._closed = True
            self._close_lanes()
            self._freed.notify_all()

    def _wait_for_room(self, size: int) -> None:
        """Under the lock: return when ``size`` bytes fit, or the buffer is empty."""
        deadline = None
        while True:
            self._close_lanes()  # and so have what they reserved
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
        self,
        queues: Sequence[PartitionQueue],
        queue: PartitionQueue,
        partition: int | None,
        size: int,
        values: ValueWriter | None,
    ) -> tuple[PartitionQueue, QueuedBatch]:
        """An open record batch with room for what does not fit into that of ``queue``, and its
        queue, which without a ``partition`` is the next one's."""
        while (batch := queue.open) is not None:
            self._close_lane(batch)
            if batch.reserved_bytes + size <= queue.batch_limit and batch.values is values:
                return queue, batch
            self._seal(queue)
            if partition is None:
                queue = queues[queue.keyless.current]
        batch = self._new_batch(queue)
        batch.builder = ArrowBatchBuilder() if values is None else values.new_builder()
        batch.values = values
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

    def _make_ready(self, queue: PartitionQueue, batch: QueuedBatch) -> None:
        queue.make_ready(batch)
        self._offer(queue)
        if queue.keyless.current == queue.topic_partition.partition:
            queue.keyless.move_on()

    def _offer(self, queue: PartitionQueue) -> None:
        if queue.may_send:
            self._sendable[queue] = None
        else:
            self._sendable.pop(queue, None)

    def _seal(self, queue: PartitionQueue) -> None:
        """Close the queue's open record batch; it is ready to be sent."""
        batch = queue.open
        if batch is not None and batch.builder is not None:
            self._close_lane(batch)
            batch.record_count = len(batch.builder)
            queue.open = None
            self._make_ready(queue, batch)

    def _seal_all(self) -> None:
        for batch in self._lingering:
            queue = self._unsettled.get(batch)
            if queue is not None and queue.open is batch:
                self._seal(queue)
        self._lingering.clear()

    def seal_lingering(self, now: float) -> None:
        """Seal the record batches that have waited for more records long enough."""
        with self._lock:
            while self._lingering:
                batch = self._lingering[0]
                queue = self._unsettled.get(batch)
                if queue is not None and queue.open is batch:
                    if batch.opened_at + self._linger_s > now:
                        return
                    self._seal(queue)
                self._lingering.popleft()

    # -- leaders that are away ------------------------------------------------------------

    def set_away(self, queues: Sequence[PartitionQueue]) -> None:
        """Give what need not wait for the leaders of these partitions to others of their topic, now
        and until ``set_back``. What was sent before stays: it may have arrived."""
        with self._lock:
            for queue in queues:
                queue.keyless.set_away(queue.topic_partition.partition)
            for queue in queues:
                self._move_away(queue)

    def _move_away(self, queue: PartitionQueue) -> None:
        if queue.open is not None:
            self._close_lane(queue.open)
            if not queue.open.keyed:
                self._seal(queue)
        for batch in [batch for batch in queue.ready if batch.free]:
            queue.ready.remove(batch)
            target = queue.siblings[queue.keyless.current]
            batch.move_to(target.topic_partition)
            self._unsettled[batch] = target
            self._make_ready(target, batch)
        self._offer(queue)

    def set_back(self, queue: PartitionQueue) -> None:
        with self._lock:
            queue.keyless.set_back(queue.topic_partition.partition)

    # -- sending --------------------------------------------------------------------------

    def ready_queues(self) -> list[PartitionQueue]:
        """Queues with something ready that may be sent, longest waiting first."""
        with self._lock:
            return list(self._sendable)

    def has_ready(self, queue: PartitionQueue, size_bytes: int) -> bool:
        """True if so many bytes are ready in ``queue``."""
        with self._lock:
            return queue.has_ready(size_bytes)

    def take_batches(
        self, queue: PartitionQueue, *, max_bytes: int, at_least_one: bool
    ) -> list[QueuedBatch]:
        """Take record batches for one request, in order; they are on their way from now on."""
        taken: list[QueuedBatch] = []
        room = max_bytes
        with self._lock:
            while queue.may_send:
                batch = queue.ready[0]
                if queue.in_flight and not _follows(queue, batch):
                    break
                room -= batch.size_bytes
                if room < 0 and (taken or not at_least_one):
                    break
                if taken and (batch.alone or not _go_together(queue, taken[-1], batch)):
                    break
                taken.append(queue.ready.popleft())
                if batch.alone:
                    break
            if taken:
                queue.take_off(taken)
                self._sendable.pop(queue, None)  # and behind the others again, if there is more
                self._offer(queue)
        return taken

    def complete(
        self,
        queue: PartitionQueue,
        batches: Sequence[QueuedBatch],
        outcome: Appended | LogbusError,
        *,
        now: float,
    ) -> NextStep:
        """Settle or requeue what was taken, now that its request is over."""
        sequences = queue.sequences
        if isinstance(outcome, Appended):
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
                self._acknowledge(queue, batches, Appended([None] * len(batches)))
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
        """Return what was taken to its old place, after a failed request."""
        with self._lock:
            for batch in batches:
                batch.failures += 1
                batch.last_error = error
            queue.put_back([batch for batch in batches if batch in self._unsettled])
            self._stumble(queue, error)
            queue.not_before = not_before
            self._land(queue)

    def _acknowledge(
        self, queue: PartitionQueue, batches: Sequence[QueuedBatch], appended: Appended
    ) -> None:
        if queue.sequences is not None:
            queue.sequences.acknowledged(batches)
        with self._lock:
            self._forget(batches)
            if not queue.draining or queue.in_flight == 1:
                queue.not_before = 0.0
            self._land(queue)
        topic, partition = queue.topic_partition.topic, queue.topic_partition.partition
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
            self._stumble(queue, error)
            queue.not_before = 0.0
            self._land(queue)
        for batch in batches:
            batch.acknowledgement.fail(error)

    def fail_unsent(
        self,
        queue: PartitionQueue,
        failed: Sequence[tuple[QueuedBatch, LogbusError]],
        *,
        landed: bool,
    ) -> None:
        """Fail some of what was taken, unsent; ``landed`` if nothing of it is on its way."""
        with self._lock:
            self._forget([batch for batch, _ in failed])
            if landed:
                self._land(queue)
        for batch, error in failed:
            batch.acknowledgement.fail(error)

    def _stumble(self, queue: PartitionQueue, error: LogbusError) -> None:
        """A request failed: nothing is sent before the others that are on their way are over."""
        queue.draining = True
        queue.failure = queue.failure or error

    def _land(self, queue: PartitionQueue) -> None:
        queue.land()
        self._offer(queue)

    def _forget(self, batches: Sequence[QueuedBatch]) -> None:
        for batch in batches:
            if self._unsettled.pop(batch, None) is not None:
                self._reserved_bytes -= batch.reserved_bytes
        self._freed.notify_all()

    # -- giving up ------------------------------------------------------------------------

    def fail_expired(
        self, now: float, *, reason: Callable[[TopicPartition], LogbusError | None]
    ) -> None:
        """Fail what has waited for longer than the delivery timeout, but not what is on its way:
        its request's own timeout decides first. ``reason`` says of a partition what kept those
        that were never sent."""
        due = []
        with self._lock:
            for batch, queue in self._unsettled.items():
                if batch.give_up_at > now:
                    break
                if _waits(queue, batch):
                    due.append(batch)
            self._remove(due)
        for batch in due:
            last = batch.last_error or reason(batch.topic_partition)
            batch.acknowledgement.fail(
                RequestTimeoutError(
                    f"{batch.record_count} records for {batch.topic_partition} were not "
                    f"acknowledged within {self._config.delivery_timeout_ms} ms; last failure: "
                    f"{last or 'none'}"
                )
            )

    def fail_topic(self, topic: str, error: LogbusError) -> None:
        """Fail all that waits for ``topic``, for example because it was deleted."""
        with self._lock:
            due = [
                batch
                for batch, queue in self._unsettled.items()
                if queue.topic_partition.topic == topic and _waits(queue, batch)
            ]
            self._remove(due)
        for batch in due:
            batch.acknowledgement.fail(error)

    def abort(self, error: LogbusError) -> None:
        """Fail everything, also what is on its way."""
        with self._lock:
            due = list(self._unsettled)
            self._remove(due)
        for batch in due:
            batch.acknowledgement.fail(error)

    def _remove(self, batches: Sequence[QueuedBatch]) -> None:
        for batch in batches:
            queue = self._unsettled[batch]
            if queue.open is batch:
                self._close_lane(batch)
                queue.open = None
            elif batch in queue.ready:
                queue.ready.remove(batch)
                self._offer(queue)
            if queue.sequences is not None:
                queue.sequences.given_up(batch)
        if batches:
            self._forget(batches)

    # -- looking --------------------------------------------------------------------------

    @property
    def buffered_bytes(self) -> int:
        """Of the records that are not acknowledged yet."""
        return self._reserved_bytes - sum(lane.room for lane in list(self.lanes.values()))

    @property
    def empty(self) -> bool:
        return not self._unsettled

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


def _waits(queue: PartitionQueue, batch: QueuedBatch) -> bool:
    return queue.open is batch or batch in queue.ready


def _follows(queue: PartitionQueue, batch: QueuedBatch) -> bool:
    """Whether it may be sent while others are on their way: only with a number that goes on."""
    sequences = queue.sequences
    return sequences is not None and not batch.failures and sequences.go_on(batch.record_count)


def _go_together(queue: PartitionQueue, before: QueuedBatch, batch: QueuedBatch) -> bool:
    """Record batches in doubt are sent by themselves while something before them is unknown, and
    not with each other when one between them was given up: the broker would see a gap, and would
    not say that it has those before."""
    if before.in_doubt and batch.in_doubt:
        return batch.sequence == before.sequence + before.record_count
    unknown = queue.sequences is not None and queue.sequences.unknown
    return not unknown or before.in_doubt == batch.in_doubt

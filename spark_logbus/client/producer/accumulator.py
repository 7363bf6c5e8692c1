"""The producer's memory: records on their way, per partition. No thread and no socket.

A record batch is *open* while records are appended to it, *ready* once it is sealed (full,
lingered long enough, or wanted by a flush), and then is what ``Deliveries`` make of it: taken for a
request, and in the end settled, or back in its old place.
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
    RecordFuture,
)
from spark_logbus.client.producer.batches import PartitionQueue, QueuedBatch
from spark_logbus.client.producer.lane import LANES_ARE_SAFE, Lane, LanePlace
from spark_logbus.clock import Clock
from spark_logbus.errors import (
    BufferExhaustedError,
    LogbusError,
    ProducerClosedError,
)
from spark_logbus.model import Header
from spark_logbus.record.rows.builder import RECORD_OVERHEAD_BYTES, ArrowBatchBuilder
from spark_logbus.retry import Deadline

if TYPE_CHECKING:
    from spark_logbus.client.producer.values import ValueWriter

# Room for some hundreds of records, so that opening a lane is no part of the cost of each; and
# little beside the smallest sensible buffer, as what one topic has reserved no other can take.
_LANE_BYTES: Final = 128 << 10
_LEAST_LANE_BYTES: Final = 4 << 10


class Accumulator:
    """All partitions' queues, and the bound on their memory.

    Thread-safe: appending, flushing and closing are for any thread, the rest is for the sender's;
    what needs ``lock`` says so. ``wake`` has the sender look at the queues soon. Times are
    monotonic seconds.
    """

    def __init__(self, config: ProducerConfig, *, clock: Clock, wake: Callable[[], None]) -> None:
        self._config = config
        self._clock = clock
        self._now_ns = clock.now_ns
        self._wake = wake
        self._linger_s = config.linger_ms / 1000
        self._delivery_timeout_s = config.delivery_timeout_ms / 1000
        self._buffer_bytes = config.buffer_bytes
        self.lock = threading.Lock()
        self._freed = threading.Condition(self.lock)
        self._lingering: deque[QueuedBatch] = deque()  # in the order they were opened
        self.unsettled: dict[QueuedBatch, PartitionQueue] = {}  # likewise
        self._sendable: dict[PartitionQueue, None] = {}
        self._closed = False
        self._reserved_bytes = 0  # with what lanes may still take
        self._closed_records = 0  # in record batches that take no more
        #: The owner of one puts values in without a call. Changed under the lock.
        self.lanes: dict[LanePlace, Lane] = {}

    # -- appending, from any thread -------------------------------------------------------

    def append_value(
        self, queues: Sequence[PartitionQueue], partition: int | None, value: bytes
    ) -> RecordFuture | None:
        """Append a record that is a value and nothing else, as most are, at half of the cost, to a
        topic's ``partition`` or, with None, that whose turn it is.

        None, and nothing is done, unless it fits into the record batch that is open there and
        leaves room: then ``append_record`` has more to do. Opens a lane for those that follow,
        unless several threads send to this record batch.
        """
        size = RECORD_OVERHEAD_BYTES + len(value)
        # A look without the lock is worth it.
        if queues[queues[0].keyless.current if partition is None else partition].open is None:
            return None
        with self.lock:
            queue = queues[queues[0].keyless.current if partition is None else partition]
            batch = queue.open
            if batch is None or self._closed:
                return None
            if batch.lane is not None:
                self.close_lane(batch)
            reserved = batch.reserved_bytes + size
            buffered = self._reserved_bytes + size
            if reserved >= queue.batch_limit or buffered > self._buffer_bytes:
                return None
            now_ns = self._now_ns()
            number = batch.builder.append_value(value, now_ns // 1000)  # type: ignore[union-attr]
            batch.reserved_bytes = reserved
            self._reserved_bytes = buffered
            if partition is not None:
                batch.keyed = True
            if not batch.shared:
                self._open_lane(queue, batch, number + 1, named=partition is not None)
            return RecordFuture(batch.acknowledgement, 2 * (number + 1), now_ns)

    def has_taken(self, lane: Lane, end: int) -> bool:
        """True if what its owner has put into a lane that was closed since, up to that length of
        its records, is in the record batch."""
        with self.lock:
            return end <= lane.taken

    def _open_lane(
        self, queue: PartitionQueue, batch: QueuedBatch, number: int, *, named: bool
    ) -> None:
        room = min(
            _LANE_BYTES,
            queue.batch_limit - batch.reserved_bytes - 1,  # a full one is sealed
            self._buffer_bytes - self._reserved_bytes,
        )
        if room < _LEAST_LANE_BYTES or not LANES_ARE_SAFE:
            return
        if named and 2 * self._reserved_bytes > self._buffer_bytes:
            return  # with many partitions lanes would take all of it, and who needs room close all
        batch.reserved_bytes += room
        self._reserved_bytes += room
        target = queue.topic_partition
        place = (target.topic, target.partition) if named else target.topic
        lane = Lane(
            queue, batch.acknowledgement, place, owner=get_ident(), room=room, number=number
        )
        batch.lane = self.lanes[place] = lane

    def _close_lanes(self) -> None:
        for lane in list(self.lanes.values()):
            if lane.queue.open is not None:
                self.close_lane(lane.queue.open)

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
        with self.lock:
            if self._closed or self._reserved_bytes + size > self._buffer_bytes:
                self._wait_for_room(size)
            queue = queues[queues[0].keyless.current if partition is None else partition]
            batch = queue.open
            if batch is not None and batch.lane is not None:
                self.close_lane(batch)
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
                self.seal(queue)
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
        with self.lock:
            self._wait_for_room(len(data))
            queue = queues[queues[0].keyless.current if partition is None else partition]
            if queue.open is not None:
                self.seal(queue)
            batch = self._new_batch(queue)
            batch.data = data
            batch.keyed = partition is not None
            batch.record_count = record_count
            self._closed_records += record_count
            batch.reserved_bytes = len(data)
            self._reserved_bytes += len(data)
            self.make_ready(queue, batch)
        self._wake()
        return batch.acknowledgement

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
            self.close_lane(batch)
            if batch.reserved_bytes + size <= queue.batch_limit and batch.values is values:
                return queue, batch
            self.seal(queue)
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
        self.unsettled[batch] = queue
        return batch

    # -- sealing --------------------------------------------------------------------------

    def begin_flush(self) -> list[Acknowledgement]:
        """Make all that was appended ready; the acknowledgements of what is not settled yet."""
        with self.lock:
            self._seal_all()
            waiting = [batch.acknowledgement for batch in self.unsettled]
        self._wake()
        return waiting

    def seal_lingering(self, now: float) -> None:
        """Seal the record batches that have waited for more records long enough."""
        with self.lock:
            while self._lingering:
                batch = self._lingering[0]
                queue = self.unsettled.get(batch)
                if queue is not None and queue.open is batch:
                    if batch.opened_at + self._linger_s > now:
                        return
                    self.seal(queue)
                self._lingering.popleft()

    def _seal_all(self) -> None:
        for batch in self._lingering:
            queue = self.unsettled.get(batch)
            if queue is not None and queue.open is batch:
                self.seal(queue)
        self._lingering.clear()

    def give_up_in_child(self, error: LogbusError) -> None:
        """Fail everything in a forked process, whose parent goes on with it. Takes no lock, and
        puts a new one in the place of one that may be locked for ever."""
        self.lock = threading.Lock()
        self._closed = True
        self.lanes.clear()
        for batch in self.unsettled:
            batch.acknowledgement.fail_in_child(error)

    def close(self) -> None:
        """Accept no more records, also from those that wait for room. Idempotent."""
        with self.lock:
            self._closed = True
            self._close_lanes()
            self._freed.notify_all()

    # -- under the lock, for deliveries too -----------------------------------------------

    def seal(self, queue: PartitionQueue) -> None:
        """Close the queue's open record batch; it is ready to be sent."""
        batch = queue.open
        if batch is not None and batch.builder is not None:
            self._take_whole(batch)
            queue.open = None
            self.make_ready(queue, batch)

    def close_lane(self, batch: QueuedBatch) -> None:
        """Take what came by the lane of an open record batch, if it has one."""
        lane = batch.lane
        if lane is None:
            return
        values, times_ns = lane.close()
        assert batch.builder is not None
        batch.builder.extend_values(values, times_ns)
        batch.lane = None
        del self.lanes[lane.place]
        room = lane.room
        batch.reserved_bytes -= room
        self._reserved_bytes -= room
        batch.shared = lane.owner != get_ident()

    def _take_whole(self, batch: QueuedBatch) -> None:
        """Count an open record batch, which takes nothing more."""
        assert batch.builder is not None
        self.close_lane(batch)
        batch.record_count = len(batch.builder)
        self._closed_records += batch.record_count

    def make_ready(self, queue: PartitionQueue, batch: QueuedBatch) -> None:
        queue.make_ready(batch)
        self.offer(queue)
        if queue.keyless.current == queue.topic_partition.partition:
            queue.keyless.move_on()

    def offer(self, queue: PartitionQueue) -> None:
        """Have it sent, if something of it may be."""
        if queue.may_send:
            self._sendable[queue] = None
        else:
            self._sendable.pop(queue, None)

    def offer_last(self, queue: PartitionQueue) -> None:
        """``offer`` it, behind all others."""
        self._sendable.pop(queue, None)
        self.offer(queue)

    def forget(self, batches: Sequence[QueuedBatch]) -> None:
        """They are settled, or will be: what they took of the memory is free."""
        for batch in batches:
            if self.unsettled.pop(batch, None) is not None:
                self._reserved_bytes -= batch.reserved_bytes
        self._freed.notify_all()

    def withdraw(self, batches: Sequence[QueuedBatch]) -> None:
        """Forget them wherever they are, without settling them."""
        for batch in batches:
            queue = self.unsettled[batch]
            if queue.open is batch and batch.builder is not None:
                self._take_whole(batch)
                queue.open = None
            elif batch in queue.ready:
                queue.withdraw(batch)
                self.offer(queue)
            if queue.sequences is not None:
                queue.sequences.given_up(batch)
        if batches:
            self.forget(batches)

    # -- looking --------------------------------------------------------------------------

    def ready_queues(self) -> list[PartitionQueue]:
        """Queues with something ready that may be sent, longest waiting first."""
        with self.lock:
            return list(self._sendable)

    @property
    def buffered_bytes(self) -> int:
        """Of the records that are not acknowledged yet."""
        return self._reserved_bytes - sum(lane.room for lane in list(self.lanes.values()))

    @property
    def record_count(self) -> int:
        """The number of records that were ever appended."""
        with self.lock:
            batches = [queue.open for queue in self.unsettled.values()]
            return self._closed_records + sum(
                len(batch.builder) + (0 if batch.lane is None else batch.lane.record_count)
                for batch in dict.fromkeys(batches)
                if batch is not None and batch.builder is not None
            )

    @property
    def empty(self) -> bool:
        return not self.unsettled

    @property
    def oldest(self) -> QueuedBatch | None:
        """The record batch that was opened first of those that are not acknowledged yet."""
        with self.lock:
            return next(iter(self.unsettled), None)

    def events(self) -> list[float]:
        """Times at which something becomes due by itself."""
        with self.lock:
            found = [queue.not_before for queue in self._sendable]
            for batch in self._lingering:
                queue = self.unsettled.get(batch)
                if queue is not None and queue.open is batch:
                    found.append(batch.opened_at + self._linger_s)
                    break
            if self.unsettled:
                found.append(next(iter(self.unsettled)).give_up_at)
        return found

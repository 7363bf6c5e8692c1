"""The producer's memory: records on their way, per partition. Pure: no thread, no socket, no clock.

A record batch is *open* while records are added to it, *ready* once it is sealed (full, lingered
long enough, or wanted by a flush), then *taken* for a request, and in the end settled or put back.
Per partition at most one request is on its way, with all that was ready; so what is put back
after a failure can never have been overtaken, and the order of a partition holds under retries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from spark_logbus.client.producer.acknowledgements import Acknowledgement, RecordFuture
from spark_logbus.client.producer.batches import PartitionQueue, QueuedBatch
from spark_logbus.errors import LogbusError
from spark_logbus.record.builder import ArrowBatchBuilder, Header


class Accumulator:
    """All partitions' queues. Not thread-safe: the producer calls it under its lock.

    Times are monotonic seconds, given by the caller.
    """

    def __init__(self, *, linger_s: float, delivery_timeout_s: float) -> None:
        self._linger_s = linger_s
        self._delivery_timeout_s = delivery_timeout_s
        self._lingering: deque[QueuedBatch] = deque()  # in the order they were opened
        self._unsettled: dict[QueuedBatch, PartitionQueue] = {}  # likewise
        self._sendable: dict[PartitionQueue, None] = {}
        self.buffered_bytes = 0

    # -- filling --------------------------------------------------------------------------

    def add(
        self,
        queue: PartitionQueue,
        *,
        value: bytes | None,
        key: bytes | None,
        timestamp_us: int,
        headers: Sequence[Header] | None,
        size: int,
        now: Callable[[], float],
        keyless: bool = False,
    ) -> tuple[RecordFuture, bool]:
        """Add one record of ``size`` bytes to the queue's open record batch; ``keyless``: it need
        not go to this partition.

        Also tells whether that gave the sender something new: a record batch to send, or a
        linger to wait for.
        """
        news = False
        batch = queue.open
        if batch is None or batch.reserved_bytes + size > queue.batch_limit:
            if batch is not None:
                self.seal(queue)
            batch = self._new(queue, now())
            batch.builder = ArrowBatchBuilder()
            batch.keyed = False
            news = True
            queue.open = batch
            self._lingering.append(batch)
        builder = batch.builder
        assert builder is not None
        number = builder.add(value=value, key=key, timestamp_us=timestamp_us, headers=headers)
        batch.reserved_bytes += size
        self.buffered_bytes += size
        if not keyless:
            batch.keyed = True
        if batch.reserved_bytes >= queue.batch_limit:
            self.seal(queue)
            news = True
        return RecordFuture(batch.acknowledgement, number, timestamp_us), news

    def keyless_queue(self, queues: Sequence[PartitionQueue], size: int) -> PartitionQueue:
        """The queue for a record without a key: the current one while the record fits in it."""
        keyless = queues[0].keyless
        queue = queues[keyless.current]
        if queue.open is not None and queue.open.reserved_bytes + size > queue.batch_limit:
            self.seal(queue)
            queue = queues[keyless.current]
        return queue

    def add_encoded(
        self,
        queue: PartitionQueue,
        data: memoryview,
        *,
        record_count: int,
        now: float,
        keyless: bool = False,
    ) -> Acknowledgement:
        """Add one encoded record batch, behind the records that are there already."""
        if queue.open is not None:
            self.seal(queue)
        batch = self._new(queue, now)
        batch.data = data
        batch.keyed = not keyless
        batch.record_count = record_count
        batch.reserved_bytes = len(data)
        self.buffered_bytes += len(data)
        self._make_ready(queue, batch)
        return batch.acknowledgement

    def _new(self, queue: PartitionQueue, now: float) -> QueuedBatch:
        give_up_at = now + self._delivery_timeout_s
        batch = QueuedBatch(queue.topic_partition, opened_at=now, give_up_at=give_up_at)
        self._unsettled[batch] = queue
        return batch

    def _make_ready(self, queue: PartitionQueue, batch: QueuedBatch) -> None:
        queue.ready.append(batch)
        if not queue.in_flight:
            self._sendable[queue] = None
        if queue.keyless.current == queue.topic_partition.partition:
            queue.keyless.move_on()

    def seal(self, queue: PartitionQueue) -> None:
        """Close the queue's open record batch; it is ready to be sent."""
        batch = queue.open
        if batch is not None and batch.builder is not None:
            batch.record_count = len(batch.builder)
            queue.open = None
            self._make_ready(queue, batch)

    def seal_all(self) -> None:
        for batch in self._lingering:
            queue = self._unsettled.get(batch)
            if queue is not None and queue.open is batch:
                self.seal(queue)
        self._lingering.clear()

    def seal_lingering(self, now: float) -> None:
        """Seal the record batches that have waited for more records long enough."""
        while self._lingering:
            batch = self._lingering[0]
            queue = self._unsettled.get(batch)
            if queue is not None and queue.open is batch:
                if batch.opened_at + self._linger_s > now:
                    return
                self.seal(queue)
            self._lingering.popleft()

    # -- leaders that are away ------------------------------------------------------------

    def set_away(self, queues: Sequence[PartitionQueue]) -> None:
        """Give what need not wait for the leaders of these partitions to others of their topic, now
        and until ``set_back``. What was sent before stays: it may have arrived."""
        for queue in queues:
            queue.keyless.set_away(queue.topic_partition.partition)
        for queue in queues:
            self._move_away(queue)

    def _move_away(self, queue: PartitionQueue) -> None:
        if queue.open is not None and not queue.open.keyed:
            self.seal(queue)
        for batch in [batch for batch in queue.ready if batch.free]:
            queue.ready.remove(batch)
            target = queue.siblings[queue.keyless.current]
            batch.move_to(target.topic_partition)
            self._unsettled[batch] = target
            self._make_ready(target, batch)
        if not queue.ready:
            self._sendable.pop(queue, None)

    def set_back(self, queue: PartitionQueue) -> None:
        queue.keyless.set_back(queue.topic_partition.partition)

    # -- sending --------------------------------------------------------------------------

    def sendable(self) -> list[PartitionQueue]:
        """Queues with something ready and nothing on its way, longest waiting first."""
        return list(self._sendable)

    def take(
        self, queue: PartitionQueue, *, max_bytes: int, at_least_one: bool
    ) -> list[QueuedBatch]:
        """Take record batches for one request, in order; they are on their way from now on."""
        taken: list[QueuedBatch] = []
        room = max_bytes
        while queue.ready:
            batch = queue.ready[0]
            room -= batch.size_bytes
            if room < 0 and (taken or not at_least_one):
                break
            if taken and (batch.alone or not _go_together(queue, taken[-1], batch)):
                break
            taken.append(queue.ready.popleft())
            if batch.alone:
                break
        if taken:
            queue.in_flight = True
            self._sendable.pop(queue, None)
        return taken

    def put_back(
        self,
        queue: PartitionQueue,
        batches: Sequence[QueuedBatch],
        *,
        not_before: float,
        error: LogbusError | None,
    ) -> None:
        """Return what was taken to the front, in the same order, after a failed request."""
        for batch in reversed(batches):
            if error is not None:
                batch.failures += 1
                batch.last_error = error
            if batch in self._unsettled:
                queue.ready.appendleft(batch)
        queue.not_before = not_before
        self._landed(queue)

    def settle(self, queue: PartitionQueue, batches: Sequence[QueuedBatch]) -> None:
        """Forget record batches that were taken: acknowledged, or failed for good."""
        for batch in batches:
            self._forget(batch)
        queue.not_before = 0.0
        self._landed(queue)

    def drop(self, queue: PartitionQueue, batches: Sequence[QueuedBatch], *, landed: bool) -> None:
        """Forget some of what was taken; ``landed`` if nothing of it is on its way any more."""
        for batch in batches:
            self._forget(batch)
        if landed:
            self._landed(queue)

    def _landed(self, queue: PartitionQueue) -> None:
        queue.in_flight = False
        if queue.ready:
            self._sendable[queue] = None

    def _forget(self, batch: QueuedBatch) -> None:
        if self._unsettled.pop(batch, None) is not None:
            self.buffered_bytes -= batch.reserved_bytes

    # -- giving up ------------------------------------------------------------------------

    def expired(self, now: float) -> list[QueuedBatch]:
        """Take out the record batches whose delivery timeout has passed; not those under way,
        which are decided by their request's own timeout first."""
        due = []
        for batch, queue in self._unsettled.items():
            if batch.give_up_at > now:
                break
            if queue.open is batch or batch in queue.ready:
                due.append(batch)
        self._remove(due)
        return due

    def remove_topic(self, topic: str) -> list[QueuedBatch]:
        """Take out all that waits for ``topic``, for example because it was deleted."""
        due = [
            batch
            for batch, queue in self._unsettled.items()
            if queue.topic_partition.topic == topic
            and (queue.open is batch or batch in queue.ready)
        ]
        self._remove(due)
        return due

    def remove_all(self) -> list[QueuedBatch]:
        """Take out everything, also what is on its way."""
        due = list(self._unsettled)
        self._remove(due)
        return due

    def _remove(self, batches: Sequence[QueuedBatch]) -> None:
        for batch in batches:
            queue = self._unsettled[batch]
            if queue.open is batch:
                queue.open = None
            elif batch in queue.ready:
                queue.ready.remove(batch)
                if not queue.ready:
                    self._sendable.pop(queue, None)
            if queue.sequences is not None:
                queue.sequences.given_up(batch)
            self._forget(batch)

    # -- looking --------------------------------------------------------------------------

    def unsettled(self) -> list[Acknowledgement]:
        """The acknowledgements of all that was added and not settled."""
        return [batch.acknowledgement for batch in self._unsettled]

    @property
    def empty(self) -> bool:
        return not self._unsettled

    def events(self) -> Iterator[float]:
        """Times at which something becomes due by itself."""
        for batch in self._lingering:
            queue = self._unsettled.get(batch)
            if queue is not None and queue.open is batch:
                yield batch.opened_at + self._linger_s
                break
        for batch in self._unsettled:
            yield batch.give_up_at
            break
        for queue in self._sendable:
            yield queue.not_before


def _go_together(queue: PartitionQueue, before: QueuedBatch, batch: QueuedBatch) -> bool:
    """Record batches in doubt are sent by themselves while something before them is unknown, and
    not with each other when one between them was given up: the broker would see a gap, and would
    not tell that it has those before."""
    if before.in_doubt and batch.in_doubt:
        return batch.sequence == before.sequence + before.record_count
    unknown = queue.sequences is not None and queue.sequences.unknown
    return not unknown or before.in_doubt == batch.in_doubt

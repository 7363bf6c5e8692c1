"""What becomes of record batches that are ready: taken for a request, settled or given back when it
is over, moved while a leader is away, given up in the end. No thread and no socket.

Several requests of a partition may be on their way: numbers hold their order, and a failure stops
what would follow (see ``PartitionQueue``), so the order of a partition holds under retries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spark_logbus.client.producer.accumulator import Accumulator
from spark_logbus.client.producer.acknowledgements import AppendedRange
from spark_logbus.client.producer.batches import PartitionQueue, QueuedBatch
from spark_logbus.client.producer.completion import Appended, NextStep, next_step
from spark_logbus.client.producer.failures import Failures
from spark_logbus.errors import (
    LogbusError,
    OutOfOrderSequenceError,
    RequestTimeoutError,
    UnknownProducerError,
)
from spark_logbus.model import TopicPartition
from spark_logbus.retry import Backoff


class Deliveries:
    """Delivers what an accumulator holds. For the sender's thread.

    Works under the accumulator's lock; acknowledgements are settled outside of it, because callers'
    callbacks run then. Times are monotonic seconds.
    """

    def __init__(
        self,
        accumulator: Accumulator,
        *,
        delivery_timeout_ms: int,
        backoff: Backoff,
        failures: Failures,
    ) -> None:
        self._accumulator = accumulator
        self._failures = failures
        self._delivery_timeout_ms = delivery_timeout_ms
        self._backoff = backoff
        #: Numbers of records, for whoever asks.
        self.acknowledged = self.failed = self.retried = 0

    # -- leaders that are away ------------------------------------------------------------

    def set_away(self, queues: Sequence[PartitionQueue]) -> None:
        """Give what need not wait for the leaders of these partitions to others of their topic, now
        and until ``set_back``. What was sent before stays: it may have arrived."""
        with self._accumulator.lock:
            for queue in queues:
                queue.keyless.set_away(queue.topic_partition.partition)
            for queue in queues:
                self._move_away(queue)

    def _move_away(self, queue: PartitionQueue) -> None:
        if queue.open is not None:
            self._accumulator.close_lane(queue.open)
            if not queue.open.keyed:
                self._accumulator.seal(queue)
        for batch in [batch for batch in queue.ready if batch.free]:
            queue.withdraw(batch)
            target = queue.siblings[queue.keyless.current]
            batch.move_to(target.topic_partition)
            self._accumulator.unsettled[batch] = target
            self._accumulator.make_ready(target, batch)
        self._accumulator.offer(queue)

    def set_back(self, queue: PartitionQueue) -> None:
        with self._accumulator.lock:
            queue.keyless.set_back(queue.topic_partition.partition)

    # -- sending --------------------------------------------------------------------------

    def take_batches(
        self, queue: PartitionQueue, *, max_bytes: int, at_least_one: bool
    ) -> list[QueuedBatch]:
        """Take record batches for one request, in order; they are on their way from now on."""
        taken: list[QueuedBatch] = []
        room = max_bytes
        with self._accumulator.lock:
            while queue.may_send:
                batch = queue.ready[0]
                if queue.in_flight and not _follows(queue, batch):
                    break
                room -= batch.size_bytes
                if room < 0 and (taken or not at_least_one):
                    break
                if taken and (batch.alone or not _go_together(queue, taken[-1], batch)):
                    break
                taken.append(queue.take_first())
                if batch.alone:
                    break
            if taken:
                queue.take_off(taken)
                self._accumulator.offer_last(queue)
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
        self.retried += sum(batch.record_count for batch in batches)
        with self._accumulator.lock:
            for batch in batches:
                batch.failures += 1
                batch.last_error = error
            queue.put_back([batch for batch in batches if batch in self._accumulator.unsettled])
            self._stumble(queue, error)
            queue.not_before = not_before
            self._land(queue)

    def _acknowledge(
        self, queue: PartitionQueue, batches: Sequence[QueuedBatch], appended: Appended
    ) -> None:
        if queue.sequences is not None:
            queue.sequences.acknowledged(batches)
        with self._accumulator.lock:
            self._accumulator.forget(batches)
            if not queue.draining or queue.in_flight == 1:
                queue.not_before = 0.0
            self._land(queue)
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
        with self._accumulator.lock:
            self._accumulator.forget(batches)
            self._stumble(queue, error)
            queue.not_before = 0.0
            self._land(queue)
        for batch in batches:
            self._fail(batch, error)

    def fail_unsent(
        self,
        queue: PartitionQueue,
        failed: Sequence[tuple[QueuedBatch, LogbusError]],
        *,
        landed: bool,
    ) -> None:
        """Fail some of what was taken, unsent; ``landed`` if nothing of it is on its way."""
        with self._accumulator.lock:
            self._accumulator.forget([batch for batch, _ in failed])
            if landed:
                self._land(queue)
        for batch, error in failed:
            self._fail(batch, error)

    def _stumble(self, queue: PartitionQueue, error: LogbusError) -> None:
        """A request failed: nothing is sent before the others that are on their way are over."""
        queue.draining = True
        queue.failure = queue.failure or error

    def _land(self, queue: PartitionQueue) -> None:
        queue.land()
        self._accumulator.offer(queue)

    # -- giving up ------------------------------------------------------------------------

    def fail_expired(
        self, now: float, *, reason: Callable[[TopicPartition], LogbusError | None]
    ) -> None:
        """Fail what has waited for longer than the delivery timeout, but not what is on its way:
        its request's own timeout decides first. ``reason`` says of a partition what kept those
        that were never sent."""
        due = []
        with self._accumulator.lock:
            for batch, queue in self._accumulator.unsettled.items():
                if batch.give_up_at > now:
                    break
                if _waits(queue, batch):
                    due.append(batch)
            self._accumulator.withdraw(due)
        for batch in due:
            last = batch.last_error or reason(batch.topic_partition)
            self._fail(
                batch,
                RequestTimeoutError(
                    f"{batch.record_count} records for {batch.topic_partition} were not "
                    f"acknowledged within {self._delivery_timeout_ms} ms; last failure: "
                    f"{last or 'none.'}"
                ),
            )

    def fail_topic(self, topic: str, error: LogbusError) -> None:
        """Fail all that waits for ``topic``, for example because it was deleted."""
        with self._accumulator.lock:
            due = [
                batch
                for batch, queue in self._accumulator.unsettled.items()
                if queue.topic_partition.topic == topic and _waits(queue, batch)
            ]
            self._accumulator.withdraw(due)
        for batch in due:
            self._fail(batch, error)

    def abort(self, error: LogbusError) -> None:
        """Fail everything, also what is on its way."""
        with self._accumulator.lock:
            due = list(self._accumulator.unsettled)
            self._accumulator.withdraw(due)
        for batch in due:
            self._fail(batch, error)

    def _fail(self, batch: QueuedBatch, error: LogbusError) -> None:
        self.failed += batch.record_count
        batch.acknowledgement.fail(error, records=batch.record_count, failures=self._failures)


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

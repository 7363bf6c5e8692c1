"""What becomes of record batches when their append request is over."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial

from spark_logbus.client.cluster.cluster import Cluster
from spark_logbus.client.cluster.leaders import partition_error
from spark_logbus.client.config import ProducerConfig
from spark_logbus.client.producer.accumulator import Accumulator
from spark_logbus.client.producer.acknowledgements import AppendedRange
from spark_logbus.client.producer.batches import PartitionQueue, QueuedBatch
from spark_logbus.client.producer.leader_connections import InFlight, Link
from spark_logbus.errors import (
    DuplicateSequenceError,
    LogbusError,
    ProtocolError,
    RequestTimeoutError,
    UnknownProducerError,
)
from spark_logbus.model import Acks, TopicPartition
from spark_logbus.protocol import AppendResponse, AppendResult

logger = logging.getLogger(__name__)

Settlement = Callable[[], None]


class Completion:
    """Puts back what may be sent again, and settles the acknowledgements of the rest.

    ``lock`` guards ``accumulator``; ``settled`` (a condition on that lock) is notified when
    memory was freed. Acknowledgements are settled outside the lock, because callers' callbacks
    run then. Used by the sender thread only.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: ProducerConfig,
        accumulator: Accumulator,
        *,
        lock: threading.Lock,
        settled: threading.Condition,
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._accumulator = accumulator
        self._lock = lock
        self._settled = settled

    def answered(self, link: Link, done: InFlight, now: float) -> None:
        if done.pending.error is not None:
            self.failed(done.parts, done.pending.error, now)
            return
        if self._config.acks is Acks.NONE:
            for queue, batches in done.parts:
                self._appended(queue, batches, [None] * len(batches), append_time_us=None)
            return
        try:
            results = done.pending.result(AppendResponse, done.deadline).results
            _check_results(results, done)
        except LogbusError as error:
            self.failed(done.parts, error, now)
            return
        for (queue, batches), result in zip(done.parts, results, strict=True):
            if result.error is None:
                offsets = _base_offsets(result, batches)
                self._appended(queue, batches, offsets, append_time_us=result.append_time_us)
            else:
                refused = partition_error(result.error, queue.topic_partition, link.address)
                self.failed([(queue, batches)], refused, now)

    def _appended(
        self,
        queue: PartitionQueue,
        batches: Sequence[QueuedBatch],
        base_offsets: Sequence[int | None],
        *,
        append_time_us: int | None,
    ) -> None:
        if queue.sequences is not None:
            queue.sequences.acknowledged(batches)
        with self._lock:
            self._accumulator.settle(queue, batches)
        settlements: list[Settlement] = []
        for batch, base_offset in zip(batches, base_offsets, strict=True):
            appended = AppendedRange(
                queue.topic_partition.topic,
                queue.topic_partition.partition,
                base_offset,
                batch.record_count,
                append_time_us,
            )
            settlements.append(partial(batch.acknowledgement.succeed, appended))
        self.finish(settlements)

    def failed(
        self,
        parts: Sequence[tuple[PartitionQueue, list[QueuedBatch]]],
        error: LogbusError,
        now: float,
    ) -> None:
        """Put back what may be sent again, fail the rest."""
        for queue, batches in parts:
            sequences = queue.sequences
            if sequences is not None and sequences.refused(batches, error):
                logger.warning(
                    "%s is numbered anew and sent again: %s", queue.topic_partition, error
                )
                with self._lock:
                    self._accumulator.put_back(queue, batches, not_before=now, error=error)
            elif isinstance(error, DuplicateSequenceError) and len(batches) == 1:
                self._appended(queue, batches, [None], append_time_us=None)
            elif error.retriable:
                self._cluster.invalidate(queue.topic_partition.topic)
                failures = batches[0].failures + 1
                again_at = now + self._cluster.backoff.pause_s(failures)
                with self._lock:
                    self._accumulator.put_back(queue, batches, not_before=again_at, error=error)
            elif len(batches) > 1:
                # The append is all or nothing; find out which of them the broker refuses.
                for batch in batches:
                    batch.alone = True
                with self._lock:
                    self._accumulator.put_back(queue, batches, not_before=now, error=error)
            else:
                if sequences is not None:
                    sequences.given_up(batches[0])
                if isinstance(error, UnknownProducerError):
                    # Its number leads nowhere, because of what failed before: that is the reason.
                    error = batches[0].last_error or error
                with self._lock:
                    self._accumulator.settle(queue, batches)
                self.finish([failing(batch, error) for batch in batches])

    def _too_late(self, batch: QueuedBatch, why: LogbusError | None) -> LogbusError:
        last = batch.last_error or why
        return RequestTimeoutError(
            f"{batch.record_count} records for {batch.topic_partition} were not acknowledged "
            "within "
            f"{self._config.delivery_timeout_ms} ms; last failure: {last or 'none'}"
        )

    def give_up_late(
        self, now: float, *, why: Callable[[TopicPartition], LogbusError | None]
    ) -> None:
        """Fail what has waited for longer than the delivery timeout; ``why`` tells of a partition
        what it waited for, for what was never sent."""
        with self._lock:
            expired = self._accumulator.expired(now)
        if not expired:
            return
        self.finish(
            [failing(batch, self._too_late(batch, why(batch.topic_partition))) for batch in expired]
        )

    def finish(self, settlements: Sequence[Settlement]) -> None:
        for settle in settlements:
            settle()
        with self._lock:
            self._settled.notify_all()


def failing(batch: QueuedBatch, error: LogbusError) -> Settlement:
    return partial(batch.acknowledgement.fail, error)


def _base_offsets(result: AppendResult, batches: Sequence[QueuedBatch]) -> Sequence[int]:
    """The offset of each record batch's first record."""
    if len(result.base_offsets) == len(batches):
        return result.base_offsets
    counts = [batch.record_count for batch in batches[:-1]]
    return list(itertools.accumulate(counts, initial=result.base_offset))


def _check_results(results: Sequence[AppendResult], done: InFlight) -> None:
    got = [(result.topic, result.partition) for result in results]
    asked = [
        (queue.topic_partition.topic, queue.topic_partition.partition) for queue, _ in done.parts
    ]
    if got != asked:
        raise ProtocolError(
            f"An append to {len(asked)} partitions was answered for others ({len(got)} results)."
        )

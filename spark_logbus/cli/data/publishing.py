"""Hands chunks of records over to a producer, and counts what becomes of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from spark_logbus.cli.data.chunks import Chunk, refused
from spark_logbus.errors import DeliveryFailedError, InvalidRequestError, RequestTimeoutError
from spark_logbus.plurals import plural

if TYPE_CHECKING:
    from spark_logbus.client import AppendedRange, Producer, RecordFuture

# So many are sent one by one, which lets them wait for each other in one record batch. Columns
# cost less for more than that, and are a record batch for each partition at once.
_FEW_RECORDS: Final = 256


class OwnPartitions:
    """A partitioner for records that bring their partitions. For one thread."""

    def __init__(self) -> None:
        self._partitions: Iterator[int | None] = iter(())

    def begin(self, chunk: Chunk | None) -> None:
        """Its records are asked about next, in order; None: records that bring nothing."""
        partitions = None if chunk is None else chunk.partitions
        self._partitions = iter(partitions or ())

    def __call__(
        self, topic: str, key: bytes | None, value: bytes | None, partitions: int
    ) -> int | None:
        return next(self._partitions, None)


class InputPublisher:
    """Publishes the chunks of one input, in order. For the main thread.

    The producer is used in a thread of its own: Ctrl-C meets the main thread wherever it is, and
    there it would leave records that the producer has and that are not counted.
    """

    def __init__(self, producer: Producer, topic: str, own_partitions: OwnPartitions) -> None:
        self._producer = producer
        self._topic = topic
        self._own_partitions = own_partitions
        self._thread = ThreadPoolExecutor(1, "logbus-publisher")
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        #: Records that were given to the producer, which may have had no room for some of the last.
        self.handed_over = 0
        #: Records that the topic has, as its brokers say.
        self.acknowledged = 0

    def publish(self, chunk: Chunk) -> None:
        """Hand the records over. InvalidRequestError names the first one that cannot be published;
        those before it are handed over, and none behind it."""
        self._thread.submit(self._publish, chunk).result()

    def finish(self, timeout_s: float | None = None) -> None:
        """Wait until all that was handed over is acknowledged or has failed, for at most
        ``timeout_s``, and close the producer."""
        began = time.monotonic()
        wait([self._thread.submit(int)], timeout_s)  # what an interrupt has left under way
        if timeout_s is not None:
            timeout_s = max(0.0, timeout_s - (time.monotonic() - began))
        # Each record's failure says so, too.
        with suppress(RequestTimeoutError, DeliveryFailedError):
            self._producer.close(timeout_s)
        self._thread.shutdown(wait=False)

    @property
    def told(self) -> str:
        """The count for people."""
        records = plural(self.handed_over, "record")
        return f"{self.acknowledged:,} of {records} were acknowledged by {self._topic}"

    def check(self, *, interrupted: bool = False) -> None:
        """Raise what the first record failed with, and say how many were acknowledged."""
        error = self._error
        if error is None:
            return
        told = f"{self.told}."
        if interrupted:
            told = f"{told} Of the others it is not known: this was interrupted."
        raise type(error)(f"{error} {told}") from error

    # -- in the publisher's thread --------------------------------------------------------

    def _publish(self, chunk: Chunk) -> None:
        for run in chunk.runs():
            self._publish_run(run)

    def _publish_run(self, run: Chunk) -> None:
        if len(run) <= _FEW_RECORDS:
            self._send_each(run)
            return
        try:
            self._send_columns(run)
        except InvalidRequestError:  # nothing of it was taken
            middle = len(run) // 2
            self._publish_run(run.part(0, middle))
            self._publish_run(run.part(middle, len(run)))

    def _send_each(self, run: Chunk) -> None:
        self._own_partitions.begin(None)
        for number in range(len(run)):
            record = run.record(number)
            self.handed_over += 1
            try:
                future = self._producer.send(
                    self._topic,
                    record.value,
                    key=record.key,
                    headers=record.headers or None,
                    partition=record.partition,
                    timestamp_us=record.timestamp_us,
                )
            except InvalidRequestError as error:
                self.handed_over -= 1
                raise refused(run.where(number), error) from error
            future.add_done_callback(self._settle_record)

    def _send_columns(self, run: Chunk) -> None:
        self._own_partitions.begin(run)
        self.handed_over += len(run)
        try:
            self._producer.send_many(
                self._topic,
                run.values,
                keys=run.keys,
                headers=run.headers and [each or None for each in run.headers],
                partition=run.partition,
                timestamps_us=run.timestamps_us,
                on_ack=self._settle_range,
            )
        except InvalidRequestError:
            self.handed_over -= len(run)
            raise

    # -- in the producer's ----------------------------------------------------------------

    def _settle_record(self, future: RecordFuture) -> None:
        error = future.exception()
        self._settle(0 if error else 1, error)

    def _settle_range(self, future: Future[AppendedRange]) -> None:
        error = future.exception()
        self._settle(0 if error else future.result().record_count, error)

    def _settle(self, acknowledged: int, error: BaseException | None) -> None:
        with self._lock:
            self.acknowledged += acknowledged
            self._error = self._error or error

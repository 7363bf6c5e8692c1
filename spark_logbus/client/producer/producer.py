"""The producer's front: appends records to the accumulator, from any thread."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from spark_logbus.client import at_exit
from spark_logbus.client.arguments import (
    Headers,
    as_bytes,
    as_headers,
    as_partition,
    as_timeout_ms,
    as_timestamp_us,
    as_topic,
    names_keywords,
)
from spark_logbus.client.cluster.cluster import Cluster
from spark_logbus.client.config import ProducerConfig
from spark_logbus.client.producer.accumulator import Accumulator
from spark_logbus.client.producer.acknowledgements import (
    AppendedRange,
    RangeFuture,
    RecordFuture,
)
from spark_logbus.client.producer.arrow_split import (
    arrow_batches,
    check_record_sizes,
    encode_pieces,
    lone_values,
    too_large,
)
from spark_logbus.client.producer.columns import Values, record_columns
from spark_logbus.client.producer.failures import Failures, OnFailure
from spark_logbus.client.producer.interceptors import Interceptors, ProducerInterceptor
from spark_logbus.client.producer.leader_connections import Link
from spark_logbus.client.producer.partitioner import (
    Partitioner,
    partition_of,
    split_by,
    split_by_key,
)
from spark_logbus.client.producer.plain_writer import PLAIN_WRITER, PlainWriter
from spark_logbus.client.producer.sender import Sender
from spark_logbus.client.producer.topic_queues import TopicQueues
from spark_logbus.client.producer.topics import ProducerTopics
from spark_logbus.client.shortened import shortened
from spark_logbus.client.writes.atomic_write import WriteIdentity
from spark_logbus.config import choice
from spark_logbus.errors import (
    DeliveryFailedError,
    InvalidRequestError,
    LogbusError,
    ProcessForkedError,
    RequestTimeoutError,
)
from spark_logbus.forks import follow_forks, forked
from spark_logbus.model import Compression, Header
from spark_logbus.record import parse_header
from spark_logbus.record.rows.arrow import encode_column
from spark_logbus.record.rows.builder import RECORD_OVERHEAD_BYTES, record_size
from spark_logbus.wire.poller import Poller

if TYPE_CHECKING:
    from datetime import date
    from datetime import time as time_of_day
    from decimal import Decimal
    from uuid import UUID

    from _typeshed import DataclassInstance

    from spark_logbus.client.metrics import ClientKind
    from spark_logbus.client.schemas.topic import WriterSchema

    # Bytes, or what schemas describe: see ``Producer.send``.
    Value: TypeAlias = (
        bytes
        | bytearray
        | memoryview
        | Mapping[str, Any]
        | DataclassInstance
        | Sequence[Any]
        | str
        | float
        | Decimal
        | date
        | time_of_day
        | UUID
    )

logger = logging.getLogger(__name__)

# For the last records of a program that is asked to end: service managers give it 10 s or more.
_LAST_RECORDS_S: Final = 5.0


class Producer:
    """Collects records into record batches and appends them to their partitions' leaders.

    Thread-safe. ``send`` and ``send_arrow`` return as soon as the records are in memory, and
    block only while that is full or a topic is met for the first time. Records of one partition
    keep the order in which they were given, and a retry after a lost answer appends nothing twice
    (unless ``idempotent`` is off). A record that failed because of a timeout or a lost connection
    may be there all the same: to send it once more can make a second copy.

    ``flush``, ``close`` and leaving its ``with`` block raise DeliveryFailedError when records have
    failed and nobody has heard of it: has asked their futures for the result or the error, or has
    given the futures, or the producer as ``on_failure``, a callback. Each failure is raised once.
    ``on_failure(failed)`` is called with ``FailedRecords`` for each record batch that fails, in
    the sender's thread, which it must not hold up. What waits for long is logged as a warning.

    In a process that is forked from the one that made it every method raises ProcessForkedError,
    and so do the futures of what had not been acknowledged: the parent goes on with that.

    Leaving its ``with`` block closes it, which flushes: by SystemExit or KeyboardInterrupt, which
    end a service, for at most 5 seconds; by any other exception not at all. That exception goes
    on, with a note about the records that have failed. A producer that is open when the program
    ends is closed then, likewise for at most 5 seconds, and what is lost is logged. The cluster is
    shared, not owned: ``close`` leaves it open.

    With a ``stage_id`` (see ``record.stage_id``) it is an attempt of an atomic write's task: what
    it appends is staged, flushed and unseen, and offsets count the records of this attempt.
    ``stage_for`` says whose write it is: what earlier runs of that writer have left is dropped.

    ``partitioner(topic, key, value, partitions)`` chooses the partition of each record that is sent
    without one; None leaves it to the key. It is called for each record, also those of columns, in
    the thread that sends. ``interceptors`` see each record batch: see ``ProducerInterceptor``.
    ``schemas`` are those of topics that have one; else the latest is looked up in ZooKeeper when a
    topic is met. None there is for a topic to which only encoded record batches are sent.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: ProducerConfig | None = None,
        *,
        partitioner: Partitioner | None = None,
        interceptors: Sequence[ProducerInterceptor] = (),
        stage_id: int | None = None,
        stage_for: WriteIdentity | None = None,
        schemas: Mapping[str, WriterSchema | None] | None = None,
        on_failure: OnFailure | None = None,
    ) -> None:
        self._cluster = cluster
        self._config = config or ProducerConfig()
        self._now_us = cluster.clock.now_us
        self._now_ns = cluster.clock.now_ns
        self._partitioner = partitioner
        self._interceptors = Interceptors(interceptors)
        self._failures = Failures(on_failure)
        poller: Poller[Link] = Poller()
        self._accumulator = Accumulator(
            self._config,
            clock=cluster.clock,
            wake=poller.wake,
            backoff=cluster.backoff,
            failures=self._failures,
        )
        self._topics = ProducerTopics(cluster, self._config, stage_id=stage_id, schemas=schemas)
        self._compression = choice(Compression, self._config.compression, key="compression")
        self._sends_columns_as_they_are = (
            self._compression is Compression.NONE and partitioner is None and not self._interceptors
        )
        self._append_value = self._accumulator.append_value
        self._append_record = self._accumulator.append_record
        self._appender_of = self._accumulator.appenders.get
        self._known_topic = self._topics.known_topic
        self._closed = False
        self._sender = Sender(
            cluster,
            self._config,
            self._accumulator,
            poller,
            interceptors=self._interceptors,
            failures=self._failures,
            staging=stage_id is not None,
            stage_for=stage_for,
        )
        self._process = os.getpid()
        self._forked = False
        self._sender.start()
        at_exit.add_sender(self, self._finish)
        follow_forks(self)

    def after_fork(self) -> None:
        """Refuse everything in the child, which has no thread that sends. Takes no lock: threads of
        the parent may have held them all."""
        at_exit.discard(self)
        self._forked = True
        known: dict[str, TopicQueues] = {}  # each topic is to be opened, which is refused
        self._known_topic = known.get
        self._accumulator.give_up_in_child(self._of_parent())

    def _of_parent(self) -> ProcessForkedError:
        return forked("This producer", self._process)

    def require_own_process(self) -> None:
        """Raise ProcessForkedError in a process that was forked from the one that made it."""
        if self._forked:
            raise self._of_parent()

    # -- sending --------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: Value | None,
        *,
        key: bytes | None = None,
        timestamp_us: int | datetime | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
    ) -> RecordFuture:
        """Hand over one record; the future gives its place.

        ``value`` is bytes. For a topic with a schema it is a mapping or an instance of a dataclass,
        or what else the schema describes. Bytes are such a value where the schema is ``bytes``, a
        ``fixed`` or a union with one; else they are to be in Confluent's wire format, which a topic
        of ``avro`` takes. None is a tombstone.

        ``timestamp_us`` is µs since the epoch, or a datetime with a time zone, and defaults to
        now. ``headers`` are pairs of a name and bytes, or a mapping. ``partition`` overrides the
        key's. Raises at once: InvalidRequestError, which names the argument that cannot be used,
        SchemaMismatchError, which names the field that the schema does not take,
        RecordBatchTooLargeError, UnknownTopicError, ProducerClosedError, and
        BufferExhaustedError after ``max_block_ms`` without room.
        """
        if (
            key is None
            and timestamp_us is None
            and headers is None
            and value.__class__ is bytes
            and topic.__class__ is str
            and (partition is None or partition.__class__ is int)
        ):
            appender = self._appender_of(topic if partition is None else (topic, partition))
            if appender is not None and appender.owner == get_ident():
                room = appender.room - len(value) - RECORD_OVERHEAD_BYTES
                if room >= 0:
                    appender.room = room
                    records = appender.records
                    now_ns = self._now_ns()
                    records += (value, now_ns)
                    end = len(records)
                    if appender.is_open or self._accumulator.has_taken(appender, end):
                        return RecordFuture(appender.acknowledgement, end, now_ns)
            known = self._known_topic(topic)
            if known is not None and known.writer is PLAIN_WRITER:
                if partition is None:
                    is_decided = self._partitioner is None
                else:
                    is_decided = 0 <= partition < len(known.queues)
                if is_decided:
                    appended = self._append_value(known, partition, value)
                    if appended is not None:
                        return appended
        return self._send(topic, value, key, timestamp_us, headers, partition)

    def _send(
        self,
        topic: str,
        value: Any,
        key: bytes | None,
        timestamp_us: int | datetime | None,
        headers: Headers | None,
        partition: int | None,
    ) -> RecordFuture:
        if topic.__class__ is not str:
            topic = as_topic(topic)
        topic_queues = self._known_topic(topic) or self._open_topic(topic)
        writer, row, size = topic_queues.writer.prepare(topic, value)
        if key.__class__ is not bytes and key is not None:
            key = as_bytes("key", key)
        pairs: list[Header] | None = None
        if headers is not None:
            pairs = as_headers(headers)
            size += record_size(value=None, key=None, headers=pairs) - RECORD_OVERHEAD_BYTES
        if key is not None:
            size += len(key)
        time_us = self._now_us() if timestamp_us is None else as_timestamp_us(timestamp_us)
        if size + writer.overhead_bytes > topic_queues.max_record_batch_bytes:
            self._check_alone(topic_queues, writer, row, key, time_us, pairs, size)
        if partition is None and self._partitioner is not None:
            partition = self._choose(self._partitioner, topic_queues, key, value)
        elif partition is not None:
            partition = as_partition(partition)
            self._topics.require_partition(topic_queues, partition)
        if partition is None and key is not None:
            partition = partition_of(key, len(topic_queues.queues))
        future, news = self._append_record(
            topic_queues, partition, row, key, time_us, pairs, size, writer
        )
        if news:
            self._topics.refresh_partitions(topic_queues)
        return future

    def send_many(
        self,
        topic: str,
        values: Values | Sequence[Value | None],
        *,
        keys: Values | None = None,
        timestamps_us: Sequence[int] | pa.Array | None = None,
        headers: Sequence[Headers | None] | None = None,
        partition: int | None = None,
        on_ack: Callable[[Future[AppendedRange]], object] | None = None,
    ) -> list[Future[AppendedRange]]:
        """Hand over many records at once, which costs a fraction of ``send`` for each.

        ``values``, and ``keys``, ``timestamps_us`` and ``headers`` if given, have one for each
        record, None where it has none; sequences, or Arrow arrays. Values are what ``send`` takes,
        all of them bytes or none. They go where ``send`` would send them, but those without a key
        stay together. The rest is as in ``send_arrow``.
        """
        topic_queues = self._topic_queues(topic)
        values = topic_queues.writer.column(topic_queues.topic, values)
        data = record_columns(values, keys=keys, timestamps_us=timestamps_us, headers=headers)
        return self._send_columns(topic_queues, data, partition, on_ack)

    def send_arrow(
        self,
        topic: str,
        data: pa.RecordBatch | pa.Table,
        *,
        partition: int | None = None,
        on_ack: Callable[[Future[AppendedRange]], object] | None = None,
    ) -> list[Future[AppendedRange]]:
        """Hand over whole columns: ``value`` and optionally ``key``, ``timestamp``, ``headers``.

        For a topic with a schema ``value`` is a struct of its columns; or ``data`` has these
        columns themselves, and the records no key. SchemaMismatchError names what does not fit.
        A ``value`` of bytes is as in ``send``.

        One future per record batch that is made of them, in order; ``on_ack`` is called with
        each when it is done. Rows with a key go where ``send`` would send them; without a key
        column, record batches go to the partitions in turn. Raises like ``send``, and
        InvalidRequestError for columns that cannot be a record's.
        """
        return self._send_columns(self._topic_queues(topic), data, partition, on_ack)

    def _topic_queues(self, topic: str) -> TopicQueues:
        topic = as_topic(topic)
        return self._known_topic(topic) or self._open_topic(topic)

    def _open_topic(self, topic: str) -> TopicQueues:
        self.require_own_process()
        return self._topics.open_topic(topic)

    def _send_columns(
        self,
        topic_queues: TopicQueues,
        data: pa.RecordBatch | pa.Table,
        partition: int | None,
        on_ack: Callable[[Future[AppendedRange]], object] | None,
    ) -> list[Future[AppendedRange]]:
        topic = topic_queues.topic
        writer = topic_queues.writer.writer_of(topic, data)
        if partition is not None:
            partition = as_partition(partition)
            self._topics.require_partition(topic_queues, partition)
        limit, now_us = topic_queues.max_record_batch_bytes, self._now_us()
        if writer is PLAIN_WRITER and self._sends_columns_as_they_are:
            values = lone_values(data, limit=min(limit, self._config.arrow_piece_bytes))
            if values is not None:
                encoded = encode_column(now_us, values)
                return [self._send_encoded(topic_queues, partition, encoded, len(values), on_ack)]
        futures: list[Future[AppendedRange]] = []
        batches = [
            writer.records(batch, now_us=now_us)
            for batch in arrow_batches(data, piece_bytes=self._config.arrow_piece_bytes)
        ]
        for batch in batches:
            check_record_sizes(batch, topic=topic, limit=limit)
        for batch in batches:
            for target, part in self._targets(topic_queues, batch, partition):
                for encoded, records in encode_pieces(
                    self._interceptors.before(topic, part, writer.altered)
                    if self._interceptors
                    else part,
                    encode=writer.encode,
                    topic=topic,
                    piece_bytes=self._config.arrow_piece_bytes,
                    limit=limit,
                    compression=self._compression,
                ):
                    watched = records if self._interceptors else None
                    futures.append(
                        self._send_encoded(
                            topic_queues, target, encoded, records.num_rows, on_ack, watched
                        )
                    )
        return futures

    def _send_encoded(
        self,
        topic_queues: TopicQueues,
        partition: int | None,
        encoded: memoryview,
        record_count: int,
        on_ack: Callable[[Future[AppendedRange]], object] | None,
        watched: pa.RecordBatch | None = None,
    ) -> Future[AppendedRange]:
        """``watched`` are the records, for interceptors."""
        acknowledgement = self._accumulator.append_encoded(
            topic_queues, partition, encoded, record_count=record_count
        )
        if watched is not None:
            self._interceptors.watch(acknowledgement, topic_queues.topic, watched)
        self._topics.refresh_partitions(topic_queues)
        future = RangeFuture(acknowledgement)
        if on_ack is not None:
            future.add_done_callback(on_ack)
        return future

    def append_encoded(
        self,
        topic: str,
        data: memoryview,
        *,
        partition: int,
        on_ack: Callable[[Future[AppendedRange]], object] | None = None,
    ) -> Future[AppendedRange]:
        """Hand over one whole record batch as it is, writable, in the form that the topic takes.

        Its header is numbered as this producer's; the rest is sent to the byte. The broker checks
        it as any other. Raises like ``send``.
        """
        topic_queues = self._topic_queues(topic)
        self._topics.require_partition(topic_queues, partition)
        limit = topic_queues.max_record_batch_bytes
        if len(data) > limit:
            raise too_large(len(data), topic=topic_queues.topic, limit=limit)
        return self._send_encoded(
            topic_queues, partition, data, parse_header(data).record_count, on_ack
        )

    def has_room(self, topic: str) -> bool:
        """True if a record for ``topic`` would be in memory at once: the topic was met before, and
        at most half of the buffer is taken."""
        self.require_own_process()
        known = self._topics.known_topic(topic) is not None
        return known and self._accumulator.buffered_bytes <= self._config.buffer_bytes // 2

    def _targets(
        self, topic_queues: TopicQueues, batch: pa.RecordBatch, partition: int | None
    ) -> list[tuple[int | None, pa.RecordBatch]]:
        """The parts of a canonical arrow batch with their partitions; None stands for "in turn"."""
        keyed = "key" in batch.schema.names
        if partition is not None or not (keyed or self._partitioner):
            return [(partition, batch)]
        # Apart from those with a key, which must wait for their leader: rows without one need not.
        in_turn = len(topic_queues.queues)
        if self._partitioner is None:
            parts = split_by_key(batch, partitions=in_turn, keyless=in_turn)
        else:
            values = batch.column("value").to_pylist()
            keys = batch.column("key").to_pylist() if keyed else itertools.repeat(None)
            choices = (
                self._choose(self._partitioner, topic_queues, key, value)
                for key, value in zip(keys, values, strict=False)
            )
            parts = split_by(choices, batch, partitions=in_turn, keyless=in_turn)
        return [(None if number == in_turn else number, part) for number, part in parts.items()]

    def _choose(
        self, partitioner: Partitioner, topic_queues: TopicQueues, key: bytes | None, value: Any
    ) -> int | None:
        """The partition by the caller's own rule; UnknownTopicError if there is none such."""
        chosen = partitioner(topic_queues.topic, key, value, len(topic_queues.queues))
        if chosen is not None:
            chosen = as_partition(chosen)
            self._topics.require_partition(topic_queues, chosen)
        return chosen

    def _check_alone(
        self,
        topic_queues: TopicQueues,
        writer: PlainWriter,
        value: Any,
        key: bytes | None,
        timestamp_us: int,
        headers: Sequence[Header] | None,
        size: int,
    ) -> None:
        """Encodes a record near the limit by itself. Raises RecordBatchTooLargeError if it is above
        the limit."""
        limit = topic_queues.max_record_batch_bytes
        size -= RECORD_OVERHEAD_BYTES
        if size <= limit or not writer.counts_bytes:
            builder = writer.new_builder()
            builder.append(value, key, timestamp_us, headers)
            size = len(builder.encoded(self._compression))
        if size > limit:
            raise too_large(size, topic=topic_queues.topic, limit=limit)

    # -- finishing ------------------------------------------------------------------------

    @names_keywords
    def flush(self, timeout_s: float | None = None) -> None:
        """Send what is collected now, and return when all of it is acknowledged.

        Raises DeliveryFailedError when records have failed of which nobody has heard (see the
        class), also if that was before; and RequestTimeoutError after ``timeout_s``, which by
        default is the delivery timeout and one request.
        """
        self._require_wait()
        undone = self._await_settled(timeout_s)
        if undone is not None:
            raise RequestTimeoutError(f"{undone}; they are still being sent.")
        self._failures.raise_unheard()

    def _require_wait(self) -> None:
        """Raise what speaks against waiting for the sending thread here."""
        self.require_own_process()
        if self._sender.is_this_thread:
            raise InvalidRequestError(
                "A producer's callback cannot flush or close it: it runs in the thread that this "
                "would wait for. Have another thread do so."
            )

    def _await_settled(self, timeout_s: float | None) -> str | None:
        """Send what is collected, and wait until all of it is acknowledged or has failed; what is
        not done within ``timeout_s``, for people."""
        if timeout_s is None:
            waiting_ms = self._config.delivery_timeout_ms + self._cluster.config.request_timeout_ms
            timeout_s = waiting_ms / 1000
        deadline = self._cluster.deadline_ms(as_timeout_ms(timeout_s))
        waiting = self._accumulator.begin_flush()
        for acknowledgement in waiting:
            if not acknowledgement.settled(deadline.remaining_s):
                undone = sum(not one.done for one in waiting)
                return (
                    f"{undone} of {len(waiting)} record batches were not acknowledged within "
                    f"{timeout_s} s"
                )
        return None

    @names_keywords
    def close(self, timeout_s: float | None = None) -> None:
        """Flush, then stop. What is not acknowledged in time fails with ProducerClosedError.

        Raises what ``flush`` does, once it has stopped.
        """
        self._require_wait()
        if timeout_s is not None:
            as_timeout_ms(timeout_s)  # before anything is stopped
        if self._closed:  # two threads at once would both wait for the end, which harms nothing
            return
        self._closed = True
        self._accumulator.close()
        undone: str | None = None
        try:
            if not self._sender.stopped:
                undone = self._await_settled(timeout_s)
        finally:
            self._stop()
        failed = self._failures.take()
        if undone is not None:
            raise RequestTimeoutError(
                f"{undone}; the producer is closed, so they are not sent again, and may or may not "
                "be there."
            ) from failed
        if failed is not None:
            raise failed

    # -- looking --------------------------------------------------------------------------

    @property
    def metrics_kind(self) -> ClientKind:
        """Kind of this client, for ``ClientCollector``."""
        return "producer"

    def metrics(self) -> dict[str, int | float]:
        """The numbers of ``client.metrics.PRODUCER_METRICS`` by name. For any thread, at any time;
        waits for nothing. In a forked process they are those of the moment of the fork."""
        return {
            "record_send_total": self._accumulator.record_count,
            **self._sender.metrics(),
            "buffer_total_bytes": self._config.buffer_bytes,
            "buffer_used_bytes": self._accumulator.buffered_bytes,
        }

    def __repr__(self) -> str:
        topics = sorted(self._topics.names)
        parts = [
            f"at {self._cluster.address}",
            f"topics {shortened(topics)}" if topics else "no topics",
            *(["closed"] if self._closed else []),
            *([f"of process {self._process}"] if self._forked else []),
        ]
        return f"<{type(self).__name__} {', '.join(parts)}>"

    def _abandon(self) -> None:
        """Stop without a flush: what waits is never sent, and fails with ProducerClosedError."""
        if not self._closed:
            self._closed = True
            self._accumulator.close()
            self._stop()

    def _stop(self) -> None:
        at_exit.discard(self)
        if self._sender.stop(self._cluster.config.connect_timeout_ms / 1000 + 1):
            self._interceptors.close()

    def _finish(self, timeout_s: float) -> bool:
        """The program ends, and nobody has closed this producer; False if it needs no more."""
        timeout_s = round(timeout_s, 1)
        # Interceptors, as an audit's, have to hear of all records before their own end.
        if self._interceptors or at_exit.is_last_call():
            self._close_at_exit(timeout_s)
            return False
        try:
            self.flush(timeout_s)
        except (DeliveryFailedError, RequestTimeoutError) as failed:
            logger.error("A producer sends no more because the program ends: %s", failed)
            return False
        return True

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave(error, ends_program=isinstance(error, SystemExit | KeyboardInterrupt))

    def leave(self, error: BaseException | None, *, ends_program: bool) -> None:
        """End the block that ``error`` leaves; ``ends_program`` says that it is no failure."""
        if error is None:
            self.close()
            return
        if self._forked:
            return
        lost: LogbusError | None
        if ends_program:
            # What was handed over is due.
            lost = self._close_at_exit(_LAST_RECORDS_S)
        else:
            # The caller wants out, not to wait for a broker that may be gone.
            self._abandon()
            lost = self._failures.take()
        if lost is not None:  # and must not hide why the block ends
            error.add_note(f"When the producer's block ended: {lost}")

    def _close_at_exit(self, timeout_s: float) -> LogbusError | None:
        """Close it, as the program ends; what failed, which nobody else may say, and is logged."""
        try:
            self.close(timeout_s)
        except (DeliveryFailedError, RequestTimeoutError) as failed:
            logger.error("A producer was closed because the program ends: %s", failed)
            return failed
        return None

"""One task of a write: arrow batches from Spark into record batches on the brokers.

Rows for one destination are collected to about 2 MB, which is one record batch: large enough
that its header and the broker's work for it do not count. To collect is to copy: rows that come to
nearly as much go as they are. Sending goes on in the producer's own
thread while Spark prepares the next rows; the task ends when everything is acknowledged.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field

import pyarrow as pa

from spark_logbus.client import AppendedRange, Producer
from spark_logbus.model import TopicPartition
from spark_logbus.sink.columns import Destination, SinkColumns, by_destination

RECORD_BATCH_BYTES = 2 << 20

# Collected rows over all destinations: many destinations must not mean much memory.
MAX_WAITING_BYTES = 64 << 20


@dataclass(slots=True)
class Appended:
    """One task's appends to one partition: the number of records, and the offsets around them.

    Other writers' records may lie between ``first_offset`` and ``end_offset``. Both are None with
    acks none, which brings no offsets.
    """

    records: int = 0
    first_offset: int | None = None
    end_offset: int | None = None

    def add_range(self, appended: AppendedRange) -> None:
        self.records += appended.record_count
        if appended.base_offset is None:
            return
        end = appended.base_offset + appended.record_count
        first = self.first_offset
        self.first_offset = (
            appended.base_offset if first is None else min(first, appended.base_offset)
        )
        self.end_offset = end if self.end_offset is None else max(self.end_offset, end)


@dataclass(slots=True)
class _Waiting:
    arrow_batches: list[pa.RecordBatch] = field(default_factory=list)
    size_bytes: int = 0


class TaskWriter:
    """Sends the rows of one task. Used once, by one thread."""

    def __init__(self, producer: Producer, columns: SinkColumns, *, topic: str | None) -> None:
        self._producer = producer
        self._columns = columns
        self._topic = topic
        self._waiting: dict[Destination, _Waiting] = {}
        self._waiting_bytes = 0
        self.size_bytes = 0
        #: By topic, the rows that say neither by their key nor themselves where they go.
        self.unplaced = Counter[str]()
        self._unacknowledged: deque[Future[AppendedRange]] = deque()
        self._appended: dict[TopicPartition, Appended] = {}

    def write(self, arrow_batches: Iterable[pa.RecordBatch]) -> dict[TopicPartition, Appended]:
        """Send all rows; return when the brokers have acknowledged them.

        Raises the first error of a record batch, as soon as it is known: Spark then repeats the
        task, or fails the job.
        """
        for arrow_batch in arrow_batches:
            if not arrow_batch.num_rows:
                continue
            parts = by_destination(arrow_batch, self._columns, topic=self._topic)
            for destination, records in parts:
                self._collect(destination, records)
            self._take_acknowledged()
        for destination in list(self._waiting):
            self._send(destination)
        while self._unacknowledged:
            self._note(self._unacknowledged.popleft())
        return self._appended

    def _collect(self, destination: Destination, records: pa.RecordBatch) -> None:
        waiting = self._waiting.setdefault(destination, _Waiting())
        size_bytes = records.nbytes
        if destination.partition is None:
            keyless = records.num_rows
            if "key" in records.schema.names:
                keyless = records.column("key").null_count
            if keyless:
                self.unplaced[destination.topic] += keyless
        waiting.arrow_batches.append(records)
        waiting.size_bytes += size_bytes
        self.size_bytes += size_bytes
        self._waiting_bytes += size_bytes
        missing_bytes = RECORD_BATCH_BYTES - waiting.size_bytes
        if missing_bytes < size_bytes - missing_bytes:  # with as many again it would be farther off
            self._send(destination)
        elif self._waiting_bytes >= MAX_WAITING_BYTES:
            self._send(max(self._waiting, key=lambda one: self._waiting[one].size_bytes))

    def _send(self, destination: Destination) -> None:
        waiting = self._waiting.pop(destination)
        self._waiting_bytes -= waiting.size_bytes
        if len(waiting.arrow_batches) == 1:
            data = waiting.arrow_batches[0]
        else:
            data = pa.Table.from_batches(waiting.arrow_batches).combine_chunks()
        self._unacknowledged.extend(
            self._producer.send_arrow(destination.topic, data, partition=destination.partition)
        )

    def _take_acknowledged(self) -> None:
        while self._unacknowledged and self._unacknowledged[0].done():
            self._note(self._unacknowledged.popleft())

    def _note(self, future: Future[AppendedRange]) -> None:
        appended = future.result()
        topic_partition = TopicPartition(appended.topic, appended.partition)
        self._appended.setdefault(topic_partition, Appended()).add_range(appended)

"""Record batches that wait in a producer, and the queue of each partition. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_logbus.client.producer.acknowledgements import Acknowledgement
from spark_logbus.client.producer.interceptors import Interceptors
from spark_logbus.client.producer.partitioner import RoundRobin
from spark_logbus.client.producer.sequences import Sequences
from spark_logbus.errors import InvalidRequestError, LogbusError
from spark_logbus.model import Compression, TopicPartition
from spark_logbus.record.rows.arrow import canonical, encode
from spark_logbus.record.rows.builder import BATCH_OVERHEAD_BYTES, ArrowBatchBuilder

if TYPE_CHECKING:
    from spark_logbus.client.producer.lane import Lane
    from spark_logbus.client.producer.values import ValueWriter


def overhead_bytes(values: ValueWriter | None) -> int:
    """Bytes that encoding adds at most to the sizes which its builder counts."""
    return BATCH_OVERHEAD_BYTES if values is None else values.overhead_bytes


class QueuedBatch:
    """One record batch on its way: a builder until it is encoded, then bytes."""

    __slots__ = (
        "acknowledgement", "alone", "builder", "data", "failures", "give_up_at", "in_doubt",
        "keyed", "lane", "last_error", "opened_at", "order", "record_count", "reserved_bytes",
        "sequence", "shared", "topic_partition", "values",
    )  # fmt: skip

    def __init__(
        self, topic_partition: TopicPartition, *, opened_at: float, give_up_at: float
    ) -> None:
        self.topic_partition = topic_partition
        self.acknowledgement = Acknowledgement(topic_partition)
        self.builder: ArrowBatchBuilder | None = None
        #: Makes its rows columns, if it holds rows of a schema.
        self.values: ValueWriter | None = None
        self.data: memoryview | None = None
        self.record_count = 0
        self.reserved_bytes = 0
        #: By which one thread fills it, while it is open.
        self.lane: Lane | None = None
        self.shared = False  # whether several threads fill it: it gets no lane then
        self.opened_at = opened_at
        self.give_up_at = give_up_at
        self.failures = 0
        self.last_error: LogbusError | None = None
        self.order = 0  # among those of its partition, in which they became ready
        self.sequence = 0  # see ``Sequences``
        self.in_doubt = False
        self.keyed = True  # whether it holds records that must go to this partition
        self.alone = False  # whether it was refused in company and is to be sent by itself

    @property
    def free(self) -> bool:
        """True if it can go to another partition: it was never sent."""
        return not (self.keyed or self.failures or self.in_doubt)

    def move_to(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.acknowledgement.topic_partition = topic_partition

    @property
    def size_bytes(self) -> int:
        """Of the encoded record batch; an upper estimate before it is encoded."""
        if self.data:
            return len(self.data)
        return self.reserved_bytes + overhead_bytes(self.values)

    def encoded(self, compression: Compression, interceptors: Interceptors) -> memoryview:
        """The bytes to append; encoded once, at the first call. Only once it is sealed."""
        if self.data is None:
            assert self.builder is not None
            try:
                if interceptors:
                    arrow_batch = self._intercepted(self.builder.build(), interceptors)
                    self.data = (
                        encode(arrow_batch, compression=compression)
                        if self.values is None
                        else self.values.encode(arrow_batch, compression)
                    )
                else:
                    self.data = self.builder.encoded(compression)
            except (pa.ArrowException, OverflowError, TypeError) as error:
                raise InvalidRequestError(
                    f"Records for {self.topic_partition} cannot become a record batch: {error}"
                ) from error
            self.builder = None
        return self.data

    def _intercepted(
        self, arrow_batch: pa.RecordBatch, interceptors: Interceptors
    ) -> pa.RecordBatch:
        topic = self.topic_partition.topic
        as_records = canonical if self.values is None else self.values.altered
        arrow_batch = interceptors.before(topic, arrow_batch, as_records)
        interceptors.watch(self.acknowledgement, topic, arrow_batch)
        return arrow_batch


class PartitionQueue:
    """Record batches that wait for one partition. ``keyless`` and ``siblings``, the queues of all
    partitions by number, are shared by the topic's queues.

    Several requests may be on their way at once, all to the broker that was asked first, which
    takes them in order. Once one of them fails, those behind it fail as well, for their numbers do
    not go on: the queue *drains*, sends nothing until all are over, and then begins again with the
    first that failed. What is sent again, and what is not numbered, is sent by itself.

    Without ``sequences`` its record batches are not numbered: a retry may append them twice.
    """

    __slots__ = (
        "batch_limit", "draining", "failure", "in_flight", "keyless", "made_ready", "not_before",
        "open", "ready", "ready_bytes", "sent_to", "sequences", "siblings", "topic_partition",
    )  # fmt: skip

    def __init__(
        self,
        topic_partition: TopicPartition,
        keyless: RoundRobin,
        *,
        batch_limit: int,
        sequences: Sequences | None = None,
        siblings: Sequence[PartitionQueue] = (),
    ) -> None:
        self.topic_partition = topic_partition
        self.sequences = sequences
        self.siblings = siblings
        self.keyless = keyless
        self.batch_limit = batch_limit
        self.open: QueuedBatch | None = None
        self.ready: deque[QueuedBatch] = deque()
        self.ready_bytes = 0  # about as many as a request of all of them would carry
        self.made_ready = 0  # record batches so far
        self.in_flight = 0  # requests on their way
        self.sent_to: object | None = None  # the connection of the last one
        self.draining = False
        self.failure: LogbusError | None = None  # of the first one that failed, while draining
        self.not_before = 0.0  # monotonic seconds; set by a failure, and to pace requests

    @property
    def may_send(self) -> bool:
        """True if something is ready and may be sent behind what is on its way."""
        return bool(self.ready) and not self.draining

    def make_ready(self, batch: QueuedBatch) -> None:
        batch.order = self.made_ready
        self.made_ready += 1
        self.ready.append(batch)
        self.ready_bytes += batch.size_bytes

    def take_first(self) -> QueuedBatch:
        """What has been ready for longest, out of the queue."""
        batch = self.ready.popleft()
        self.ready_bytes -= batch.size_bytes
        return batch

    def withdraw(self, batch: QueuedBatch) -> None:
        """One that is ready, out of the queue."""
        self.ready.remove(batch)
        self.ready_bytes -= batch.size_bytes

    def take_off(self, batches: Sequence[QueuedBatch]) -> None:
        """They are on their way from now on."""
        self.in_flight += 1
        # Whether something may follow depends on numbers that are certain.
        if self.sequences is None or any(batch.failures for batch in batches):
            self.draining = True

    def land(self) -> None:
        """One request is over."""
        self.in_flight -= 1
        if not self.in_flight:
            self.draining = False
            self.failure = None

    def put_back(self, batches: Sequence[QueuedBatch]) -> None:
        """Behind what became ready before them, and before what did after."""
        self.ready = deque(sorted([*batches, *self.ready], key=lambda batch: batch.order))
        self.ready_bytes += sum(batch.size_bytes for batch in batches)

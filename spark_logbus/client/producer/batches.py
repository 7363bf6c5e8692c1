"""Record batches that wait in a producer. Pure."""

from __future__ import annotations

import pyarrow as pa

from spark_logbus.client.producer.acknowledgements import Acknowledgement
from spark_logbus.client.producer.interceptors import Interceptors
from spark_logbus.client.producer.lockless_appender import LocklessAppender
from spark_logbus.client.producer.plain_writer import PLAIN_WRITER, PlainWriter
from spark_logbus.errors import InvalidRequestError, LogbusError
from spark_logbus.model import Compression, TopicPartition
from spark_logbus.record.rows.builder import ArrowBatchBuilder


class QueuedBatch:
    """One record batch on its way: a builder until it is encoded, then bytes."""

    __slots__ = (
        "acknowledgement", "alone", "appender", "builder", "data", "failures", "give_up_at",
        "in_doubt", "keyed", "last_error", "opened_at", "order", "record_count", "reserved_bytes",
        "sequence", "shared", "topic_partition", "writer",
    )  # fmt: skip

    def __init__(
        self, topic_partition: TopicPartition, *, opened_at: float, give_up_at: float
    ) -> None:
        self.topic_partition = topic_partition
        self.acknowledgement = Acknowledgement(topic_partition)
        self.builder: ArrowBatchBuilder | None = None
        #: Encodes its records, which were all prepared by it.
        self.writer: PlainWriter = PLAIN_WRITER
        self.data: memoryview | None = None
        self.record_count = 0
        self.reserved_bytes = 0
        #: Appender of the thread that fills it; None when it is sealed or shared.
        self.appender: LocklessAppender | None = None
        self.shared = False  # whether several threads fill it: it gets no appender then
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
        """Sends it to another partition than it was made for."""
        self.topic_partition = topic_partition
        self.acknowledgement.topic_partition = topic_partition

    @property
    def size_bytes(self) -> int:
        """Size of the encoded record batch; an upper estimate before it is encoded."""
        return len(self.data) if self.data else self.reserved_bytes + self.writer.overhead_bytes

    def encoded(self, compression: Compression, interceptors: Interceptors) -> memoryview:
        """Returns the bytes to append, once it is sealed; the first call encodes them."""
        if self.data is None:
            assert self.builder is not None
            try:
                if interceptors:
                    arrow_batch = self._intercepted(self.builder.build(), interceptors)
                    self.data = self.writer.encode(arrow_batch, compression)
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
        arrow_batch = interceptors.before(topic, arrow_batch, self.writer.altered)
        interceptors.watch(self.acknowledgement, topic, arrow_batch)
        return arrow_batch

"""Record batches that wait in a producer, and the queue of each partition. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from spark_logbus.client.producer.acknowledgements import Acknowledgement
from spark_logbus.client.producer.partitioner import RoundRobin
from spark_logbus.client.producer.sequences import Sequences
from spark_logbus.errors import InvalidRequestError, LogbusError
from spark_logbus.model import Compression, TopicPartition
from spark_logbus.record.arrow import encode
from spark_logbus.record.builder import ArrowBatchBuilder

# Bytes that encoding adds at most to the sizes which ArrowBatchBuilder counts: our header,
# Arrow's metadata, and the padding of each buffer.
BATCH_OVERHEAD_BYTES: Final = 2_048


class QueuedBatch:
    """One record batch on its way: a builder until it is encoded, then bytes."""

    __slots__ = (
        "acknowledgement", "alone", "builder", "data", "failures", "give_up_at", "in_doubt",
        "keyed", "last_error", "opened_at", "record_count", "reserved_bytes", "sequence",
        "topic_partition",
    )  # fmt: skip

    def __init__(
        self, topic_partition: TopicPartition, *, opened_at: float, give_up_at: float
    ) -> None:
        self.topic_partition = topic_partition
        self.acknowledgement = Acknowledgement(topic_partition)
        self.builder: ArrowBatchBuilder | None = None
        self.data: memoryview | None = None
        self.record_count = 0
        self.reserved_bytes = 0
        self.opened_at = opened_at
        self.give_up_at = give_up_at
        self.failures = 0
        self.last_error: LogbusError | None = None
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
        return len(self.data) if self.data else self.reserved_bytes + BATCH_OVERHEAD_BYTES

    def encoded(self, compression: Compression) -> memoryview:
        """The bytes to append; encoded once, at the first call. Only once it is sealed."""
        if self.data is None:
            assert self.builder is not None
            try:
                arrow_batch = self.builder.build()
            except (pa.ArrowException, OverflowError, TypeError) as error:
                raise InvalidRequestError(
                    f"Records for {self.topic_partition} cannot become a record batch: {error}"
                ) from error
            self.data = encode(arrow_batch, compression=compression)
            self.builder = None
        return self.data


class PartitionQueue:
    """Record batches that wait for one partition. ``keyless`` and ``siblings``, the queues of all
    partitions by number, are shared by the topic's queues.

    Without ``sequences`` its record batches are not numbered: a retry may append them twice.
    """

    __slots__ = (
        "batch_limit", "in_flight", "keyless", "not_before", "open", "ready", "sequences",
        "siblings", "topic_partition",
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
        self.in_flight = False
        self.not_before = 0.0  # monotonic seconds; set by a failure

"""A producer's topic: the queues of its partitions, and what holds for all of them. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from spark_logbus.client.producer.batches import QueuedBatch
from spark_logbus.client.producer.partitioner import RoundRobin
from spark_logbus.client.producer.plain_writer import PLAIN_WRITER, PlainWriter
from spark_logbus.client.producer.sequences import Sequences
from spark_logbus.errors import LogbusError
from spark_logbus.model import TopicPartition


class TopicQueues:
    """Queues of one topic's partitions, by number; ``round_robin`` has the partition whose turn it
    is. The accumulator's lock guards them.

    A record batch that is filled has at most ``batch_limit`` bytes, and one that is handed over
    whole ``max_record_batch_bytes``. ``new_sequences`` numbers the record batches of a partition.
    """

    __slots__ = (
        "batch_limit", "max_record_batch_bytes", "new_sequences", "queues", "round_robin", "topic",
        "writer",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        round_robin: RoundRobin,
        *,
        batch_limit: int,
        max_record_batch_bytes: int,
        writer: PlainWriter = PLAIN_WRITER,
        new_sequences: Callable[[], Sequences | None] = lambda: None,
    ) -> None:
        self.topic = topic
        self.round_robin = round_robin
        self.batch_limit = batch_limit
        self.max_record_batch_bytes = max_record_batch_bytes
        self.writer = writer
        self.new_sequences = new_sequences
        self.queues: list[PartitionQueue] = []
        self.grow(round_robin.partitions)

    def queue_for(self, partition: int | None) -> PartitionQueue:
        """Returns the queue of a partition; None stands for the one whose turn it is."""
        return self.queues[self.round_robin.current if partition is None else partition]

    def grow(self, partitions: int) -> None:
        """Adds queues until there are that many."""
        for number in range(len(self.queues), partitions):
            self.queues.append(PartitionQueue(self, number, self.new_sequences()))
        self.round_robin.partitions = len(self.queues)


class PartitionQueue:
    """Record batches that wait for one partition. The accumulator's lock guards it.

    Several requests may be on their way at once, all to the broker that was asked first, which
    takes them in order. Once one of them fails, those behind it fail as well, for their numbers do
    not go on: the queue *drains*, sends nothing until all are over, and then begins again with the
    first that failed. What is sent again, and what is not numbered, is sent by itself.

    Without ``sequences`` its record batches are not numbered: a retry may append them twice.
    """

    __slots__ = (
        "draining", "failure", "in_flight", "made_ready", "not_before", "open", "ready",
        "ready_bytes", "sent_to", "sequences", "topic_partition", "topic_queues",
    )  # fmt: skip

    def __init__(
        self, topic_queues: TopicQueues, partition: int, sequences: Sequences | None
    ) -> None:
        self.topic_queues = topic_queues
        self.topic_partition = TopicPartition(topic_queues.topic, partition)
        self.sequences = sequences
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

    def waits(self, batch: QueuedBatch) -> bool:
        """True if the record batch is here, and in no request."""
        return self.open is batch or batch in self.ready

    def make_ready(self, batch: QueuedBatch) -> None:
        """Adds a record batch behind those that are ready, and passes the turn on."""
        batch.order = self.made_ready
        self.made_ready += 1
        self.ready.append(batch)
        self.ready_bytes += batch.size_bytes
        round_robin = self.topic_queues.round_robin
        if round_robin.current == self.topic_partition.partition:
            round_robin.move_on()

    def withdraw(self, batch: QueuedBatch) -> None:
        """Removes a record batch that is ready."""
        self.ready.remove(batch)
        self.ready_bytes -= batch.size_bytes

    def put_back(self, batches: Sequence[QueuedBatch]) -> None:
        """Adds record batches in the place that they had when they became ready."""
        self.ready = deque(sorted([*batches, *self.ready], key=lambda batch: batch.order))
        self.ready_bytes += sum(batch.size_bytes for batch in batches)

    # -- requests -------------------------------------------------------------------------

    def take_batches(self, *, max_bytes: int, at_least_one: bool) -> list[QueuedBatch]:
        """Removes record batches for one request, in order, and begins that request, unless there
        are none."""
        taken: list[QueuedBatch] = []
        room = max_bytes
        while self.may_send:
            batch = self.ready[0]
            if self.in_flight and not self._may_follow(batch):
                break
            room -= batch.size_bytes
            if room < 0 and (taken or not at_least_one):
                break
            if taken and (batch.alone or not self._go_together(taken[-1], batch)):
                break
            taken.append(self.ready.popleft())
            self.ready_bytes -= batch.size_bytes
            if batch.alone:
                break
        if taken:
            self.in_flight += 1
            # Whether something may follow depends on numbers that are certain.
            if self.sequences is None or any(batch.failures for batch in taken):
                self.draining = True
        return taken

    def _may_follow(self, batch: QueuedBatch) -> bool:
        """True if it may be sent while others are on their way: only with a number that goes on."""
        sequences = self.sequences
        return sequences is not None and not batch.failures and sequences.go_on(batch.record_count)

    def _go_together(self, before: QueuedBatch, batch: QueuedBatch) -> bool:
        """True if one request may carry both. Record batches in doubt are sent by themselves while
        something before them is unknown, and not with each other when one between them was given
        up: the broker would see a gap, and would not say that it has those before."""
        if before.in_doubt and batch.in_doubt:
            return batch.sequence == before.sequence + before.record_count
        unknown = self.sequences is not None and self.sequences.unknown
        return not unknown or before.in_doubt == batch.in_doubt

    def begin_drain(self, error: LogbusError) -> None:
        """Sends nothing, after a failed request, before the others on their way are over."""
        self.draining = True
        self.failure = self.failure or error

    def end_request(self) -> None:
        """Counts one request as over; the queue may send again behind the last one."""
        self.in_flight -= 1
        if not self.in_flight:
            self.draining = False
            self.failure = None

"""The consumer: reads assigned partitions onwards, and waits for what is not there yet."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final

from spark_logbus.client.admin.admin import Admin
from spark_logbus.client.arguments import as_offset_spec, as_topic, as_topic_partitions
from spark_logbus.client.cluster.cluster import Cluster
from spark_logbus.client.config import ConsumerConfig
from spark_logbus.client.consumer.fetcher import Fetcher, PartitionData, Position
from spark_logbus.client.consumer.partition_failures import PartitionFailures
from spark_logbus.client.fetch.batches import EncodedBatch, FetchedBatch, decoded, walk
from spark_logbus.client.fetch.records import ConsumerRecord, records_of
from spark_logbus.errors import (
    ConfigError,
    CorruptRecordBatchError,
    InvalidRequestError,
    LogbusError,
    TopicRecreatedError,
)
from spark_logbus.model import AtOffset, Earliest, Latest, OffsetSpec, TopicPartition
from spark_logbus.record.format import NO_END

if TYPE_CHECKING:
    from spark_logbus.client.consumer.group import ConsumerGroup

logger = logging.getLogger(__name__)

_FIRST_PATIENCE_MS: Final = 1_000  # doubles from try to try, up to the connect timeout
_ITERATION_POLL_S: Final = 1.0  # between two chances to be interrupted


class Consumer:
    """Reads the partitions it is assigned, each in order. Not thread-safe.

    ``poll_arrow`` gives whole arrow batches, iteration gives single records and blocks until
    there are some. The position of a partition is the offset of the next record to hand out;
    ``commit`` stores positions for the group. The cluster is shared, not owned.

    A position is of one topic, known by its id: when the topic is deleted and created again,
    nothing is read or committed at the old position in the new topic.
    """

    def __init__(self, cluster: Cluster, config: ConsumerConfig | None = None) -> None:
        self._cluster = cluster
        self._config = config or ConsumerConfig()
        self._admin = Admin(cluster)
        self._failures = PartitionFailures(cluster)
        self._fetcher = Fetcher(cluster, self._config, self._failures)
        self._group: ConsumerGroup | None = None
        self._assigned: dict[TopicPartition, None] = {}  # in the order of the next request
        self._positions: dict[TopicPartition, Position] = {}
        self._fetch_from: dict[TopicPartition, Position] = {}  # positions, and what is received
        self._recreated: set[TopicPartition] = set()  # whose topic is another now, as raised
        self._received: deque[tuple[TopicPartition, EncodedBatch]] = deque()
        self._current: FetchedBatch | None = None  # under iteration
        self._rows: Iterator[ConsumerRecord] = iter(())

    # -- what to read ---------------------------------------------------------------------

    def assign(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions. Positions of those that stay are kept."""
        before = self._assigned
        self._assigned = dict.fromkeys(as_topic_partitions(topic_partitions))
        for topic_partition in [
            topic_partition for topic_partition in before if topic_partition not in self._assigned
        ]:
            self._drop(topic_partition)
            self._positions.pop(topic_partition, None)

    def assign_topics(self, *topics: str) -> None:
        """Read all partitions of these topics. UnknownTopicError."""
        described = self._admin.describe([as_topic(each) for each in topics], ends=False)
        self.assign(
            TopicPartition(name, number)
            for name, topic in described.items()
            for number in topic.partitions
        )

    @property
    def assignment(self) -> list[TopicPartition]:
        return sorted(self._assigned)

    def seek(self, topic_partition: TopicPartition, to: int | OffsetSpec) -> None:
        """Go on from there. A timestamp that no record has reached yet means the end.

        An offset is of the topic that is being read; once a topic of the same name has taken its
        place, and that was raised, of the new one.
        """
        if topic_partition not in self._assigned:
            raise InvalidRequestError(
                f"{topic_partition} is not assigned to this consumer; assign it first."
            )
        spec = as_offset_spec("The place to seek", AtOffset(to) if isinstance(to, int) else to)
        known = self._positions.get(topic_partition)
        if (
            isinstance(spec, AtOffset)
            and known is not None
            and topic_partition not in self._recreated
        ):
            self._go_to({topic_partition: Position(spec.offset, known.topic_id)})
        else:
            self._go_to(self._resolve({topic_partition: spec}))

    def position(self, topic_partition: TopicPartition) -> int:
        """The offset of the next record that this consumer hands out."""
        if topic_partition not in self._assigned:
            raise InvalidRequestError(
                f"{topic_partition} is not assigned to this consumer; assign it first."
            )
        if topic_partition not in self._positions:
            starts, specs = self._starts([topic_partition])
            self._go_to({**starts, **self._resolve(specs)})
        return self._positions[topic_partition].offset

    def _go_to(self, positions: Mapping[TopicPartition, Position]) -> None:
        for topic_partition, position in positions.items():
            self._drop(topic_partition)
            self._positions[topic_partition] = position
            self._fetch_from[topic_partition] = position

    def _drop(self, topic_partition: TopicPartition) -> None:
        """Forget what was received and not handed out."""
        self._received = deque(pair for pair in self._received if pair[0] != topic_partition)
        if self._current is not None and self._current.topic_partition == topic_partition:
            self._current = None
            self._rows = iter(())
        self._fetch_from.pop(topic_partition, None)
        self._recreated.discard(topic_partition)
        self._fetcher.forget_partition(topic_partition)

    def _topic_ids(self, topic_partitions: Iterable[TopicPartition]) -> dict[str, str]:
        """The ids of the topics as they are now, not as they were when last asked for."""
        names = sorted({topic_partition.topic for topic_partition in topic_partitions})
        for name in names:
            self._cluster.invalidate(name)
        return self._cluster.retrying(
            f"Looking up {', '.join(names)}",
            lambda deadline: {name: self._cluster.topic(name, deadline).topic_id for name in names},
        )

    def _starts(
        self, topic_partitions: Sequence[TopicPartition]
    ) -> tuple[dict[TopicPartition, Position], dict[TopicPartition, OffsetSpec]]:
        """The committed positions, and for the other partitions where the configuration begins."""
        if self._config.group is None:
            return {}, dict.fromkeys(topic_partitions, self._config.start)
        topic_ids = self._topic_ids(topic_partitions)
        starts = self._opened_group().starting_offsets(topic_partitions, topic_ids)
        committed = {
            topic_partition: Position(offset, topic_ids[topic_partition.topic])
            for topic_partition, offset in starts.items()
        }
        return committed, {
            topic_partition: self._config.start
            for topic_partition in topic_partitions
            if topic_partition not in committed
        }

    def _resolve(
        self, specs: Mapping[TopicPartition, OffsetSpec]
    ) -> dict[TopicPartition, Position]:
        """The positions that ``specs`` mean; waits for leaders that are away."""
        if not specs:
            return {}
        topic_ids = self._topic_ids(specs)
        found = self._admin.list_offsets(specs, topic_ids=topic_ids)
        late = {
            topic_partition: Latest() for topic_partition, offset in found.items() if offset is None
        }
        ends = self._admin.list_offsets(late, topic_ids=topic_ids) if late else {}
        return _placed({**found, **ends}, topic_ids)

    def _resolve_some(
        self, specs: Mapping[TopicPartition, OffsetSpec]
    ) -> dict[TopicPartition, Position]:
        """Likewise, of the partitions whose leaders answer at once; failures of the others are
        recorded."""
        if not specs:
            return {}
        topic_ids = self._topic_ids(specs)
        began = self._cluster.clock.monotonic()
        # Who is silent holds up the others at first for a moment only.
        tries = min(self._failures.failures_in_a_row(topic_partition) for topic_partition in specs)
        patience_ms = min(_FIRST_PATIENCE_MS << tries, self._cluster.config.connect_timeout_ms)
        found = self._admin.find_offsets(specs, topic_ids=topic_ids, patience_ms=patience_ms)
        late = {
            topic_partition: Latest()
            for topic_partition, offset in found.found.items()
            if offset is None
        }
        ends = self._admin.find_offsets(late, topic_ids=topic_ids, patience_ms=patience_ms)
        for topic_partition, error in {**found.away, **ends.away}.items():
            self._failures.record_failure([topic_partition], error, began=began)
        return _placed({**found.found, **ends.found}, topic_ids)

    def _find_positions(self) -> None:
        """Give each assigned partition without a position its committed or configured start, if
        that can be had now."""
        missing = [
            topic_partition
            for topic_partition in self._assigned
            if topic_partition not in self._positions and self._failures.may_try(topic_partition)
        ]
        if missing:
            starts, specs = self._starts(missing)
            self._go_to({**starts, **self._resolve_some(specs)})

    # -- reading --------------------------------------------------------------------------

    def poll_arrow(self, timeout_s: float = 1.0) -> list[FetchedBatch]:
        """Records that arrive within ``timeout_s``; returns all that are there as soon as there
        are some. Positions move past them. Empty if none came. Finding a leader may take
        the connect timeout longer.

        Partitions whose broker is away wait for it, which is logged once, while the others are
        read. Raises OffsetOutOfRangeError and TopicRecreatedError unless ``out_of_range`` says
        otherwise, UnknownTopicError, CorruptRecordBatchError, and the retriable ones when no
        partition could be read for the retry deadline.
        """
        batches = self._rest_of_iteration()
        if not batches and not self._received:
            self._receive(timeout_s)
        while self._received:
            try:
                fetched = self._next_received()
            except LogbusError:
                if not batches:
                    raise
                break  # the next poll meets it again; what stands before it is handed out first
            if fetched is not None:
                batches.append(fetched)
        return batches

    def _receive(self, timeout_s: float) -> None:
        if not self._assigned:
            raise InvalidRequestError("No partition is assigned to this consumer; assign some.")
        deadline = self._cluster.deadline_ms(timeout_s * 1000)
        while not self._received:
            self._find_positions()
            self._request_more()
            for fetched in self._fetcher.collect_fetches(deadline):
                self._take_data(fetched)
            self._failures.report(self._assigned)
            if deadline.expired:
                break
        self._request_more()  # so that the leaders work while the caller does

    def _request_more(self) -> None:
        self._fetcher.send_fetches(
            {
                topic_partition: self._fetch_from[topic_partition]
                for topic_partition in self._assigned
                if topic_partition in self._fetch_from
            }
        )

    def _take_data(self, fetched: PartitionData) -> None:
        topic_partition = fetched.topic_partition
        if self._fetch_from.get(topic_partition) != fetched.position:
            return  # the consumer was sent elsewhere meanwhile
        if fetched.lost is not None:
            self._lost(topic_partition, fetched.position, fetched.lost)
            return
        offset, topic_id = fetched.position
        raws = list(walk(topic_partition, fetched.data, position=offset))
        if not raws:
            raise CorruptRecordBatchError(
                f"{topic_partition}: a fetch at offset {offset} brought {len(fetched.data)} bytes "
                "without a whole record batch."
            )
        self._received.extend((topic_partition, raw) for raw in raws)
        self._fetch_from[topic_partition] = Position(raws[-1].header.next_offset, topic_id)
        # Whoever was served goes to the end of the next request, where space may run out.
        del self._assigned[topic_partition]
        self._assigned[topic_partition] = None

    def _lost(
        self, topic_partition: TopicPartition, position: Position, error: LogbusError
    ) -> None:
        """Raise, or go on from where the configuration says."""
        if self._config.out_of_range == "error":
            if isinstance(error, TopicRecreatedError):
                self._recreated.add(topic_partition)
            raise error
        spec = Earliest() if self._config.out_of_range == "earliest" else Latest()
        positions = self._resolve({topic_partition: spec})
        logger.warning(
            "Offset %d of %s is not in the log (%s); going on from the %s offset, %d, as the "
            "key out_of_range says.",
            position.offset,
            topic_partition,
            error,
            self._config.out_of_range,
            positions[topic_partition].offset,
        )
        self._go_to(positions)

    def _next_received(self) -> FetchedBatch | None:
        topic_partition, raw = self._received[0]
        fetched = decoded(
            topic_partition, raw, start=self._positions[topic_partition].offset, end=NO_END
        )
        self._received.popleft()
        self._move(topic_partition, raw.header.next_offset)
        return fetched

    def _move(self, topic_partition: TopicPartition, offset: int) -> None:
        """Onwards in the same topic."""
        self._positions[topic_partition] = Position(
            offset, self._positions[topic_partition].topic_id
        )

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return self

    def __next__(self) -> ConsumerRecord:
        """The next record; waits for one as long as it takes."""
        while True:
            record = next(self._rows, None)
            if record is not None:
                self._move(TopicPartition(record.topic, record.partition), record.offset + 1)
                return record
            if self._current is not None:
                # Skips the gap that compaction may have left after the last record.
                self._move(self._current.topic_partition, self._current.header.next_offset)
                self._current = None
            if not self._received:
                self._receive(_ITERATION_POLL_S)
            if self._received:
                self._iterate_over(self._received[0][0])

    def _iterate_over(self, topic_partition: TopicPartition) -> None:
        before = self._positions[topic_partition]
        fetched = self._next_received()
        if fetched is not None:
            self._positions[topic_partition] = before  # moves record by record from here
            self._current = fetched
            self._rows = records_of(fetched)

    def _rest_of_iteration(self) -> list[FetchedBatch]:
        current, self._current = self._current, None
        self._rows = iter(())
        if current is None:
            return []
        topic_partition = current.topic_partition
        offsets = current.offsets()
        done = sum(offset.as_py() < self._positions[topic_partition].offset for offset in offsets)
        self._move(topic_partition, current.header.next_offset)
        if done == len(offsets):
            return []
        rest = current.arrow_batch.slice(done)
        return [FetchedBatch(topic_partition, offsets[done].as_py(), rest, current.header)]

    # -- the group ------------------------------------------------------------------------

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Store the positions (or ``offsets``, each the next to read) for the group.

        GroupRewoundError when the group was rewound since this consumer read its offsets; then
        ``resume_from_committed`` goes where the rewind says. TopicRecreatedError, and nothing is
        stored, when a topic was deleted and created again since its position was found.
        GroupHeldError, with the holder's name, while a query or a load holds the group.
        Needs ZooKeeper, and no broker.
        """
        if offsets is None:
            offsets = {
                topic_partition: at.offset
                for topic_partition, at in self._positions.items()
                if topic_partition in self._assigned
            }
        known = {
            topic_partition: self._positions[topic_partition].topic_id
            for topic_partition in offsets
            if topic_partition in self._positions
        }
        self._opened_group().commit_offsets(offsets, known)

    def committed(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The group's committed offsets; partitions without one are left out."""
        return self._opened_group().committed_offsets(list(topic_partitions))

    def resume_from_committed(self) -> None:
        """Forget the positions and take up the group's committed offsets, rewinds included."""
        self._opened_group().follow_rewinds()
        for topic_partition in self._assigned:
            self._drop(topic_partition)
        self._positions.clear()

    def _opened_group(self) -> ConsumerGroup:
        if self._config.group is None:
            raise ConfigError("This consumer has no group; set group in its ConsumerConfig.")
        if self._group is None:
            # Imported here: most users of this package never talk to ZooKeeper.
            from spark_logbus.client.consumer.group import ConsumerGroup

            client_id = self._cluster.config.client_id
            self._group = ConsumerGroup(
                self._config.zookeeper, self._config.group, client_id=client_id
            )
        return self._group

    # -- the end --------------------------------------------------------------------------

    def close(self) -> None:
        """Stop reading. Nothing is committed by itself."""
        self._fetcher.close()
        if self._group is not None:
            self._group.close()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _placed(
    offsets: Mapping[TopicPartition, int | None], topic_ids: Mapping[str, str]
) -> dict[TopicPartition, Position]:
    return {
        topic_partition: Position(offset, topic_ids[topic_partition.topic])
        for topic_partition, offset in offsets.items()
        if offset is not None
    }

"""The consumer: reads assigned partitions onwards, and waits for what is not there yet."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Final

from spark_logbus.client.admin import Admin
from spark_logbus.client.cluster import Cluster
from spark_logbus.client.config import ConsumerConfig
from spark_logbus.client.fetched import FetchedBatch, RawBatch, decoded, walk
from spark_logbus.client.fetcher import Fetched, Fetcher
from spark_logbus.client.group import ConsumerGroup, GroupStore
from spark_logbus.client.records import ConsumerRecord, records_of
from spark_logbus.errors import CorruptRecordBatchError, InvalidRequestError, LogbusError
from spark_logbus.model import AtOffset, Earliest, Latest, OffsetSpec, TopicPartition

log = logging.getLogger(__name__)

_NO_END: Final = 2**63 - 1
_ITERATION_POLL_S: Final = 1.0  # between two chances to be interrupted


class Consumer:
    """Reads the partitions it is assigned, each in order. Not thread-safe.

    ``poll_arrow`` gives whole arrow batches, iteration gives single records and blocks until
    there are some. The position of a partition is the offset of the next record to hand out;
    ``commit`` stores positions for the group. The cluster is shared, not owned.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig | None = None,
        *,
        group_store: GroupStore | None = None,
    ) -> None:
        self._cluster = cluster
        self._config = config or ConsumerConfig()
        self._admin = Admin(cluster)
        self._fetcher = Fetcher(cluster, self._config)
        self._group = ConsumerGroup(cluster, self._config, group_store)
        self._assigned: dict[TopicPartition, None] = {}  # in the order of the next request
        self._positions: dict[TopicPartition, int] = {}
        self._fetch_from: dict[TopicPartition, int] = {}  # positions, and what is received
        self._received: deque[tuple[TopicPartition, RawBatch]] = deque()
        self._current: FetchedBatch | None = None  # under iteration
        self._rows: Iterator[ConsumerRecord] = iter(())

    # -- what to read ---------------------------------------------------------------------

    def assign(self, tps: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions. Positions of those that stay are kept."""
        self._assigned = dict.fromkeys(tps)
        for tp in [tp for tp in self._positions if tp not in self._assigned]:
            self._drop(tp)
            del self._positions[tp]

    def assign_topics(self, *topics: str) -> None:
        """Read all partitions of these topics. UnknownTopicError."""
        described = self._admin.describe(topics, ends=False)
        self.assign(
            TopicPartition(name, number)
            for name, topic in described.items()
            for number in topic.partitions
        )

    @property
    def assignment(self) -> list[TopicPartition]:
        return sorted(self._assigned)

    def seek(self, tp: TopicPartition, to: int | OffsetSpec) -> None:
        """Go on from there. A timestamp that no record has reached yet means the end."""
        if tp not in self._assigned:
            raise InvalidRequestError(f"{tp} is not assigned to this consumer; assign it first.")
        spec = AtOffset(to) if isinstance(to, int) else to
        self._go_to(self._resolve({tp: spec}))

    def position(self, tp: TopicPartition) -> int:
        """The offset of the next record that this consumer hands out."""
        if tp not in self._assigned:
            raise InvalidRequestError(f"{tp} is not assigned to this consumer; assign it first.")
        self._find_positions()
        return self._positions[tp]

    def _go_to(self, offsets: Mapping[TopicPartition, int]) -> None:
        for tp, offset in offsets.items():
            self._drop(tp)
            self._positions[tp] = offset
            self._fetch_from[tp] = offset

    def _drop(self, tp: TopicPartition) -> None:
        """Forget what was received and not handed out."""
        self._received = deque(pair for pair in self._received if pair[0] != tp)
        if self._current is not None and self._current.topic_partition == tp:
            self._current = None
            self._rows = iter(())
        self._fetch_from.pop(tp, None)
        self._fetcher.forget(tp)

    def _resolve(self, specs: Mapping[TopicPartition, OffsetSpec]) -> dict[TopicPartition, int]:
        found = self._admin.list_offsets(specs)
        late = {tp: Latest() for tp, offset in found.items() if offset is None}
        ends = self._admin.list_offsets(late) if late else {}
        offsets = {**found, **ends}
        return {tp: offset for tp, offset in offsets.items() if offset is not None}

    def _find_positions(self) -> None:
        """Give each assigned partition without a position its committed or configured start."""
        missing = [tp for tp in self._assigned if tp not in self._positions]
        if not missing:
            return
        offsets = self._group.committed(missing) if self._config.group is not None else {}
        specs = {tp: self._config.start for tp in missing if tp not in offsets}
        self._go_to({**offsets, **self._resolve(specs)})

    # -- reading --------------------------------------------------------------------------

    def poll_arrow(self, timeout_s: float = 1.0) -> list[FetchedBatch]:
        """What can be had within ``timeout_s``; as soon as there is something, and then what
        is there. Positions move behind it. Empty if nothing came. Finding a leader may take
        the connect timeout longer.

        Raises OffsetOutOfRangeError unless ``out_of_range`` says otherwise, UnknownTopicError,
        CorruptRecordBatchError, and the retriable ones after the retry deadline.
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
        self._find_positions()
        while not self._received:
            self._request_more()
            for fetched in self._fetcher.poll(deadline):
                self._take(fetched)
            if deadline.expired:
                break
        self._request_more()  # so that the leaders work while the caller does

    def _request_more(self) -> None:
        self._fetcher.request({tp: self._fetch_from[tp] for tp in self._assigned})

    def _take(self, fetched: Fetched) -> None:
        tp = fetched.tp
        if self._fetch_from.get(tp) != fetched.offset:
            return  # the consumer was sent elsewhere meanwhile
        if fetched.out_of_range is not None:
            self._out_of_range(fetched)
            return
        raws = list(walk(tp, fetched.data, position=fetched.offset))
        if not raws:
            raise CorruptRecordBatchError(
                f"{tp}: a fetch at offset {fetched.offset} brought {len(fetched.data)} bytes "
                "without a whole record batch."
            )
        self._received.extend((tp, raw) for raw in raws)
        self._fetch_from[tp] = raws[-1].header.next_offset
        # Whoever was served goes to the end of the next request, where space may run out.
        del self._assigned[tp]
        self._assigned[tp] = None

    def _out_of_range(self, fetched: Fetched) -> None:
        assert fetched.out_of_range is not None
        if self._config.out_of_range == "error":
            raise fetched.out_of_range
        spec = Earliest() if self._config.out_of_range == "earliest" else Latest()
        offsets = self._resolve({fetched.tp: spec})
        log.warning(
            "Offset %d of %s is not in the log (%s); going on from the %s offset, %d, as the "
            "key out_of_range says.",
            fetched.offset,
            fetched.tp,
            fetched.out_of_range,
            self._config.out_of_range,
            offsets[fetched.tp],
        )
        self._go_to(offsets)

    def _next_received(self) -> FetchedBatch | None:
        tp, raw = self._received[0]
        fetched = decoded(tp, raw, start=self._positions[tp], end=_NO_END)
        self._received.popleft()
        self._positions[tp] = raw.header.next_offset
        return fetched

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return self

    def __next__(self) -> ConsumerRecord:
        """The next record; waits for one as long as it takes."""
        while True:
            record = next(self._rows, None)
            if record is not None:
                self._positions[TopicPartition(record.topic, record.partition)] = record.offset + 1
                return record
            if self._current is not None:
                # Skips the gap that compaction may have left behind the last record.
                self._positions[self._current.topic_partition] = self._current.header.next_offset
                self._current = None
            if not self._received:
                self._receive(_ITERATION_POLL_S)
            if self._received:
                self._iterate_over(self._received[0][0])

    def _iterate_over(self, tp: TopicPartition) -> None:
        before = self._positions[tp]
        fetched = self._next_received()
        if fetched is not None:
            self._positions[tp] = before  # moves record by record from here
            self._current = fetched
            self._rows = records_of(fetched)

    def _rest_of_iteration(self) -> list[FetchedBatch]:
        current, self._current = self._current, None
        self._rows = iter(())
        if current is None:
            return []
        tp = current.topic_partition
        offsets = current.offsets()
        done = sum(offset.as_py() < self._positions[tp] for offset in offsets)
        self._positions[tp] = current.header.next_offset
        if done == len(offsets):
            return []
        rest = current.arrow_batch.slice(done)
        return [FetchedBatch(tp, offsets[done].as_py(), rest, current.header)]

    # -- the group ------------------------------------------------------------------------

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Store the positions (or ``offsets``, each the next to read) for the group.

        StaleOwnerError when the group was rewound since this consumer read its offsets; then
        ``resume_from_committed`` goes where the rewind says.
        """
        if offsets is None:
            offsets = {tp: at for tp, at in self._positions.items() if tp in self._assigned}
        self._group.commit(offsets)

    def committed(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The group's committed offsets; partitions without one are left out."""
        return self._group.committed(list(tps))

    def resume_from_committed(self) -> None:
        """Forget the positions and take up the group's committed offsets, rewinds included."""
        self._group.follow_rewinds()
        for tp in list(self._positions):
            self._drop(tp)
        self._positions.clear()

    # -- the end --------------------------------------------------------------------------

    def close(self) -> None:
        """Stop reading. Nothing is committed by itself."""
        self._fetcher.close()
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

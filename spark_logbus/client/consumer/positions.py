"""Positions of a consumer: what it reads, how far it has come, and what it hands out."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from spark_logbus.client.consumer.failures import PartitionFailures
from spark_logbus.client.consumer.fetcher import Fetcher, PartitionData, Position
from spark_logbus.client.consumer.start_offsets import StartOffsets
from spark_logbus.client.consumer.value_readers import ValueReaders, take_decoded
from spark_logbus.client.fetch.batches import FetchedBatch, received_run
from spark_logbus.client.fetch.plain_reader import PLAIN_READER, PlainReader
from spark_logbus.client.fetch.records import ConsumerRecord, records_of
from spark_logbus.errors import (
    CorruptRecordBatchError,
    InvalidRequestError,
    LogbusError,
    OffsetOutOfRangeError,
    TopicRecreatedError,
)
from spark_logbus.model import AtOffset, Earliest, Latest, OffsetSpec, TopicPartition
from spark_logbus.record.claims import claimed_bytes
from spark_logbus.record.run import RecordBatchRun
from spark_logbus.retry import Deadline

logger = logging.getLogger(__name__)

_OUT_OF_RANGE: Final[Mapping[str, OffsetSpec]] = {"earliest": Earliest(), "latest": Latest()}

_Received: TypeAlias = tuple[TopicPartition, RecordBatchRun, PlainReader]


class Iteration:
    """One arrow batch under iteration, or none. Not thread-safe.

    Whoever takes a record from ``rows`` notes it in ``last``: that is all that a record costs here,
    and the position is computed when somebody asks for it. ``rows`` is another object after
    ``begin``, ``begin_again`` and ``end``, by which a loop over it sees that it is to stop.
    """

    def __init__(self) -> None:
        self.rows: Iterator[ConsumerRecord] = iter(())
        self.last: ConsumerRecord | None = None
        #: ``last`` once it is known to be dealt with, or once ``ConsumerPositions`` keeps account
        #: of it.
        self.settled: ConsumerRecord | None = None
        self.batch: FetchedBatch | None = None
        #: The position once all of the batch was handed out.
        self.end_offset = 0
        #: Records of the batches before this one that were handed out.
        self.finished = 0

    def begin(self, batch: FetchedBatch, *, end: int) -> None:
        self.rows = records_of(batch)
        self.batch, self.last, self.settled, self.end_offset = batch, None, None, end

    def begin_again(self) -> None:
        """Go back to behind ``last``: what was taken from ``rows`` since reached nobody."""
        rest = self.rest()
        self.rows = iter(()) if rest is None else records_of(rest)

    @property
    def handed_out(self) -> int:
        """The number of records that were handed out so far. For any thread: near the end of a
        batch it may be off by the records of one."""
        batch, last = self.batch, self.last
        if batch is None or last is None:
            return self.finished
        done = last.offset + 1 - batch.base_offset
        if batch.has_gaps:
            done = int(np.searchsorted(np.asarray(batch.offsets()), last.offset, "right"))
        return self.finished + max(0, min(done, int(batch.arrow_batch.num_rows)))

    def end(self) -> None:
        self.finished = self.handed_out
        self.batch = self.last = self.settled = None
        self.rows = iter(())

    @property
    def unsettled(self) -> int | None:
        """The offset of the record that was handed out last, if it may still be worked on."""
        last = self.last
        return None if last is None or last is self.settled else last.offset

    @property
    def next_offset(self) -> int | None:
        """The offset after the last record that was handed out; None before the first."""
        return None if self.last is None else self.last.offset + 1

    def rest(self) -> FetchedBatch | None:
        """Returns the records that were not handed out; None if nothing is left."""
        batch, next_offset = self.batch, self.next_offset
        if batch is None or next_offset is None:
            return batch
        offsets = batch.offsets().to_pylist()
        done = sum(offset < next_offset for offset in offsets)
        if done == len(offsets):
            return None
        return batch.part(done, len(offsets) - done)


class ConsumerPositions:
    """The partitions that one consumer reads. Not thread-safe.

    Each has a *position*, the offset of the next record to hand out, once it was found. What was
    received lies between the position and the place of the next fetch. One batch may be under
    ``iteration``, past which the position moves record by record.

    What was handed out is *settled*, that is dealt with, when the consumer is asked for more
    (``settle``). Until then the caller may be at work on it, or may have failed.
    """

    def __init__(
        self,
        starts: StartOffsets,
        fetcher: Fetcher,
        failures: PartitionFailures,
        values: ValueReaders,
        *,
        out_of_range: Literal["error", "earliest", "latest"],
        max_decoded_bytes: int,
    ) -> None:
        self._starts = starts
        self._fetcher = fetcher
        self._failures = failures
        self._values = values
        self._out_of_range = out_of_range
        self._max_decoded_bytes = max_decoded_bytes
        self._partitions: dict[TopicPartition, None] = {}  # in the order of the next request
        self._positions: dict[TopicPartition, Position] = {}
        self._fetch_from: dict[TopicPartition, Position] = {}  # not of those that are paused
        self._recreated: set[TopicPartition] = set()  # whose topic is another now, as raised
        self._paused: set[TopicPartition] = set()
        self._received: deque[_Received] = deque()
        # Where what is not settled begins, but for a record that the iteration has handed out.
        self._unsettled: dict[TopicPartition, int] = {}
        #: The last record was handed out by a loop over the consumer, which has no end: it is
        #: dealt with when the loop asks for the next, and in no other way.
        self.in_loop = False
        self.iteration = Iteration()
        self._fetched_bytes = 0

    # -- which partitions -----------------------------------------------------------------

    @property
    def partitions(self) -> list[TopicPartition]:
        return sorted(self._partitions)

    def __contains__(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._partitions

    def __len__(self) -> int:
        return len(self._partitions)

    def read_exactly(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Reads exactly these partitions; those that stay keep their positions and pauses."""
        before, self._partitions = self._partitions, dict.fromkeys(topic_partitions)
        for topic_partition in before:
            if topic_partition not in self._partitions:
                self._drop(topic_partition)
                self._unsettled.pop(topic_partition, None)
                self._positions.pop(topic_partition, None)
                self._fetcher.spans.pop(topic_partition, None)
                self._paused.discard(topic_partition)

    def require(self, topic_partition: TopicPartition) -> None:
        """Raises InvalidRequestError for a partition that is not read."""
        if topic_partition not in self._partitions:
            raise InvalidRequestError(
                f"{topic_partition} is not assigned to this consumer; assign it first."
            )

    def pause(self, topic_partition: TopicPartition) -> None:
        self._note_iteration()
        self._unsettled |= self._unsettled_one()
        self._drop(topic_partition)  # what was received is asked for again
        self._paused.add(topic_partition)

    def resume(self, topic_partition: TopicPartition) -> None:
        if topic_partition in self._paused:
            self._paused.discard(topic_partition)
            if topic_partition in self._positions:
                self._fetch_from[topic_partition] = self._positions[topic_partition]

    @property
    def paused(self) -> list[TopicPartition]:
        return sorted(self._paused)

    # -- what was dealt with --------------------------------------------------------------

    def settle(self) -> None:
        """Counts all that was handed out as dealt with: the caller asks for more, or commits it."""
        self._unsettled.clear()
        self.iteration.settled = self.iteration.last

    def settle_to(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Counts as dealt with what stands before these offsets, which the caller has committed."""
        self._unsettled = {
            each: max(offset, offsets.get(each, offset)) for each, offset in self._unsettled.items()
        }
        for topic_partition, offset in self._unsettled_one().items():
            if offsets.get(topic_partition, offset) > offset:
                self.iteration.settled = self.iteration.last

    def settled_positions(self) -> dict[TopicPartition, Position]:
        """The positions that were found, each before what is not settled."""
        positions = self.positions()
        for topic_partition, offset in (self._unsettled | self._unsettled_one()).items():
            if topic_partition in positions:
                positions[topic_partition] = positions[topic_partition]._replace(offset=offset)
        return positions

    def _unsettled_one(self) -> dict[TopicPartition, int]:
        """The record that the iteration has handed out last, if it is not settled."""
        current, offset = self.iteration.batch, self.iteration.unsettled
        if current is None or offset is None or current.topic_partition in self._unsettled:
            return {}
        return {current.topic_partition: offset}

    def take_back(self) -> None:
        """Hand out once more what is not settled, as it has reached nobody."""
        self._go_to({
            each: self._positions[each]._replace(offset=offset)
            for each, offset in self._unsettled.items()
            if each in self._positions
        })  # fmt: skip

    # -- positions ------------------------------------------------------------------------

    def positions(self) -> dict[TopicPartition, Position]:
        """Returns the positions that were found."""
        self._note_iteration()
        return dict(self._positions)

    def seek(self, topic_partition: TopicPartition, spec: OffsetSpec) -> None:
        """Goes on from there. An offset is of the topic that is read; once that was raised as
        recreated, of the present one."""
        known = self._positions.get(topic_partition)
        if (
            isinstance(spec, AtOffset)
            and known is not None
            and topic_partition not in self._recreated
        ):
            self._go_to({topic_partition: Position(spec.offset, known.topic_id)})
        else:
            self._go_to(self._starts.resolve({topic_partition: spec}))

    def find_position(self, topic_partition: TopicPartition) -> Position:
        """Returns the position of a partition; where it has none, its committed or configured
        start, for which leaders that are away are waited for."""
        if topic_partition not in self._positions:
            self._go_to(self._starts.find([topic_partition]))
        self._note_iteration()
        return self._positions[topic_partition]

    def find_positions(self) -> None:
        """Give each partition without a position its committed or configured start, if that can
        be had now."""
        missing = [
            topic_partition
            for topic_partition in self._partitions
            if topic_partition not in self._positions and self._failures.may_try(topic_partition)
        ]
        if missing:
            self._go_to(self._starts.find_some(missing))

    def value_schema(self, topic: str) -> str | None:
        """Returns the schema of a topic of which a partition is read; None for plain bytes."""
        own = next((each for each in self.partitions if each.topic == topic), None)
        if own is None:
            raise InvalidRequestError(
                f"No partition of {topic!r} is assigned to this consumer; assign one first."
            )
        return self._values.reader(topic, self.find_position(own).topic_id).schema_text

    def value_type(self) -> pa.DataType:
        """The type of the values of all that is read; binary for plain bytes.

        Raises InvalidRequestError if there are several, and what finding positions and schemas
        does.
        """
        types: dict[pa.DataType, str] = {}
        for topic_partition in self._partitions:
            if topic_partition not in self._paused:
                topic = topic_partition.topic
                values = self._values.reader(topic, self.find_position(topic_partition).topic_id)
                types.setdefault(values.arrow_type, topic)
        if len(types) > 1:
            one, other, *_ = types.values()
            raise InvalidRequestError(
                f"The values of the topics {one} and {other} have different types, and no table "
                "has both; read them apart."
            )
        return next(iter(types), PLAIN_READER.arrow_type)

    def forget_positions(self) -> None:
        """Forgets all positions; they are found anew."""
        for topic_partition in self._partitions:
            self._drop(topic_partition)
        self._positions.clear()
        self._unsettled.clear()

    def _go_to(self, positions: Mapping[TopicPartition, Position]) -> None:
        for topic_partition, position in positions.items():
            self._drop(topic_partition)
            self._unsettled.pop(topic_partition, None)
            self._positions[topic_partition] = position
            if topic_partition not in self._paused:
                self._fetch_from[topic_partition] = position

    def _drop(self, topic_partition: TopicPartition) -> None:
        """Forget what was received and not handed out."""
        self._received = deque(each for each in self._received if each[0] != topic_partition)
        current = self.iteration.batch
        if current is not None and current.topic_partition == topic_partition:
            self.iteration.end()
        self._fetch_from.pop(topic_partition, None)
        self._recreated.discard(topic_partition)
        self._fetcher.forget_partition(topic_partition)

    def _move(self, topic_partition: TopicPartition, offset: int) -> None:
        """Advances the position, keeping the topic id."""
        self._positions[topic_partition] = Position(
            offset, self._positions[topic_partition].topic_id
        )

    # -- receiving ------------------------------------------------------------------------

    @property
    def has_received(self) -> bool:
        """True if there is something to hand out, besides what is under iteration."""
        return bool(self._received)

    def request_more(self) -> None:
        self._fetcher.send_fetches(
            {
                topic_partition: self._fetch_from[topic_partition]
                for topic_partition in self._partitions
                if topic_partition in self._fetch_from
            }
        )

    def receive(self, deadline: Deadline) -> None:
        """Take what the leaders answer, once some have, or at the deadline. Raises the failures
        of partitions that cannot be read."""
        for fetched in self._fetcher.collect_fetches(deadline):
            self._take_data(fetched)
        self._failures.report(self._partitions, has_received=self.has_received)

    def _take_data(self, fetched: PartitionData) -> None:
        topic_partition = fetched.topic_partition
        if self._fetch_from.get(topic_partition) != fetched.position:
            return  # the consumer was sent elsewhere meanwhile
        if fetched.lost is not None:
            self._lost(topic_partition, fetched.position, fetched.lost)
            return
        offset, topic_id = fetched.position
        run = received_run(topic_partition, fetched.data, position=offset)
        if run is None:
            raise CorruptRecordBatchError(
                f"{topic_partition}: a fetch at offset {offset} brought {len(fetched.data)} bytes "
                "without a whole record batch."
            )
        began = self._failures.now
        try:
            values = self._values.reader(topic_partition.topic, topic_id)
        except TopicRecreatedError as error:
            self._lost(topic_partition, fetched.position, error)
            return
        except LogbusError as error:
            self._failures.record_failure([topic_partition], error, began=began, of_values=True)
            return  # it is fetched again
        self._received.append((topic_partition, run, values))
        self._fetched_bytes += run.size
        self._fetch_from[topic_partition] = Position(run.next_offset, topic_id)
        # Whoever was served goes to the end of the next request, where space may run out.
        del self._partitions[topic_partition]
        self._partitions[topic_partition] = None

    def _lost(
        self, topic_partition: TopicPartition, position: Position, error: LogbusError
    ) -> None:
        """Raise, or go on from where the configuration says."""
        spec = _OUT_OF_RANGE.get(self._out_of_range)
        if spec is None:
            if isinstance(error, TopicRecreatedError):
                self._recreated.add(topic_partition)
            raise error.again() from error.__cause__
        behind = None
        if self._out_of_range == "earliest" and isinstance(error, OffsetOutOfRangeError):
            behind = self._starts.behind_lost(topic_partition, position)
        positions = behind or self._starts.resolve({topic_partition: spec})
        logger.warning(
            "Offset %d of %s is not in the log (%s); going on from the %s offset, %d, as the "
            "key out_of_range says.",
            position.offset,
            topic_partition,
            error,
            self._out_of_range,
            positions[topic_partition].offset,
        )
        self._go_to(positions)

    # -- counters -------------------------------------------------------------------------

    def metrics(self) -> dict[str, int | float]:
        """Returns the counters, by the names of ``client.metrics``. Any thread may call it: it
        looks at copies, which are made at once."""
        lags = list(self._lags().values())
        return {
            "records_consumed_total": self.iteration.handed_out,
            "bytes_consumed_total": self._fetched_bytes,
            "fetch_total": self._fetcher.answers,
            "fetch_error_total": self._failures.failed_tries,
            "dropped_record_total": self._values.dropped,
            "assigned_partitions": len(self._partitions),
            "paused_partitions": len(self._paused),
            "buffered_bytes": sum(run.size for _, run, _ in list(self._received)),
            "records_lag": sum(lags),
            "records_lag_max": max(lags, default=0),
        }

    def _lags(self) -> dict[TopicPartition, int]:
        """Records behind the high watermark, for partitions whose end a fetch has told."""
        spans, positions = self._fetcher.spans.copy(), self._positions.copy()
        offsets = {each: position.offset for each, position in positions.items()}
        batch, next_offset = self.iteration.batch, self.iteration.next_offset
        if batch is not None and next_offset is not None and batch.topic_partition in offsets:
            offsets[batch.topic_partition] = next_offset
        return {
            each: spans[each].count(min(offset, spans[each].end), spans[each].end)
            for each, offset in offsets.items()
            if each in spans
        }

    # -- handing out ----------------------------------------------------------------------

    def take_all(self) -> list[FetchedBatch]:
        """Takes what is there, as far as it may be decoded at once; positions move past it."""
        self.in_loop = False
        rest = self.iteration.rest()
        batches = [] if rest is None else [rest]
        if rest is not None:
            self._unsettled.setdefault(rest.topic_partition, rest.base_offset)
        self.end_iteration()
        left = self._max_decoded_bytes - sum(one.decoded_bytes for one in batches)
        while self._received:
            topic_partition, run, _ = self._received[0]
            if batches and left < claimed_bytes(run):
                break
            self._unsettled.setdefault(topic_partition, self._positions[topic_partition].offset)
            try:
                fetched = self._next_received()
            except LogbusError:
                if not batches:
                    raise
                break  # the next call meets it again; what stands before it is handed out first
            except BaseException:
                self.take_back()
                raise
            if fetched is not None:
                batches.append(fetched)
                left -= fetched.decoded_bytes
        self.iteration.finished += sum(one.arrow_batch.num_rows for one in batches)
        return batches

    def next_record(self) -> ConsumerRecord | None:
        """The next of the records under iteration; None behind the last one. What was handed out
        before is dealt with."""
        self.in_loop = False
        iteration = self.iteration
        if self._unsettled:
            self.settle()
        try:
            record = next(iteration.rows, None)
        except BaseException:
            iteration.begin_again()
            raise
        if record is not None:
            iteration.last = record
        return record

    def take_records(self, most: int) -> list[ConsumerRecord]:
        """Returns up to so many of the records under iteration, which ends with its last one; the
        position moves past them."""
        self.in_loop = False
        iteration = self.iteration
        batch = iteration.batch
        try:
            records = list(islice(iteration.rows, most))
        except BaseException:
            iteration.begin_again()
            raise
        if batch is not None and records:
            self._unsettled.setdefault(batch.topic_partition, records[0].offset)
            iteration.last = iteration.settled = records[-1]
        if len(records) < most:
            self.end_iteration()
        return records

    def _next_received(self) -> FetchedBatch | None:
        topic_partition, run, values = self._received[0]
        start = self._positions[topic_partition].offset
        began = self._failures.now
        try:
            count, fetched = take_decoded(topic_partition, run, values, start=start)
        except LogbusError as error:
            self._failures.record_failure([topic_partition], error, began=began, of_values=True)
            self._fetch_again(topic_partition)
            return None
        self._failures.record_decoded(topic_partition)
        if not count:  # what could be read in front of a value that could not
            assert fetched is not None
            self._move(topic_partition, fetched.next_offset)
            return fetched
        if count < len(run):
            self._received[0] = (topic_partition, run.part(count, len(run)), values)
        else:
            self._received.popleft()
        self._move(topic_partition, run.part(0, count).next_offset)
        return fetched

    def _fetch_again(self, topic_partition: TopicPartition) -> None:
        """Drops what was received of a partition and cannot be decoded yet. It is fetched when it
        may be tried again; others are handed out meanwhile."""
        self._received = deque(each for each in self._received if each[0] != topic_partition)
        self._fetch_from[topic_partition] = self._positions[topic_partition]

    def begin_iteration(self) -> None:
        """Begins to hand out what was received first, which may hold no record."""
        topic_partition = self._received[0][0]
        before = self._positions[topic_partition]
        fetched = self._next_received()
        if fetched is None:
            return
        end = self._positions[topic_partition].offset
        self._positions[topic_partition] = before  # it moves record by record from here
        try:
            self.iteration.begin(fetched, end=end)
        except BaseException:
            self._go_to({topic_partition: before})
            raise

    def end_iteration(self) -> None:
        """Moves the position past all that was under iteration, and past the gap that compaction
        may have left behind it."""
        current = self.iteration.batch
        if current is not None:
            self._move(current.topic_partition, self.iteration.end_offset)
            self.iteration.end()

    def _note_iteration(self) -> None:
        """Move the position of what is under iteration past what was handed out."""
        current, next_offset = self.iteration.batch, self.iteration.next_offset
        if current is not None and next_offset is not None:
            self._move(current.topic_partition, next_offset)

"""A Spark task's work: read its offset ranges, and yield arrow batches for Spark.

A task gets its ranges and the brokers' addresses in its input partition. It talks to brokers only.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from spark_logbus.client import Admin, Cluster, FetchedColumns, FirstFetches, RangeReader
from spark_logbus.datasource.batch_sizer import BatchSizer
from spark_logbus.datasource.columns import ColumnChoice
from spark_logbus.datasource.input_partition import RangesPartition
from spark_logbus.datasource.rows import RowAssembler
from spark_logbus.errors import OffsetOutOfRangeError, UnknownTopicError
from spark_logbus.model import Earliest, Latest, OffsetRange
from spark_logbus.offsets.data_loss import (
    AboveEnd,
    BelowLogStart,
    DataLoss,
    GivenUp,
    TopicGone,
    TopicRecreated,
    apply_policy,
)
from spark_logbus.offsets.snapshot import Span
from spark_logbus.spark.worker import shared_cluster, task_of_worker

if TYPE_CHECKING:
    from spark_logbus.client.fetch.first_fetches import FirstFetch
    from spark_logbus.client.fetch.values import ValueReader

logger = logging.getLogger(__name__)

_REMEDY: Final = (
    "Read with another version of the schema (option schemaVersion), or have such records left out "
    "(option onUndecodable: drop) or kept beside the others (keep)."
)


def read_partition(
    partition: InputPartition, columns: ColumnChoice, *, fail_on_data_loss: bool
) -> Iterator[pa.RecordBatch]:
    """The arrow batches of one input partition; none for the one that Spark makes up when a plan
    has no input partition at all."""
    if not isinstance(partition, RangesPartition):
        return
    with task_of_worker():
        cluster = shared_cluster(partition.bootstrap, partition.rack)
        yield from read_ranges(partition, cluster, columns, fail_on_data_loss=fail_on_data_loss)


def read_ranges(
    partition: RangesPartition, cluster: Cluster, columns: ColumnChoice, *, fail_on_data_loss: bool
) -> Iterator[pa.RecordBatch]:
    """The arrow batches of ``partition``, read through ``cluster``, in the order of its ranges."""
    values = _value_readers(partition, columns)
    assembler, sizer = RowAssembler(columns, values), BatchSizer()
    collected: list[FetchedColumns] = []
    for fetched in _fetched(
        partition, cluster, assembler, values, sizer, fail_on_data_loss=fail_on_data_loss
    ):
        collected.append(fetched)
        sizer.add(fetched.rows, fetched.size_bytes)
        del fetched  # or its memory could not be used for what comes next
        if sizer.is_enough:
            yield assembler.build(collected)
            sizer.handed_over()
            collected = []
    if collected:
        yield assembler.build(collected)
    for topic, reader in values.items():
        if reader.dropped:
            logger.warning(
                "%d records of %s were left out, as they do not decode.", reader.dropped, topic
            )


def _fetched(
    partition: RangesPartition,
    cluster: Cluster,
    assembler: RowAssembler,
    values: Mapping[str, ValueReader],
    sizer: BatchSizer,
    *,
    fail_on_data_loss: bool,
) -> Iterator[FetchedColumns]:
    ranges, topic_ids = partition.ranges, partition.topic_ids
    first_fetches = FirstFetches(cluster, ranges, topic_ids, values=values)
    for number, offset_range in enumerate(ranges):
        yield from RangeRead(
            cluster,
            offset_range,
            assembler.payload_columns,
            sizer,
            topic_id=topic_ids[offset_range.topic_partition.topic],
            fail_on_data_loss=fail_on_data_loss,
            received=first_fetches.take(number) if len(ranges) > 1 else None,
            values=values.get(offset_range.topic_partition.topic),
        ).columns()


def _value_readers(partition: RangesPartition, columns: ColumnChoice) -> dict[str, ValueReader]:
    """Returns the readers of topics that have a schema."""
    if not partition.schemas:
        return {}
    # Imported here: it brings what most tasks do not need.
    from avro_columns.values.resolved_tree import parse, record_of
    from spark_logbus.client.fetch.values import ValueReader
    from spark_logbus.schemas.avro_errors import logbus_errors

    @logbus_errors
    def fields_of(schema: str) -> list[str]:
        return [field.name for field in record_of(parse(schema)).fields]

    return {
        topic: ValueReader(
            schemas,
            fields=columns.value_fields(partial(fields_of, schemas.reader)),
            columns=columns.names,
            on_undecodable=columns.values.on_undecodable,
            remedy=_REMEDY,
        )
        for topic, schemas in partition.schemas.items()
    }


class RangeRead:
    """One range, from the first to the last record. Used once, by one thread."""

    def __init__(
        self,
        cluster: Cluster,
        offset_range: OffsetRange,
        wanted: Collection[str],
        sizer: BatchSizer,
        *,
        topic_id: str,
        fail_on_data_loss: bool,
        received: FirstFetch | None = None,
        values: ValueReader | None = None,
    ) -> None:
        self._values = values
        self._cluster = cluster
        self._topic_id = topic_id
        self._tp = offset_range.topic_partition
        self._position = offset_range.start  # of what comes next
        self._end = offset_range.end
        self._wanted = wanted
        self._sizer = sizer
        self._fail_on_data_loss = fail_on_data_loss
        self._received = received

    def columns(self) -> Iterator[FetchedColumns]:
        """The ``wanted`` columns of all records of the range, in order.

        Records that retention takes away during the read are found and decided on here: the read
        goes on after them or fails.
        """
        while self._position < self._end:
            try:
                yield from self._read_on()
                return
            except (OffsetOutOfRangeError, UnknownTopicError) as error:
                findings, go_on_at = self._examine(error)
                apply_policy(findings, fail_on_data_loss=self._fail_on_data_loss)
                self._position = go_on_at

    def _read_on(self) -> Iterator[FetchedColumns]:
        left = OffsetRange(self._tp, self._position, self._end)
        received, self._received = self._received, None
        with RangeReader(
            self._cluster, left, topic_id=self._topic_id, received=received, values=self._values
        ) as reader:
            while True:
                fetched = reader.next_columns(
                    self._wanted,
                    enough_rows=self._sizer.missing_rows,
                    enough_bytes=self._sizer.missing_bytes,
                )
                if fetched is None:
                    return
                self._position = fetched.next_offset
                yield fetched
                del fetched

    def _examine(
        self, error: OffsetOutOfRangeError | UnknownTopicError
    ) -> tuple[list[DataLoss], int]:
        """The loss that broke the read off, and where it can go on; raises ``error`` if none
        did."""
        admin = Admin(self._cluster)
        try:
            current = admin.describe([self._tp.topic], ends=False)[self._tp.topic].topic_id
            if current != self._topic_id:
                found = TopicRecreated(self._tp.topic, self._topic_id, current)
                return [found], self._end
            start = admin.list_offsets({self._tp: Earliest()})[self._tp] or 0
            end = admin.list_offsets({self._tp: Latest()})[self._tp] or 0
            lost = admin.lost_offsets(self._tp)
        except UnknownTopicError:
            return [TopicGone(self._tp.topic)], self._end
        if self._position < start:
            return [BelowLogStart(self._tp, self._position, start)], min(start, self._end)
        given_up = Span(start, end, lost).lost_at(self._position)
        if given_up is not None:
            found_lost = GivenUp(self._tp, self._position, given_up.end)
            return [found_lost], min(given_up.end, self._end)
        if self._end > end:
            return [AboveEnd(self._tp, self._end, end)], self._end
        raise error

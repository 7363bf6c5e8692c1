"""``df.write.format("logbus")`` and ``df.writeStream.format("logbus")``.

At least once: a task appends as it goes, and a task that fails or is repeated leaves what it had
appended. The commit messages say what each task appended where.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from spark_logbus.client import Admin, Bootstrap, Producer, ProducerConfig
from spark_logbus.errors import UnknownTopicError
from spark_logbus.model import TopicPartition
from spark_logbus.retry import RetryPolicy
from spark_logbus.sink.columns import SinkColumns, check_columns
from spark_logbus.sink.options import SinkOptions, parse_options
from spark_logbus.sink.task import RECORD_BATCH_BYTES, Appended, Delivery
from spark_logbus.spark.driver import DriverConnections
from spark_logbus.spark.worker import shared_cluster, task_of_worker

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaskAppends(WriterCommitMessage):
    """A task's report to the driver: what it appended to each partition. Picklable."""

    appended: Mapping[TopicPartition, Appended]


@dataclass(frozen=True, slots=True)
class WritePlan:
    """The settings of all tasks of a write. Picklable, without connections."""

    options: SinkOptions
    columns: SinkColumns
    bootstrap: Bootstrap


def plan_write(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> WritePlan:
    """Check options, columns and topic on the driver, before any task runs."""
    parsed = parse_options(options, overwrite=overwrite)
    columns = check_columns(schema, topic_given=parsed.topic is not None)
    link = DriverConnections(parsed.zookeeper)

    def look_up() -> Bootstrap:
        if parsed.topic is not None:
            _require_topic(link.admin(), parsed.topic)
        return link.bootstrap()

    try:
        bootstrap = RetryPolicy().at_first_contact().retry("Looking up the topic", look_up)
    finally:
        link.close()
    return WritePlan(parsed, columns, bootstrap)


def _require_topic(admin: Admin, topic: str) -> None:
    try:
        admin.describe([topic], ends=False)
    except UnknownTopicError as error:
        known = ", ".join([one.name for one in admin.topics()][:20]) or "none"
        raise UnknownTopicError(
            f"The cluster has no topic {topic}; it has: {known}. Topics are not created by "
            "writing to them; create it first."
        ) from error


def write_task(plan: WritePlan, arrow_batches: Iterator[pa.RecordBatch]) -> TaskAppends:
    """Run one task."""
    config = ProducerConfig(
        acks=plan.options.acks,
        compression=plan.options.compression,
        arrow_piece_bytes=2 * RECORD_BATCH_BYTES,
    )
    with task_of_worker(), Producer(shared_cluster(plan.bootstrap), config) as producer:
        delivery = Delivery(producer, plan.columns, topic=plan.options.topic)
        return TaskAppends(delivery.deliver(arrow_batches))


class LogbusBatchWriter(DataSourceArrowWriter):
    """One batch write. Picklable; tasks get a copy each."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskAppends:
        return write_task(self._plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        records, partitions = _totals(messages)
        logger.info("The write appended %d records to %d partitions.", records, partitions)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _warn_of_leftovers("write", messages)


class LogbusStreamWriter(DataSourceStreamArrowWriter):
    """The write of one micro-batch. Picklable; Spark makes one for the tasks of each micro-batch
    and another, in another process, for its commit."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskAppends:
        return write_task(self._plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        records, partitions = _totals(messages)
        logger.info(
            "Micro-batch %d appended %d records to %d partitions.", batchId, records, partitions
        )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _warn_of_leftovers(f"micro-batch {batchId}", messages)


def _totals(messages: Sequence[WriterCommitMessage | None]) -> tuple[int, int]:
    """Records and distinct partitions; tasks that failed or were overtaken left None."""
    reports = [message for message in messages if isinstance(message, TaskAppends)]
    records = sum(one.records for report in reports for one in report.appended.values())
    return records, len(
        {topic_partition for report in reports for topic_partition in report.appended}
    )


def _warn_of_leftovers(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    records, partitions = _totals(messages)
    if not records:
        # What a task appended before it failed is not known here; usually it was refused.
        logger.info("The %s failed before any of its tasks had appended all of its records.", what)
        return
    logger.warning(
        "The %s failed, but tasks of it that ended have appended %d records to %d partitions, and "
        "those that failed may have appended some; a repetition appends them again.",
        what,
        records,
        partitions,
    )


def batch_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> LogbusBatchWriter:
    return LogbusBatchWriter(plan_write(options, schema, overwrite=overwrite))


def stream_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> LogbusStreamWriter:
    return LogbusStreamWriter(plan_write(options, schema, overwrite=overwrite))

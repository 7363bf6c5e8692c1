"""``df.write.format("logbus")`` and ``df.writeStream.format("logbus")``.

Exactly once: tasks stage, and the driver's commit decides (see ``commit``). Or at least once: a
task appends as it goes, and one that fails or is repeated leaves what it had appended. The commit
messages say what each task wrote where.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from spark_logbus.client import (
    Admin,
    Bootstrap,
    Cluster,
    Producer,
    ProducerConfig,
    StagedTask,
)
from spark_logbus.client.schemas.topic import WriterSchema
from spark_logbus.errors import InvalidOptionError, UnknownTopicError
from spark_logbus.model import TopicPartition
from spark_logbus.offsets.descriptions import TopicDescription
from spark_logbus.record.stage_id import stage_id
from spark_logbus.retry import RetryPolicy
from spark_logbus.sink import commit as commits
from spark_logbus.sink.columns import SinkColumns, check_columns
from spark_logbus.sink.commit import AtomicWrite, StagedMessage
from spark_logbus.sink.options import Delivery, SinkOptions, parse_options
from spark_logbus.sink.task import RECORD_BATCH_BYTES, Appended, TaskWriter
from spark_logbus.spark.worker import driver_cluster, shared_cluster, task_of_worker
from spark_logbus.topic_schemas import VALUE_ENCODING

if TYPE_CHECKING:
    from spark_logbus.audit.counts import Tallies
    from spark_logbus.sink.audit import TaskCounts

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaskAppends(WriterCommitMessage):
    """A task's report to the driver: what it appended to each partition. Picklable."""

    appended: Mapping[TopicPartition, Appended]
    #: What it has appended by topic and window, if that is to be audited.
    counts: Mapping[str, Tallies] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WritePlan:
    """The settings of all tasks of a write. Picklable, without connections."""

    options: SinkOptions
    columns: SinkColumns
    bootstrap: Bootstrap
    #: Of the option's topic, if that has one.
    schema: WriterSchema | None = None
    #: Of the audit topic, if the write is to be audited.
    audit_schema: WriterSchema | None = None


def plan_write(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool, streaming: bool
) -> WritePlan:
    """Check options, columns and topic on the driver, before any task runs."""
    parsed = parse_options(options, overwrite=overwrite, streaming=streaming)
    problem: InvalidOptionError | None = None
    try:
        columns = check_columns(schema, topic_given=parsed.topic is not None)
    except InvalidOptionError as error:
        if parsed.topic is None:
            raise
        problem = error  # unless the topic has a schema

    def look_up() -> WritePlan:
        cluster = driver_cluster(parsed.zookeeper)
        # Rows that name their topics may go to any that the driver may write.
        topics = ["*"] if parsed.topic is None else [parsed.topic]
        if parsed.topic is not None:
            described = _require_topic(cluster, parsed.topic)
            if VALUE_ENCODING in described.config:
                # Imported here: writes of bytes need none of it.
                from spark_logbus.sink.typed_plan import plan_typed

                typed, found = plan_typed(parsed, schema, described)
                return WritePlan(parsed, typed, cluster.for_tasks(topics, "write"), found)
        if problem is not None:
            raise problem
        if parsed.evolve:
            raise InvalidOptionError(
                "Option evolve is for a topic with a schema, and this one has none; leave it out."
            )
        return WritePlan(parsed, columns, cluster.for_tasks(topics, "write"))

    plan = RetryPolicy().at_first_contact().retry("Looking up the topic", look_up)
    if not parsed.audit:
        return plan
    # Imported here: most writes need none of it.
    from spark_logbus.sink.audit import schema_of_reports

    return replace(plan, audit_schema=schema_of_reports(parsed.zookeeper))


def _require_topic(cluster: Cluster, topic: str) -> TopicDescription:
    admin = Admin(cluster)
    try:
        return admin.describe([topic], ends=False)[topic]
    except UnknownTopicError as error:
        known = ", ".join([one.name for one in admin.topics()][:20]) or "none"
        raise UnknownTopicError(
            f"The cluster has no topic {topic}; it has: {known}. Topics are not created by "
            f"writing to them; create it first.{cluster.what_hides}"
        ) from error


def append_task(plan: WritePlan, arrow_batches: Iterator[pa.RecordBatch]) -> TaskAppends:
    """Run one task of a write at least once."""
    counts = _task_counts(plan)
    with task_of_worker():
        with _producer(plan, shared_cluster(plan.bootstrap), counts) as producer:
            writer = TaskWriter(producer, plan.columns, topic=plan.options.topic)
            appended = writer.write(arrow_batches)
        return TaskAppends(appended, {} if counts is None else counts.counts)


def stage_task(
    plan: WritePlan, write: AtomicWrite, arrow_batches: Iterator[pa.RecordBatch]
) -> StagedMessage:
    """Run one task of an atomic write."""
    attempt = commits.attempt_number()
    cluster = shared_cluster(plan.bootstrap)
    counts = _task_counts(plan)
    with task_of_worker():
        try:
            with _producer(plan, cluster, counts, write, attempt) as producer:
                writer = TaskWriter(producer, plan.columns, topic=plan.options.topic)
                written = writer.write(arrow_batches)
        except BaseException:
            commits.discard_attempt(cluster, write, attempt)
            raise
        records = {topic_partition: one.records for topic_partition, one in written.items()}
        staged = StagedTask(attempt, records, writer.size_bytes, writer.unplaced)
        return StagedMessage(write, staged, {} if counts is None else counts.counts)


def _task_counts(plan: WritePlan) -> TaskCounts | None:
    """Returns the counter of a task's records; None if they are not audited."""
    if plan.audit_schema is None:
        return None
    from spark_logbus.sink.audit import TaskCounts

    return TaskCounts()


def _producer(
    plan: WritePlan,
    cluster: Cluster,
    counts: TaskCounts | None,
    write: AtomicWrite | None = None,
    attempt: int = 0,
) -> Producer:
    config = ProducerConfig(
        acks=plan.options.acks,
        compression=plan.options.compression,
        arrow_piece_bytes=2 * RECORD_BATCH_BYTES,
    )
    schemas = {}
    if plan.schema is not None and plan.options.topic is not None:
        schemas[plan.options.topic] = plan.schema
    interceptors = [] if counts is None else [counts]
    return Producer(
        cluster,
        config,
        stage_id=None if write is None else stage_id(write.number, attempt),
        stage_for=None if write is None else write.identity,
        schemas=schemas,
        interceptors=interceptors,
    )


def _commit_staged(plan: WritePlan, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Commit an atomic write, and report what it has appended."""
    cluster = driver_cluster(plan.options.zookeeper)
    outcome = commits.commit(cluster, plan.options, messages)
    if plan.audit_schema is None or outcome is None:
        return
    if not outcome.committed and "timestamp" not in plan.columns.record:
        return  # what was committed before has its own times, which nobody here knows
    from spark_logbus.sink.audit import report

    staged = [message for message in messages if isinstance(message, StagedMessage)]
    report(
        cluster, plan.audit_schema, [message.counts for message in staged], staged[0].write.identity
    )


def _end_appended(
    plan: WritePlan, what: str, messages: Sequence[WriterCommitMessage | None]
) -> None:
    """Log what a write at least once has appended, and report it."""
    _log_appended(what, messages)
    if plan.audit_schema is None:
        return
    from spark_logbus.sink.audit import report

    counts = [message.counts for message in messages if isinstance(message, TaskAppends)]
    report(driver_cluster(plan.options.zookeeper), plan.audit_schema, counts, None)


class LogbusBatchWriter(DataSourceArrowWriter):
    """One batch write. Picklable; tasks get a copy each."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan
        exactly_once = plan.options.delivery is Delivery.EXACTLY_ONCE
        self._write = commits.batch_write(plan.options) if exactly_once else None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskAppends | StagedMessage:
        if self._write is not None:
            return stage_task(self._plan, self._write, iterator)
        return append_task(self._plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._write is not None:
            _commit_staged(self._plan, messages)
        else:
            _end_appended(self._plan, "The write", messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._write is not None:
            commits.abort(driver_cluster(self._plan.options.zookeeper), self._write)
        else:
            _warn_of_leftovers("write", messages)


class LogbusStreamWriter(DataSourceStreamArrowWriter):
    """The write of one micro-batch. Picklable; Spark makes one for the tasks of each micro-batch
    and another, in another process, for its commit."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan
        self._exactly_once = plan.options.delivery is Delivery.EXACTLY_ONCE
        self._secret = secrets.token_hex(16)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskAppends | StagedMessage:
        if self._exactly_once:
            return stage_task(self._plan, commits.micro_batch_write(self._secret), iterator)
        return append_task(self._plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if self._exactly_once:
            _commit_staged(self._plan, messages)
        else:
            _end_appended(self._plan, f"Micro-batch {batchId}", messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if not self._exactly_once:
            _warn_of_leftovers(f"micro-batch {batchId}", messages)
            return
        # Tasks that failed have dropped what they had staged, and said nothing.
        writes = {message.write for message in messages if isinstance(message, StagedMessage)}
        for write in writes:
            commits.abort(driver_cluster(self._plan.options.zookeeper), write)


def _totals(messages: Sequence[WriterCommitMessage | None]) -> tuple[int, int]:
    """Records and distinct partitions; tasks that failed or were overtaken left None."""
    reports = [message for message in messages if isinstance(message, TaskAppends)]
    records = sum(one.records for report in reports for one in report.appended.values())
    return records, len(
        {topic_partition for report in reports for topic_partition in report.appended}
    )


def _log_appended(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    records, partitions = _totals(messages)
    logger.info("%s appended %d records to %d partitions.", what, records, partitions)


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
    return LogbusBatchWriter(plan_write(options, schema, overwrite=overwrite, streaming=False))


def stream_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> LogbusStreamWriter:
    return LogbusStreamWriter(plan_write(options, schema, overwrite=overwrite, streaming=True))

"""``spark.read.format("logbus")``: ranges are fixed once, when the read is planned."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_logbus.clock import SystemClock
from spark_logbus.datasource.columns import ColumnChoice
from spark_logbus.datasource.input_partition import RangesPartition
from spark_logbus.datasource.options import SourceOptions
from spark_logbus.datasource.planning import plan_input_partitions
from spark_logbus.datasource.task import read_partition
from spark_logbus.datasource.value_schemas import ReadSchemas
from spark_logbus.model import OffsetRange, TopicPartition
from spark_logbus.offsets.data_loss import DataLoss, apply_policy, crossed, of_current_topics
from spark_logbus.offsets.position import Committed
from spark_logbus.offsets.resolve import locate, make_ranges
from spark_logbus.offsets.snapshot import Snapshot, take_snapshot
from spark_logbus.retry import RetryPolicy
from spark_logbus.spark.driver import DriverConnections


class LogbusBatchReader(DataSourceReader):
    """One batch read. Picklable, without connections: Spark sends it to every task."""

    def __init__(self, options: SourceOptions, columns: ColumnChoice) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> list[RangesPartition]:
        """Resolve starts and ends and cut the ranges. Called once for each ``load``: what comes
        later is not seen, and all actions on the DataFrame read the same records."""
        connections = DriverConnections(self._options.zookeeper, group=self._options.group)
        retry_policy = RetryPolicy().at_first_contact()
        try:
            return retry_policy.retry(
                "Planning the read", lambda: self._input_partitions(connections)
            )
        finally:
            connections.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(
            partition, self._columns, fail_on_data_loss=self._options.fail_on_data_loss
        )

    def _input_partitions(self, connections: DriverConnections) -> list[RangesPartition]:
        snapshot = take_snapshot(connections.admin(), self._options.selection, missing_ok=False)
        ranges = self._ranges(snapshot, connections)
        return plan_input_partitions(
            ranges,
            self._options,
            connections.admin(),
            bootstrap=connections.bootstrap(snapshot.topic_ids),
            topic_ids=snapshot.topic_ids,
            schemas=ReadSchemas(self._columns, include_headers=self._options.include_headers).find(
                snapshot, connections.registry
            ),
        )

    def _ranges(self, snapshot: Snapshot, connections: DriverConnections) -> list[OffsetRange]:
        options = self._options
        committed: dict[TopicPartition, int] = {}
        findings: list[DataLoss] = []
        progress = (
            connections.progress() if isinstance(options.starting.positions, Committed) else None
        )
        if progress is not None:
            committed, findings = of_current_topics(progress.committed(), snapshot.topic_ids)
        admin, now_us = connections.admin(), SystemClock().now_us()
        starts = locate(options.starting, snapshot, admin, now_us=now_us, committed=committed)
        ends = locate(options.ending, snapshot, admin, now_us=now_us)
        apply_policy(
            [*findings, *starts.findings, *ends.findings],
            fail_on_data_loss=options.fail_on_data_loss,
        )
        ranges = make_ranges(
            starts.offsets, ends.offsets, options=(options.starting.option, options.ending.option)
        )
        spans = snapshot.spans
        findings = [
            finding
            for each in ranges
            for finding in crossed(
                each.topic_partition, each.start, each.end, spans[each.topic_partition]
            )
        ]
        apply_policy(findings, fail_on_data_loss=options.fail_on_data_loss)
        return [
            OffsetRange(each.topic_partition, *piece)
            for each in ranges
            for piece in spans[each.topic_partition].pieces(each.start, each.end)
        ]

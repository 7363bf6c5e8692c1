"""``spark.readStream.format("logbus")``: the adapter between Spark's interface and the driver.

Spark creates this reader twice: once in a process that lives as long as the query run and is
asked for offsets and input partitions, and once to be pickled for the tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from spark_logbus.datasource import prefetched_rows
from spark_logbus.datasource.columns import ColumnChoice
from spark_logbus.datasource.options import SourceOptions
from spark_logbus.datasource.stream_driver import StreamDriver
from spark_logbus.errors import UnsupportedVersionError
from spark_logbus.spark.discovery import Discovery
from spark_logbus.spark.driver import DriverConnections
from spark_logbus.spark.driver_process import spark_driver
from spark_logbus.spark.options import LARGEST_NUMBER
from spark_logbus.spark.termination import CleanUp
from spark_logbus.spark.worker_socket import send_at_once

_ALL = ReadAllAvailable()


class LogbusStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming read. Picklable until Spark asks it for an offset; not thread-safe."""

    def __init__(
        self,
        options: SourceOptions,
        columns: ColumnChoice,
        discovery: Discovery | None = None,
        *,
        brokers: Sequence[tuple[str, int]] = (),
    ) -> None:
        self._options = options
        self._columns = columns
        self._discovery = discovery  # only where the reader is asked for offsets
        self._brokers = brokers
        self._driver: StreamDriver | None = None
        self._clean_up: CleanUp | None = None

    def prepareForTriggerAvailableNow(self) -> None:
        self._on_driver().prepare_available_now()

    def getDefaultReadLimit(self) -> ReadLimit:
        # Spark knows one limit at a time, and hands it back or ReadAllAvailable. So this one
        # stands for all of ours, which are applied when a micro-batch is planned.
        limits = self._options.trigger
        return ReadMaxRows(limits.max_records or LARGEST_NUMBER) if limits.bounded else _ALL

    def initialOffset(self) -> dict[str, Any]:
        return self._on_driver().initial()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return dict(self._on_driver().latest(start, limited=_is_limited(limit)))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._on_driver().report()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        planned = self._on_driver().plan_input(start, end)
        if planned.rows is not None:
            prefetched_rows.hand_over(self, planned.rows)
        return planned.partitions

    def commit(self, end: dict[str, Any]) -> None:
        self._on_driver().commit(end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Imported here: tasks alone need it, and what it brings.
        from spark_logbus.datasource.task import read_partition

        return read_partition(
            partition, self._columns, fail_on_data_loss=self._options.fail_on_data_loss
        )

    def stop(self) -> None:
        clean_up, self._clean_up, self._driver = self._clean_up, None, None
        if clean_up is not None:
            clean_up()

    def _on_driver(self) -> StreamDriver:
        if self._driver is None:
            send_at_once()
            pid, application = spark_driver()
            connections = DriverConnections(
                self._options.zookeeper,
                group=self._options.group,
                pid=pid,
                application=application,
                discovery=self._discovery,
                brokers=self._brokers,
            )
            self._discovery = None
            self._driver = StreamDriver(
                self._options,
                connections=connections,
                columns=self._columns,
                background=ThreadPoolExecutor(2, thread_name_prefix="logbus-stream"),
                prefetch=bool(self._options.max_prefetch_bytes) and prefetched_rows.is_available(),
            )
            # When a query ends, Spark terminates the process, whether or not it calls stop().
            self._clean_up = CleanUp(self._driver.close)
            self._clean_up.at_sigterm()
        return self._driver


def _is_limited(limit: ReadLimit) -> bool:
    """Spark hands over the limit that it was given, or ReadAllAvailable."""
    match limit:
        case ReadAllAvailable():
            return False
        case ReadMaxRows():
            return True
    raise UnsupportedVersionError(
        f"Spark asks for a read limit of the kind {type(limit).__name__}, which the logbus source "
        "does not know; it knows ReadMaxRows and ReadAllAvailable."
    )

"""Readers for ``pyspark_logbus.DefaultSource``, which delegates to them.

The kinds of read are imported where they are made. The process that plans a stream begins when the
stream does: its first micro-batch waits for what is imported here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from spark_logbus.datasource.columns import choose_columns, full_schema
from spark_logbus.datasource.options import parse_options, wants_headers
from spark_logbus.spark.discovery import Discovery
from spark_logbus.spark.driver_process import plans_a_stream

if TYPE_CHECKING:
    from spark_logbus.datasource.batch_reader import LogbusBatchReader
    from spark_logbus.datasource.stream_reader import LogbusStreamReader


def source_schema(options: Mapping[str, str]) -> StructType:
    """The columns of a read without ``.schema(...)``."""
    return full_schema(include_headers=wants_headers(options))


def reader_of_batch(options: Mapping[str, str], schema: StructType) -> LogbusBatchReader:
    from spark_logbus.datasource.batch_reader import LogbusBatchReader

    parsed = parse_options(options, streaming=False)
    return LogbusBatchReader(parsed, choose_columns(schema, include_headers=parsed.include_headers))


def reader_of_stream(options: Mapping[str, str], schema: StructType) -> LogbusStreamReader:
    parsed = parse_options(options, streaming=True)
    columns = choose_columns(schema, include_headers=parsed.include_headers)
    discovery = None
    if plans_a_stream():
        discovery = Discovery(parsed.zookeeper, keep_session=parsed.group is not None)
        discovery.begin()
    # Imported here, while ZooKeeper is asked.
    from spark_logbus.datasource.stream_reader import LogbusStreamReader

    return LogbusStreamReader(parsed, columns, discovery)

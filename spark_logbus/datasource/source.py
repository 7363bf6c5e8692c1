"""Readers for ``pyspark_logbus.DefaultSource``, which delegates to them."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import StructType

from spark_logbus.datasource.batch_reader import LogbusBatchReader
from spark_logbus.datasource.columns import choose_columns, full_schema
from spark_logbus.datasource.options import parse_options, wants_headers
from spark_logbus.datasource.stream_reader import LogbusStreamReader


def source_schema(options: Mapping[str, str]) -> StructType:
    """The columns of a read without ``.schema(...)``."""
    return full_schema(include_headers=wants_headers(options))


def batch_reader(options: Mapping[str, str], schema: StructType) -> LogbusBatchReader:
    parsed = parse_options(options, streaming=False)
    return LogbusBatchReader(parsed, choose_columns(schema, include_headers=parsed.include_headers))


def stream_reader(options: Mapping[str, str], schema: StructType) -> LogbusStreamReader:
    parsed = parse_options(options, streaming=True)
    columns = choose_columns(schema, include_headers=parsed.include_headers)
    return LogbusStreamReader(parsed, columns)

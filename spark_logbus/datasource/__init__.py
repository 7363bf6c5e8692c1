"""The Spark source, batch and stream, on PySpark's Python Data Source API."""

from spark_logbus.datasource.source import (
    reader_of_batch,
    reader_of_stream,
    seen_brokers,
    source_schema,
)

__all__ = ["reader_of_batch", "reader_of_stream", "seen_brokers", "source_schema"]

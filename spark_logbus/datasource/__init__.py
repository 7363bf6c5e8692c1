"""The Spark source, batch and stream, on PySpark's Python Data Source API."""

from spark_logbus.datasource.source import batch_reader, source_schema, stream_reader

__all__ = ["batch_reader", "source_schema", "stream_reader"]

"""The Spark sink, batch and stream, on PySpark's Python Data Source API."""

from spark_logbus.sink.writer import batch_writer, stream_writer

__all__ = ["batch_writer", "stream_writer"]

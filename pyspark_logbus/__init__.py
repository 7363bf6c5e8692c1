"""Lets Spark find the format "logbus" by itself: ``spark.read.format("logbus")``.

Spark imports every top-level module whose name starts with ``pyspark_`` and registers its
``DefaultSource``. One that fails to import ends discovery for all, so this module imports nothing
but Spark's interface and a module that needs Python alone, and everything else when it is used.

All of Spark's Python workers that have to do with the format import this module, since they are
handed the ``DefaultSource``: what such a process does once stands here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from spark_logbus.spark.hang_ups import end_quietly_when_dropped

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from spark_logbus.spark.seen_brokers import SeenBrokers

__all__ = ["DefaultSource"]

end_quietly_when_dropped()


class DefaultSource(DataSource):
    """Reads and writes topics of a logbus cluster; see docs/spark.md for options and columns."""

    @classmethod
    def name(cls) -> str:
        return "logbus"

    _seen: SeenBrokers | None = None
    """The brokers that told the columns. Spark asks for those first, then pickles the source."""

    def schema(self) -> StructType:
        from spark_logbus.datasource import seen_brokers, source_schema

        schema = source_schema(self.options)
        self._seen = seen_brokers(self.options)
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        from spark_logbus.datasource import reader_of_batch

        return reader_of_batch(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from spark_logbus.spark.loading import without_collections

        with without_collections():
            from spark_logbus.datasource import reader_of_stream

            return reader_of_stream(self.options, schema, self._seen)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from spark_logbus.sink import batch_writer

        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from spark_logbus.sink import stream_writer

        return stream_writer(self.options, schema, overwrite=overwrite)

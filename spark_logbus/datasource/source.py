"""Readers for ``pyspark_logbus.DefaultSource``, which delegates to them.

The kinds of read are imported where they are made. The process that plans a stream begins when the
stream does: its first micro-batch waits for what is imported here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from spark_logbus.datasource.columns import ColumnChoice
from spark_logbus.datasource.options import parse_options, schema_options
from spark_logbus.spark.discovery import Discovery
from spark_logbus.spark.driver_process import plans_a_stream
from spark_logbus.spark.seen_brokers import SeenBrokers

if TYPE_CHECKING:
    from spark_logbus.datasource.batch_reader import LogbusBatchReader
    from spark_logbus.datasource.stream_reader import LogbusStreamReader


def source_schema(options: Mapping[str, str]) -> StructType:
    """The columns of a read without ``.schema(...)``, which are those of the topics."""
    from spark_logbus.datasource.value_schemas import look_up_schema

    return look_up_schema(schema_options(options))


def seen_brokers(options: Mapping[str, str]) -> SeenBrokers:
    """The brokers that have told this process the columns, or that answer now."""
    from spark_logbus.clock import SystemClock
    from spark_logbus.spark.worker import driver_cluster

    cluster = driver_cluster(schema_options(options).zookeeper)
    encrypts = cluster.config.tls is not None
    addresses = (
        (one.host, one.tls_port if encrypts and one.tls_port else one.port)
        for one in cluster.bootstrap.brokers
    )
    return SeenBrokers(tuple(addresses), SystemClock().now_us())


def reader_of_batch(options: Mapping[str, str], schema: StructType) -> LogbusBatchReader:
    from spark_logbus.datasource.batch_reader import LogbusBatchReader

    parsed = parse_options(options, streaming=False)
    return LogbusBatchReader(parsed, ColumnChoice(schema, parsed.values))


def reader_of_stream(
    options: Mapping[str, str], schema: StructType, seen: SeenBrokers | None = None
) -> LogbusStreamReader:
    """Make the reader of a stream; ``seen`` are the brokers that told its columns."""
    parsed = parse_options(options, streaming=True)
    columns = ColumnChoice(schema, parsed.values)
    discovery = None
    # A group is in ZooKeeper, which is asked then in any case.
    brokers = seen.addresses if seen and seen.are_fresh() and parsed.group is None else ()
    if plans_a_stream() and not brokers:
        discovery = Discovery(parsed.zookeeper, keep_session=parsed.group is not None)
        discovery.begin()
    # Imported here, while ZooKeeper is asked.
    from spark_logbus.datasource.stream_reader import LogbusStreamReader

    return LogbusStreamReader(parsed, columns, discovery, brokers=brokers)

"""Finds which schemas values were written with, for who has to have them before they are read."""

from __future__ import annotations

from collections.abc import Iterator

from avro_columns.confluent import confluent_ids
from spark_logbus.client.cluster.cluster import Cluster
from spark_logbus.client.fetch.range_reader import RangeReader
from spark_logbus.model import OffsetRange
from spark_logbus.record.format import PLAIN_BYTES_SCHEMA


def schema_ids(cluster: Cluster, offset_range: OffsetRange, *, topic_id: str) -> Iterator[int]:
    """The ids that the records of a topic with a schema name, in the headers of record batches or,
    in Confluent's wire format, in the values themselves; in order, and many times each. Raises what
    reading the range does, behind the ids that stand before."""
    with RangeReader(cluster, offset_range, topic_id=topic_id, without_values=True) as reader:
        for fetched in reader:
            schema_id = fetched.header.schema_id
            if schema_id != PLAIN_BYTES_SCHEMA:
                yield schema_id
            else:
                yield from confluent_ids(fetched.arrow_batch.column("value")).groups()

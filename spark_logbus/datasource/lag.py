"""A stream's lag, as its progress reports it.

::

    {"to": {"orders": {"0": 120, "1": 95}},    high watermarks, shaped like the end offset's "to"
     "lost": {"orders": {"0": [[80, 99]]}},    offsets without records, where a log was given up
     "bytesBehind": 52428800}                  size of what lies between the two, if known

The lag is what the planned micro-batch leaves for later ones.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from spark_logbus.datasource.stream_offset import nest
from spark_logbus.errors import LogbusError
from spark_logbus.model import ONE_PIECE, OffsetRange, TopicPartition
from spark_logbus.offsets.snapshot import Snapshot
from spark_logbus.spark.driver import DriverConnections

logger = logging.getLogger(__name__)


def report(
    seen: Snapshot, planned: Mapping[TopicPartition, int], connections: DriverConnections
) -> dict[str, Any]:
    """The report for a micro-batch that ends at ``planned``, with ``seen`` on the brokers.

    Asks the brokers only if something is behind. Spark ends a query whose report fails, so a
    size that cannot be had is left out.
    """
    told: dict[str, Any] = {"to": nest(seen.ends())}
    lost = {each: [list(range_) for range_ in span.lost] for each, span in seen.spans.items()}
    if any(lost.values()):
        told["lost"] = nest({each: ranges for each, ranges in lost.items() if ranges})
    try:
        told["bytesBehind"] = _size(behind(seen, planned), connections)
    except LogbusError as error:
        logger.warning("How many bytes the query is behind is not known now: %s", error)
    return told


def behind(seen: Snapshot, planned: Mapping[TopicPartition, int]) -> list[OffsetRange]:
    """The visible records that are not part of ``planned``, of its partitions (pure)."""
    return [
        OffsetRange(topic_partition, *piece)
        for topic_partition, end in sorted(planned.items())
        if (span := seen.spans.get(topic_partition)) is not None
        for piece in span.pieces(span.clamp(end), span.end)
    ]


def _size(ranges: list[OffsetRange], connections: DriverConnections) -> int:
    if not ranges:
        return 0
    pieces = connections.admin().split_many(ranges, target_bytes=ONE_PIECE)
    return sum(size for _, size in pieces.values())

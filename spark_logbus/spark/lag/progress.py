"""Reads a query's progress for its logbus sources (pure).

A logbus source is recognised by its end offset, which carries a version: Spark's own description
of a Python source does not name the format.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_logbus.model import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLag:
    """One source of one progress event. Immutable."""

    number: int
    """The number of the source in the query, from 0."""

    behind: Mapping[TopicPartition, int]
    """Records between the micro-batch's end and the high watermark; empty if not known."""

    bytes_behind: int | None
    """Their size on the brokers, if known."""

    input_rows: int
    input_rows_per_second: float
    processed_rows_per_second: float

    def by_topic(self) -> dict[str, list[int]]:
        """``behind``, topic by topic."""
        topics: dict[str, list[int]] = {}
        for topic_partition, records in sorted(self.behind.items()):
            topics.setdefault(topic_partition.topic, []).append(records)
        return topics


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryLag:
    """The logbus sources of one progress event. Immutable."""

    id: str
    run_id: str
    name: str
    """The query's name, else its id."""

    batch_id: int
    duration_s: float
    sources: tuple[SourceLag, ...]

    def records_behind(self) -> int:
        return sum(sum(source.behind.values()) for source in self.sources)


def read_progress(progress: Mapping[str, Any]) -> QueryLag:
    """A progress event as Spark writes it in JSON. Raises KeyError, TypeError or ValueError for
    one that no Spark that we know writes."""
    sources = (_source(number, source) for number, source in enumerate(progress["sources"]))
    return QueryLag(
        id=str(progress["id"]),
        run_id=str(progress["runId"]),
        name=progress.get("name") or str(progress["id"]),
        batch_id=int(progress["batchId"]),
        duration_s=float(progress.get("batchDuration") or 0) / 1000,
        sources=tuple(source for source in sources if source is not None),
    )


def _source(number: int, source: Mapping[str, Any]) -> SourceLag | None:
    end = _offset(source.get("endOffset"))
    if not (isinstance(end.get("version"), int) and "to" in end and "topics" in end):
        return None
    latest = _offset(source.get("latestOffset"))  # absent from a repeated micro-batch
    reached, ends, lost = _positions(end), _positions(latest), _lost(latest)
    return SourceLag(
        number=number,
        behind={
            topic_partition: max(
                0,
                ends[topic_partition]
                - offset
                - sum(max(0, after - max(first, offset)) for first, after in lost[topic_partition]),
            )
            for topic_partition, offset in reached.items()
            if topic_partition in ends
        },
        bytes_behind=latest.get("bytesBehind"),
        input_rows=int(source.get("numInputRows") or 0),
        input_rows_per_second=float(source.get("inputRowsPerSecond") or 0),
        processed_rows_per_second=float(source.get("processedRowsPerSecond") or 0),
    )


def _offset(value: Any) -> Mapping[str, Any]:
    """An offset, which some ways to a progress event leave as JSON text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, Mapping) else {}


def _lost(offset: Mapping[str, Any]) -> Mapping[TopicPartition, list[tuple[int, int]]]:
    """Ranges of offsets that stand for no records, of partitions whose log was given up."""
    found: defaultdict[TopicPartition, list[tuple[int, int]]] = defaultdict(list)
    for topic, partitions in offset.get("lost", {}).items():
        for partition, ranges in partitions.items():
            found[TopicPartition(topic, int(partition))] = [(int(a), int(b)) for a, b in ranges]
    return found


def _positions(offset: Mapping[str, Any]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(partition)): int(position)
        for topic, partitions in offset.get("to", {}).items()
        for partition, position in partitions.items()
    }

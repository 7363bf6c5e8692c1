"""Counts the records that are in a topic, and reads the reports of the audit topic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_logbus.audit.counts import WindowTally, add, tally_times
from spark_logbus.audit.report import MOMENTS, CounterReport, known_reports
from spark_logbus.client import Admin, Cluster, FetchedColumns, RangeReader
from spark_logbus.client.schemas.topic import find_value_schemas, opened_registry
from spark_logbus.errors import InvalidRequestError, UnknownTopicError
from spark_logbus.model import AtTimestamp, OffsetRange, TopicPartition
from spark_logbus.offsets.snapshot import Snapshot, Span, take_snapshot
from spark_logbus.record.rows.plain import scalar
from spark_logbus.selection import Topics
from spark_logbus.topic_schemas import VALUE_ENCODING

_TIMESTAMP: Final = "timestamp"
# Of one look at a partition: few enough that their times stay in the processor's cache.
_ROWS: Final = 1 << 18
_BYTES: Final = 16 << 20


@dataclass(slots=True)
class TopicCounts:
    """Tallies of the records in a topic, or another place, by window."""

    read_at_us: int
    """All that was acknowledged by then has been counted."""

    tallies: dict[int, WindowTally] = field(default_factory=dict)
    beyond: dict[int, WindowTally] = field(default_factory=dict)
    """Of these, the ones that stand at or after the offsets that were asked about."""

    expired_before_us: int | None = None
    """Windows that begin before this may have lost records to retention."""

    @property
    def records(self) -> int:
        return sum(tally.records for tally in self.tallies.values())


def snapshot_of(cluster: Cluster, topic: str) -> Snapshot:
    """Takes a snapshot of a topic. InvalidRequestError for one that cannot be audited."""
    snapshot = take_snapshot(Admin(cluster), Topics((topic,)), missing_ok=False)
    policy = snapshot.configs[topic].get("cleanup.policy", "")
    if "compact" in policy:
        raise InvalidRequestError(
            f"Topic {topic} is compacted (cleanup.policy is {policy}): records of a key disappear "
            "when a later one comes, so that what is there cannot be compared with what was sent. "
            "Audit the topic that it is made from."
        )
    return snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class CountPlan:
    """The records to count, by whatever engine."""

    ranges: tuple[OffsetRange, ...]
    read_at_us: int
    expired_before_us: int | None
    values: Any
    """What decodes them, of a topic with a schema."""

    def counts(self) -> TopicCounts:
        """Begins the counts, of no record yet."""
        return TopicCounts(self.read_at_us, expired_before_us=self.expired_before_us)

    def beyond(self, ends: Mapping[int, int]) -> list[OffsetRange]:
        """Cuts the ranges to the offsets at or after ``ends``, which are by partition."""
        return [
            OffsetRange(
                each.topic_partition,
                min(max(each.start, ends.get(each.topic_partition.partition, 0)), each.end),
                each.end,
            )
            for each in self.ranges
        ]


def plan_count(cluster: Cluster, topic: str, *, since_us: int) -> CountPlan:
    """Plans to count the present records of ``topic`` from the first of ``since_us`` or later on.

    Raises InvalidRequestError, UnknownTopicError and BrokerUnavailableError.
    """
    read_at_us = cluster.clock.now_us()
    snapshot = snapshot_of(cluster, topic)
    values = _only_times(cluster, topic, snapshot.configs[topic])
    ranges = _ranges_since(cluster, snapshot, since_us)
    expired = [
        before_us
        for each, span in snapshot.spans.items()
        if (before_us := _expired_before_us(cluster, each, span, values)) is not None
    ]
    return CountPlan(
        ranges=tuple(ranges),
        read_at_us=read_at_us,
        expired_before_us=max(expired, default=None),
        values=values,
    )


def _ranges_since(cluster: Cluster, snapshot: Snapshot, since_us: int) -> list[OffsetRange]:
    """Returns the present offsets from the first record of ``since_us`` or later on."""
    starts = Admin(cluster).list_offsets(dict.fromkeys(snapshot.spans, AtTimestamp(since_us)))
    ranges = []
    for topic_partition, span in sorted(snapshot.spans.items()):
        start = starts[topic_partition]
        first = span.end if start is None else span.clamp(start)
        ranges += [OffsetRange(topic_partition, *each) for each in span.pieces(first, span.end)]
    return ranges


def count_topic(
    cluster: Cluster,
    topic: str,
    *,
    window_us: int,
    since_us: int,
    beyond: Mapping[int, int] | None = None,
) -> TopicCounts:
    """Counts the records of ``topic`` of ``since_us`` or later, up to the present ends.

    Reads the records' times and, of a topic of columns, nothing else. ``beyond`` are offsets by
    partition: what stands there and later is counted apart as well. Raises what ``plan_count`` and
    ``RangeReader`` do.
    """
    plan = plan_count(cluster, topic, since_us=since_us)
    counts = plan.counts()
    for wanted in plan.ranges:
        split = None if beyond is None else beyond.get(wanted.topic_partition.partition, 0)
        for columns in _columns(cluster, wanted, plan.values, _TIMESTAMP):
            times = columns.columns[_TIMESTAMP]
            add(counts.tallies, tally_times(times, window_us=window_us))
            if split is not None:
                late = times.slice(_rows_before(columns, split))
                add(counts.beyond, tally_times(late, window_us=window_us))
    return counts


def _columns(
    cluster: Cluster, wanted: OffsetRange, values: Any, name: str
) -> Iterator[FetchedColumns]:
    """Reads one column of a range, as much at a time as stays in the processor's cache."""
    with RangeReader(cluster, wanted, values=values) as reader:
        while columns := reader.next_columns({name}, enough_rows=_ROWS, enough_bytes=_BYTES):
            yield columns


def _rows_before(columns: FetchedColumns, offset: int) -> int:
    """Returns how many of the records stand before ``offset``."""
    if columns.offsets is None:
        return min(max(0, offset - columns.base_offset), columns.rows)
    return int(pc.sum(pc.less(columns.offsets, scalar(offset, pa.int64()))).as_py())


def _expired_before_us(
    cluster: Cluster, topic_partition: TopicPartition, span: Span, values: Any
) -> int | None:
    """Returns when the first record that is left was appended, if there were others before it.

    What is gone was appended before, and has times before that unless they are of the future.
    """
    if not span.start:
        return None
    if span.start == span.end:
        return cluster.clock.now_us()
    first = OffsetRange(topic_partition, span.start, span.start + 1)
    with RangeReader(cluster, first, fetch_bytes=1, in_flight=1, values=values) as reader:
        fetched = next(reader, None)
    return None if fetched is None else fetched.header.append_time_us


def _only_times(cluster: Cluster, topic: str, config: Mapping[str, str]) -> Any:
    """Returns a reader that decodes no value of a topic with a schema, and fetches no column."""
    if VALUE_ENCODING not in config:
        return None
    # Imported here: it brings Avro, which most topics need none of.
    from spark_logbus.client.fetch.values import ValueReader

    with opened_registry(cluster, client_name="audit") as registry:
        schemas = find_value_schemas(registry, topic, config)
    assert schemas is not None, "a topic with an encoding has a schema"
    return ValueReader(schemas, fields=(), columns=(_TIMESTAMP,))


def read_reports(
    cluster: Cluster, audit_topic: str, topic: str, *, since_us: int
) -> list[CounterReport]:
    """Reads what was reported of ``topic`` from ``since_us`` on (by the clock), and the reports of
    runs that have met no topic at all.

    Raises UnknownTopicError if no counter has ever reported anything.
    """
    try:
        snapshot = take_snapshot(Admin(cluster), Topics((audit_topic,)), missing_ok=False)
    except UnknownTopicError as error:
        raise UnknownTopicError(
            f"The cluster has no topic {audit_topic}, so nothing has ever been counted: give "
            "producers an AuditInterceptor, or Spark's sink the option audit."
        ) from error
    with opened_registry(cluster, client_name="audit") as registry:
        schemas = find_value_schemas(registry, audit_topic, snapshot.configs[audit_topic])
    if schemas is None:
        raise InvalidRequestError(
            f"The topic {audit_topic} holds no reports: its values have no schema. Name another "
            "audit topic, or delete this one, and counters make it anew."
        )
    from spark_logbus.client.fetch.values import ValueReader

    values = ValueReader(schemas, columns=(_TIMESTAMP,))
    reports: list[CounterReport] = []
    placed: set[str] = set()  # runs that have met a topic
    for wanted in _ranges_since(cluster, snapshot, since_us):
        for columns in _columns(cluster, wanted, values, "value"):
            rows = pa.RecordBatch.from_struct_array(columns.columns["value"])
            met = rows.column("run").filter(pc.is_valid(rows.column("topic")))
            placed.update(pc.unique(met).to_pylist())
            reports.extend(_reports(rows, topic))
    return [one for one in reports if one["topic"] is not None or one["run"] not in placed]


def _reports(rows: pa.RecordBatch, topic: str) -> list[CounterReport]:
    """Picks the reports of ``topic``, and those of no topic, from an arrow batch of reports."""
    of = rows.column("topic")
    rows = rows.filter(pc.or_(pc.is_null(of), pc.fill_null(pc.equal(of, topic), False)))
    for name in MOMENTS:
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, name, rows.column(at).view(pa.int64()))
    return known_reports(rows.to_pylist())

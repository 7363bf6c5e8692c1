"""A logbus cluster as the source: its record batches pass as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from spark_logbus.client import Admin, Cluster, RangeReader
from spark_logbus.client.fetch.batches import EncodedBatch, decoded
from spark_logbus.coordination.groups.offsets import GroupOffsets
from spark_logbus.errors import InvalidRequestError
from spark_logbus.mirror.source.source import SourceBatch, SourceTopic, TargetSchemaIds
from spark_logbus.model import ONE_PIECE, OffsetRange, TopicPartition
from spark_logbus.offsets.snapshot import Span, take_snapshot
from spark_logbus.record import for_another_log
from spark_logbus.record.format import PLAIN_BYTES_SCHEMA
from spark_logbus.record.rows.arrow import encode
from spark_logbus.selection import Selection
from spark_logbus.zookeeper import Session

# Of a fetch: several readers have two each in memory.
_FETCH_BYTES: Final = 4 << 20


class LogbusSource:
    """Thread-safe. The cluster and the session are shared, not owned."""

    def __init__(self, cluster: Cluster, session: Session) -> None:
        self._cluster = cluster
        self._session = session
        self._admin = Admin(cluster)
        self.name = str(cluster.zookeeper)

    def topics(self, selection: Selection) -> dict[str, SourceTopic]:
        snapshot = take_snapshot(self._admin, selection, missing_ok=False)
        spans: dict[str, dict[int, Span]] = {name: {} for name in snapshot.topic_ids}
        for at, span in snapshot.spans.items():
            spans[at.topic][at.partition] = span
        return {
            name: SourceTopic(name, topic_id, snapshot.configs[name], spans[name])
            for name, topic_id in snapshot.topic_ids.items()
        }

    def cut(self, ranges: Sequence[OffsetRange], *, max_bytes: int) -> list[OffsetRange]:
        pieces = self._admin.split_many(ranges, target_bytes=ONE_PIECE)
        sizes = {each: size for each, (_, size) in pieces.items()}
        given = shares(sizes, max_bytes=max_bytes)
        large = [each for each in ranges if given[each] < sizes[each]]
        if not large:
            return list(ranges)
        cuts = self._admin.split_many(large, target_bytes=given)
        return [cuts[each][0][0] if each in cuts else each for each in ranges]

    def read(
        self, offset_range: OffsetRange, *, topic_id: str, schema_ids: TargetSchemaIds
    ) -> Iterator[SourceBatch]:
        with RangeReader(
            self._cluster, offset_range, topic_id=topic_id, fetch_bytes=_FETCH_BYTES
        ) as reader:
            while (raw := reader.next_encoded()) is not None:
                batch = copied(offset_range, raw, schema_ids)
                if batch is not None:
                    yield batch

    def committed(self, group: str, topic_ids: Mapping[str, str]) -> dict[TopicPartition, int]:
        return {
            at: entry.offset
            for at, entry in GroupOffsets(self._session).committed(group).items()
            if at.topic in topic_ids and entry.is_of(topic_ids[at.topic])
        }


def shares(sizes: Mapping[OffsetRange, int], *, max_bytes: int) -> dict[OffsetRange, int]:
    """The bytes that each range gets, where together they are to have about ``max_bytes``: small
    ones all of theirs, the others equal parts of what is left."""
    left, given = max_bytes, {}
    by_size = sorted(sizes, key=lambda each: (sizes[each], each))
    for number, each in enumerate(by_size):
        given[each] = min(sizes[each], max(1, left // (len(by_size) - number)))
        left -= given[each]
    return given


def copied(
    offset_range: OffsetRange, raw: EncodedBatch, schema_ids: TargetSchemaIds
) -> SourceBatch | None:
    """A verified record batch as it is appended to the target; None if nothing of it is.

    One that compaction has written anew, or joined with neighbours over an end of the range, has
    gaps or a form that no producer appends: its records are encoded again. Pure.
    """
    header, at = raw.header, offset_range.topic_partition
    if header.is_control:
        return None
    schema_id = None
    if header.schema_id != PLAIN_BYTES_SCHEMA:
        schema_id = schema_ids.target(at, header.schema_id)
    elif schema_ids.clash is not None:
        raise InvalidRequestError(
            f"Values of {at} are in Confluent's wire format, so the ids of their schemas have to "
            f"be the same in the target: {schema_ids.clash}"
        )
    start, end = offset_range.start, offset_range.end
    if not header.has_offset_delta and start <= header.base_offset and header.next_offset <= end:
        return SourceBatch(
            for_another_log(raw.data, schema_id=schema_id),
            header.base_offset,
            header.next_offset,
            header.record_count,
            header.append_time_us,
        )
    found = decoded(at, raw, start=start, end=end)
    if found is None:
        return None
    records = found.arrow_batch
    if found.has_gaps:
        records = records.drop_columns(["offset_delta"])
    data = encode(
        records,
        compression=header.compression,
        timestamp_type=header.timestamp_type,
        schema_id=PLAIN_BYTES_SCHEMA if schema_id is None else schema_id,
    )
    return SourceBatch(
        data,
        max(start, header.base_offset),
        min(end, header.next_offset),
        records.num_rows,
        header.append_time_us,
    )

"""Offsets and sizes, asked of partitions' leaders."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from spark_logbus.client.cluster.cluster import Cluster
from spark_logbus.client.cluster.leaders import LeaderCall
from spark_logbus.errors import LogbusError
from spark_logbus.model import (
    AtOffset,
    AtTimestamp,
    Earliest,
    LastDuration,
    LastRecords,
    Latest,
    LostOffsets,
    OffsetRange,
    OffsetSpec,
    TopicPartition,
)
from spark_logbus.offsets.snapshot import Span
from spark_logbus.protocol import (
    Api,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResult,
    SplitRangePartition,
    SplitRangeRequest,
    SplitRangeResponse,
    SplitRangeResult,
)

NO_TOPIC_IDS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class FoundOffsets:
    """Offsets of the partitions whose leaders answered, and why those of the others are unknown."""

    found: dict[TopicPartition, int | None]
    away: dict[TopicPartition, LogbusError]
    lost: dict[TopicPartition, tuple[LostOffsets, ...]] = field(default_factory=dict)
    """Offsets whose records were given up, of the partitions whose latest was asked for."""


class _Answer(NamedTuple):
    offset: int | None
    lost: tuple[LostOffsets, ...]


class OffsetQueries:
    """The part of ``Admin`` that only asks leaders. Thread-safe."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._list_offsets: LeaderCall[
            ListOffsetsPartition, ListOffsetsResult, ListOffsetsResponse
        ] = LeaderCall(
            cluster,
            Api.LIST_OFFSETS,
            request=ListOffsetsRequest,
            response=ListOffsetsResponse,
            results=lambda response: response.results,
            topic_partition=lambda asked: TopicPartition(asked.topic, asked.partition),
            topic_id=lambda asked: asked.topic_id,
        )
        self._split: LeaderCall[SplitRangePartition, SplitRangeResult, SplitRangeResponse] = (
            LeaderCall(
                cluster,
                Api.SPLIT_RANGE,
                request=SplitRangeRequest,
                response=SplitRangeResponse,
                results=lambda response: response.results,
                topic_partition=lambda asked: TopicPartition(asked.topic, asked.partition),
            )
        )

    def list_offsets(
        self,
        specs: Mapping[TopicPartition, OffsetSpec],
        *,
        topic_ids: Mapping[str, str] = NO_TOPIC_IDS,
    ) -> dict[TopicPartition, int | None]:
        """The offset that each spec means now, of all or none: waits for leaders that are away.

        Earliest is the log start offset, latest the high watermark, an offset stands for
        itself (unchecked), and a timestamp means the first record, by offset, whose timestamp
        is at or after it: None if there is none. So it is with the last duration. ``topic_ids``
        are of the topics that are meant: TopicRecreatedError for others of those names.
        """
        asked = _questions(specs, topic_ids, now_us=self._cluster.clock.now_us())
        results = self._list_offsets.ask_all("Listing offsets", asked) if asked else []
        found = self._looked_into(zip(asked, results, strict=True))
        return {
            topic_partition: _offset_of(spec, found.get(topic_partition, ()))
            for topic_partition, spec in specs.items()
        }

    def lost_offsets(self, topic_partition: TopicPartition) -> tuple[LostOffsets, ...]:
        """The ranges between a partition's start and its end whose records were given up with the
        end of a log; waits for its leader."""
        asked = _questions({topic_partition: Latest()}, NO_TOPIC_IDS, now_us=0)
        results = self._list_offsets.ask_all("Listing offsets", asked)
        return self._looked_into(zip(asked, results, strict=True))[topic_partition][0].lost

    def find_offsets(
        self,
        specs: Mapping[TopicPartition, OffsetSpec],
        *,
        topic_ids: Mapping[str, str] = NO_TOPIC_IDS,
        patience_ms: float | None = None,
    ) -> FoundOffsets:
        """Returns what ``list_offsets`` does, but asks each leader once, and waits for at most
        ``patience_ms``, by default the connect timeout. Partitions whose leader did not answer are
        ``away``, each with the reason."""
        asked = _questions(specs, topic_ids, now_us=self._cluster.clock.now_us())
        deadline = self._cluster.deadline_ms(
            self._cluster.config.connect_timeout_ms if patience_ms is None else patience_ms
        )
        answers, failures = self._list_offsets.ask_available(asked, deadline)
        found = self._looked_into((asked[number], answer) for number, answer in answers.items())
        away = {_tp_of(asked[number]): error for number, error in sorted(failures.items())}
        return FoundOffsets(
            {
                topic_partition: _offset_of(spec, found.get(topic_partition, ()))
                for topic_partition, spec in specs.items()
                if topic_partition not in away
            },
            away,
            {each: answers[-1].lost for each, answers in found.items() if answers[-1].lost},
        )

    def _looked_into(
        self, results: Iterable[tuple[ListOffsetsPartition, ListOffsetsResult]]
    ) -> dict[TopicPartition, list[_Answer]]:
        """The answers about each partition, in the order of the questions."""
        found: defaultdict[TopicPartition, list[_Answer]] = defaultdict(list)
        for question, result in results:
            topic_partition = _tp_of(question)
            offset = result.offset
            if question.at == "timestamp" and offset is not None:
                # Imported here: it reads records, and brings all of Arrow's functions for that.
                from spark_logbus.client.fetch.timestamps import first_at_or_after

                # The broker knows record batches; the record is found by looking inside.
                offset = first_at_or_after(
                    self._cluster,
                    topic_partition,
                    base_offset=offset,
                    timestamp_us=question.timestamp_us,
                    topic_id=question.topic_id,
                )
            lost = tuple(LostOffsets(*each) for each in result.lost)
            found[topic_partition].append(_Answer(offset, lost))
        return found

    def split(
        self, offset_range: OffsetRange, *, target_bytes: int
    ) -> tuple[list[OffsetRange], int]:
        """``offset_range`` in pieces of about ``target_bytes``, and its size in bytes."""
        return self.split_many([offset_range], target_bytes=target_bytes)[offset_range]

    def split_many(
        self, ranges: Sequence[OffsetRange], *, target_bytes: int | Mapping[OffsetRange, int]
    ) -> dict[OffsetRange, tuple[list[OffsetRange], int]]:
        """Each range in pieces, cut where record batches meet, and its size in bytes.

        Pieces have about ``target_bytes``, the same for all or each range's own. A broker bounds
        the number of cuts that it answers with; pieces are larger then.
        """
        asked = [
            SplitRangePartition(
                one.topic_partition.topic,
                one.topic_partition.partition,
                one.start,
                one.end,
                target_bytes if isinstance(target_bytes, int) else target_bytes[one],
            )
            for one in ranges
            if one.count
        ]
        results = iter(self._split.ask_all("Splitting ranges", asked) if asked else [])
        pieces: dict[OffsetRange, tuple[list[OffsetRange], int]] = {}
        for one in ranges:
            if not one.count:
                pieces[one] = ([], 0)
                continue
            result = next(results)
            bounds = [one.start, *result.cuts, one.end]
            pieces[one] = (
                [
                    OffsetRange(one.topic_partition, start, end)
                    for start, end in itertools.pairwise(bounds)
                ],
                result.size_bytes,
            )
        return pieces


def _questions(
    specs: Mapping[TopicPartition, OffsetSpec], topic_ids: Mapping[str, str], *, now_us: int
) -> list[ListOffsetsPartition]:
    """The questions for the leaders: none about an offset that is named."""
    return [
        ListOffsetsPartition(
            topic_partition.topic,
            topic_partition.partition,
            at,
            timestamp_us,
            topic_ids.get(topic_partition.topic),
        )
        for topic_partition, spec in specs.items()
        for at, timestamp_us in _lookups(spec, now_us)
    ]


def _lookups(spec: OffsetSpec, now_us: int) -> list[tuple[str, int]]:
    match spec:
        case AtOffset():
            return []
        case Earliest():
            return [("earliest", 0)]
        case Latest():
            return [("latest", 0)]
        case LastRecords():
            return [("earliest", 0), ("latest", 0)]
        case AtTimestamp(timestamp_us):
            return [("timestamp", timestamp_us)]
        case LastDuration(duration_us):
            return [("timestamp", now_us - duration_us)]


def _tp_of(question: ListOffsetsPartition) -> TopicPartition:
    return TopicPartition(question.topic, question.partition)


def _offset_of(spec: OffsetSpec, answers: Sequence[_Answer]) -> int | None:
    match spec, answers:
        case AtOffset(offset), _:
            return offset
        case LastRecords(count), ((int(start), _), (int(end), lost)):
            return Span(start, end, lost).clamp(Span(start, end, lost).back_from(end, count))
    return answers[0].offset

"""Topics, offsets, and cuts of ranges: what tools and drivers ask a cluster."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from spark_logbus.client.admin.topics import (
    TopicAlteration,
    TopicDescription,
    alter_topic,
    describe_topics,
)
from spark_logbus.client.arguments import as_config, as_partition_count
from spark_logbus.client.cluster.cluster import Cluster
from spark_logbus.client.cluster.leaders import LeaderCall
from spark_logbus.client.fetch.timestamps import first_at_or_after
from spark_logbus.errors import (
    BrokerUnavailableError,
    LogbusError,
    RequestTimeoutError,
    TopicExistsError,
    UnknownTopicError,
)
from spark_logbus.model import (
    AtOffset,
    AtTimestamp,
    Earliest,
    OffsetRange,
    OffsetSpec,
    TopicPartition,
    check_name,
)
from spark_logbus.protocol import (
    Api,
    CreateTopicRequest,
    CreateTopicResponse,
    DeleteTopicRequest,
    DeleteTopicResponse,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResult,
    MetadataRequest,
    MetadataResponse,
    SplitRangePartition,
    SplitRangeRequest,
    SplitRangeResponse,
    SplitRangeResult,
)
from spark_logbus.retry import Deadline

_CHANGE_TIMEOUT_MS: Final = 30_000
NO_TOPIC_IDS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class FoundOffsets:
    """Offsets of the partitions whose leaders answered, and why those of the others are unknown."""

    found: dict[TopicPartition, int | None]
    away: dict[TopicPartition, LogbusError]


class Admin:
    """Thread-safe; keeps nothing but the cluster it is given."""

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

    # -- topics ---------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        *,
        partitions: int,
        config: Mapping[str, str | int] | None = None,
        if_not_exists: bool = False,
        timeout_ms: int = _CHANGE_TIMEOUT_MS,
    ) -> TopicDescription:
        """Create a topic and wait until every broker knows it and every leader answers for it.

        ``config`` values are text, or whole numbers, as in ``{"retention.ms": 60_000}``.
        Raises TopicExistsError, InvalidNameError, ConfigError, and RequestTimeoutError if the
        leaders are not ready in time, in which case the topic exists all the same.
        """
        check_name("topic", name)
        deadline = self._cluster.deadline_ms(timeout_ms)
        count = as_partition_count(partitions)
        request = CreateTopicRequest(name, count, as_config(config or {}))
        in_doubt = False

        def attempt(deadline: Deadline) -> None:
            nonlocal in_doubt
            try:
                self._cluster.ask_any(
                    Api.CREATE_TOPIC, request, CreateTopicResponse, deadline=deadline
                )
            except TopicExistsError:
                # After a reply was lost, the topic that exists may be the one just made.
                if not (if_not_exists or in_doubt):
                    raise
            except LogbusError as error:
                in_doubt = in_doubt or error.retriable
                raise

        self._cluster.retrying(f"Creating topic {name}", attempt, deadline=deadline)
        self._cluster.invalidate(name)
        self._wait_until_all_agree(name, present=True, deadline=deadline)
        return self._wait_for_leaders(name, deadline)

    def delete_topic(self, name: str, *, timeout_ms: int = _CHANGE_TIMEOUT_MS) -> None:
        """Delete a topic and wait until no broker shows it any more. UnknownTopicError."""
        deadline = self._cluster.deadline_ms(timeout_ms)
        in_doubt = False

        def attempt(deadline: Deadline) -> None:
            nonlocal in_doubt
            try:
                self._cluster.ask_any(
                    Api.DELETE_TOPIC, DeleteTopicRequest(name), DeleteTopicResponse,
                    deadline=deadline,
                )  # fmt: skip
            except UnknownTopicError:
                if not in_doubt:
                    raise
            except LogbusError as error:
                in_doubt = in_doubt or error.retriable
                raise

        self._cluster.retrying(f"Deleting topic {name}", attempt, deadline=deadline)
        self._cluster.invalidate(name)
        self._wait_until_all_agree(name, present=False, deadline=deadline)

    def alter_topic(
        self,
        name: str,
        *,
        put: Mapping[str, str | int] | None = None,
        drop: Iterable[str] = (),
        partitions: int | None = None,
        timeout_ms: int = _CHANGE_TIMEOUT_MS,
    ) -> TopicAlteration:
        """Set and unset keys of the topic's configuration, or give it more partitions; wait until
        every broker has heard of it. UnknownTopicError, ConfigError. To drop a key that is not
        set changes nothing.

        More partitions change where keys go: records of one key may then be in two partitions.
        """
        deadline = self._cluster.deadline_ms(timeout_ms)
        done = alter_topic(
            self._cluster,
            name,
            put=as_config(put or {}),
            drop=drop,
            partitions=None if partitions is None else as_partition_count(partitions),
            deadline=deadline,
        )
        if done.partitions > done.partitions_before:
            self._wait_for_leaders(name, deadline)
        return done

    def topics(self) -> list[TopicDescription]:
        """All topics, by name, without ends."""
        described = self.describe(None, ends=False)
        return [described[name] for name in sorted(described)]

    def describe(
        self, names: Iterable[str] | None = None, *, ends: bool = True
    ) -> dict[str, TopicDescription]:
        """The named topics, or all. UnknownTopicError for a name that no broker knows.

        A partition whose leader does not answer has no ends; the rest is told all the same.
        """
        return describe_topics(self._cluster, names, ends=ends)

    def _wait_until_all_agree(self, name: str, *, present: bool, deadline: Deadline) -> None:
        """Until every live broker has (or no longer has) the topic in its metadata."""
        request = MetadataRequest(topics=[name])

        def attempt(deadline: Deadline) -> None:
            for broker in self._cluster.brokers:
                try:
                    response = self._cluster.call(
                        broker, Api.METADATA, request, MetadataResponse, deadline=deadline
                    )
                except BrokerUnavailableError:
                    continue  # it reads the topics anew when it comes back
                if any(info.name == name for info in response.topics) != present:
                    raise RequestTimeoutError(
                        f"{broker} has not yet heard that topic {name} was "
                        f"{'created' if present else 'deleted'}."
                    )

        what = f"Waiting for all brokers to {'learn of' if present else 'drop'} topic {name}"
        self._cluster.retrying(what, attempt, deadline=deadline)

    def _wait_for_leaders(self, name: str, deadline: Deadline) -> TopicDescription:
        def attempt(deadline: Deadline) -> None:
            topic = self._cluster.topic(name, deadline)
            asked = [ListOffsetsPartition(name, number, "latest") for number in topic.leaders]
            self._list_offsets.once(asked, deadline)

        self._cluster.retrying(
            f"Waiting for the leaders of topic {name}", attempt, topics=[name], deadline=deadline
        )
        return self.describe([name], ends=False)[name]

    # -- offsets --------------------------------------------------------------------------

    def list_offsets(
        self,
        specs: Mapping[TopicPartition, OffsetSpec],
        *,
        topic_ids: Mapping[str, str] = NO_TOPIC_IDS,
    ) -> dict[TopicPartition, int | None]:
        """The offset that each spec means now, of all or none: waits for leaders that are away.

        Earliest is the log start offset, latest the high watermark, an offset stands for
        itself (unchecked), and a timestamp means the first record, by offset, whose timestamp
        is at or after it: None if there is none. ``topic_ids`` are of the topics that are meant:
        TopicRecreatedError for others of those names.
        """
        asked = _questions(specs, topic_ids)
        results = self._list_offsets.run("Listing offsets", asked) if asked else []
        found = self._looked_into(zip(asked, results, strict=True))
        return {
            topic_partition: _own_offset(spec, found.get(topic_partition))
            for topic_partition, spec in specs.items()
        }

    def find_offsets(
        self,
        specs: Mapping[TopicPartition, OffsetSpec],
        *,
        topic_ids: Mapping[str, str] = NO_TOPIC_IDS,
        patience_ms: float | None = None,
    ) -> FoundOffsets:
        """Like ``list_offsets``, but asks each leader once, and waits for at most ``patience_ms``,
        by default the connect timeout. Why an offset is not known is told for each partition
        whose leader did not answer."""
        asked = _questions(specs, topic_ids)
        deadline = self._cluster.deadline_ms(
            self._cluster.config.connect_timeout_ms if patience_ms is None else patience_ms
        )
        answers, failures = self._list_offsets.available(asked, deadline)
        found = self._looked_into((asked[number], answer) for number, answer in answers.items())
        away = {_tp_of(asked[number]): error for number, error in sorted(failures.items())}
        return FoundOffsets(
            {
                topic_partition: _own_offset(spec, found.get(topic_partition))
                for topic_partition, spec in specs.items()
                if topic_partition not in away
            },
            away,
        )

    def _looked_into(
        self, results: Iterable[tuple[ListOffsetsPartition, ListOffsetsResult]]
    ) -> dict[TopicPartition, int | None]:
        found: dict[TopicPartition, int | None] = {}
        for question, result in results:
            topic_partition = _tp_of(question)
            offset = result.offset
            if question.at == "timestamp" and offset is not None:
                # The broker knows record batches; the record is found by looking inside.
                offset = first_at_or_after(
                    self._cluster,
                    topic_partition,
                    base_offset=offset,
                    timestamp_us=question.timestamp_us,
                    topic_id=question.topic_id,
                )
            found[topic_partition] = offset
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
        results = iter(self._split.run("Splitting ranges", asked) if asked else [])
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
    specs: Mapping[TopicPartition, OffsetSpec], topic_ids: Mapping[str, str]
) -> list[ListOffsetsPartition]:
    """What the leaders are to be asked: nothing about an offset that is named."""
    asked = []
    for topic_partition, spec in specs.items():
        if isinstance(spec, AtOffset):
            continue
        at, timestamp_us = "latest", 0
        if isinstance(spec, AtTimestamp):
            at, timestamp_us = "timestamp", spec.timestamp_us
        elif isinstance(spec, Earliest):
            at = "earliest"
        topic_id = topic_ids.get(topic_partition.topic)
        asked.append(
            ListOffsetsPartition(
                topic_partition.topic, topic_partition.partition, at, timestamp_us, topic_id
            )
        )
    return asked


def _tp_of(question: ListOffsetsPartition) -> TopicPartition:
    return TopicPartition(question.topic, question.partition)


def _own_offset(spec: OffsetSpec, found: int | None) -> int | None:
    return spec.offset if isinstance(spec, AtOffset) else found

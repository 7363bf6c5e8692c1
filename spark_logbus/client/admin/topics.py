"""Descriptions of topics, and changes of one that is in use until every broker has heard of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from spark_logbus.client.cluster.cluster import Cluster
from spark_logbus.errors import BrokerUnavailableError, LogbusError, RequestTimeoutError
from spark_logbus.model import BrokerAddress, TopicPartition, check_name
from spark_logbus.protocol import (
    AlterTopicRequest,
    AlterTopicResponse,
    Api,
    MetadataRequest,
    MetadataResponse,
    PartitionEnds,
    TopicInfo,
)
from spark_logbus.retry import Deadline


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAlteration:
    """What a topic set itself and how many partitions it had, before and after."""

    config_before: dict[str, str]
    config: dict[str, str]
    partitions_before: int
    partitions: int


def alter_topic(
    cluster: Cluster,
    name: str,
    *,
    put: Mapping[str, str],
    drop: Iterable[str],
    partitions: int | None,
    deadline: Deadline,
) -> TopicAlteration:
    check_name("topic", name)
    request = AlterTopicRequest(name, dict(put), list(drop), partitions)

    def attempt(deadline: Deadline) -> AlterTopicResponse:
        return cluster.ask_any(Api.ALTER_TOPIC, request, AlterTopicResponse, deadline=deadline)

    done = cluster.retrying(f"Altering topic {name}", attempt, deadline=deadline)
    cluster.invalidate(name)
    _wait_until_all_know(cluster, name, done, deadline)
    return TopicAlteration(
        config_before=done.config_before,
        config=done.config,
        partitions_before=done.partitions_before,
        partitions=done.partitions,
    )


def _wait_until_all_know(
    cluster: Cluster, name: str, done: AlterTopicResponse, deadline: Deadline
) -> None:
    """A later change by others may hide this one: then there is nothing to wait for either."""
    request = MetadataRequest(topics=[name])

    def attempt(deadline: Deadline) -> None:
        for broker in cluster.brokers:
            try:
                response = cluster.call(
                    broker, Api.METADATA, request, MetadataResponse, deadline=deadline
                )
            except BrokerUnavailableError:
                continue  # it reads the topics anew when it comes back
            for info in response.topics:
                old = info.config == done.config_before != done.config
                if old or len(info.partitions) < done.partitions:
                    raise RequestTimeoutError(
                        f"{broker} has not yet heard that topic {name} was altered."
                    )

    cluster.retrying(f"Waiting for all brokers to hear of {name}", attempt, deadline=deadline)


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """``leader`` is None while it is not running; ``ends`` are None if so, if it does not serve
    the partition yet, or if they were not asked for. ``problem`` says why it cannot be asked."""

    partition: int
    leader: BrokerAddress | None
    ends: PartitionEnds | None
    problem: LogbusError | None = None


@dataclass(frozen=True, slots=True)
class TopicDescription:
    name: str
    topic_id: str
    config: dict[str, str]
    partitions: dict[int, PartitionDescription]


def describe_topics(
    cluster: Cluster, names: Iterable[str] | None, *, ends: bool
) -> dict[str, TopicDescription]:
    """The named topics, or all. UnknownTopicError for a name that no broker knows."""
    wanted = None if names is None else list(names)

    def attempt(deadline: Deadline) -> list[TopicInfo]:
        if wanted is None:
            return cluster.ask_metadata(None, deadline=deadline).topics
        for name in wanted:
            cluster.topic(name, deadline)  # the last word on whether it exists
        return cluster.ask_metadata(
            wanted,
            deadline=deadline,
            good=lambda response: {info.name for info in response.topics} >= set(wanted),
        ).topics

    infos = cluster.retrying("Describing topics", attempt)
    brokers = {address.broker_id: address for address in cluster.brokers}
    described = {info.name: _describe(info, brokers) for info in infos}
    if not ends:
        return described
    leaders = {
        part.leader
        for topic in described.values()
        for part in topic.partitions.values()
        if part.leader is not None
    }
    return _with_ends(cluster, described, leaders)


def _with_ends(
    cluster: Cluster, described: dict[str, TopicDescription], leaders: Iterable[BrokerAddress]
) -> dict[str, TopicDescription]:
    ends: dict[tuple[str, int], PartitionEnds] = {}
    problems: dict[BrokerAddress, LogbusError] = {}
    for leader in sorted(leaders):
        led = [
            topic.name
            for topic in described.values()
            if any(part.leader == leader for part in topic.partitions.values())
        ]
        request = MetadataRequest(topics=sorted(led), ends=True)
        # Answered from memory: who takes longer is stopped or cut off, and the others wait.
        deadline = cluster.deadline_ms(cluster.config.connect_timeout_ms)
        try:
            response = cluster.call(
                leader, Api.METADATA, request, MetadataResponse, deadline=deadline
            )
        except LogbusError as error:
            if not error.retriable:
                raise
            problems[leader] = error
            continue
        for info in response.topics:
            for part_info in info.partitions:
                if part_info.ends is not None:
                    ends[info.name, part_info.partition] = part_info.ends

    def completed(topic: str, part: PartitionDescription) -> PartitionDescription:
        if part.leader is None:
            problem: LogbusError | None = cluster.not_running(TopicPartition(topic, part.partition))
        else:
            problem = problems.get(part.leader)
        return replace(part, ends=ends.get((topic, part.partition)), problem=problem)

    return {
        name: replace(
            topic,
            partitions={number: completed(name, part) for number, part in topic.partitions.items()},
        )
        for name, topic in described.items()
    }


def _describe(info: TopicInfo, brokers: Mapping[int, BrokerAddress]) -> TopicDescription:
    partitions = {
        part.partition: PartitionDescription(part.partition, brokers.get(part.leader), None)
        for part in sorted(info.partitions, key=lambda part: part.partition)
    }
    return TopicDescription(info.name, info.topic_id, dict(info.config), partitions)

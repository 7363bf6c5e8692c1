"""Descriptions of topics, made of what brokers answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from spark_logbus.client.cluster.cluster import Cluster
from spark_logbus.errors import LogbusError
from spark_logbus.model import BrokerAddress, TopicPartition
from spark_logbus.offsets.descriptions import PartitionDescription, TopicDescription
from spark_logbus.protocol import (
    Api,
    MetadataRequest,
    MetadataResponse,
    MoveState,
    PartitionEnds,
    TopicInfo,
)


def described(info: TopicInfo, brokers: Mapping[int, BrokerAddress]) -> TopicDescription:
    """Describes a topic as brokers have it, without the ends of its partitions."""
    partitions = {
        part.partition: PartitionDescription(
            part.partition,
            brokers.get(part.leader),
            None,
            leader_id=part.leader,
            move=part.move,
            replicas=tuple(part.replicas),
            in_sync=tuple(part.in_sync),
        )
        for part in sorted(info.partitions, key=lambda part: part.partition)
    }
    return TopicDescription(info.name, info.topic_id, dict(info.config), partitions)


def with_ends(
    cluster: Cluster, topics: Mapping[str, TopicDescription]
) -> dict[str, TopicDescription]:
    """Adds the ends of partitions, as their leaders tell them, and what is known of their moves."""
    led: dict[BrokerAddress, set[str]] = {}
    for topic in topics.values():
        for part in topic.partitions.values():
            if part.leader is not None:
                led.setdefault(part.leader, set()).add(topic.name)
    ends: dict[TopicPartition, PartitionEnds] = {}
    moves: dict[TopicPartition, MoveState | None] = {}
    problems: dict[BrokerAddress, LogbusError] = {}
    for leader in sorted(led):
        request = MetadataRequest(topics=sorted(led[leader]), ends=True)
        # Answered from memory: a broker that takes longer is stopped or cut off, and holds up
        # the others.
        deadline = cluster.deadline_ms(cluster.config.connect_timeout_ms)
        try:
            response = cluster.call(
                leader, Api.METADATA, request, MetadataResponse, deadline=deadline
            )
        except LogbusError as error:
            if not error.retriable:
                raise
            problems[leader] = error.again()
            continue
        # Who is asked next, here or for more, may not have heard of a newer leader: what it
        # tells is of before.
        cluster.learn(response)
        for info in response.topics:
            for part_info in info.partitions:
                if part_info.ends is not None and not cluster.is_older(info, part_info):
                    topic_partition = TopicPartition(info.name, part_info.partition)
                    ends[topic_partition] = part_info.ends
                    moves[topic_partition] = part_info.move

    def completed(topic: str, part: PartitionDescription) -> PartitionDescription:
        topic_partition = TopicPartition(topic, part.partition)
        if part.leader is None:
            problem: LogbusError | None = cluster.not_running(topic_partition)
        else:
            problem = problems.get(part.leader)
        move = moves.get(topic_partition, part.move)
        return replace(part, ends=ends.get(topic_partition), problem=problem, move=move)

    return {
        name: replace(
            topic,
            partitions={number: completed(name, part) for number, part in topic.partitions.items()},
        )
        for name, topic in topics.items()
    }

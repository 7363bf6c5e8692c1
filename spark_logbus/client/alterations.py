"""Changing a topic that is in use, and waiting until every broker has heard of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spark_logbus.client.cluster import Cluster
from spark_logbus.client.retry import Deadline
from spark_logbus.errors import BrokerUnavailableError, RequestTimeoutError
from spark_logbus.model import check_name
from spark_logbus.protocol import (
    AlterTopicRequest,
    AlterTopicResponse,
    Api,
    MetadataRequest,
    MetadataResponse,
)


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
    cluster.doubt(name)
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

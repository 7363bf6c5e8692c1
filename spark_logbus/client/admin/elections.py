"""Elections that an operator asks for: partitions go back to their preferred leaders."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Final

from spark_logbus.client.cluster.cluster import Cluster
from spark_logbus.errors import LogbusError, NotLeaderError, UnknownTopicError
from spark_logbus.model import BrokerAddress, TopicPartition, check_name
from spark_logbus.protocol import Api, ElectRequest, ElectResponse
from spark_logbus.retry import Deadline

# A broker tries for five seconds to hand over what it is asked for.
_PARTITIONS_PER_REQUEST: Final = 100


def elect_preferred(
    cluster: Cluster, topic: str, partitions: Collection[int] = ()
) -> dict[int, LogbusError | None]:
    """See ``Admin.elect_preferred``."""
    check_name("topic", topic)

    def all_of_topic(deadline: Deadline) -> list[int]:
        return sorted(cluster.topic(topic, deadline).leaders)

    there = cluster.retrying("Electing leaders", all_of_topic, topics=[topic])
    if missing := sorted({*partitions} - {*there}):
        raise UnknownTopicError(f"The topic {topic!r} has no partition {missing[0]}.")
    outcomes: dict[int, LogbusError | None] = {}
    left = sorted({*partitions} or there)

    def attempt(deadline: Deadline) -> None:
        nonlocal left
        by_leader: defaultdict[BrokerAddress, list[int]] = defaultdict(list)
        for partition in left:
            by_leader[cluster.leader(TopicPartition(topic, partition), deadline)].append(partition)
        refusal: LogbusError | None = None
        for address, led in by_leader.items():
            for start in range(0, len(led), _PARTITIONS_PER_REQUEST):
                some = led[start : start + _PARTITIONS_PER_REQUEST]
                request = ElectRequest(topic, some)
                answer = cluster.call(address, Api.ELECT, request, ElectResponse, deadline=deadline)
                for result in answer.results:
                    error = None if result.error is None else result.error.to_exception()
                    if isinstance(error, NotLeaderError):  # its lead has just gone elsewhere
                        where = TopicPartition(topic, result.partition)
                        cluster.leader_refused(where, address)
                        refusal = error
                    else:
                        outcomes[result.partition] = error
        left = [each for each in left if each not in outcomes]
        if refusal is not None:
            raise refusal

    cluster.retrying("Electing leaders", attempt, topics=[topic])
    return dict(sorted(outcomes.items()))

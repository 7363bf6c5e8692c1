"""Unclean elections that an operator asks for: planned from what brokers have, and carried out.

A partition of which nobody in sync lives is offline. Another broker can be elected, and what its
log lacks is lost. The plan shows who was in sync, what is known to have been there, and what each
broker has that runs; of these the one with the most is elected, or the one that is named.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from spark_logbus.client.cluster.cluster import Cluster
from spark_logbus.errors import InvalidRequestError, LogbusError, UnknownTopicError
from spark_logbus.model import BrokerAddress, TopicPartition
from spark_logbus.offsets.descriptions import PartitionDescription, TopicDescription
from spark_logbus.protocol import (
    Api,
    ReplicaStanding,
    UncleanElectRequest,
    UncleanElectResponse,
)
from spark_logbus.retry import Deadline

# A broker writes to ZooKeeper for one after the other.
_PARTITIONS_PER_REQUEST: Final = 50
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class UncleanRow:
    """A partition that no broker in sync can lead. ``in_sync`` are the brokers that could, and
    ``leader_epoch`` is the last one. Its log had reached ``known_end`` at least, and all before
    ``committed`` was acknowledged; None where that is not known. ``ends`` are where the logs of
    brokers that run and are not in sync end, by broker. ``elected`` is one of them, whose log goes
    on at ``goes_on_at``."""

    topic_partition: TopicPartition
    in_sync: tuple[int, ...]
    leader_epoch: int
    known_end: int | None
    committed: int | None
    ends: Mapping[int, int]
    elected: int
    goes_on_at: int

    @property
    def lost_from(self) -> int:
        """Offset from which on all that was there is lost."""
        return self.ends[self.elected]

    @property
    def lost_records(self) -> int:
        """Number of records that are known to be lost; more may be."""
        return max(0, max(self.known_end or 0, self.committed or 0) - self.lost_from)


@dataclass(frozen=True, slots=True)
class UncleanPlan:
    """The elections that would be, or were, and the reasons why there is none for others, by
    partition."""

    topic_id: str
    rows: tuple[UncleanRow, ...]
    problems: Mapping[TopicPartition, str]


def plan_unclean(
    cluster: Cluster,
    topic: TopicDescription,
    partitions: Collection[int] = (),
    broker: int | None = None,
) -> UncleanPlan:
    """Plans for some partitions, or all that are offline though a broker with a log of theirs runs.
    See ``Admin.elect_unclean``."""
    if missing := sorted({*partitions} - topic.partitions.keys()):
        raise UnknownTopicError(f"The topic {topic.name!r} has no partition {missing[0]}.")
    parts = [topic.partitions[each] for each in sorted({*partitions} or topic.partitions)]
    if not partitions:
        live = {each.broker_id for each in cluster.brokers}
        parts = [each for each in parts if _may_need_one(each, live)]
        if not parts:
            raise InvalidRequestError(
                f"No partition of {topic.name} needs an unclean election: of each with several "
                "replicas a broker in sync runs. Name one with --partition to see more of it."
            )
    deadline = cluster.retry_deadline()
    standings, problems = _ask(cluster, topic, parts, broker, deadline)
    rows = []
    for part in parts:
        where = TopicPartition(topic.name, part.partition)
        if found := standings.get(where):
            rows.append(_row(where, found, part.replicas))
    return UncleanPlan(
        topic.topic_id,
        tuple(rows),
        {
            where: problems.get(where, "No broker runs that has a log of it.")
            for where in (TopicPartition(topic.name, each.partition) for each in parts)
            if where not in standings
        },
    )


def elect(cluster: Cluster, topic: str, plan: UncleanPlan) -> UncleanPlan:
    """Has the planned brokers elected; returns the plan as it was carried out."""
    by_broker: defaultdict[int, list[UncleanRow]] = defaultdict(list)
    for row in plan.rows:
        by_broker[row.elected].append(row)
    problems, failed = dict(plan.problems), set[TopicPartition]()
    addresses = _addresses(cluster)
    for broker_id, rows in by_broker.items():
        for some in _portions(rows):
            request = UncleanElectRequest(
                topic,
                [each.topic_partition.partition for each in some],
                plan.topic_id,
                [each.leader_epoch for each in some],
            )
            try:
                answer = _call(cluster, addresses[broker_id], request, cluster.retry_deadline())
            except LogbusError as error:
                failed.update(each.topic_partition for each in some)
                problems |= {
                    each.topic_partition: f"{error.message} It may be elected still; look again."
                    for each in some
                }
                continue
            for result in answer.results:
                if result.error is not None:
                    where = TopicPartition(topic, result.partition)
                    failed.add(where)
                    problems[where] = result.error.to_exception().message
    cluster.invalidate(topic)
    done = tuple(row for row in plan.rows if row.topic_partition not in failed)
    return UncleanPlan(plan.topic_id, done, problems)


def _may_need_one(part: PartitionDescription, live: Collection[int]) -> bool:
    """True if no broker in sync may lead it, or the one that may does not."""
    if len(part.replicas) < 2:
        return False
    return part.ends is None and not ({*part.in_sync} - {part.leader_id}) & {*live}


def _ask(
    cluster: Cluster,
    topic: TopicDescription,
    parts: Iterable[PartitionDescription],
    broker: int | None,
    deadline: Deadline,
) -> tuple[dict[TopicPartition, dict[int, ReplicaStanding]], dict[TopicPartition, str]]:
    """Asks brokers that run what they have: what those have that can be elected, by partition and
    broker, and why others cannot be."""
    addresses = _addresses(cluster)
    if broker is not None and broker not in addresses:
        raise InvalidRequestError(f"Broker {broker} is not running.")
    by_broker: defaultdict[int, list[int]] = defaultdict(list)
    problems: dict[TopicPartition, str] = {}
    for part in parts:
        where = TopicPartition(topic.name, part.partition)
        replicas = {*part.replicas} or {-1 if part.leader_id is None else part.leader_id}
        asked = {each for each in replicas if each in addresses and broker in (None, each)}
        if broker is not None and not asked:
            problems[where] = f"Broker {broker} has no replica of it."
        for each in asked:
            by_broker[each].append(part.partition)
    found: defaultdict[TopicPartition, dict[int, ReplicaStanding]] = defaultdict(dict)
    for broker_id, partitions in sorted(by_broker.items()):
        for some in _portions(partitions):
            request = UncleanElectRequest(topic.name, some, topic.topic_id)
            try:
                answer = _call(cluster, addresses[broker_id], request, deadline)
            except LogbusError as error:
                for each in some:
                    problems[TopicPartition(topic.name, each)] = error.message
                continue
            for result in answer.results:
                where = TopicPartition(topic.name, result.partition)
                if result.error is not None:
                    problems[where] = result.error.to_exception().message
                elif result.standing is not None:
                    found[where][broker_id] = result.standing
    return found, problems


def _call(
    cluster: Cluster, address: BrokerAddress, request: UncleanElectRequest, deadline: Deadline
) -> UncleanElectResponse:
    return cluster.call(
        address, Api.ELECT_UNCLEAN, request, UncleanElectResponse, deadline=deadline
    )


def _addresses(cluster: Cluster) -> dict[int, BrokerAddress]:
    return {each.broker_id: each for each in cluster.brokers}


def _row(
    where: TopicPartition, found: Mapping[int, ReplicaStanding], replicas: Collection[int]
) -> UncleanRow:
    order = [*replicas]

    def rank(broker_id: int) -> tuple[int, int, int]:
        standing = found[broker_id]
        return standing.last_epoch, standing.log_end, -order.index(broker_id)

    elected = max(found, key=rank)
    best = found[elected]
    return UncleanRow(
        topic_partition=where,
        in_sync=tuple(best.in_sync),
        leader_epoch=best.leader_epoch,
        known_end=None if best.known_end < 0 else best.known_end,
        committed=None if best.committed < 0 else best.committed,
        ends={each: found[each].log_end for each in sorted(found)},
        elected=elected,
        goes_on_at=best.go_on_at,
    )


def _portions(everything: list[_T]) -> Iterable[list[_T]]:
    return (
        everything[start : start + _PARTITIONS_PER_REQUEST]
        for start in range(0, len(everything), _PARTITIONS_PER_REQUEST)
    )

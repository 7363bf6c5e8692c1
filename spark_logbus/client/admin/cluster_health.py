"""A cluster as one looks at it first: which brokers run, what they hold, what nobody serves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from spark_logbus.client.admin.moves import MoveDescription, described_moves
from spark_logbus.client.cluster.cluster import Cluster
from spark_logbus.coordination.cluster.brokers import BrokerRegistration, BrokerRegistry
from spark_logbus.coordination.cluster.drained import DrainedBrokers
from spark_logbus.errors import ConfigError, LogbusError
from spark_logbus.model import BrokerAddress, TopicPartition
from spark_logbus.offsets.descriptions import PartitionDescription, TopicDescription
from spark_logbus.protocol import Api, MetadataRequest, MetadataResponse
from spark_logbus.topic_replication import TopicReplication
from spark_logbus.zookeeper import Session, default_connect


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDescription:
    """A broker and the partitions that it leads, or that are on their way to it. ``registration``
    is None for one that is not running; ``problem`` says why it serves nothing now, or not all.
    ``offline`` of the ``partitions`` are not served; ``size_bytes`` is of the others, ``refusing``
    of which are read and take no appends. It ``follows`` as many partitions that others lead. A
    broker that is ``drained`` gets no new partition."""

    broker_id: int
    registration: BrokerRegistration | None
    partitions: int
    offline: int
    size_bytes: int
    problem: str | None
    refusing: int = 0
    drained: bool = False
    follows: int = 0

    @property
    def rack(self) -> str | None:
        return None if self.registration is None else self.registration.address.rack


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """``offline`` are the partitions that nobody serves now, each with its leader's id; ``moves``
    those that are under way, or have failed, as of one look. ``under_replicated`` are those that
    lack replicas in sync, each with the brokers of these, and ``under_min_in_sync`` those that take
    nothing that is to be replicated, each with how many are in sync."""

    zookeeper: str
    brokers: list[BrokerDescription]
    topics: int
    partitions: int
    offline: dict[TopicPartition, int]
    moves: list[MoveDescription] = field(default_factory=list)
    under_replicated: dict[TopicPartition, list[int]] = field(default_factory=dict)
    under_min_in_sync: dict[TopicPartition, int] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        return sum(broker.size_bytes for broker in self.brokers)

    @property
    def healthy(self) -> bool:
        """True when every known broker runs and answers, and every partition is served, takes
        appends, and has all its replicas in sync. A broker to which partitions are on their way is
        known too."""
        return (
            not self.offline
            and not self.under_replicated
            and all(broker.problem is None for broker in self.brokers)
        )

    @property
    def waiting(self) -> dict[int, int]:
        """Numbers of moves that wait for a broker that is not running, by its id."""
        away = {each.broker_id for each in self.brokers if each.registration is None}
        standing = [each for each in self.moves if not each.error]
        found = {
            broker_id: sum(broker_id in (each.leader, *each.to) for each in standing)
            for broker_id in sorted(away)
        }
        return {broker_id: moves for broker_id, moves in found.items() if moves}


def describe_cluster(
    cluster: Cluster, topics: Mapping[str, TopicDescription]
) -> ClusterDescription:
    """``topics`` are all of them, with their ends."""
    zookeeper = cluster.zookeeper or default_connect()
    with Session(zookeeper, client_name="logbus-cluster", expects_cluster=True) as session:
        registered = {
            each.address.broker_id: each for each in BrokerRegistry(session).registrations()
        }
        drained = DrainedBrokers(session).ids()
    led: dict[int, list[PartitionDescription]] = {broker_id: [] for broker_id in registered}
    offline: dict[TopicPartition, int] = {}
    lacking: dict[TopicPartition, list[int]] = {}
    refusing: dict[TopicPartition, int] = {}
    follows = Counter[int]()
    for topic in topics.values():
        least = _least_in_sync(topic)
        for part in topic.partitions.values():
            leader_id = -1 if part.leader_id is None else part.leader_id
            led.setdefault(leader_id, []).append(part)
            where = TopicPartition(topic.name, part.partition)
            if part.ends is None:
                offline[where] = leader_id
            if part.is_under_replicated:
                lacking[where] = [each for each in part.replicas if each not in part.in_sync]
                if len(part.in_sync) < least(len(part.replicas)):
                    refusing[where] = len(part.in_sync)
            follows.update(each for each in part.replicas if each != leader_id)
    for broker_id in follows:
        led.setdefault(broker_id, [])
    partitions = sum(map(len, led.values()))
    moves = described_moves(topics, cluster.clock.monotonic(), ())
    for move in moves:
        if not move.error:
            for broker_id in move.to:
                led.setdefault(broker_id, [])
    return ClusterDescription(
        zookeeper=zookeeper,
        brokers=[
            replace(
                _described(cluster, broker_id, registered.get(broker_id), led[broker_id]),
                drained=broker_id in drained,
                follows=follows[broker_id],
            )
            for broker_id in sorted(led)
        ],
        topics=len(topics),
        partitions=partitions,
        offline=dict(sorted(offline.items())),
        moves=moves,
        under_replicated=dict(sorted(lacking.items())),
        under_min_in_sync=dict(sorted(refusing.items())),
    )


def _least_in_sync(topic: TopicDescription) -> Callable[[int], int]:
    """Returns how many of so many replicas of a partition have to be in sync."""
    try:
        return TopicReplication.from_topic_config(topic.config).least_in_sync
    except ConfigError:  # written by hand, past all checks
        return TopicReplication().least_in_sync


def _described(
    cluster: Cluster,
    broker_id: int,
    registration: BrokerRegistration | None,
    led: list[PartitionDescription],
) -> BrokerDescription:
    sizes = [part.ends.size_bytes for part in led if part.ends is not None]
    offline = len(led) - len(sizes)
    problem = None
    if registration is None:
        problem = "not running"
    elif not sizes:  # nothing has shown yet that it answers
        problem = _silence(cluster, registration.address, led)
    if problem is None and offline:
        problem = "does not serve all that it leads; its log says why"
    refusals = [part.ends.problem for part in led if part.ends is not None and part.ends.problem]
    if problem is None and refusals:
        problem = f"takes no appends to {len(refusals)} of its partitions: {refusals[0]}"
    return BrokerDescription(
        broker_id=broker_id,
        registration=registration,
        partitions=len(led),
        offline=offline,
        size_bytes=sum(sizes),
        problem=problem,
        refusing=len(refusals),
    )


def _silence(
    cluster: Cluster, address: BrokerAddress, led: list[PartitionDescription]
) -> str | None:
    """Returns why a broker does not answer; None if it does. A broker that did not tell the ends
    of what it leads is not waited for again."""
    for part in led:
        if part.leader == address and part.problem is not None:
            return f"does not answer: {part.problem.message}"
    deadline = cluster.deadline_ms(cluster.config.connect_timeout_ms)
    request = MetadataRequest(topics=[])
    try:
        cluster.call(address, Api.METADATA, request, MetadataResponse, deadline=deadline)
    except LogbusError as error:
        if not error.retriable:
            raise
        return f"does not answer: {error.message}"
    return None

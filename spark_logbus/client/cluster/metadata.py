"""A snapshot of the cluster's brokers, topics and leaders. Pure; ``cluster`` asks for it.

Brokers learn of a new leader one after the other. So a leader counts only in a leader epoch that is
not older than one that was heard of: asking a broker that is behind leads nobody back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from spark_logbus.model import BrokerAddress, TopicPartition
from spark_logbus.protocol import MetadataResponse, PartitionInfo, TopicInfo

LedPartition: TypeAlias = tuple[str, int]  # the topic's id, the partition

LONG_AGO: Final = float("-inf")
# So long all brokers say an older epoch before it is believed: ZooKeeper was put back to a backup.
# More than it takes a broker to notice by itself who leads; less than producers try for.
_CONTRADICTED_S: Final = 90.0


@dataclass(frozen=True, slots=True)
class KnownTopic:
    """One topic as of ``learned_at`` (monotonic seconds).

    ``leaders`` holds broker ids, ``epochs`` the leader epoch of each. ``replicas`` and ``in_sync``
    hold those of partitions that have more than one. ``contradicted`` holds the times since when
    all brokers that were asked have said an older one.
    """

    name: str
    topic_id: str
    leaders: dict[int, int] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    replicas: dict[int, tuple[int, ...]] = field(default_factory=dict)
    in_sync: dict[int, tuple[int, ...]] = field(default_factory=dict)
    contradicted: dict[int, float] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)
    learned_at: float = LONG_AGO

    def after(self, info: TopicInfo, *, learned_at: float) -> KnownTopic:
        """Returns this topic with what a broker says of it, but for leaders of older epochs."""
        leaders, epochs = dict(self.leaders), dict(self.epochs)
        replicas, in_sync = dict(self.replicas), dict(self.in_sync)
        contradicted = dict(self.contradicted)
        for part in info.partitions:
            number = part.partition
            if self.is_older(part) and not self._is_believed(part, contradicted, learned_at):
                continue
            leaders[number], epochs[number] = part.leader, part.leader_epoch
            _keep_several(replicas, number, part.replicas)
            _keep_several(in_sync, number, part.in_sync)
            contradicted.pop(number, None)
        return replace(
            self,
            leaders=leaders,
            epochs=epochs,
            replicas=replicas,
            in_sync=in_sync,
            contradicted=contradicted,
            config=dict(info.config),
            learned_at=learned_at,
        )

    def is_older(self, part: PartitionInfo) -> bool:
        """True if that is of an older leader epoch than is known."""
        return part.leader_epoch < self.epochs.get(part.partition, part.leader_epoch)

    def _is_believed(
        self, part: PartitionInfo, contradicted: dict[int, float], learned_at: float
    ) -> bool:
        if part.leader_epoch < 0:
            return False  # the broker has not heard of any leader yet
        since = contradicted.setdefault(part.partition, learned_at)
        return learned_at - since >= _CONTRADICTED_S

    @property
    def max_record_batch_bytes(self) -> int | None:
        """The topic's own limit, where it has one."""
        try:
            return int(self.config["max.message.bytes"])
        except (KeyError, ValueError):
            return None


def _keep_several(
    known: dict[int, tuple[int, ...]], partition: int, brokers: Sequence[int]
) -> None:
    """Note the ``brokers`` of a partition; one of which no others are told takes no room."""
    if brokers:
        known[partition] = tuple(brokers)
    else:
        known.pop(partition, None)


@dataclass(frozen=True, slots=True)
class Metadata:
    """An immutable snapshot; ``updated`` makes the next one.

    ``brokers`` are the live ones, ``met`` all that were ever live, where they last were.
    ``former`` are topics that others of their names have followed, or that nobody knew when last
    asked for: a broker that is behind may still, or again, speak of them.
    """

    brokers: dict[int, BrokerAddress] = field(default_factory=dict)
    topics: dict[str, KnownTopic] = field(default_factory=dict)
    met: dict[int, BrokerAddress] = field(default_factory=dict)
    former: dict[str, KnownTopic] = field(default_factory=dict)

    def updated(self, response: MetadataResponse, *, learned_at: float) -> Metadata:
        """Returns these metadata with those of ``response``, as far as they are not older; brokers
        that it does not list are gone."""
        brokers = {
            info.broker_id: BrokerAddress(
                info.broker_id, info.host, info.port, info.local_socket, info.rack, info.tls_port
            )
            for info in response.brokers
        }
        topics, former = dict(self.topics), dict(self.former)
        for info in response.topics:
            known = self._known(info)
            last = topics.get(info.name)
            if last is not None and last.topic_id != info.topic_id:
                former[info.name] = last
            topics[info.name] = known.after(info, learned_at=learned_at)
        return Metadata(brokers, topics, {**self.met, **brokers}, former)

    def is_behind(self, response: MetadataResponse, refused: Mapping[LedPartition, int]) -> bool:
        """True if a partition has a newer leader than ``response`` says: one that is known, or one
        that has to be, as what it says is no newer than the epoch of a leader that refused."""
        return any(
            known.is_older(part)
            or part.leader_epoch <= refused.get((info.topic_id, part.partition), LONG_AGO)
            for info in response.topics
            for known in [self._known(info)]
            for part in info.partitions
        )

    def is_older(self, info: TopicInfo, part: PartitionInfo) -> bool:
        """True if a newer leader epoch of that partition is known."""
        return self._known(info).is_older(part)

    def _known(self, info: TopicInfo) -> KnownTopic:
        """Returns what is known of that very topic."""
        for known in (self.topics.get(info.name), self.former.get(info.name)):
            if known is not None and known.topic_id == info.topic_id:
                return known
        return KnownTopic(info.name, info.topic_id)

    def invalidated(self, topic: str) -> Metadata:
        """Returns these metadata with ``topic`` to be asked for again; what is known of it serves
        until then."""
        known = self.topics.get(topic)
        if known is None:
            return self
        return replace(self, topics={**self.topics, topic: replace(known, learned_at=LONG_AGO)})

    def invalidated_leader(self, broker_id: int) -> Metadata:
        """Returns these metadata with all topics to be asked for again in which that broker leads a
        partition."""
        topics = {
            name: replace(known, learned_at=LONG_AGO)
            if broker_id in known.leaders.values()
            else known
            for name, known in self.topics.items()
        }
        return replace(self, topics=topics)

    def without(self, topic: str) -> Metadata:
        topics = {name: known for name, known in self.topics.items() if name != topic}
        former = {name: known for name, known in self.topics.items() if name == topic}
        return replace(self, topics=topics, former={**self.former, **former})

    def leader(self, topic_partition: TopicPartition) -> BrokerAddress | None:
        """The live leader, as far as known."""
        leader = self.leader_id(topic_partition)
        return self.brokers.get(leader) if leader is not None else None

    def leader_id(self, topic_partition: TopicPartition) -> int | None:
        """The leader's broker id, live or not, as far as known."""
        topic = self.topics.get(topic_partition.topic)
        return topic.leaders.get(topic_partition.partition) if topic else None

    def in_sync(self, topic_partition: TopicPartition) -> list[BrokerAddress]:
        """Its live replicas that are in sync; none where the leader is the only replica."""
        topic = self.topics.get(topic_partition.topic)
        known = topic.in_sync.get(topic_partition.partition, ()) if topic else ()
        return [self.brokers[each] for each in known if each in self.brokers]

    def leader_name(self, topic_partition: TopicPartition) -> str:
        """The leader for people, live or not: with its address, as far as that was ever known."""
        leader = self.leader_id(topic_partition)
        if leader is None:
            return f"the leader of {topic_partition}"
        return str(self.met.get(leader, f"broker {leader}"))

"""A snapshot of the cluster's brokers, topics and leaders. Pure; ``cluster`` asks for it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from spark_logbus.model import BrokerAddress, TopicPartition
from spark_logbus.protocol import MetadataResponse, TopicInfo

LONG_AGO: Final = float("-inf")


@dataclass(frozen=True, slots=True)
class KnownTopic:
    """One topic as of ``learned_at`` (monotonic seconds). ``leaders`` holds broker ids."""

    name: str
    topic_id: str
    leaders: dict[int, int]
    config: dict[str, str]
    learned_at: float

    @classmethod
    def of(cls, info: TopicInfo, *, learned_at: float) -> KnownTopic:
        leaders = {part.partition: part.leader for part in info.partitions}
        return cls(info.name, info.topic_id, leaders, dict(info.config), learned_at)

    @property
    def max_record_batch_bytes(self) -> int | None:
        """The topic's own limit, where it has one."""
        try:
            return int(self.config["max.message.bytes"])
        except (KeyError, ValueError):
            return None


@dataclass(frozen=True, slots=True)
class Metadata:
    """An immutable snapshot; ``updated`` makes the next one.

    ``brokers`` are the live ones, ``met`` all that were ever live, where they last were.
    """

    brokers: dict[int, BrokerAddress] = field(default_factory=dict)
    topics: dict[str, KnownTopic] = field(default_factory=dict)
    met: dict[int, BrokerAddress] = field(default_factory=dict)

    def updated(self, response: MetadataResponse, *, learned_at: float) -> Metadata:
        """Returns these metadata with those of ``response``; brokers that it does not list are
        gone."""
        brokers = {
            info.broker_id: BrokerAddress(info.broker_id, info.host, info.port, info.local_socket)
            for info in response.brokers
        }
        learned = {
            info.name: KnownTopic.of(info, learned_at=learned_at) for info in response.topics
        }
        return Metadata(brokers, {**self.topics, **learned}, {**self.met, **brokers})

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
        return replace(self, topics=topics)

    def leader(self, topic_partition: TopicPartition) -> BrokerAddress | None:
        """The live leader, as far as known."""
        topic = self.topics.get(topic_partition.topic)
        leader = topic.leaders.get(topic_partition.partition) if topic else None
        return self.brokers.get(leader) if leader is not None else None

    def leader_name(self, topic_partition: TopicPartition) -> str:
        """The leader for people, live or not: with its address, as far as that was ever known."""
        topic = self.topics.get(topic_partition.topic)
        leader = topic.leaders.get(topic_partition.partition) if topic else None
        if leader is None:
            return f"the leader of {topic_partition}"
        return str(self.met.get(leader, f"broker {leader}"))

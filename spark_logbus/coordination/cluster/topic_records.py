"""Topics as values, and the plans of what is written. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from spark_logbus.coordination import paths
from spark_logbus.coordination.payloads import MovePayload, TopicPayload, decode, encode
from spark_logbus.errors import (
    ConfigError,
    InvalidNameError,
    NotLeaderError,
    UnknownTopicError,
)
from spark_logbus.model import TopicPartition, check_name
from spark_logbus.topic_replication import MAX_REPLICAS, REPLICATION_KEYS, TopicReplication
from spark_logbus.topic_schemas import check_unchanged
from spark_logbus.zookeeper.nodes import Node
from spark_logbus.zookeeper.unreadable import CorruptNodeError, foreign_node

MAX_PARTITIONS = 10_000  # about 150 KB in the topic's node, far below ZooKeeper's 1 MiB
MAX_CONFIG_BYTES = 100_000
# Of a topic's node, which a transaction with others has to hold. Errors of moves are shortened
# first, then no more moves begin; so the topic can still be altered, and moves can end.
MAX_BYTES_WITH_ERRORS = 600_000
MAX_BYTES_WITH_MOVES = 700_000
MAX_BYTES = 800_000
# Replicas of all partitions of a topic: with ids of ten digits half a megabyte in its node.
MAX_ASSIGNED = 30_000


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """The decisions about a topic; ``partitions`` maps to assigned brokers, the first of
    which is the preferred leader. ``readable`` is false when that is the last good content of a
    node that cannot be read now. ``moves`` are those that are asked for, by partition."""

    name: str
    topic_id: str
    partitions: dict[int, list[int]]
    config: dict[str, str]
    readable: bool = True
    moves: Mapping[int, MovePayload] = field(default_factory=dict)

    @property
    def replicas(self) -> int:
        """The replicas of a partition; the most of one where they are being changed."""
        return max(map(len, self.partitions.values()), default=1)


@dataclass(frozen=True, slots=True)
class LeadershipClaim:
    """A partition that a broker is to lead. ``topic_id`` is of the topic that is meant, None: of
    any; ``end`` is how far the broker's log has come on disk, ``log_id`` the id of that log. Its
    new leader epoch comes after ``after_epoch``, the last in that log, also where ZooKeeper was
    restored from a state that knows less."""

    topic_partition: TopicPartition
    topic_id: str | None = None
    end: int | None = None
    log_id: str = ""
    after_epoch: int = -1


@dataclass(frozen=True, slots=True)
class Reached:
    """The end of a log on disk, in one leader epoch of its topic, and its high watermark where it
    has replicas."""

    topic_id: str
    leader_epoch: int
    end: int
    committed: int | None = None


def check_topic(
    name: str,
    *,
    partitions: int,
    brokers: Collection[int],
    config: Mapping[str, str],
    replicas: int = 1,
) -> None:
    """Raises ConfigError for a topic that cannot be made on these brokers."""
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise ConfigError(
            f"The topic {name!r} cannot have {partitions} partitions; use 1 to {MAX_PARTITIONS}."
        )
    if not brokers:
        raise ConfigError(
            f"There is no live broker to put the partitions of {name!r} on; start one first."
        )
    if min(brokers) < 0:
        raise ConfigError(f"A broker id is 0 or more, got {min(brokers)}.")
    _check_replicas(name, replicas, partitions=partitions, brokers=brokers)
    check_config(name, config)
    TopicReplication.from_topic_config(config).check(name, replicas)


def check_enlarged(name: str, *, partitions: int, replicas: int, brokers: Collection[int]) -> None:
    """Raises ConfigError for partitions that cannot be added on these brokers."""
    if partitions > MAX_PARTITIONS:
        raise ConfigError(
            f"The topic {name!r} cannot have {partitions} partitions; use up to {MAX_PARTITIONS}."
        )
    _check_replicas(name, replicas, partitions=partitions, brokers=brokers)


def check_alteration(before: TopicRecord, after: TopicRecord) -> None:
    """Raises ConfigError for a change of the configuration that the topic cannot have."""
    check_config(after.name, after.config)
    check_unchanged(after.name, before.config, after.config)
    assert after.partitions.items() >= before.partitions.items(), "none is taken away or moved"
    if len(after.partitions) > MAX_PARTITIONS:
        raise ConfigError(
            f"The topic {after.name!r} cannot have {len(after.partitions)} partitions; use up to "
            f"{MAX_PARTITIONS}."
        )
    if any(before.config.get(key) != after.config.get(key) for key in REPLICATION_KEYS):
        wanted = TopicReplication.from_topic_config(after.config)
        lists = (*after.partitions.values(), *(move.to for move in after.moves.values()))
        wanted.check(after.name, min(map(len, lists), default=1))


def check_config(name: str, config: Mapping[str, str]) -> None:
    size = sum(len(key) + len(value) for key, value in config.items())
    if size > MAX_CONFIG_BYTES:
        raise ConfigError(
            f"The configuration of the topic {name!r} has {size} characters; "
            f"use at most {MAX_CONFIG_BYTES}."
        )


def check_size(
    name: str, before: TopicPayload, after: TopicPayload, *, limit: int = MAX_BYTES
) -> None:
    """ConfigError for a change that makes the topic's node larger, and larger than ``limit``."""
    size = len(encode(after))
    if size > limit and size > len(encode(before)):
        raise ConfigError(
            f"The topic {name!r} would take {size} bytes in ZooKeeper; up to {limit} are possible "
            "with this change. Make its configuration shorter, or end moves that stand or have "
            f"failed (logbus topics move {name} --cancel), and try again."
        )


def _check_replicas(name: str, replicas: int, *, partitions: int, brokers: Collection[int]) -> None:
    if not 1 <= replicas <= MAX_REPLICAS:
        raise ConfigError(
            f"The topic {name!r} cannot have {replicas} replicas of a partition; use 1 to "
            f"{MAX_REPLICAS}."
        )
    able = sorted({*brokers})
    if replicas > len(able):
        raise ConfigError(
            f"The topic {name!r} cannot have {replicas} replicas of a partition: each is on a "
            f"broker of its own, and {len(able)} can take one now ({', '.join(map(str, able))}). "
            "Start more brokers, or use fewer replicas; one that is being drained takes none."
        )
    if partitions * replicas > MAX_ASSIGNED:
        raise ConfigError(
            f"The topic {name!r} cannot have {partitions} partitions with {replicas} replicas: "
            f"that is {partitions * replicas} in all, and a topic has at most {MAX_ASSIGNED}."
        )


def payload_of(name: str, node: Node) -> TopicPayload:
    return decode(TopicPayload, node.data, path=paths.topic(name))


def decode_topic(name: str, node: Node) -> TopicRecord | None:
    """Returns the topic, None when it is deleted. Raises CorruptNodeError for a node of anything
    else."""
    try:
        check_name("topic", name)
    except InvalidNameError as error:
        raise foreign_node(f"{paths.TOPICS}/{name}", "topic") from error
    payload = payload_of(name, node)
    return None if payload.deleted else record_of(name, payload)


def record_of(name: str, payload: TopicPayload) -> TopicRecord:
    return TopicRecord(
        name=name,
        topic_id=payload.id,
        partitions=dict(payload.partitions),
        config=dict(payload.config),
        moves=dict(payload.moves),
    )


def unknown_topic(name: str) -> UnknownTopicError:
    return UnknownTopicError(f"There is no topic {name!r}; create it, or check its name.")


class TopicNode(NamedTuple):
    """A topic's node and what is in it: nothing, or the reason why that cannot be read."""

    name: str
    node: Node | None
    payload: TopicPayload | CorruptNodeError | None

    @classmethod
    def read(cls, name: str, node: Node | None) -> TopicNode:
        try:
            return cls(name, node, None if node is None else payload_of(name, node))
        except CorruptNodeError as error:
            return cls(name, node, error)

    def alive(self) -> tuple[Node, TopicPayload]:
        """UnknownTopicError, CorruptNodeError."""
        if isinstance(self.payload, CorruptNodeError):
            raise self.payload
        if self.node is None or self.payload is None or self.payload.deleted:
            raise unknown_topic(self.name)
        return self.node, self.payload

    def has_id(self, topic_id: str) -> bool:
        """True if it is the node of the topic of that id, which was not deleted."""
        payload = self.payload
        return isinstance(payload, TopicPayload) and payload.id == topic_id and not payload.deleted

    def require(self, claim: LeadershipClaim) -> None:
        """UnknownTopicError unless it has the claimed partition; CorruptNodeError."""
        _, payload = self.alive()
        if claim.topic_id not in (None, payload.id):
            raise UnknownTopicError(
                f"The topic {self.name!r} with the id {claim.topic_id} was deleted; the one of "
                f"that name now has the id {payload.id}."
            )
        partition = claim.topic_partition.partition
        if partition not in payload.partitions:
            raise UnknownTopicError(
                f"The topic {self.name!r} has {len(payload.partitions)} partitions and so no "
                f"partition {partition}."
            )

    def moves_to(self, claim: LeadershipClaim, broker_id: int) -> bool:
        """True if the claimed partition is not assigned to the broker and a move of it there
        stands. UnknownTopicError, CorruptNodeError."""
        self.require(claim)
        _, payload = self.alive()
        partition = claim.topic_partition.partition
        move = payload.moves.get(partition)
        return (
            move is not None
            and not move.error
            and broker_id in move.to
            and broker_id not in payload.partitions[partition]
        )

    def require_assigned(self, claim: LeadershipClaim, broker_id: int) -> None:
        """NotLeaderError unless the claimed partition is assigned to the broker; UnknownTopicError,
        CorruptNodeError."""
        self.require(claim)
        _, payload = self.alive()
        assigned = payload.partitions[claim.topic_partition.partition]
        if broker_id not in assigned:
            where = f"broker{'s' * (len(assigned) > 1)} {', '.join(map(str, assigned))}"
            raise NotLeaderError(
                f"Broker {broker_id} is not to lead {claim.topic_partition}: it was moved to "
                f"{where}."
            )

"""Brokers, topics, and the leaders of their partitions."""

from __future__ import annotations

from spark_logbus.protocol.messages.api import Api, Message, declare, nothing

__all__ = [
    "BrokerInfo",
    "MetadataRequest",
    "MetadataResponse",
    "MoveState",
    "PartitionEnds",
    "PartitionInfo",
    "TopicInfo",
]


class MetadataRequest(Message):
    """``topics`` None asks for all topics; ``ends`` asks for offsets and sizes as well."""

    topics: list[str] | None = None
    ends: bool = False


class BrokerInfo(Message):
    broker_id: int
    host: str
    port: int
    local_socket: str | None = None
    rack: str | None = None
    tls_port: int | None = None


class PartitionEnds(Message):
    """Offsets and size of one partition, known to its leader only.

    ``lost`` are the ranges of offsets between its start and its end whose records were given up
    with the end of a log. ``problem`` says why the partition takes no appends now, if so."""

    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    size_bytes: int
    lost: list[tuple[int, int]] = []
    problem: str | None = None


class MoveState(Message):
    """A move of a partition, as its leader sees it; ``to`` is the broker that is to have it.

    ``replicas`` is the whole new list where that is not ``to`` alone. ``copied_bytes`` and
    ``total_bytes`` are of all new brokers, -1 as long as none has asked for anything. ``quiet_ms``:
    how long one of them has not got on. ``error`` says why the move has failed.
    """

    to: int
    since_us: int
    throttle: int = 0
    error: str = ""
    copied_bytes: int = -1
    total_bytes: int = -1
    quiet_ms: int = 0
    replicas: list[int] = []


class PartitionInfo(Message):
    """One partition. ``replicas`` are the brokers that have or are to have a copy, the preferred
    leader first, ``in_sync`` those whose copies have all that is acknowledged; both are empty where
    the partition has no replica but its leader.
    """

    partition: int
    leader: int
    leader_epoch: int
    ends: PartitionEnds | None = None
    move: MoveState | None = None
    replicas: list[int] = []
    in_sync: list[int] = []


class TopicInfo(Message):
    name: str
    topic_id: str
    partitions: list[PartitionInfo]
    config: dict[str, str] = {}


class MetadataResponse(Message):
    brokers: list[BrokerInfo]
    topics: list[TopicInfo]


declare(
    Api.METADATA, MetadataRequest, MetadataResponse,
    needs=nothing,  # it leaves out what may not be described
    entries=lambda request: request.topics,
)  # fmt: skip

"""Topics made, altered and deleted."""

from __future__ import annotations

from spark_logbus.protocol.messages.api import Api, Message, Operation, Resource, declare

__all__ = [
    "AlterTopicRequest",
    "AlterTopicResponse",
    "CreateTopicRequest",
    "CreateTopicResponse",
    "DeleteTopicRequest",
    "DeleteTopicResponse",
]


class CreateTopicRequest(Message):
    """``replicas`` of each partition, each on a broker of its own."""

    name: str
    partitions: int
    config: dict[str, str] = {}
    replicas: int = 1


class CreateTopicResponse(Message):
    """``replicas`` that each partition has: a broker of an earlier release makes one only."""

    topic_id: str
    replicas: int = 1


declare(
    Api.CREATE_TOPIC, CreateTopicRequest, CreateTopicResponse,
    needs=lambda request: [(Operation.CREATE, Resource.TOPIC, request.name)],
)  # fmt: skip


class AlterTopicRequest(Message):
    """``set`` and ``unset`` keys of the configuration; ``partitions``: have so many from now on."""

    name: str
    set: dict[str, str] = {}
    unset: list[str] = []
    partitions: int | None = None


class AlterTopicResponse(Message):
    """The topic's own settings (not the brokers' defaults) and its number of partitions."""

    config_before: dict[str, str]
    config: dict[str, str]
    partitions_before: int
    partitions: int


declare(
    Api.ALTER_TOPIC, AlterTopicRequest, AlterTopicResponse,
    needs=lambda request: [(Operation.ALTER, Resource.TOPIC, request.name)],
)  # fmt: skip


class DeleteTopicRequest(Message):
    """``topic_id`` is of the topic that is meant: a request that a broker carries out late, after
    it was repeated at another one, deletes no newer topic of that name. None: whichever there is.
    """

    name: str
    topic_id: str | None = None


class DeleteTopicResponse(Message):
    pass


declare(
    Api.DELETE_TOPIC, DeleteTopicRequest, DeleteTopicResponse,
    needs=lambda request: [(Operation.DELETE, Resource.TOPIC, request.name)],
)  # fmt: skip

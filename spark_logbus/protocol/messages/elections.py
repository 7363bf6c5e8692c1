"""Elections of leaders that somebody asks for."""

from __future__ import annotations

from spark_logbus.protocol.messages.api import Api, Message, Operation, Resource, declare
from spark_logbus.protocol.messages.error import ErrorInfo

__all__ = ["ElectRequest", "ElectResponse", "ElectResult"]


class ElectRequest(Message):
    """Partitions of a topic that are to be led by their preferred leaders: asked of the broker that
    leads them now."""

    topic: str
    partitions: list[int]
    topic_id: str | None = None


class ElectResult(Message):
    """``done``: it was led by its preferred leader already."""

    partition: int
    done: bool = False
    error: ErrorInfo | None = None


class ElectResponse(Message):
    results: list[ElectResult]


declare(
    Api.ELECT, ElectRequest, ElectResponse,
    operation=Operation.ALTER, resource=Resource.CLUSTER,
    entries=lambda request: request.partitions,
)  # fmt: skip

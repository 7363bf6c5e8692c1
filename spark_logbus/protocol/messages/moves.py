"""Moves of partitions to other brokers."""

from __future__ import annotations

from spark_logbus.protocol.messages.api import Api, Message, Operation, declare, on_cluster
from spark_logbus.protocol.messages.error import ErrorInfo

__all__ = ["MoveRequest", "MoveResponse", "MoveResult", "PartitionMove"]


class PartitionMove(Message):
    """A partition that is to be on the broker ``to``; None: a move of it is to be cancelled.

    Where it has or is to have several replicas, ``replicas`` is the whole new list, and ``to`` the
    first of it: the preferred leader.
    """

    topic: str
    partition: int
    to: int | None = None
    topic_id: str | None = None
    replicas: list[int] = []


class MoveRequest(Message):
    """``throttle``: bytes a second that each broker copies at most for these moves; 0: any
    number."""

    moves: list[PartitionMove]
    throttle: int = 0


class MoveResult(Message):
    """``done``: the partition is there already, or there was nothing to cancel."""

    topic: str
    partition: int
    done: bool = False
    error: ErrorInfo | None = None


class MoveResponse(Message):
    results: list[MoveResult]


declare(
    Api.MOVE, MoveRequest, MoveResponse,
    needs=on_cluster(Operation.ALTER),
    entries=lambda request: request.moves,
)  # fmt: skip

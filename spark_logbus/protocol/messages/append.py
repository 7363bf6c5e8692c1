"""Appends of record batches to partitions."""

from __future__ import annotations

from spark_logbus.model import Acks
from spark_logbus.protocol.messages.api import Api, Message, Operation, declare, of_partitions
from spark_logbus.protocol.messages.error import ErrorInfo

__all__ = [
    "AppendPartition",
    "AppendRequest",
    "AppendResponse",
    "AppendResult",
]


class AppendPartition(Message):
    """``length`` bytes of the payload are whole record batches for this partition."""

    topic: str
    partition: int
    length: int


class AppendRequest(Message):
    acks: str
    timeout_ms: int
    partitions: list[AppendPartition]


class AppendResult(Message):
    """``base_offsets`` of the partition's record batches, one each, if they do not follow one
    another from ``base_offset`` on: when some of them had been appended by an earlier request."""

    topic: str
    partition: int
    base_offset: int = -1
    append_time_us: int = -1
    error: ErrorInfo | None = None
    base_offsets: list[int] = []


class AppendResponse(Message):
    results: list[AppendResult]


declare(
    Api.APPEND, AppendRequest, AppendResponse,
    needs=of_partitions(Operation.WRITE),
    entries=lambda request: request.partitions,
    answered=lambda request: request.acks != Acks.NONE.value,
)  # fmt: skip

"""Offsets by time, and cuts of offset ranges by size."""

from __future__ import annotations

from spark_logbus.protocol.messages.api import Api, Message, Operation, declare, of_partitions
from spark_logbus.protocol.messages.error import ErrorInfo

__all__ = [
    "ListOffsetsPartition",
    "ListOffsetsRequest",
    "ListOffsetsResponse",
    "ListOffsetsResult",
    "SplitRangePartition",
    "SplitRangeRequest",
    "SplitRangeResponse",
    "SplitRangeResult",
]


class ListOffsetsPartition(Message):
    """``at``: "earliest", "latest" or "timestamp" (then ``timestamp_us``).

    ``topic_id``, if given, is of the topic that is meant, and of no later one of its name.
    """

    topic: str
    partition: int
    at: str
    timestamp_us: int = 0
    topic_id: str | None = None


class ListOffsetsRequest(Message):
    partitions: list[ListOffsetsPartition]


class ListOffsetsResult(Message):
    """Offset that was asked for.

    For "timestamp" it is the base offset of the first record batch that holds a record at or after
    the time, None if there is none. The client looks inside; the broker decodes nothing. For
    "latest": ``lost`` as in the metadata.
    """

    topic: str
    partition: int
    offset: int | None = None
    error: ErrorInfo | None = None
    lost: list[tuple[int, int]] = []


class ListOffsetsResponse(Message):
    results: list[ListOffsetsResult]


declare(
    Api.LIST_OFFSETS, ListOffsetsRequest, ListOffsetsResponse,
    needs=of_partitions(Operation.DESCRIBE),
    entries=lambda request: request.partitions,
)  # fmt: skip


class SplitRangePartition(Message):
    """Cut ``[start, end)`` into pieces of about ``target_bytes`` at record batch boundaries."""

    topic: str
    partition: int
    start: int
    end: int
    target_bytes: int


class SplitRangeRequest(Message):
    partitions: list[SplitRangePartition]


class SplitRangeResult(Message):
    """``cuts``: offsets strictly between start and end, rising; ``size_bytes`` of the range."""

    topic: str
    partition: int
    cuts: list[int] = []
    size_bytes: int = 0
    error: ErrorInfo | None = None


class SplitRangeResponse(Message):
    results: list[SplitRangeResult]


declare(
    Api.SPLIT_RANGE, SplitRangeRequest, SplitRangeResponse,
    needs=of_partitions(Operation.DESCRIBE),
    entries=lambda request: request.partitions,
)  # fmt: skip

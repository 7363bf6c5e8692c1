"""Atomic writes: record batches staged, decided on, published and discarded.

Who writes sends ``stage`` to the leaders, as tasks go; then, once, ``prepare`` to the leaders,
``decide`` to any broker, and ``publish`` to the leaders. See docs/atomic-writes.md.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_logbus.protocol.messages.api import (
    Api,
    Message,
    Need,
    Operation,
    Resource,
    declare,
    nothing,
    of_partitions,
)
from spark_logbus.protocol.messages.append import AppendPartition, AppendResponse
from spark_logbus.protocol.messages.error import ErrorInfo

__all__ = [
    "DecideRequest",
    "DecideResponse",
    "Decision",
    "DiscardRequest",
    "DiscardResponse",
    "PrepareRequest",
    "PublishRequest",
    "ShareResponse",
    "ShareResult",
    "StageRequest",
    "TopicShares",
    "WriteContent",
    "WriteShare",
]


class StageRequest(Message):
    """Request to stage record batches: an append with acks flushed of what nobody is to see yet.

    Each partition's are of one attempt of a task, whose number is their producer id; the base
    offsets in the response count that attempt's records. ``writer`` and ``run`` as in the decision.
    """

    timeout_ms: int
    partitions: list[AppendPartition]
    writer: str = ""
    run: str = ""


declare(
    Api.STAGE, StageRequest, AppendResponse,
    needs=of_partitions(Operation.WRITE),
    entries=lambda request: request.partitions,
)  # fmt: skip


class WriteShare(Message):
    """``records`` of the write are for this partition, over all attempts that count."""

    topic: str
    topic_id: str
    partition: int
    records: int


class PrepareRequest(Message):
    """Are these shares on disk, staged? ``attempts`` are those that count, in the order of their
    tasks, as in ``"5,7-9"``. ``writer`` as in the decision.

    ``anew``: the promise that was given before was not accepted by who was to decide.
    """

    write: int
    attempts: str
    partitions: list[WriteShare]
    writer: str = ""
    anew: bool = False


class PublishRequest(Message):
    """The write is decided: make these shares visible, if that is not done. The broker believes
    the decision only; with the ``writer`` it finds that faster."""

    write: int
    attempts: str
    partitions: list[WriteShare]
    writer: str = ""


class ShareResult(Message):
    topic: str
    partition: int
    error: ErrorInfo | None = None


class ShareResponse(Message):
    """``promise``, of the broker with that id, in answer to a preparation: what it has said to be
    there it drops only after it has let the promise go, in ZooKeeper."""

    results: list[ShareResult]
    broker_id: int = -1
    promise: str = ""


_of_topics = of_partitions(Operation.WRITE)


def _of_writer(request: PrepareRequest | PublishRequest) -> Iterable[Need]:
    yield from _of_topics(request)
    if request.writer:
        yield Operation.WRITE, Resource.WRITER, request.writer


declare(
    Api.PREPARE, PrepareRequest, ShareResponse,
    needs=_of_writer,
    entries=lambda request: request.partitions,
)  # fmt: skip
declare(
    Api.PUBLISH, PublishRequest, ShareResponse,
    needs=_of_writer,
    entries=lambda request: request.partitions,
)  # fmt: skip


class TopicShares(Message):
    """Records by partition."""

    topic_id: str
    records: dict[int, int]


class Decision(Message):
    """A decided write, and what of it is not known to be published."""

    version: int
    write: int
    attempts: str
    topics: dict[str, TopicShares] = {}


class WriteContent(Message):
    """Content that attempts at the same write share. The texts are digests: of the records of
    each topic; of each partition, where key or row decide it; of the topics' numbers of
    partitions; of the ends of the sources that it was made of. Empty ones say nothing."""

    records: int
    topics: str = ""
    partitions: str = ""
    layout: str = ""
    inputs: str = ""


class DecideRequest(Message):
    """Decide the ``decision`` of a writer, unless one of that version or a later one stands.

    ``run``: of the query that writes; no run before it decides anything any more. ``settled``:
    the write whose decision was published everywhere, as this writer knows. ``once``: the writer
    never writes again. ``abort``: let the write never be decided, which holds unless it is.
    ``look``: change nothing, only say what would become of it. ``content``: what it holds, of
    inputs that end as ``inputs`` tells; one that was decided under the same version has to hold the
    same, unless ``repetition_dropped``. ``promises``, by broker id, are those with which the
    leaders of all that is in the decision have answered when it was prepared.
    """

    writer: str
    run: str
    decision: Decision
    settled: int | None = None
    once: bool = False
    abort: bool = False
    look: bool = False
    content: WriteContent | None = None
    inputs: str = ""
    repetition_dropped: bool = False
    promises: dict[int, str] = {}


class DecideResponse(Message):
    """``outcome``: "decided"; "already", and ``decision`` stands in its place; "unsettled", and
    ``decision``, the last one, has to be published everywhere first; "aborted". ``compared``: one
    that is there already was found to hold what the request told."""

    outcome: str
    decision: Decision | None = None
    compared: bool = False


def _decided(request: DecideRequest) -> Iterable[Need]:
    return [
        (Operation.WRITE, Resource.WRITER, request.writer),
        *((Operation.WRITE, Resource.TOPIC, topic) for topic in request.decision.topics),
    ]


declare(
    Api.DECIDE, DecideRequest, DecideResponse,
    needs=_decided,
    entries=lambda request: request.decision.topics,
)  # fmt: skip


class DiscardRequest(Message):
    """Drop all that the write has staged on this broker, for it is aborted; or what one attempt
    of a task has, for it failed. ``writer`` as in the decision: a broker that asks who somebody is
    drops nothing that others have begun."""

    write: int
    attempt: int | None = None
    writer: str = ""


class DiscardResponse(Message):
    pass


declare(
    Api.DISCARD, DiscardRequest, DiscardResponse,
    needs=nothing,  # whose write it is decides, and for which topics it has staged something
)  # fmt: skip

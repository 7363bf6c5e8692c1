"""Moves of partitions: begun and cancelled at any broker, and followed by what their leaders tell.

The brokers do the moves, and keep them in ZooKeeper: nothing here has to go on for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from spark_logbus.client.cluster.cluster import Cluster
from spark_logbus.errors import InvalidRequestError, LogbusError
from spark_logbus.model import TopicPartition, check_name
from spark_logbus.offsets.descriptions import PartitionDescription, TopicDescription
from spark_logbus.plurals import plural
from spark_logbus.protocol import (
    Api,
    MoveRequest,
    MoveResponse,
    MoveResult,
    MoveState,
    PartitionMove,
)
from spark_logbus.retry import Deadline

DEFAULT_THROTTLE: Final = 50_000_000
_PARTITIONS_PER_REQUEST: Final = 500  # keeps request and response far below the limit of a header


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveDescription:
    """A move of a partition from its leader to other brokers, as it was seen ``at`` (monotonic
    seconds). ``to`` are all that are to have it.

    ``copied_bytes`` and ``total_bytes`` are None as long as the leader does not tell, as before the
    new broker has begun. ``quiet_s``: how long it has not got on. ``error`` says why the move has
    failed, empty if it has not. ``bytes_per_s`` is known at the second look.
    """

    topic_partition: TopicPartition
    leader: int | None
    to: tuple[int, ...]
    since_us: int
    throttle: int
    error: str
    copied_bytes: int | None
    total_bytes: int | None
    quiet_s: float
    at: float
    bytes_per_s: float | None = None

    @property
    def left_s(self) -> float | None:
        """The seconds until all is copied at this rate; None where nobody knows."""
        if self.total_bytes is None or self.copied_bytes is None:
            return None
        left = max(0, self.total_bytes - self.copied_bytes)
        if not left:
            return 0.0
        return left / self.bytes_per_s if self.bytes_per_s else None


def move_partitions(
    cluster: Cluster, moves: Mapping[TopicPartition, int | Sequence[int]], throttle: int
) -> set[TopicPartition]:
    """See ``Admin.move_partitions``."""
    if throttle < 0:
        raise InvalidRequestError(f"A throttle is 0 (none) or more bytes a second, got {throttle}.")
    results = _ask(
        cluster,
        "Moving partitions",
        [_wanted(where, to) for where, to in sorted(moves.items())],
        throttle,
    )
    return {where for where, result in results.items() if not result.done}


def _wanted(where: TopicPartition, to: int | Sequence[int]) -> PartitionMove:
    if isinstance(to, int):
        return PartitionMove(where.topic, where.partition, to)
    if not to:
        raise InvalidRequestError(f"{where} is to have no replica; name one broker or more.")
    return PartitionMove(where.topic, where.partition, to[0], replicas=[*to])


def cancel_moves(cluster: Cluster, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
    """See ``Admin.cancel_moves``."""
    wanted = [PartitionMove(where.topic, where.partition) for where in sorted({*partitions})]
    results = _ask(cluster, "Cancelling moves", wanted, 0)
    return {where for where, result in results.items() if not result.done}


def _ask(
    cluster: Cluster, action: str, wanted: Sequence[PartitionMove], throttle: int
) -> dict[TopicPartition, MoveResult]:
    """Asks any broker, in parts; raises the first error, with what was done all the same."""
    for move in wanted:
        check_name("topic", move.topic)
    results: dict[TopicPartition, MoveResult] = {}
    for some in _parts(wanted):
        request = MoveRequest(some, throttle)

        def attempt(deadline: Deadline, request: MoveRequest = request) -> MoveResponse:
            return cluster.ask_any(Api.MOVE, request, MoveResponse, deadline=deadline)

        for result in cluster.retrying(action, attempt).results:
            results[TopicPartition(result.topic, result.partition)] = result
    failed = {where: result.error for where, result in results.items() if result.error is not None}
    if failed:
        raise _with_others(next(iter(failed.values())).to_exception(), len(results) - len(failed))
    return results


def _parts(wanted: Sequence[PartitionMove]) -> Iterable[list[PartitionMove]]:
    """Requests' parts: each topic in one of them if it fits, so that all of its moves begin or
    none."""
    part: list[PartitionMove] = []
    by_topic: dict[str, list[PartitionMove]] = {}
    for move in wanted:
        by_topic.setdefault(move.topic, []).append(move)
    for of_topic in by_topic.values():
        if part and len(part) + len(of_topic) > _PARTITIONS_PER_REQUEST:
            yield part
            part = []
        part += of_topic
    if part:
        yield part


def _with_others(error: LogbusError, others: int) -> LogbusError:
    if not others:
        return error
    done = plural(others, "other partition")
    return type(error)(f"{error.message} (What was asked of {done} is done.)")


def described_moves(
    topics: Mapping[str, TopicDescription], at: float, since: Iterable[MoveDescription]
) -> list[MoveDescription]:
    """The moves of topics that were described with their ends, ``at`` that time; with rates where
    ``since`` has an earlier look at the same move."""
    before = {(each.topic_partition, each.to, each.since_us): each for each in since}
    found = []
    for name in sorted(topics):
        for part in topics[name].partitions.values():
            if part.move is not None:
                where = TopicPartition(name, part.partition)
                earlier = before.get((where, _to(part.move), part.move.since_us))
                found.append(_described(where, part, at, earlier))
    return found


def _to(move: MoveState) -> tuple[int, ...]:
    return tuple(move.replicas) or (move.to,)


def _described(
    where: TopicPartition,
    part: PartitionDescription,
    at: float,
    before: MoveDescription | None,
) -> MoveDescription:
    move = part.move
    assert move is not None
    copied = move.copied_bytes if move.copied_bytes >= 0 else None
    total = move.total_bytes if move.total_bytes >= 0 else None
    rate = None
    if before is not None and before.copied_bytes is not None and copied is not None:
        rate = before.bytes_per_s
        if at > before.at:
            # Less than before: its new broker has begun anew.
            rate = max(0, copied - before.copied_bytes) / (at - before.at)
    return MoveDescription(
        topic_partition=where,
        leader=part.leader_id,
        to=_to(move),
        since_us=move.since_us,
        throttle=move.throttle,
        error=move.error,
        copied_bytes=copied,
        total_bytes=total,
        quiet_s=move.quiet_ms / 1000,
        at=at,
        bytes_per_s=rate,
    )

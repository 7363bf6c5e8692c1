"""Progress of moves, look by look, until the last one is over."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_logbus.client.admin.move_plans import named
from spark_logbus.client.admin.moves import MoveDescription, described_moves
from spark_logbus.client.admin.placement import read_moves
from spark_logbus.client.cluster.cluster import Cluster
from spark_logbus.errors import CoordinationError, UnknownTopicError
from spark_logbus.model import TopicPartition
from spark_logbus.offsets.descriptions import LogQueries, TopicDescription

if TYPE_CHECKING:
    from spark_logbus.client.admin.move_plans import MovePlan

_RATE_OVER_S: Final = 15.0  # so that one look between two answers does not make it jump


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveProgress:
    """Moves at one look: those that are ``moving``, and those that are over: ``arrived``,
    ``failed`` with the reason, or ``stayed`` with what became of them instead.

    ``copied_bytes`` are of all moves, those that are over among them; ``bytes_per_s`` and
    ``left_s`` are None where nobody knows.
    """

    moving: list[MoveDescription]
    waiting: set[TopicPartition]
    arrived: set[TopicPartition]
    failed: dict[TopicPartition, str]
    stayed: dict[TopicPartition, str]
    copied_bytes: int
    total_bytes: int
    bytes_per_s: float | None

    @property
    def over(self) -> bool:
        return not self.moving and not self.waiting

    @property
    def left_s(self) -> float | None:
        left = max(0, self.total_bytes - self.copied_bytes)
        return left / self.bytes_per_s if left and self.bytes_per_s else None


class _Copied(NamedTuple):
    at: float
    size_bytes: int


class MoveFollower:
    """Follows moves that were begun. Not thread-safe.

    The brokers answer from what they have heard, which may be a moment old: that a move is over is
    looked up in ZooKeeper.
    """

    def __init__(self, admin: LogQueries, cluster: Cluster, plan: MovePlan) -> None:
        self._admin = admin
        self._cluster = cluster
        moves = (*plan.moves, *plan.under_way)
        self._targets = {move.topic_partition: move.to for move in moves}
        self._sizes = {move.topic_partition: move.size_bytes for move in moves}
        self._copied: dict[TopicPartition, int] = {}
        self._seen: list[MoveDescription] = []
        self._looks: deque[_Copied] = deque()
        self._arrived: set[TopicPartition] = set()
        self._failed: dict[TopicPartition, str] = {}
        self._stayed: dict[TopicPartition, str] = {}

    def look(self) -> MoveProgress:
        """Asks the brokers. Raises BrokerUnavailableError while none answers; look again then."""
        left = self._left()
        at = self._cluster.clock.monotonic()
        described = self._described({each.topic for each in left}) if left else {}
        self._seen = [
            each
            for each in described_moves(described, at, self._seen)
            if each.topic_partition in left
        ]
        moving = {each.topic_partition: each for each in self._seen}
        for where, each in moving.items():
            if each.total_bytes is not None:
                self._sizes[where] = each.total_bytes
            self._copied[where] = each.copied_bytes or 0
        doubtful = {
            where
            for where in left
            if where not in moving
            or moving[where].error
            or moving[where].to != self._targets[where]
        }
        if doubtful:
            self._look_up(doubtful)
        left = self._left()
        return MoveProgress(
            moving=[each for each in self._seen if each.topic_partition in left and not each.error],
            waiting=left - {where for where, each in moving.items() if not each.error},
            arrived=set(self._arrived),
            failed=dict(self._failed),
            stayed=dict(self._stayed),
            copied_bytes=self._copied_bytes(),
            total_bytes=sum(self._sizes.values()),
            bytes_per_s=self._rate(at),
        )

    def _left(self) -> set[TopicPartition]:
        over = self._arrived | self._failed.keys() | self._stayed.keys()
        return self._targets.keys() - over

    def _described(self, topics: set[str]) -> Mapping[str, TopicDescription]:
        try:
            return self._admin.describe(sorted(topics))
        except UnknownTopicError:
            return self._admin.describe()  # one of them was deleted

    def _look_up(self, doubtful: set[TopicPartition]) -> None:
        """Asks ZooKeeper what has become of moves; later, if it does not answer."""
        try:
            found = read_moves(self._cluster, doubtful)
        except CoordinationError:
            return
        for where, (brokers, move) in found.items():
            to = self._targets[where]
            if brokers is not None and (*brokers,) == to:
                self._arrived.add(where)
            elif brokers is None:
                self._stayed[where] = "Its topic was deleted."
            elif move is None:
                self._stayed[where] = f"The move was cancelled; it is on {named(brokers)}."
            elif (*move.to,) != to:
                self._stayed[where] = f"It was sent to {named(move.to)} meanwhile."
            elif move.error:
                self._failed[where] = move.error
            for over in (self._failed, self._stayed):
                if where in over:  # what was copied is of no use
                    self._sizes[where] = self._copied[where] = 0

    def _copied_bytes(self) -> int:
        return sum(
            size if where in self._arrived else min(self._copied.get(where, 0), size)
            for where, size in self._sizes.items()
        )

    def _rate(self, at: float) -> float | None:
        self._looks.append(_Copied(at, self._copied_bytes()))
        while len(self._looks) > 2 and self._looks[1].at <= at - _RATE_OVER_S:
            self._looks.popleft()
        first = self._looks[0]
        if at <= first.at:
            return None
        return max(0, self._looks[-1].size_bytes - first.size_bytes) / (at - first.at)

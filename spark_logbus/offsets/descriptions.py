"""What brokers say of topics, and who can be asked; what plans are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from spark_logbus.errors import LogbusError
from spark_logbus.model import BrokerAddress, OffsetSpec, TopicPartition
from spark_logbus.protocol import MoveState, PartitionEnds


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """``leader`` is None while it is not running; ``ends`` are None if so, if it does not serve
    the partition yet, or if they were not asked for. ``problem`` says why it cannot be asked.
    ``leader_id`` is the leader's, running or not. ``move`` is the move to another broker that is
    under way or has failed, with what its leader knows of it if ``ends`` were asked for.
    ``replicas`` are the brokers with a copy, the preferred leader first, and ``in_sync`` those
    whose copies have all; both are empty where the leader is the only replica."""

    partition: int
    leader: BrokerAddress | None
    ends: PartitionEnds | None
    problem: LogbusError | None = None
    leader_id: int | None = None
    move: MoveState | None = None
    replicas: tuple[int, ...] = ()
    in_sync: tuple[int, ...] = ()

    @property
    def is_under_replicated(self) -> bool:
        """True if some of the replicas are not in sync."""
        return not {*self.replicas} <= {*self.in_sync}


@dataclass(frozen=True, slots=True)
class TopicDescription:
    name: str
    topic_id: str
    config: dict[str, str]
    partitions: dict[int, PartitionDescription]


class LogQueries(Protocol):
    """Questions about logs that ``client.Admin`` answers."""

    def topics(self) -> list[TopicDescription]: ...

    def describe(
        self, names: Iterable[str] | None = None, *, ends: bool = True
    ) -> dict[str, TopicDescription]: ...

    def list_offsets(
        self, specs: Mapping[TopicPartition, OffsetSpec]
    ) -> dict[TopicPartition, int | None]: ...

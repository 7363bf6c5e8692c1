"""A topic whose partitions have several replicas, in a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from spark_logbus.coordination import paths
from spark_logbus.coordination.cluster.moves import HandOver, PartitionMoves
from spark_logbus.coordination.cluster.partition_states import (
    LeadResult,
    PartitionStates,
)
from spark_logbus.coordination.cluster.topic_records import LeadershipClaim
from spark_logbus.coordination.cluster.topics import TopicRegistry
from spark_logbus.coordination.payloads import (
    MovePayload,
    PartitionState,
    TopicPayload,
    decode,
    encode,
)
from spark_logbus.errors import (
    LogbusError,
)
from spark_logbus.model import TopicPartition
from spark_logbus.zookeeper import Session
from tests.servers import zookeeper as servers
from tests.servers.zookeeper import put

T0 = TopicPartition("orders", 0)
NODE = paths.topic("orders")
STATE = paths.partition_state(T0)
ROUNDS = 30
Result = TypeVar("Result")

#: Broker 1 leads with 2 and 3 in sync; all before 7 was acknowledged.
LED = PartitionState(1, 4, [1, 2, 3], 9, replicas={1: "log-1", 2: "log-2", 3: "log-3"}, committed=7)

#: Broker 4 is in sync as well, to which it moves.
MOVING = msgspec.structs.replace(
    LED, in_sync=[*LED.in_sync, 4], replicas={**LED.replicas, 4: "log-4"}
)


class Cluster:
    """A topic whose partitions are assigned to brokers 1, 2 and 3."""

    def __init__(self, live: Session, chroot: str) -> None:
        self.chroot = chroot
        self.topics = TopicRegistry(live)
        self.states = PartitionStates(live)
        self.moves = PartitionMoves(live)
        self.topic_id = ""

    def create(self, *, partitions: int = 1, state: PartitionState | None = LED) -> None:
        record = self.topics.create("orders", partitions=partitions, brokers=[1], config={})
        self.topic_id = record.topic_id
        self.assign({each: [1, 2, 3] for each in range(partitions)})
        if state is not None:
            for each in range(partitions):
                self.put_state(state, each)

    def put_state(self, state: PartitionState, partition: int = 0) -> None:
        where = TopicPartition("orders", partition)
        put(self.chroot, paths.partition_state(where), encode(state))

    def assign(
        self, partitions: dict[int, list[int]], moves: dict[int, MovePayload] | None = None
    ) -> None:
        after = msgspec.structs.replace(self.topic(), partitions=partitions, moves=moves or {})
        put(self.chroot, NODE, encode(after))

    def topic(self) -> TopicPayload:
        return decode(TopicPayload, servers.read(self.chroot, NODE), path=NODE)

    @property
    def state(self) -> PartitionState:
        return self.states.states("orders")[0]

    def claim(
        self,
        broker_id: int,
        *,
        partition: int = 0,
        end: int | None = 8,
        log_id: str | None = None,
        after_epoch: int = 0,
    ) -> LeadershipClaim:
        return LeadershipClaim(
            TopicPartition("orders", partition),
            self.topic_id,
            end=end,
            log_id=f"log-{broker_id}" if log_id is None else log_id,
            after_epoch=after_epoch,
        )

    def lead(self, claim: LeadershipClaim, broker_id: int) -> PartitionState:
        return state_of(self.states.lead_all([claim], broker_id=broker_id)[T0])

    def elect(
        self, claim: LeadershipClaim, broker_id: int, live: Sequence[int] = (2, 3)
    ) -> PartitionState:
        return state_of(self.states.elect_all([claim], broker_id=broker_id, live=live)[T0])

    def change(
        self,
        *,
        add: dict[int, str] | None = None,
        remove: Sequence[int] = (),
        leader: int = 1,
        leader_epoch: int = 4,
    ) -> PartitionState:
        return self.states.change_in_sync(
            T0,
            topic_id=self.topic_id,
            leader=leader,
            leader_epoch=leader_epoch,
            add=add or {},
            remove=remove,
            since_us=self.moves_since() if add else 0,
        )

    def moves_since(self) -> int:
        """The time of the move that stands, 0 if there is none."""
        moves = decode(TopicPayload, servers.read(self.chroot, NODE), path=NODE).moves
        return max((each.since_us for each in moves.values()), default=0)

    def hand_over(self, *, to: int = 2, log_id: str = "log-2", epoch: int = 4) -> HandOver:
        return HandOver(T0, self.topic_id, 1, epoch, to, log_id, 12, None)


def state_of(result: LeadResult) -> PartitionState:
    if isinstance(result, LogbusError):
        raise result
    return result


def unchanged(**changes: object) -> PartitionState:
    return msgspec.structs.replace(LED, **changes)

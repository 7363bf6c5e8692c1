"""A broker that leads a partition with three replicas, whose followers a test plays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from spark_logbus.broker.replica.followers import Copy, Followers
from spark_logbus.broker.replica.in_sync import InSync
from spark_logbus.broker.replica.members import Members
from spark_logbus.broker.replica.states import LeaderPartition
from spark_logbus.broker.replica.watermark import HighWatermarks
from spark_logbus.coordination.cluster.leader_rules import MembersChange
from spark_logbus.coordination.cluster.partition_states import PartitionStates
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.errors import (
    LogbusError,
)
from spark_logbus.log import PartitionLog, StagedPosition
from spark_logbus.model import TopicPartition
from tests.fakes.broker_parts import (
    EPOCH,
    T0,
    TOPIC_ID,
    Logs,
    record_batch,
)
from tests.fakes.log_directory import ensure_one

LEADER, TWO, THREE, FOUR = 5, 2, 3, 4
IDS = {LEADER: "5" * 32, TWO: "2" * 32, THREE: "3" * 32, FOUR: "4" * 32}
LAG_S = 10.0


class States:
    """Stands in for ``PartitionStates``: the state of one partition, and what happens to a request
    that changes it. ``fails`` answers the next, done or not; ``meanwhile`` is called before.
    """

    def __init__(self, state: PartitionState) -> None:
        self.state = state
        self.asked: list[tuple[dict[int, str], set[int]]] = []
        self.since_us = 0  # of the last request
        self.fails: LogbusError | None = None
        self.is_done = True
        self.meanwhile: Callable[[], None] = lambda: None

    def change_in_sync_all(
        self, changes: Sequence[MembersChange], *, leader: int
    ) -> dict[TopicPartition, PartitionState | LogbusError]:
        (change,) = changes
        assert (change.topic_partition, change.topic_id, leader) == (T0, TOPIC_ID, LEADER)
        self.asked.append((dict(change.add), {*change.remove}))
        self.since_us = change.since_us
        self.meanwhile()
        fails, self.fails = self.fails, None
        if fails is None or self.is_done:
            replicas = {**self.state.replicas, **change.add}
            members = [each for each in replicas if each not in change.remove]
            self.state = PartitionState(
                leader,
                change.leader_epoch,
                members,
                replicas={each: replicas[each] for each in members},
            )
        return {T0: self.state if fails is None else fails}


class Leading:
    """A broker that leads a partition, with the brokers 2 and 3 in sync; its thread is not
    started."""

    def __init__(self, logs: Logs, watermarks: HighWatermarks) -> None:
        self.logs = logs
        self.topics = {T0.topic: self.topic(LEADER, TWO, THREE)}
        members = (LEADER, TWO, THREE)
        self.states = States(
            PartitionState(
                LEADER, EPOCH, [*members], replicas={each: IDS[each] for each in members}
            )
        )
        self.live = {LEADER, TWO, THREE, FOUR}
        self.is_certain = True
        self.followers = Followers(clock=logs.clock, written=lambda _: None)
        self.watermarks = watermarks
        self.in_sync = InSync(
            LEADER,
            states=cast(PartitionStates, self.states),
            followers=self.followers,
            watermarks=watermarks,
            topic=lambda name: self.topics.get(name),
            live=lambda: self.live,
            is_certain=lambda: self.is_certain,
            lag_max_ms=int(1000 * LAG_S),
            clock=logs.clock,
        )
        self.log = ensure_one(logs.directory, T0, topic_id=TOPIC_ID, config={})

    @staticmethod
    def topic(*assigned: int, config: Mapping[str, str] | None = None) -> TopicRecord:
        return TopicRecord(T0.topic, TOPIC_ID, {0: [*assigned]}, dict(config or {}))

    def lead(self, state: PartitionState | None = None, *, epoch: int = EPOCH) -> None:
        led = LeaderPartition(self.log, epoch)
        self.in_sync.lead(led, state or self.states.state)
        self.logs.here.led[T0] = led

    @property
    def led(self) -> LeaderPartition:
        return self.logs.here.leader_of(T0)

    @property
    def members(self) -> Members:
        members = self.in_sync.members(self.led)
        assert members is not None
        return members

    def append(
        self, count: int = 1, *, flush: bool = True, log: PartitionLog | None = None
    ) -> None:
        for _ in range(count):
            self.log.append_as_leader(record_batch(), leader_epoch=self.led.leader_epoch)
        if flush:
            self.log.flush()

    def tell(
        self,
        broker_id: int,
        flushed: int,
        *staged: StagedPosition,
        log_id: str | None = None,
        led: LeaderPartition | None = None,
        since_us: int = 0,
    ) -> None:
        by_write = {each.write: each for each in staged}
        log_id = IDS[broker_id] if log_id is None else log_id
        told = Copy(broker_id, log_id, flushed, flushed, since_us, by_write)
        self.followers.tell(led or self.led, told, lacking_bytes=0)

    def tell_all(self, flushed: int) -> None:
        for each in self.states.state.in_sync:
            if each != LEADER:
                self.tell(each, flushed)

    def look(self, *, after_s: float = 0.0) -> None:
        """Looks at all as often as the thread would, until so much time has passed."""
        for _ in range(int(after_s)):
            self.logs.clock.advance(1)
            self.look_at_all()
        self.look_at_all()

    def look_at_all(self) -> None:
        self.in_sync.brokers_changed()
        self.in_sync._changes._look()

    @property
    def watermark(self) -> int:
        return self.log.ends().high_watermark

    @property
    def in_sync_now(self) -> list[int]:
        assert self.members.in_sync == [
            LEADER, *(each for each in self.states.state.in_sync if each != LEADER)
        ]  # fmt: skip
        return sorted(self.states.state.in_sync)

"""Ends of moves of partitions with several replicas, by what followers have told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from spark_logbus.broker.replica.finishing import Finishing, MoveEnds
from spark_logbus.broker.replica.followers import Copy, Followers
from spark_logbus.coordination.cluster.moves import MoveEndedError, PartitionMoves
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.payloads import MovePayload, PartitionState
from spark_logbus.errors import CoordinationError, UnknownTopicError
from tests.fakes.broker_parts import EPOCH, T0, TOPIC_ID, Logs, in_sync_over, logs_in

LEADER = 5
SINCE = 9


def log_id(broker_id: int) -> str:
    return f"{broker_id:032}"


class Leader:
    """A broker that leads one partition, of which a move stands; its threads are not started."""

    def __init__(self, logs: Logs, replicas: Sequence[int], in_sync: Sequence[int]) -> None:
        self.logs = logs
        self.topics: dict[str, TopicRecord] = {}
        self.move(replicas)
        self.followers = Followers(clock=logs.clock, written=lambda _: None)
        self.in_sync = in_sync_over(logs.clock, followers=self.followers, topics=self.topics)
        self.ends = MoveEnds(
            LEADER, followers=self.followers, in_sync=self.in_sync, topic=self.topics.get
        )
        self.log = logs.lead(T0)
        self.led = logs.here.leader_of(T0)
        state = PartitionState(
            leader=LEADER,
            leader_epoch=EPOCH,
            in_sync=[*in_sync],
            replicas={each: log_id(each) for each in in_sync},
        )
        self.in_sync.lead(self.led, state)
        self.finished: list[dict[str, object]] = []
        self.asked: list[int] = []
        self.fails: Exception | None = None
        self.is_certain = True
        self.finishing = Finishing(
            LEADER,
            self.ends,
            moves=cast(PartitionMoves, self),
            topics=lambda: self.topics,
            find=logs.here.led.get,
            hand_over=lambda where, to, *, within_s: self.asked.append(to),
            is_certain=lambda: self.is_certain,
            clock=logs.clock,
        )

    def move(self, replicas: Sequence[int], *to: int, error: str = "", id_: str = TOPIC_ID) -> None:
        moves: Mapping[int, MovePayload] = {}
        if to:
            moves = {0: MovePayload(to=[*to], since_us=SINCE, error=error)}
        self.topics["t"] = TopicRecord("t", id_, {0: [*replicas]}, {}, moves=moves)

    def finish(self, where: object, **fields: object) -> PartitionState:
        self.finished.append(fields)
        if self.fails is not None:
            raise self.fails
        return PartitionState(leader=LEADER, leader_epoch=EPOCH, in_sync=[1])

    def tell(self, *brokers: int, since_us: int = 0, of_log: str = "") -> None:
        for each in brokers:
            copy = Copy(each, of_log or log_id(each), 0, 0, since_us)
            self.followers.tell(self.led, copy, lacking_bytes=0)

    def is_next(self, broker_id: int) -> bool:
        follower = self.followers.find(self.led, broker_id)
        return follower is not None and self.ends.is_next(follower)


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Logs]:
    with logs_in(tmp_path / "data") as logs:
        yield logs


@pytest.mark.parametrize(
    ("replicas", "to", "step"),
    [
        # The leader stays: all that are to have it are in sync.
        ([5, 6], [5, 6, 7], 5),
        ([5, 6], [7, 5], 5),
        ([5, 6], [6, 5], 5),
        ([5, 6], [5], 5),
        ([5], [5, 7], 5),
        # It goes: first the lead, to one that has a replica.
        ([5, 6], [7, 6], 6),
        ([5, 6], [6], 6),
        # All are new: the first of them gets the lead with the end of the move.
        ([5, 6], [7, 8], None),
        ([5], [7, 8], None),
        ([5, 6], [7], None),
        ([5], [7], None),
    ],
)
def test_the_next_step_of_a_move(
    logs: Logs, replicas: list[int], to: list[int], step: int | None
) -> None:
    leader = Leader(logs, replicas, [5, 6, 7, 8])
    leader.move(replicas, *to)
    leader.tell(6)
    leader.tell(7, 8, since_us=SINCE)
    assert leader.ends.next_step(leader.led) == step
    assert leader.is_next(7) == (step is None)
    assert not leader.is_next(8)
    assert not leader.is_next(6), "it has told of no move"


@pytest.mark.parametrize("to", [[5, 6, 7], [7, 6], [7, 8]])
@pytest.mark.parametrize(
    "lacks",
    ["is not in sync", "has told nothing", "has told of another log", "of a move before",
     "of none"],
)  # fmt: skip
def test_nothing_ends_before_all_are_in_sync_with_the_logs_of_which_they_tell(
    logs: Logs, to: list[int], lacks: str
) -> None:
    members = [5, 6, 8] if lacks == "is not in sync" else [5, 6, 7, 8]
    leader = Leader(logs, [5, 6], members)
    leader.move([5, 6], *to)
    leader.tell(6)
    leader.tell(8, since_us=SINCE)
    if lacks == "has told of another log":
        leader.tell(7, since_us=SINCE, of_log=log_id(70))
    elif lacks != "has told nothing":
        since_us = {"of a move before": SINCE - 1, "of none": 0}.get(lacks, SINCE)
        leader.tell(7, since_us=since_us)
    assert leader.ends.next_step(leader.led) is None
    assert not leader.is_next(7)


def test_a_move_that_does_not_stand_ends_nothing(logs: Logs) -> None:
    leader = Leader(logs, [5, 6], [5, 6, 7])
    leader.tell(6)
    leader.tell(7, since_us=SINCE)
    changes: list[Callable[[], None]] = [
        lambda: leader.move([5, 6]),
        lambda: leader.move([5, 6], 5, 7, error="No room."),
        lambda: leader.move([5, 6], 5, 7, id_="c" * 32),
        leader.topics.clear,
    ]
    for change in changes:
        change()
        leader.finishing.look()
        assert not leader.finished
        assert not leader.is_next(7)


def test_the_word_of_a_new_replica_counts_when_its_move_is_over(logs: Logs) -> None:
    leader = Leader(logs, [5, 6], [5, 6, 7])
    leader.tell(7, since_us=SINCE)
    follower = leader.followers.find(leader.led, 7)
    assert follower is not None
    assert not leader.ends.has_replica(follower)
    leader.move([5, 7])
    assert leader.ends.has_replica(follower)
    leader.topics["t"] = replace(leader.topics["t"], topic_id="c" * 32)
    assert not leader.ends.has_replica(follower)


def test_a_move_is_ended_by_its_leader_with_what_it_has_on_disk(logs: Logs) -> None:
    leader = Leader(logs, [5, 6], [5, 6, 7])
    leader.move([5, 6], 5, 7)
    leader.tell(7, since_us=SINCE)
    leader.is_certain = False
    leader.finishing.look()
    assert not leader.finished, "another may lead it by now"
    leader.is_certain = True
    leader.finishing.look()
    assert leader.finished == [
        {"topic_id": TOPIC_ID, "leader": 5, "leader_epoch": EPOCH, "since_us": SINCE, "end": 0}
    ]
    assert leader.finishing.done.value == 1
    leader.finishing.look()
    assert len(leader.finished) == 1, "the news of it is under way"


@pytest.mark.parametrize(
    "error",
    [CoordinationError("Away."), MoveEndedError("Cancelled."), UnknownTopicError("Deleted."),
     OSError("Unforeseen.")],
)  # fmt: skip
def test_what_fails_is_tried_again_after_a_pause(logs: Logs, error: Exception) -> None:
    leader = Leader(logs, [5, 6], [5, 6, 7])
    leader.move([5, 6], 5, 7)
    leader.tell(7, since_us=SINCE)
    leader.fails = error
    for _ in range(2):
        leader.finishing.look()
    assert len(leader.finished) == 1
    leader.fails = None
    logs.clock.advance(60)
    leader.finishing.look()
    assert len(leader.finished) == 2
    assert leader.finishing.done.value == 1


def test_the_lead_goes_to_a_replica_that_stays(logs: Logs) -> None:
    leader = Leader(logs, [5, 6, 8], [5, 6, 7, 8])
    leader.move([5, 6, 8], 7, 8, 6)
    leader.tell(6, 8)
    leader.tell(7, since_us=SINCE)
    leader.finishing.look()
    assert (leader.asked, leader.finished) == ([8], [])

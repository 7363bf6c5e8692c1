"""Followers that keep up with a leader, under a load that never pauses."""

from __future__ import annotations

import math

import pytest

from spark_logbus.broker.replica.join_waits import JoinWaits
from spark_logbus.broker.replica.members import Members
from spark_logbus.broker.replica.states import LeaderPartition
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.errors import CoordinationError, RequestTimeoutError
from tests.builders.staged import WRITE, attempt, stage
from tests.fakes.broker_parts import EPOCH, T0, T1, TOPIC_ID
from tests.unit.broker.replica.leading import FOUR, IDS, LAG_S, LEADER, THREE, TWO, Leading

ALONE = PartitionState(LEADER, EPOCH, [LEADER], replicas={LEADER: IDS[LEADER]})


@pytest.fixture
def alone(leading: Leading) -> Leading:
    """A leader that is in sync alone, of two to which the partition is assigned."""
    leading.topics[T0.topic] = leading.topic(LEADER, TWO)
    leading.states.state = ALONE
    leading.lead(ALONE)
    leading.look()
    return leading


def step(leading: Leading, *, round_s: float = 0.01, behind: int = 1) -> None:
    """Appends, and has broker 2 tell that it has all but what came just now."""
    leading.logs.clock.advance(round_s)
    leading.append()
    leading.tell(TWO, max(0, leading.log.flushed_end - behind))


def begin_to_wait(leading: Leading, *, round_s: float = 0.01) -> None:
    for _ in range(10):
        step(leading, round_s=round_s)
        if leading.members.is_counted(TWO):
            return
    pytest.fail("The leader waits for no follower.")


def look_soon(leading: Leading) -> float:
    """Looks at what is due, as the thread does when it is woken."""
    return leading.in_sync._changes._look()


def test_a_follower_that_keeps_up_joins_a_leader_that_is_alone_and_never_rests(
    alone: Leading,
) -> None:
    for _ in range(10):
        step(alone)
        alone.look()
    assert alone.states.asked == [({TWO: IDS[TWO]}, set())]
    assert alone.in_sync_now == [TWO, LEADER]
    assert alone.watermark == alone.log.flushed_end - 1


def test_the_watermark_waits_for_a_follower_that_keeps_up_before_zookeeper_is_asked(
    alone: Leading,
) -> None:
    begin_to_wait(alone)
    seen = alone.watermark
    assert seen == alone.log.flushed_end
    alone.append(5)
    assert alone.watermark == seen
    assert not alone.states.asked
    look_soon(alone)
    assert not alone.states.asked, "it lacks one record that was acknowledged"
    alone.tell(TWO, seen + 2)
    assert alone.watermark == seen + 2
    alone.states.meanwhile = lambda: alone.append(3)
    look_soon(alone)
    assert alone.in_sync_now == [TWO, LEADER]
    assert alone.watermark == seen + 2


def test_the_watermark_waits_for_a_follower_for_a_moment_only(alone: Leading) -> None:
    begin_to_wait(alone)
    seen = alone.watermark
    alone.append(2)
    assert 0 < look_soon(alone) <= 0.5, "the thread comes back for it"
    alone.logs.clock.advance(0.49)
    look_soon(alone)
    assert alone.watermark == seen
    alone.logs.clock.advance(0.02)
    look_soon(alone)
    assert alone.watermark == seen + 2
    assert not alone.states.asked


def test_a_wait_ends_though_zookeeper_does_not_answer(alone: Leading) -> None:
    """The thread is in a request of another partition all the while."""
    begin_to_wait(alone)
    alone.logs.clock.advance(0.51)
    alone.append(2)
    assert alone.watermark == alone.log.flushed_end


def test_waits_in_vain_become_rare(alone: Leading) -> None:
    """A follower that keeps up, until the watermark waits for it."""
    waits, began = 0, alone.logs.clock.monotonic()
    while alone.logs.clock.monotonic() - began < 600:
        step(alone, round_s=0.2)
        if alone.members.is_counted(TWO):
            waits += 1
            while alone.members.is_counted(TWO):
                alone.logs.clock.advance(0.1)
                look_soon(alone)
    assert 10 <= waits <= 20
    assert not alone.states.asked


def test_the_watermark_waits_for_no_follower_that_falls_behind(alone: Leading) -> None:
    for _ in range(50):
        step(alone, behind=30)
        alone.append(20)
        look_soon(alone)
        assert alone.watermark == alone.log.flushed_end
    assert not alone.states.asked


def test_a_follower_that_was_away_does_not_keep_up_by_what_it_told_before(alone: Leading) -> None:
    step(alone)
    alone.logs.clock.advance(LAG_S)
    alone.append(100)
    alone.tell(TWO, 1)
    assert not alone.members.is_counted(TWO)


def test_a_follower_with_a_slow_disk_is_given_the_time_of_its_rounds(alone: Leading) -> None:
    begin_to_wait(alone, round_s=1.5)
    seen = alone.watermark
    alone.append()
    alone.logs.clock.advance(2.9)
    look_soon(alone)
    assert alone.watermark == seen
    alone.tell(TWO, seen)
    look_soon(alone)
    assert alone.in_sync_now == [TWO, LEADER]


def test_a_follower_whose_rounds_are_too_long_is_not_waited_for(alone: Leading) -> None:
    for _ in range(10):
        step(alone, round_s=3)
        assert not alone.members.is_counted(TWO)


def test_nobody_is_waited_for_who_could_not_be_taken_in(alone: Leading) -> None:
    def waits() -> bool:
        for _ in range(3):
            step(alone)
            alone.tell(FOUR, alone.log.flushed_end)
        return any(map(alone.members.is_counted, (TWO, FOUR)))

    alone.live.discard(TWO)
    assert not waits()
    alone.live.add(TWO)
    alone.is_certain = False
    assert not waits(), "ZooKeeper is away"
    alone.is_certain = True
    assert waits()


def test_a_follower_is_waited_for_again_after_zookeeper_failed(alone: Leading) -> None:
    begin_to_wait(alone)
    alone.states.fails = CoordinationError("The reply was lost.")
    alone.tell(TWO, alone.log.flushed_end)
    look_soon(alone)
    alone.logs.clock.advance(0.6)
    alone.append()
    look_soon(alone)
    assert alone.watermark == alone.log.flushed_end - 1, "it may be in sync"
    alone.logs.clock.advance(1)
    look_soon(alone)
    assert alone.in_sync_now == [TWO, LEADER]
    assert alone.states.asked == [({TWO: IDS[TWO]}, set())] * 2


def test_what_is_prepared_waits_for_a_follower_that_is_about_to_join(alone: Leading) -> None:
    begin_to_wait(alone)
    stage(alone.log, attempt(1), 2)
    position = alone.log.staging.position_of(WRITE)
    assert position is not None
    with pytest.raises(RequestTimeoutError):
        alone.in_sync.wait_until_staged(alone.led, WRITE, timeout_s=0)
    alone.tell(TWO, alone.log.flushed_end, position)
    alone.in_sync.wait_until_staged(alone.led, WRITE, timeout_s=0)


def test_what_is_staged_is_acknowledged_when_a_wait_ends(alone: Leading) -> None:
    begin_to_wait(alone)
    stage(alone.log, attempt(1), 2)
    outcomes: list[object] = []
    alone.in_sync.when_staged(alone.led, WRITE, outcomes.append)
    look_soon(alone)
    assert outcomes == []
    alone.logs.clock.advance(0.51)
    alone.log.advance_high_watermark()
    look_soon(alone)
    assert outcomes == [None]


def test_what_a_follower_tells_has_no_other_partition_looked_at(
    alone: Leading, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = LeaderPartition(alone.logs.lead(T1), EPOCH)
    both = {0: [LEADER, TWO], 1: [LEADER, TWO]}
    alone.topics[T1.topic] = TopicRecord(T1.topic, TOPIC_ID, both, {})
    alone.in_sync.lead(other, ALONE)
    alone.look()
    looked_at: list[Members] = []
    decides = Members.wanted

    def wanted(members: Members, live: set[int]) -> object:
        looked_at.append(members)
        return decides(members, live)

    monkeypatch.setattr(Members, "wanted", wanted)
    begin_to_wait(alone)
    woken = alone.in_sync.thread._woken
    assert woken.is_set()
    look_soon(alone)
    woken.clear()
    step(alone, behind=2)
    step(alone, behind=3)
    assert not woken.is_set(), "it still lacks what was acknowledged"
    step(alone, behind=0)
    assert woken.is_set()
    look_soon(alone)
    assert alone.in_sync_now == [TWO, LEADER]
    assert {*looked_at} == {alone.members}
    woken.clear()
    step(alone)
    assert not woken.is_set(), "it is in sync"
    alone.logs.clock.advance(3)
    looked_at.clear()
    look_soon(alone)
    assert {*looked_at} == {alone.members, alone.in_sync.members(other)}, (
        "all are looked at now and then"
    )


def test_a_third_replica_that_keeps_up_joins_too(leading: Leading) -> None:
    leading.append(3)
    leading.tell_all(3)
    leading.live.discard(THREE)
    leading.look()
    leading.live.add(THREE)
    for _ in range(10):
        leading.logs.clock.advance(0.01)
        leading.append()
        leading.tell(TWO, leading.log.flushed_end)
        leading.tell(THREE, leading.log.flushed_end - 1)
        leading.look()
    assert leading.in_sync_now == [TWO, THREE, LEADER]


def test_a_broker_that_was_in_sync_is_waited_for_at_once_again() -> None:
    waits = JoinWaits(LAG_S)
    assert waits.begin(TWO, "id", round_s=0, now=0)
    assert waits.counted == {TWO: "id"}
    assert waits.next_end == 0.5
    waits.fail(TWO, 0.5)
    assert waits.next_end == math.inf
    assert not waits.begin(TWO, "id", round_s=0, now=1.4)
    assert waits.begin(TWO, "id", round_s=0, now=1.5)
    waits.forget(TWO)
    assert not waits.counted
    assert waits.begin(TWO, "id", round_s=0, now=1.6)

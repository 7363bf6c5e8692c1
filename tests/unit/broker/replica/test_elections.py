"""Moments at which a broker tries to be elected."""

from __future__ import annotations

import math

from spark_logbus.broker.replica.elections import WAIT_S, Elections
from spark_logbus.model import TopicPartition
from tests.fakes.broker_parts import T0, T1
from tests.fakes.clock import ManualClock


def test_each_waits_for_those_before_it() -> None:
    clock = ManualClock()
    elections = Elections(clock)
    assert elections.pause_s() == math.inf
    assert elections.due({T0: 0, T1: 2}) == [T0]
    clock.advance(2 * WAIT_S - 0.01)
    assert elections.due({T1: 2}) == []
    assert 0 < elections.pause_s() <= 0.011
    clock.advance(0.01)
    assert elections.due({T1: 2}) == [T1]


def test_one_that_waits_moves_up_when_another_is_gone() -> None:
    clock = ManualClock()
    elections = Elections(clock)
    assert elections.due({T0: 1}) == []
    assert elections.due({T0: 0}) == [T0]


def test_what_has_failed_is_tried_again_later_and_less_often() -> None:
    clock = ManualClock()
    elections = Elections(clock)
    assert elections.due({T0: 0}) == [T0]
    pauses = []
    for _ in range(3):
        assert elections.due({T0: 0}) == []
        pauses.append(elections.pause_s())
        clock.advance(pauses[-1])
        assert elections.due({T0: 0}) == [T0]
    assert 0.5 <= pauses[0] <= 1
    assert pauses[0] < pauses[2]


def test_a_partition_that_has_a_leader_again_waits_anew() -> None:
    clock = ManualClock()
    elections = Elections(clock)
    assert elections.due({T0: 1}) == []
    clock.advance(WAIT_S / 2)
    assert elections.due({}) == []
    clock.advance(WAIT_S)
    assert elections.due({T0: 1}) == []


def test_so_many_are_tried_in_a_second_and_no_more() -> None:
    clock = ManualClock()
    elections = Elections(clock)
    ranks = {TopicPartition("t", number): 0 for number in range(2_500)}
    tried = set(elections.due(ranks))
    assert len(tried) == 1_000
    for _ in range(2):
        assert elections.due({each: 0 for each in ranks if each not in tried}) == []
        pause_s = elections.pause_s()
        assert 0 < pause_s <= 1
        clock.advance(pause_s)
        tried |= {*elections.due({each: 0 for each in ranks if each not in tried})}
    assert len(tried) == 2_500


def test_elections_and_their_times_are_counted() -> None:
    clock = ManualClock()
    elections = Elections(clock)
    elections.due({T0: 1})
    clock.advance(WAIT_S)
    assert elections.due({T0: 1}) == [T0]
    elections.won(T0)
    assert elections.stats.won.value == 1
    assert elections.stats.times.read().sum == WAIT_S

"""Members whose logs are whole, and that lack what is staged: their disks have no room for it."""

from __future__ import annotations

import pytest

from spark_logbus.errors import LogbusError, NotEnoughReplicasError, RequestTimeoutError
from spark_logbus.log import StagedPosition
from tests.builders.staged import WRITE, attempt, stage
from tests.unit.broker.replica.leading import LAG_S, LEADER, THREE, TWO, Leading


class Staging:
    """A leader that stages a write, of which broker 2 has all, and broker 3 what a test says."""

    def __init__(self, leading: Leading) -> None:
        self.leading = leading
        self.write = WRITE
        self.outcomes: list[LogbusError | None] = []
        self.there: tuple[StagedPosition, ...] = ()
        leading.append(3)
        leading.tell_all(3)

    def position(self) -> StagedPosition:
        position = self.leading.log.staging.position_of(self.write)
        assert position is not None
        return position

    def stage(self, write: int = WRITE, *, start: int = 0) -> None:
        self.write = write
        stage(self.leading.log, attempt(1, write=write), 2, start=start)
        self.leading.in_sync.when_staged(self.leading.led, write, self.outcomes.append)

    def end_write(self) -> None:
        assert self.leading.log.staging.discard(self.write)

    def pass_s(self, seconds: int) -> None:
        """Has both tell what they have again and again, as where each try to copy fails."""
        for _ in range(seconds):
            self.leading.look(after_s=1)
            self.tell()
        self.leading.look()

    def tell(self) -> None:
        leading = self.leading
        two = leading.log.staging.position_of(self.write)
        leading.tell(TWO, leading.log.flushed_end, *([] if two is None else [two]))
        leading.tell(THREE, leading.log.flushed_end, *self.there)


@pytest.fixture
def staging(leading: Leading) -> Staging:
    return Staging(leading)


def dropped(staging: Staging) -> Staging:
    staging.stage()
    staging.pass_s(int(LAG_S) + 2)
    assert staging.leading.in_sync_now == [TWO, LEADER]
    return staging


def test_a_member_that_lacks_what_is_staged_leaves_after_a_while(staging: Staging) -> None:
    staging.stage()
    staging.pass_s(int(LAG_S))
    assert not staging.leading.states.asked
    assert not staging.outcomes
    seen: list[int] = []
    staging.leading.states.meanwhile = lambda: seen.append(len(staging.outcomes))
    staging.pass_s(2)
    assert staging.leading.states.asked == [({}, {THREE})]
    assert seen == [0], "ZooKeeper first"
    assert staging.outcomes == [None]
    staging.stage(start=2)
    staging.tell()
    assert staging.outcomes == [None, None]


def test_a_member_that_gets_what_is_staged_in_time_stays(staging: Staging) -> None:
    for number in range(6):
        staging.stage(start=2 * number)
        staging.pass_s(int(LAG_S) - 3)
        staging.there = (staging.position(),)
        staging.tell()
    assert not staging.leading.states.asked
    assert staging.outcomes == [None] * 6


def test_a_member_leaves_that_keeps_writes_from_being_prepared(staging: Staging) -> None:
    stage(staging.leading.log, attempt(1), 2)
    for _ in range(int(LAG_S) + 1):
        with pytest.raises(RequestTimeoutError, match="prepare it again"):
            staging.leading.in_sync.wait_until_staged(staging.leading.led, WRITE, timeout_s=0)
        staging.pass_s(1)
    assert staging.leading.states.asked == [({}, {THREE})]
    staging.leading.in_sync.wait_until_staged(staging.leading.led, WRITE, timeout_s=0)


def test_what_nobody_waits_for_drops_no_member(staging: Staging) -> None:
    """Bytes of a write that is over, and bytes of which a flush has failed."""
    staging.stage()
    staging.there = (staging.position(),)
    staging.tell()
    staging.leading.members.staging.note(WRITE, staging.position().size_bytes + 100)
    staging.stage(78)
    staging.end_write()
    staging.write = WRITE
    staging.pass_s(3 * int(LAG_S))
    assert not staging.leading.states.asked


def test_a_broker_that_slept_drops_nobody_for_what_is_staged(staging: Staging) -> None:
    staging.stage()
    staging.leading.logs.clock.advance(3600)
    staging.leading.look_at_all()
    staging.pass_s(int(LAG_S))
    assert not staging.leading.states.asked
    staging.pass_s(2)
    assert staging.leading.states.asked == [({}, {THREE})]


def test_a_member_that_lags_in_staging_stays_while_zookeeper_is_away(staging: Staging) -> None:
    staging.stage()
    staging.leading.is_certain = False
    staging.pass_s(60)
    assert not staging.outcomes
    staging.leading.is_certain = True
    staging.pass_s(1)
    assert staging.leading.in_sync_now == [TWO, LEADER]
    assert staging.outcomes == [None]


# -- coming back ---------------------------------------------------------------------------------


def test_who_was_dropped_for_what_is_staged_stays_out_as_long_as_it_lacks_that(
    staging: Staging,
) -> None:
    dropped(staging)
    staging.pass_s(300)
    assert len(staging.leading.states.asked) == 1
    assert not staging.leading.members.is_counted(THREE)


def test_who_was_dropped_for_what_is_staged_comes_back_when_it_has_it(staging: Staging) -> None:
    dropped(staging)
    was_lacking = staging.position()
    staging.stage(start=2)
    staging.tell()
    staging.there = (was_lacking,)
    staging.pass_s(1)
    assert staging.leading.in_sync_now == [TWO, LEADER], "more was acknowledged meanwhile"
    staging.there = (staging.position(),)
    staging.pass_s(1)
    assert staging.leading.in_sync_now == [TWO, THREE, LEADER]


def test_a_follower_that_lacks_each_write_holds_up_few(staging: Staging) -> None:
    """A follower with a whole log, which lacks nothing while no write is open."""
    leading = staging.leading
    was_in = 0
    for write in range(100, 700):
        staging.stage(write)
        was_in += leading.members.is_in_sync(THREE)
        staging.pass_s(1)
        if staging.leading.members.is_in_sync(THREE):
            staging.pass_s(int(LAG_S) + 1)
        assert len(staging.outcomes) == write - 99
        staging.end_write()
        staging.pass_s(1)
    assert 3 <= was_in <= 15
    assert set(staging.outcomes) == {None}


def test_who_was_dropped_comes_back_at_once_where_too_few_are_in_sync(staging: Staging) -> None:
    leading = dropped(staging).leading
    staging.end_write()
    staging.pass_s(1)
    assert leading.in_sync_now == [TWO, LEADER]
    leading.live.discard(TWO)
    leading.look()
    leading.tell(THREE, leading.log.flushed_end)
    leading.look()
    assert leading.in_sync_now == [THREE, LEADER]
    leading.in_sync.require_enough(leading.led)


def test_too_few_in_sync_prepare_nothing_though_all_others_lag_in_staging(
    staging: Staging,
) -> None:
    leading = staging.leading
    staging.stage()
    for _ in range(int(LAG_S) + 2):
        leading.look(after_s=1)
        leading.tell_all(3)
    leading.look()
    assert leading.in_sync_now == [LEADER]
    with pytest.raises(NotEnoughReplicasError):
        leading.in_sync.wait_until_staged(leading.led, WRITE, timeout_s=0)


def test_a_joiner_has_what_is_staged_and_acknowledged(staging: Staging) -> None:
    """A joiner without that could be elected, and the write would fail."""
    leading = staging.leading
    leading.live.discard(THREE)
    leading.look()
    leading.live.add(THREE)
    staging.stage()
    staging.tell()
    assert staging.outcomes == [None]
    leading.look()
    assert leading.in_sync_now == [TWO, LEADER]
    staging.there = (staging.position(),)
    staging.tell()
    leading.look()
    assert leading.in_sync_now == [TWO, THREE, LEADER]


def test_nobody_joins_who_would_be_dropped_in_a_moment(leading: Leading) -> None:
    """A follower that lacks what somebody has waited for long already, as another lacks it too."""
    leading.append(3)
    leading.tell(TWO, 3)
    leading.live.discard(THREE)
    leading.look()
    leading.live.add(THREE)
    stage(leading.log, attempt(1), 2)
    leading.in_sync.when_staged(leading.led, WRITE, lambda _: None)
    leading.look(after_s=LAG_S / 2 + 1)
    leading.tell_all(3)
    leading.tell(THREE, 3)
    assert not leading.members.is_counted(THREE)
    leading.look()
    assert leading.in_sync_now == [TWO, LEADER]
    position = leading.log.staging.position_of(WRITE)
    assert position is not None
    leading.tell(THREE, 3, position)
    leading.look()
    assert leading.in_sync_now == [TWO, THREE, LEADER]

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import pytest

from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.errors import (
    CoordinationError,
    LogbusError,
    NotEnoughReplicasError,
    NotLeaderError,
    OffsetNotAvailableError,
    RequestTimeoutError,
    UnknownTopicError,
)
from spark_logbus.log import StagedPosition
from tests.builders.producers import batch
from tests.builders.staged import WRITE, attempt, share, stage
from tests.fakes.broker_parts import (
    EPOCH,
    T0,
    in_sync_over,
    logs_in,
)
from tests.unit.broker.replica.leading import (
    IDS,
    LAG_S,
    LEADER,
    THREE,
    TWO,
    Leading,
)

# -- the watermark -------------------------------------------------------------------------------


def test_consumers_see_what_all_members_have_flushed(leading: Leading) -> None:
    leading.append(5)
    assert leading.watermark == 0
    leading.tell(TWO, 4)
    assert leading.watermark == 0, "broker 3 has told nothing"
    leading.tell(THREE, 3)
    assert leading.watermark == 3
    leading.tell(THREE, 5)
    assert leading.watermark == 4
    leading.tell(TWO, 5)
    assert leading.watermark == 5
    leading.append(1, flush=False)
    leading.tell_all(6)
    assert leading.watermark == 5, "the leader has not flushed it"
    leading.log.flush()
    assert leading.watermark == 6


def test_another_log_of_a_member_has_nothing(leading: Leading) -> None:
    leading.append(5)
    leading.tell(TWO, 5)
    leading.tell(THREE, 5, log_id="f" * 32)
    assert leading.watermark == 0
    leading.tell(THREE, 5)
    assert leading.watermark == 5


def test_what_was_told_in_an_earlier_epoch_counts_for_nothing(leading: Leading) -> None:
    leading.append(3)
    leading.tell_all(3)
    before = leading.led
    leading.lead(epoch=EPOCH + 2)
    leading.append(2)
    assert leading.watermark == 3
    leading.tell(TWO, 5)
    leading.tell(THREE, 5, led=before)
    assert leading.watermark == 3
    leading.tell(THREE, 5)
    assert leading.watermark == 5


def test_a_member_without_a_known_log_holds_the_watermark(leading: Leading) -> None:
    state = PartitionState(LEADER, EPOCH + 1, [LEADER, TWO], replicas={LEADER: IDS[LEADER]})
    leading.lead(state, epoch=EPOCH + 1)
    leading.append()
    leading.tell(TWO, 1, log_id="")
    assert leading.watermark == 0


def test_a_partition_with_one_replica_is_seen_as_it_is_flushed(leading: Leading) -> None:
    leading.topics[T0.topic] = leading.topic(LEADER)
    leading.lead(PartitionState(LEADER, EPOCH, [LEADER], replicas={LEADER: IDS[LEADER]}))
    leading.append(3)
    assert leading.watermark == 3
    assert leading.in_sync.members(leading.led) is None
    leading.in_sync.require_enough(leading.led)
    leading.in_sync.require_ends(leading.led)
    assert leading.in_sync.under_replicated() == 0


def test_a_watermark_rests_when_the_lead_is_lost(leading: Leading) -> None:
    leading.append(3)
    leading.tell(TWO, 3)
    leading.tell(THREE, 2)
    led, outcomes = leading.led, list[LogbusError | None]()
    leading.log.replication.when_replicated(3, outcomes.append)
    leading.in_sync.end(led)
    leading.log.advance_high_watermark()
    assert leading.watermark == 2
    (error,) = outcomes
    assert isinstance(error, NotLeaderError)
    assert "may become visible" in str(error)
    assert not leading.followers.all()
    leading.in_sync.end(led)
    leading.lead(epoch=EPOCH + 2)
    leading.in_sync.end(led)  # which is over for long
    assert leading.in_sync.members(leading.led) is not None


def test_replicas_that_are_added_are_waited_for_when_they_join(leading: Leading) -> None:
    leading.topics[T0.topic] = leading.topic(LEADER)
    leading.lead(PartitionState(LEADER, EPOCH, [LEADER], replicas={LEADER: IDS[LEADER]}))
    leading.states.state = PartitionState(LEADER, EPOCH, [LEADER], replicas={LEADER: IDS[LEADER]})
    leading.append(3)
    leading.topics[T0.topic] = leading.topic(LEADER, TWO)
    leading.in_sync.topics_changed()
    leading.append(2)
    assert leading.watermark == 5
    assert leading.in_sync.under_replicated() == 1
    assert leading.in_sync.lacking() == [leading.members]
    leading.tell(TWO, 4)
    leading.look()
    assert leading.in_sync_now == [LEADER], "it lacks what may be acknowledged"
    leading.tell(TWO, 5)
    leading.look()
    assert leading.in_sync_now == [TWO, LEADER]
    assert leading.in_sync.under_replicated() == 0
    assert leading.in_sync.lacking() == []
    leading.append()
    assert leading.watermark == 5


# -- who leaves ----------------------------------------------------------------------------------


def test_a_member_whose_broker_is_gone_leaves_at_once(leading: Leading) -> None:
    leading.append(3)
    leading.tell(TWO, 3)
    leading.tell(THREE, 1)
    leading.live.discard(THREE)
    seen: list[int] = []

    def look() -> None:
        leading.log.advance_high_watermark()
        seen.append(leading.watermark)

    leading.states.meanwhile = look
    leading.look()
    assert seen == [1], "ZooKeeper first, then the watermark"
    assert leading.watermark == 3
    assert leading.states.asked == [({}, {THREE})]
    assert leading.in_sync_now == [TWO, LEADER]
    assert leading.in_sync.stats.left.value == 1
    assert leading.in_sync.under_replicated() == 1


def test_a_member_that_lags_leaves_after_a_while(leading: Leading) -> None:
    leading.append(3)
    leading.tell_all(3)
    leading.look(after_s=30)
    assert not leading.states.asked, "there is nothing that it could lack"
    leading.append(2)
    leading.tell(TWO, 5)
    leading.tell(THREE, 4)
    leading.look(after_s=LAG_S)
    assert not leading.states.asked
    leading.look(after_s=2)
    assert leading.states.asked == [({}, {THREE})]
    assert leading.watermark == 5


def test_a_member_that_is_always_a_little_behind_stays(leading: Leading) -> None:
    leading.append(3)
    leading.tell_all(3)
    for end in range(4, 50):
        leading.append()
        leading.tell_all(end - 1)
        leading.look(after_s=1)
    assert not leading.states.asked
    for _ in range(12):  # it is as slow as the leader is fast, and so never catches up
        leading.append(2)
        leading.tell(TWO, leading.log.flushed_end)
        leading.tell(THREE, leading.log.flushed_end - 30)
        leading.look(after_s=1)
    assert leading.states.asked == [({}, {THREE})]


def test_a_member_that_tells_nothing_in_this_epoch_is_given_the_same_time(
    leading: Leading,
) -> None:
    leading.tell(TWO, 0)
    leading.look(after_s=LAG_S)
    assert not leading.states.asked
    leading.look(after_s=2)
    assert leading.states.asked == [({}, {THREE})]


def test_a_member_with_another_log_leaves_and_may_come_back_with_it(leading: Leading) -> None:
    leading.append(3)
    leading.tell(TWO, 3)
    leading.tell(THREE, 0, log_id="f" * 32)
    leading.look()
    assert leading.states.asked == [({}, {THREE})]
    assert leading.watermark == 3
    leading.tell(THREE, 3, log_id="f" * 32)
    leading.look()
    assert leading.states.asked[1:] == [({THREE: "f" * 32}, set())]
    assert leading.states.state.replicas[THREE] == "f" * 32


def test_a_member_that_is_neither_assigned_nor_to_be_leaves(leading: Leading) -> None:
    leading.tell_all(0)
    leading.topics[T0.topic] = leading.topic(LEADER, TWO)
    leading.in_sync.topics_changed()
    leading.look()
    assert leading.states.asked == [({}, {THREE})]


def test_a_leader_that_is_not_certain_changes_nothing(leading: Leading) -> None:
    leading.append()
    leading.tell(TWO, 1)
    leading.live.discard(THREE)
    leading.is_certain = False
    leading.look(after_s=30)
    assert not leading.states.asked
    assert leading.watermark == 0
    leading.is_certain = True
    leading.look()
    assert leading.in_sync_now == [TWO, LEADER]


def test_a_broker_that_slept_drops_nobody_for_what_it_did_not_hear(leading: Leading) -> None:
    leading.append()
    leading.tell_all(0)
    leading.look()
    leading.logs.clock.advance(3600)
    leading.look_at_all()
    assert not leading.states.asked
    leading.look(after_s=LAG_S + 2)
    assert leading.states.asked == [({}, {TWO, THREE})]


@pytest.mark.parametrize("is_done", [True, False])
def test_who_leaves_is_counted_until_zookeeper_has_answered(
    leading: Leading, is_done: bool
) -> None:
    leading.append(3)
    leading.tell(TWO, 3)
    leading.tell(THREE, 1)
    leading.live.discard(THREE)
    leading.states.fails = CoordinationError("The reply was lost.")
    leading.states.is_done = is_done
    leading.look()
    leading.log.advance_high_watermark()
    assert leading.watermark == 1
    leading.live.add(THREE)  # it is back: the request is settled all the same
    leading.tell(THREE, 2)
    assert leading.watermark == 2
    leading.look(after_s=2)
    assert leading.states.asked[:2] == [({}, {THREE})] * 2
    assert leading.watermark == 3


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "assigned", "least"),
    [
        ({}, (LEADER, TWO, THREE), 2),
        ({}, (LEADER, TWO), 1),
        ({"min.insync.replicas": "3"}, (LEADER, TWO, THREE), 3),
        ({"min.insync.replicas": "1"}, (LEADER, TWO, THREE), 1),
    ],
)
def test_appends_need_as_many_in_sync_as_the_topic_asks_for(
    leading: Leading, config: Mapping[str, str], assigned: tuple[int, ...], least: int
) -> None:
    leading.topics[T0.topic] = leading.topic(*assigned, config=config)
    leading.in_sync.topics_changed()
    assert leading.members.least == least
    leading.in_sync.require_enough(leading.led)
    for left in (TWO, THREE):
        leading.live.discard(left)
        leading.look()
        if 1 + len({TWO, THREE} & leading.live) >= least:
            leading.in_sync.require_enough(leading.led)
            assert leading.in_sync.under_min_in_sync() == 0
        else:
            with pytest.raises(NotEnoughReplicasError, match=r"min\.insync\.replicas, "):
                leading.in_sync.require_enough(leading.led)
            assert leading.in_sync.under_min_in_sync() == 1


def test_who_is_leaving_counts_for_no_append(leading: Leading) -> None:
    leading.live.clear()
    leading.states.fails = CoordinationError("ZooKeeper does not answer.")
    leading.states.is_done = False
    leading.look()
    with pytest.raises(NotEnoughReplicasError):
        leading.in_sync.require_enough(leading.led)


@pytest.mark.parametrize(
    ("error", "is_told"),
    [(UnknownTopicError("There is no topic 't'."), False), (CoordinationError("Away."), True)],
)
def test_a_topic_that_is_deleted_is_no_news(
    leading: Leading, caplog: pytest.LogCaptureFixture, error: LogbusError, is_told: bool
) -> None:
    """Brokers leave the in-sync set of what they have deleted, and the leader hears that first."""
    leading.live.clear()
    leading.states.fails, leading.states.is_done = error, False
    with caplog.at_level(logging.INFO):
        leading.look()
    assert leading.states.asked
    assert ("is changed later" in caplog.text) is is_told


def test_a_new_leader_does_not_know_its_ends_before_the_watermark_has_come_so_far(
    leading: Leading,
) -> None:
    leading.append(5)
    leading.tell_all(3)
    leading.lead(epoch=EPOCH + 1)
    leading.append(2)
    assert leading.in_sync.hidden_until(leading.led) == 5
    with pytest.raises(OffsetNotAvailableError, match="has just taken the lead of t-0"):
        leading.in_sync.require_ends(leading.led)
    leading.tell_all(4)
    assert leading.in_sync.hidden_until(leading.led) == 5
    leading.tell_all(5)
    assert leading.in_sync.hidden_until(leading.led) is None
    leading.in_sync.require_ends(leading.led)


def test_a_write_that_cannot_be_published_whole_keeps_no_end_from_readers(
    leading: Leading,
) -> None:
    """The disk of a new leader is full, say. No leader has shown more than what lies before it."""
    leading.append(3)
    for number in (1, 2):
        leading.log.append_as_leader(batch(0, producer=attempt(number)), leader_epoch=EPOCH)
    leading.log.flush()
    leading.log.publishing.expect(share(9, 1, 2))
    leading.lead(epoch=EPOCH + 1)
    leading.tell_all(2)
    assert leading.in_sync.hidden_until(leading.led) == 3
    leading.tell_all(5)
    assert leading.watermark == 3
    leading.in_sync.require_ends(leading.led)
    members = leading.members
    assert members.epoch_start == 5, "who joins has all that may have been acknowledged"


# -- what is staged ------------------------------------------------------------------------------


def test_a_share_is_prepared_when_all_that_are_in_sync_have_it(leading: Leading) -> None:
    stage(leading.log, attempt(1), 2)
    position = leading.log.staging.position_of(WRITE)
    assert position is not None

    def wait() -> None:
        leading.in_sync.wait_until_staged(leading.led, WRITE, timeout_s=0)

    leading.tell(TWO, 0, position)
    for there in ((), (StagedPosition(WRITE, position.size_bytes, 0, position.digest),)):
        leading.tell(THREE, 0, *there)
        with pytest.raises(RequestTimeoutError, match="prepare it again"):
            wait()
    leading.tell(THREE, 0, position)
    wait()
    leading.tell(THREE, 0, position, log_id="f" * 32)
    with pytest.raises(RequestTimeoutError):
        wait()
    leading.live.discard(THREE)
    leading.look()
    wait()
    leading.live.discard(TWO)
    leading.look()
    with pytest.raises(NotEnoughReplicasError):
        wait()


def test_nothing_is_staged_or_prepared_with_who_leads_no_more(leading: Leading) -> None:
    """Another broker is elected while a request that has found the lead is on its way."""
    stage(leading.log, attempt(1), 2)
    before = leading.led
    leading.in_sync.end(before)

    def told() -> list[LogbusError | None]:
        outcomes: list[LogbusError | None] = []
        leading.in_sync.when_staged(before, WRITE, outcomes.append)
        return outcomes

    for _ in range(2):
        with pytest.raises(NotLeaderError, match="does not lead t-0 in epoch 7 any more"):
            leading.in_sync.wait_until_staged(before, WRITE, timeout_s=0)
        with pytest.raises(NotLeaderError):
            leading.in_sync.require_enough(before)
        assert [type(each) for each in told()] == [NotLeaderError]
        leading.lead(epoch=EPOCH + 2)


def test_who_waits_for_what_is_staged_is_told_that_another_epoch_has_begun(
    leading: Leading,
) -> None:
    """Another broker has led meanwhile, say, and the partition is led here anew."""
    stage(leading.log, attempt(1), 2)
    outcomes: list[LogbusError | None] = []
    leading.in_sync.when_staged(leading.led, WRITE, outcomes.append)
    leading.lead(epoch=EPOCH + 2)
    assert [type(each) for each in outcomes] == [NotLeaderError]
    assert f"in epoch {EPOCH} no longer" in str(outcomes[0])


def test_the_lead_of_a_sole_replica_may_end_while_a_share_is_prepared(leading: Leading) -> None:
    sole = PartitionState(LEADER, EPOCH + 1, [LEADER], replicas={LEADER: IDS[LEADER]})
    leading.topics[T0.topic] = leading.topic(LEADER)
    leading.lead(sole, epoch=EPOCH + 1)
    led, staging = leading.led, leading.log.staging
    stage(leading.log, attempt(1), 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            type(staging), "position_of", lambda *_: leading.in_sync.end(led), raising=True
        )
        with pytest.raises(NotLeaderError):
            leading.in_sync.wait_until_staged(led, WRITE, timeout_s=0)


def test_what_comes_late_of_an_epoch_before_changes_nothing(leading: Leading) -> None:
    before = leading.led
    leading.append(3)
    leading.lead(epoch=EPOCH + 1)
    leading.tell_all(3)
    assert leading.watermark == 3
    leading.append()
    leading.tell(TWO, 2, led=before)
    leading.tell(THREE, 4)
    leading.tell(TWO, 3, led=before)
    follower = leading.followers.find(leading.led, TWO)
    assert follower is not None
    assert follower.copy.safe_end == 3
    leading.look(after_s=LAG_S / 2)
    assert not leading.states.asked


def test_a_sole_replica_is_waited_for_by_nobody(tmp_path: Path) -> None:
    with logs_in(tmp_path / "data") as logs:
        log = logs.lead(T0)
        in_sync = in_sync_over(logs.clock)
        in_sync.lead(logs.here.leader_of(T0), PartitionState(5, EPOCH, [5]))
        stage(log, attempt(1), 2)
        in_sync.wait_until_staged(logs.here.leader_of(T0), WRITE, timeout_s=0)

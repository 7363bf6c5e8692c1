from __future__ import annotations

import pytest

from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.payloads import MovePayload, PartitionState
from spark_logbus.errors import (
    CoordinationError,
    InvalidRequestError,
)
from spark_logbus.log import StagedPosition
from tests.builders.staged import WRITE, attempt, share, stage
from tests.fakes.broker_parts import (
    EPOCH,
    T0,
    TOPIC_ID,
)
from tests.fakes.log_directory import ensure_one
from tests.unit.broker.replica.leading import (
    FOUR,
    IDS,
    LEADER,
    THREE,
    TWO,
    Leading,
)

# -- who joins -----------------------------------------------------------------------------------


def out(leading: Leading) -> None:
    """Has broker 3 leave."""
    leading.append(3)
    leading.tell(TWO, 3)
    leading.live.discard(THREE)
    leading.look()
    leading.live.add(THREE)
    leading.states.asked.clear()
    assert leading.watermark == 3


def test_a_follower_joins_with_what_may_be_acknowledged(leading: Leading) -> None:
    out(leading)
    leading.append(2)
    leading.tell(TWO, 4)
    leading.tell(THREE, 3)
    leading.look()
    assert not leading.states.asked
    leading.tell(THREE, 4)
    leading.look()
    assert leading.states.asked == [({THREE: IDS[THREE]}, set())], "4 is enough, of 5"
    assert leading.in_sync_now == [TWO, THREE, LEADER]
    assert leading.in_sync.stats.joined.value == 1


def test_a_joiner_is_counted_before_it_is_asked_for(leading: Leading) -> None:
    out(leading)

    def append() -> None:
        leading.append()
        leading.tell(TWO, 4)
        assert leading.watermark == 3

    leading.states.meanwhile = append
    leading.tell(THREE, 3)
    leading.look()
    assert leading.in_sync_now == [TWO, THREE, LEADER]
    assert leading.watermark == 3
    leading.tell(THREE, 4)
    assert leading.watermark == 4


def test_what_is_acknowledged_meanwhile_keeps_a_joiner_out(leading: Leading) -> None:
    out(leading)
    leading.append()
    leading.tell(THREE, 3)
    assert not leading.members.is_counted(THREE), "it does not keep up"
    change = leading.members.wanted(leading.live)
    assert change.add == {THREE: IDS[THREE]}
    leading.tell(TWO, 4)
    assert leading.watermark == 4
    assert not leading.members.begin(change)
    leading.append()
    leading.tell(TWO, 5)
    assert leading.watermark == 5, "it is not counted any more"


@pytest.mark.parametrize("is_done", [True, False])
def test_a_joiner_is_counted_as_long_as_nobody_knows_whether_it_is_in(
    leading: Leading, is_done: bool
) -> None:
    out(leading)
    leading.tell(THREE, 3)
    leading.states.fails = CoordinationError("The reply was lost.")
    leading.states.is_done = is_done
    leading.look()
    leading.append()
    leading.tell(TWO, 4)
    assert leading.watermark == 3
    leading.live.discard(THREE)  # and is gone: first it is settled that it was in
    leading.logs.clock.advance(1)
    leading.look()
    assert leading.watermark == 3
    assert leading.states.asked == [({THREE: IDS[THREE]}, set())] * 2
    leading.look()
    assert leading.states.asked[2:] == [({}, {THREE})]
    assert leading.watermark == 4


def test_a_joiner_that_is_refused_for_certain_is_not_counted(leading: Leading) -> None:
    out(leading)
    leading.tell(THREE, 3)
    leading.states.fails = InvalidRequestError("It is not assigned to it.")
    leading.states.is_done = False
    leading.look()
    leading.append()
    leading.tell(TWO, 4)
    assert leading.watermark == 4
    leading.tell(THREE, 4)
    leading.look()
    assert len(leading.states.asked) == 1, "not again at once"
    leading.look(after_s=2)
    assert leading.in_sync_now == [TWO, THREE, LEADER]


def test_nobody_joins_who_is_not_assigned_or_gone(leading: Leading) -> None:
    out(leading)
    leading.tell(FOUR, 3)
    leading.tell(THREE, 3)
    leading.live.discard(THREE)
    leading.look()
    assert not leading.states.asked
    move = MovePayload(to=[LEADER, TWO, FOUR], since_us=1)
    record = leading.topic(LEADER, TWO, THREE)
    leading.topics[T0.topic] = TopicRecord(
        record.name, record.topic_id, record.partitions, record.config, moves={0: move}
    )
    leading.in_sync.topics_changed()
    leading.look()
    assert not leading.states.asked, "it has told in no move"
    leading.tell(FOUR, 3, since_us=1)
    leading.look()
    assert leading.states.asked == [({FOUR: IDS[FOUR]}, set())]


def test_nobody_joins_by_what_it_told_in_an_earlier_move(leading: Leading) -> None:
    """The target may have deleted that log when the move was cancelled."""
    leading.lead()
    leading.tell_all(0)
    moved(leading, since_us=1)
    leading.live.discard(FOUR)
    leading.tell(FOUR, 0, since_us=1)
    moved(leading, since_us=2)
    leading.live.add(FOUR)
    leading.look()
    assert not leading.states.asked
    leading.tell(FOUR, 0, log_id="a" * 32, since_us=2)
    leading.look()
    assert leading.states.asked == [({FOUR: "a" * 32}, set())]
    assert leading.states.since_us == 2


def moved(leading: Leading, *, since_us: int) -> None:
    """Has the partition move to broker 4 as well."""
    record = leading.topic(LEADER, TWO, THREE)
    move = MovePayload(to=[LEADER, TWO, THREE, FOUR], since_us=since_us)
    leading.topics[T0.topic] = TopicRecord(
        record.name, record.topic_id, record.partitions, record.config, moves={0: move}
    )
    leading.in_sync.topics_changed()


def test_the_broker_to_which_a_sole_replica_moves_does_not_join(leading: Leading) -> None:
    leading.topics[T0.topic] = TopicRecord(
        T0.topic, TOPIC_ID, {0: [LEADER]}, {}, moves={0: MovePayload(to=[TWO], since_us=1)}
    )
    leading.lead(PartitionState(LEADER, EPOCH, [LEADER], replicas={LEADER: IDS[LEADER]}))
    assert leading.in_sync.members(leading.led) is None
    leading.append()
    leading.tell(TWO, 1)
    leading.look()
    assert not leading.states.asked


def test_a_follower_joins_a_new_leader_with_all_that_this_one_had(leading: Leading) -> None:
    """Its watermark lags, and what it has may be acknowledged."""
    leading.append(5)
    leading.tell_all(2)
    assert leading.watermark == 2
    state = PartitionState(
        LEADER, EPOCH + 1, [LEADER, TWO], replicas={LEADER: IDS[LEADER], TWO: IDS[TWO]}
    )
    leading.states.state = state
    leading.lead(state, epoch=EPOCH + 1)
    leading.tell(THREE, 4)
    leading.look()
    assert not leading.states.asked
    leading.tell(THREE, 5)
    leading.look()
    assert leading.in_sync_now == [TWO, THREE, LEADER]


def test_a_joiner_has_what_is_prepared(leading: Leading) -> None:
    out(leading)
    stage(leading.log, attempt(1), 2)
    position = leading.log.staging.position_of(WRITE)
    assert position is not None
    leading.tell(THREE, 3)
    leading.look()
    assert leading.in_sync_now == [TWO, THREE, LEADER], "nothing is promised of it"
    leading.live.discard(THREE)
    leading.look()
    leading.live.add(THREE)
    leading.log.publishing.check(share(2, 1), 1, leader_epoch=EPOCH)
    for lacking in (
        (),
        (StagedPosition(WRITE, position.size_bytes, 0, position.digest),),
        (StagedPosition(WRITE, position.size_bytes, position.size_bytes, 7),),
    ):
        leading.tell(THREE, 3, *lacking)
        leading.look()
        assert leading.in_sync_now == [TWO, LEADER]
    leading.tell(THREE, 3, position)
    leading.look()
    assert leading.in_sync_now == [TWO, THREE, LEADER]


def test_a_joiner_has_what_an_earlier_process_may_have_prepared(leading: Leading) -> None:
    """Its promise stands until this process makes one, and the write may be decided until then."""
    stage(leading.log, attempt(1), 2)
    leading.logs.restart()
    leading.log = ensure_one(leading.logs.directory, T0, topic_id=TOPIC_ID, config={})
    leading.lead()
    out(leading)
    position = leading.log.staging.position_of(WRITE)
    assert position is not None
    leading.tell(THREE, 3)
    leading.look()
    assert leading.in_sync_now == [TWO, LEADER]
    leading.tell(THREE, 3, position)
    leading.look()
    assert leading.in_sync_now == [TWO, THREE, LEADER]


def test_a_joiner_has_what_is_decided_and_was_prepared_with_the_leader_before(
    leading: Leading,
) -> None:
    """A broker that is elected is the one to publish it."""
    out(leading)
    stage(leading.log, attempt(1), 2)
    position = leading.log.staging.position_of(WRITE)
    assert position is not None
    leading.log.publishing.expect(share(2, 1))
    leading.tell(THREE, 3)
    leading.look()
    assert leading.in_sync_now == [TWO, LEADER]
    leading.tell(THREE, 3, position)
    leading.look()
    assert leading.in_sync_now == [TWO, THREE, LEADER]

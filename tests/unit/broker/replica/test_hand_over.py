from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from spark_logbus.broker.replica import hand_over
from spark_logbus.broker.replica.finishing import MoveEnds
from spark_logbus.broker.replica.followers import Copy, Followers
from spark_logbus.broker.replica.hand_over import HandOvers
from spark_logbus.broker.replica.holds import Holds
from spark_logbus.broker.replica.states import LeaderPartition
from spark_logbus.coordination.cluster.lease import Lease
from spark_logbus.coordination.cluster.moves import HandOver, MoveEndedError, PartitionMoves
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.payloads import MovePayload
from spark_logbus.coordination.writes.promises import Promise
from spark_logbus.errors import (
    BrokerUnavailableError,
    CoordinationError,
    LogbusError,
    NotLeaderError,
    StorageError,
    UnknownTopicError,
)
from spark_logbus.log import RECOVERED, PartitionLog, StagedPosition
from spark_logbus.model import TopicPartition
from spark_logbus.zookeeper import Session, SessionState
from tests.builders.staged import WRITE, attempt, share, stage
from tests.fakes.broker_parts import (
    EPOCH,
    T0,
    T1,
    TOPIC_ID,
    Logs,
    held_lease,
    in_sync_over,
    logs_in,
    record_batch,
)
from tests.fakes.writers import promises_of
from tests.helpers import wait_until

LEADER, FOLLOWER = 5, 6
LOG_ID = "b" * 32


class Moves:
    """Stands in for ``PartitionMoves``: who leads, and what happens to a hand-over.

    ``fails`` is raised by the next transaction, before or after it is done; ``away`` by all that
    is asked.
    """

    def __init__(self) -> None:
        self.leader = LEADER
        self.done: list[HandOver] = []
        self.fails: Exception | None = None
        self.fails_when_done = False
        self.away: LogbusError | None = None
        self.meanwhile: Callable[[], None] = lambda: None

    def hand_over(self, lead: HandOver) -> None:
        if self.away is not None:
            raise self.away
        self.meanwhile()
        self.meanwhile = lambda: None
        if self.leader != lead.leader:
            raise MoveEndedError("It is led by another.")
        if self.fails is not None and not self.fails_when_done:
            raise self.fails
        self.leader = lead.to
        self.done.append(lead)
        if self.fails is not None:
            raise self.fails

    def handed_over(self, lead: HandOver) -> bool:
        if self.away is not None:
            raise self.away
        return self.leader != lead.leader

    settle = handed_over


class HandingOver:
    """A broker that leads one partition, which is to move; its thread is not started."""

    def __init__(self, logs: Logs) -> None:
        self.logs = logs
        self.moves = Moves()
        self.standing: dict[TopicPartition, MovePayload] = {
            T0: MovePayload(to=[FOLLOWER], since_us=1)
        }
        self.replicas = [LEADER]
        self.changed: list[TopicPartition] = []
        self.when_changed: Callable[[], None] = lambda: None
        self.followers = Followers(clock=logs.clock, written=self.changed.append)
        self.holds = Holds()
        self.session = SimpleNamespace(state=SessionState.CONNECTED)
        self.lease = held_lease()
        self.promises = promises_of(LEADER)
        self.hand_overs = HandOvers(
            logs.here.as_replica_manager(),
            broker_id=LEADER,
            followers=self.followers,
            holds=self.holds,
            moves=cast(PartitionMoves, self.moves),
            ends=MoveEnds(
                LEADER,
                followers=self.followers,
                in_sync=in_sync_over(logs.clock),
                topic=lambda name: TopicRecord(
                    name,
                    TOPIC_ID,
                    {T0.partition: self.replicas},
                    {},
                    moves={each.partition: move for each, move in self.standing.items()},
                ),
            ),
            promises=self.promises,
            lease=cast(Lease, SimpleNamespace(current=lambda: self.lease.current())),
            session=cast(Session, self.session),
            clock=logs.clock,
            changed=self.note_changed,
        )
        self.log = logs.lead(T0)

    def note_changed(self, topic_partition: TopicPartition) -> None:
        self.changed.append(topic_partition)
        self.when_changed()

    def append(self, count: int = 1, *, log: PartitionLog | None = None) -> None:
        for _ in range(count):
            (log or self.log).append_as_leader(record_batch(), leader_epoch=EPOCH)

    def tell(
        self,
        offset: int,
        flushed: int | None = None,
        *staged: StagedPosition,
        lacking_bytes: int = 0,
        since_us: int = 1,
        refuses: bool = False,
    ) -> None:
        by_write = {each.write: each for each in staged}
        flushed = offset if flushed is None else flushed
        told = Copy(FOLLOWER, LOG_ID, offset, flushed, since_us, by_write, refuses=refuses)
        self.followers.tell(self.led, told, lacking_bytes=lacking_bytes)

    @property
    def led(self) -> LeaderPartition:
        return self.logs.here.leader_of(T0)

    def look(self) -> None:
        self.hand_overs._look()

    @property
    def leads(self) -> bool:
        return T0 in self.logs.here.led


@pytest.fixture
def handing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HandingOver]:
    monkeypatch.setattr(hand_over, "_LONGEST_PAUSE_S", 0.2)
    with logs_in(tmp_path / "data") as logs:
        yield HandingOver(logs)


def test_the_lead_goes_to_a_follower_that_has_everything_on_its_disk(handing: HandingOver) -> None:
    handing.append(3)  # not flushed here, and need not be
    log = handing.log
    handing.tell(3)
    handing.look()
    lead = HandOver(T0, TOPIC_ID, LEADER, EPOCH, FOLLOWER, LOG_ID, 3, 1, log.log_id or "")
    assert handing.moves.done == [lead]
    assert not handing.leads
    assert handing.followers.was_handed_over(T0, TOPIC_ID, FOLLOWER)
    assert not handing.followers.all()
    assert not handing.holds
    with pytest.raises(NotLeaderError, match="Broker 5 does not lead t-0 any more"):
        handing.append(log=log)
    outcomes: list[LogbusError | None] = []
    log.when_flushed(3, outcomes.append)
    handing.logs.flush()
    assert outcomes == [None], "what the new leader has may be acknowledged"
    assert handing.hand_overs.stats.done.value == 1


def test_an_empty_partition_is_handed_over(handing: HandingOver) -> None:
    handing.tell(0)
    handing.look()
    assert handing.moves.done[0].end == 0


def test_one_with_nothing_but_what_is_lost_is_handed_over(handing: HandingOver) -> None:
    handing.log.go_on_at(10)
    handing.tell(10)
    handing.look()
    assert handing.moves.done[0].end == 10


def test_nothing_is_taken_between_the_last_word_and_the_transaction(handing: HandingOver) -> None:
    refused: list[Exception] = []

    def append() -> None:
        try:
            handing.append()
        except LogbusError as error:
            refused.append(error)
        assert T0 in handing.holds

    handing.append()
    handing.moves.meanwhile = append
    handing.tell(1)
    handing.look()
    (error,) = refused
    assert isinstance(error, BrokerUnavailableError)
    assert error.retriable
    assert "t-0 takes nothing for the moment in which broker 6 becomes its leader" in str(error)


def test_who_waits_meanwhile_is_told_to_try_again_when_it_is_over(handing: HandingOver) -> None:
    leads: list[bool] = []

    def wait() -> None:
        hold = handing.holds.awaited([T0])
        assert hold is not None
        hold.when_over(lambda: leads.append(handing.leads))
        assert not leads

    handing.moves.meanwhile = wait
    handing.tell(0)
    handing.look()
    assert leads == [False]


@pytest.mark.parametrize(("offset", "flushed"), [(2, 2), (3, 2), (4, 4)])
def test_a_follower_that_has_not_everything_in_time_is_tried_again_later(
    handing: HandingOver, offset: int, flushed: int
) -> None:
    handing.append(3)
    handing.tell(offset, flushed)
    handing.look()
    assert not handing.moves.done
    assert handing.changed == [T0]
    assert not handing.holds
    handing.append(2)  # goes on
    handing.tell(4)
    handing.look()
    assert not handing.moves.done, "writers are left in peace for a while"
    handing.logs.clock.advance(1.5)
    handing.look()
    assert handing.hand_overs.stats.put_off.value == 1, "one that says nothing is not waited for"
    handing.tell(5)
    handing.look()
    assert handing.moves.done[0].end == 5


def test_one_that_told_of_everything_long_ago_is_asked_once_more(handing: HandingOver) -> None:
    """A follower has nothing more to tell, and ZooKeeper was away for a moment."""
    handing.append(3)
    handing.moves.away = CoordinationError("ZooKeeper is away.")
    handing.tell(3)
    handing.look()
    handing.moves.away = None
    handing.logs.clock.advance(30)
    handing.look()
    assert not handing.moves.done, "its disk may have died since"
    handing.logs.clock.advance(30)
    handing.when_changed = lambda: handing.tell(3)
    handing.look()
    assert handing.moves.done[0].end == 3


def test_a_follower_that_lacks_much_pauses_nobody(handing: HandingOver) -> None:
    handing.append(3)
    handing.tell(3, lacking_bytes=(1 << 20) + 1)
    handing.look()
    assert handing.hand_overs.stats.pauses.read().cumulative[-1] == 0
    assert handing.leads


def test_a_follower_that_lacks_a_little_is_given_time_for_it_first(handing: HandingOver) -> None:
    handing.append(3)
    handing.tell(1, lacking_bytes=1 << 20)
    handing.look()
    assert handing.hand_overs.stats.pauses.read().cumulative[-1] == 0
    handing.tell(3, lacking_bytes=100)  # of what came since, say
    handing.look()
    assert handing.moves.done


def test_a_fast_follower_lacks_little_at_any_size(handing: HandingOver) -> None:
    size = 100 << 20
    for _ in range(2):
        handing.tell(0, lacking_bytes=size)
        handing.followers.sent(T0, FOLLOWER, size)
        handing.logs.clock.advance(0.2)
    handing.tell(0, lacking_bytes=size - 1)
    handing.tell(0, lacking_bytes=size - 1)
    follower = handing.followers.find(handing.led, FOLLOWER)
    assert follower is not None
    assert follower.rate == pytest.approx(5 * size)
    assert follower.is_ready


def test_the_last_of_it_may_come_during_the_pause(handing: HandingOver) -> None:
    handing.append(2)
    handing.tell(1)
    thread = threading.Thread(target=handing.look)
    thread.start()
    wait_until(lambda: handing.changed)
    handing.tell(2)
    thread.join(60)
    assert handing.moves.done[0].end == 2


@pytest.mark.parametrize("done", [False, True])
def test_a_hand_over_that_nobody_knows_about_takes_nothing_until_that_is_known(
    handing: HandingOver, done: bool
) -> None:
    handing.append()
    handing.moves.fails = CoordinationError("The reply was lost.")
    handing.moves.fails_when_done = done
    handing.moves.meanwhile = lambda: setattr(
        handing.moves, "away", CoordinationError("ZooKeeper is away.")
    )
    handing.tell(1)
    handing.look()
    for _ in range(3):
        with pytest.raises(BrokerUnavailableError):
            handing.append()
        assert T0 in handing.holds
        assert handing.holds.awaited([T0]) is None, "who waits holds up others"
        handing.look()
    log, handing.moves.away, handing.moves.fails = handing.log, None, None
    handing.look()
    assert not handing.holds
    assert handing.leads is not done
    if done:
        with pytest.raises(NotLeaderError):
            handing.append(log=log)
    else:
        handing.append()


def test_what_was_not_foreseen_holds_up_no_other_partition(
    handing: HandingOver, caplog: pytest.LogCaptureFixture
) -> None:
    handing.append()
    handing.moves.fails = ValueError("Nobody thought of that.")
    handing.tell(1)
    handing.look()
    assert "Another broker could not become the leader of t-0" in caplog.text
    assert not handing.holds
    handing.append()
    handing.moves.fails = None
    handing.tell(2)
    handing.look()
    assert handing.leads, "it is not tried again at once"
    handing.logs.clock.advance(60)
    handing.tell(2)
    handing.look()
    assert not handing.leads


def test_what_was_told_in_an_earlier_move_counts_for_nothing(handing: HandingOver) -> None:
    handing.append()
    handing.tell(1, since_us=9)
    handing.look()
    assert not handing.followers.all()
    handing.append()
    handing.tell(2)
    handing.standing[T0] = MovePayload(to=[FOLLOWER], since_us=2)  # cancelled, and begun again
    handing.look()
    assert not handing.moves.done
    handing.tell(1, since_us=2)
    thread = threading.Thread(target=handing.look)
    thread.start()
    wait_until(lambda: handing.changed)
    handing.tell(2, since_us=1)
    thread.join(60)
    assert not handing.moves.done


def test_a_move_that_was_cancelled_meanwhile_leaves_all_as_it_was(handing: HandingOver) -> None:
    handing.moves.fails = MoveEndedError("It was cancelled.")
    handing.moves.meanwhile = handing.standing.clear
    handing.tell(0)
    handing.look()
    assert handing.leads
    handing.append()
    handing.look()
    assert not handing.followers.all()
    assert handing.log._writer.on_written is None


def test_a_lead_that_was_taken_meanwhile_is_let_go(handing: HandingOver) -> None:
    handing.moves.fails = MoveEndedError("It is led by another.")
    handing.moves.meanwhile = lambda: setattr(handing.moves, "leader", 7)
    handing.tell(0)
    handing.look()
    assert not handing.leads


def test_one_that_is_stepped_down_from_meanwhile_takes_nothing_after_that(
    handing: HandingOver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log follows another leader's."""

    def step_down(led: LeaderPartition, _: HandOver) -> str:
        del handing.logs.here.led[T0]
        led.log.fence(led.leader_epoch, NotLeaderError("Another broker leads."))
        return "it is led by another broker"

    monkeypatch.setattr(handing.hand_overs, "_prepare", step_down)
    log = handing.log
    handing.tell(0)
    handing.look()
    with pytest.raises(NotLeaderError):
        handing.append(log=log)


def test_a_topic_that_is_deleted_meanwhile_is_not_held(handing: HandingOver) -> None:
    handing.moves.fails = UnknownTopicError("It was deleted.")
    handing.tell(0)
    handing.look()
    assert not handing.holds
    handing.append()


@pytest.mark.parametrize("why", ["session", "lease", "zookeeper", "elsewhere", "offline", "stop"])
def test_nothing_is_begun_where_it_could_not_be_ended(handing: HandingOver, why: str) -> None:
    handing.tell(0)
    if why == "session":
        handing.session.state = SessionState.SUSPENDED
    elif why == "lease":
        handing.lease = Lease(timeout_ms=1_000, ask=lambda _: True)
    elif why == "zookeeper":
        handing.moves.away = CoordinationError("ZooKeeper is away.")
    elif why == "elsewhere":
        handing.moves.leader = 7
    elif why == "offline":
        handing.log.stop(StorageError("The disk is gone."))
    else:
        handing.hand_overs.end_waiting()
    handing.look()
    assert not handing.moves.done
    assert handing.hand_overs.stats.pauses.read().cumulative[-1] == 0
    assert handing.leads


def test_a_lease_that_ends_during_the_pause_ends_the_hand_over(handing: HandingOver) -> None:
    handing.append()
    handing.tell(0)
    thread = threading.Thread(target=handing.look)
    thread.start()
    wait_until(lambda: handing.changed)
    handing.lease = Lease(timeout_ms=1_000, ask=lambda _: True)
    handing.tell(1)
    thread.join(60)
    assert not handing.moves.done
    handing.append()


def test_what_waits_is_let_go_when_the_broker_stops(handing: HandingOver) -> None:
    over: list[bool] = []
    handing.holds.begin(T0).when_over(lambda: over.append(True))
    handing.hand_overs.end_waiting()
    assert over == [True]


def test_a_publication_that_takes_long_is_waited_for_by_nobody(
    handing: HandingOver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hand_over, "_PUBLICATION_S", 0.01)
    handing.tell(0)
    with handing.log.publishing.paused:
        handing.look()
    assert not handing.moves.done
    handing.append()
    assert handing.hand_overs.stats.put_off.value == 1


def test_a_partition_that_came_back_meanwhile_is_led(handing: HandingOver) -> None:
    again = LeaderPartition(handing.log, EPOCH + 2)

    def lead_again() -> None:
        handing.logs.here.led[T0] = again

    handing.moves.meanwhile = lead_again
    handing.tell(0)
    handing.look()
    assert handing.led is again
    assert not handing.followers.was_handed_over(T0, TOPIC_ID, FOLLOWER)
    handing.log.append_as_leader(record_batch(), leader_epoch=EPOCH + 2)


# -- what atomic writes have staged -------------------------------------------------------------


def staged(log: PartitionLog) -> StagedPosition:
    stage(log, attempt(1), 1)
    (there,) = log.staging.replica_state()
    return there


def test_all_that_is_staged_has_to_be_on_the_followers_disk(handing: HandingOver) -> None:
    there = staged(handing.log)
    lacking = [
        (),
        (there._replace(flushed_bytes=0),),
        (there._replace(digest=there.digest ^ 1),),
        (there._replace(size_bytes=there.size_bytes - 1, flushed_bytes=there.size_bytes - 1),),
        (there._replace(write=there.write + 1),),
    ]
    for told in lacking:
        handing.tell(0, 0, *told)
        handing.look()
        handing.logs.clock.advance(60)
    assert not handing.moves.done
    over = there._replace(write=there.write + 1)  # here, and not there any more
    handing.tell(0, 0, there, over)
    handing.look()
    assert handing.moves.done


def test_what_was_promised_is_let_go_before_the_lead_is(handing: HandingOver) -> None:
    before = handing.promises.current()
    there = staged(handing.log)
    handing.log.publishing.check(share(1, 1), before.number, leader_epoch=EPOCH)
    stood: list[Promise] = []
    handing.moves.meanwhile = lambda: stood.append(handing.promises.current())
    handing.tell(0, 0, there)
    handing.look()
    assert handing.moves.done
    assert stood[0].number > before.number
    assert stood[0].token != before.token


def test_a_promise_that_does_not_bind_the_partition_stands(handing: HandingOver) -> None:
    before = handing.promises.current()
    handing.tell(0, 0, staged(handing.log))
    handing.look()
    assert handing.moves.done
    assert handing.promises.current() == before


def test_the_promise_of_an_earlier_process_is_let_go_before_the_lead_is(
    handing: HandingOver, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    monkeypatch.setattr(handing.promises._registry, "write", written.append)
    there = staged(handing.log)
    file = handing.log.staging.file_of(there.write)
    assert file is not None
    file.promised = RECOVERED
    handing.moves.meanwhile = lambda: written.append("the lead")
    handing.tell(0, 0, there)
    handing.look()
    assert handing.moves.done
    assert written[1:] == ["the lead"], "one token, before that"


def test_a_promise_that_cannot_be_let_go_keeps_the_lead_here(
    handing: HandingOver, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = staged(handing.log)
    number = handing.promises.current().number
    handing.log.publishing.check(share(1, 1), number, leader_epoch=EPOCH)

    def away(_: str) -> None:
        raise CoordinationError("ZooKeeper is away.")

    monkeypatch.setattr(handing.promises._registry, "write", away)
    handing.tell(0, 0, there)
    handing.look()
    assert not handing.moves.done
    handing.append()
    assert handing.log.staging.is_promised(WRITE, number)


def test_nothing_is_prepared_once_the_promise_was_let_go(handing: HandingOver) -> None:
    refused: list[bool] = []

    def prepare() -> None:
        with pytest.raises(BrokerUnavailableError):
            handing.log.publishing.check(share(1, 1), 1, leader_epoch=EPOCH)
        refused.append(True)

    handing.moves.meanwhile = prepare
    handing.tell(0, 0, staged(handing.log))
    handing.look()
    assert refused
    assert handing.moves.done


def test_the_lead_goes_to_one_in_sync_when_that_is_asked_for(handing: HandingOver) -> None:
    handing.standing.clear()
    handing.append(2)
    handing.tell(2, since_us=0)
    handing.look()
    assert handing.leads, "it does not move"
    done = handing.hand_overs.ask(T0, FOLLOWER, within_s=5)
    handing.look()
    assert done.result(0) is None
    (lead,) = handing.moves.done
    assert (lead.to, lead.end, lead.since_us) == (FOLLOWER, 2, None)
    assert not handing.leads


def test_the_lead_does_not_go_to_a_full_disk_but_from_one_that_stops(handing: HandingOver) -> None:
    handing.standing.clear()
    handing.append(2)
    handing.tell(2, since_us=0, refuses=True)
    refused = handing.hand_overs.ask(T0, FOLLOWER, within_s=5)
    handing.look()
    handing.logs.clock.advance(5)
    handing.when_changed = lambda: handing.tell(2, since_us=0, refuses=True)
    handing.look()
    with pytest.raises(BrokerUnavailableError, match="the disk of broker 6 takes nothing more"):
        refused.result(0)
    assert handing.leads
    handing.append()
    handing.logs.clock.advance(60)
    handing.tell(3, since_us=0, refuses=True)
    done = handing.hand_overs.ask(T0, FOLLOWER, within_s=5, to_full=True)
    handing.when_changed = lambda: None
    handing.look()
    assert done.result(0) is None


def test_what_is_asked_for_and_cannot_be_done_in_time_says_why(handing: HandingOver) -> None:
    handing.standing.clear()
    done = handing.hand_overs.ask(T0, FOLLOWER, within_s=5)
    handing.look()
    assert not done.done()
    handing.logs.clock.advance(5)
    handing.look()
    with pytest.raises(BrokerUnavailableError, match="broker 6 does not follow closely"):
        done.result(0)
    assert handing.leads
    other = handing.hand_overs.ask(T1, FOLLOWER, within_s=5)
    handing.look()
    with pytest.raises(NotLeaderError):
        other.result(0)

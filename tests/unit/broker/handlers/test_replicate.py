from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from spark_logbus.broker.handlers.replica_sessions import ReplicaSessions
from spark_logbus.broker.handlers.replicate import ReplicateHandler
from spark_logbus.broker.handlers.request_metrics import RequestMetrics
from spark_logbus.broker.replica.followers import Copy, Followers
from spark_logbus.broker.replica.holds import Holds
from spark_logbus.broker.replica.states import LeaderPartition
from spark_logbus.coordination.payloads import MovePayload
from spark_logbus.errors import (
    CorruptRecordBatchError,
    InvalidRequestError,
    NotLeaderError,
    StorageError,
    UnknownTopicError,
)
from spark_logbus.log import LogConfig, StagedPosition
from spark_logbus.model import TopicPartition
from spark_logbus.network import Answer, DelayedResponse
from spark_logbus.protocol import (
    Api,
    FollowedPartition,
    LogPoint,
    PartitionLeft,
    ReplicateRequest,
    ReplicateResponse,
    ReplicateResult,
    StagedCopy,
    StagedPoint,
)
from tests.builders.staged import WRITE, attempt, stage
from tests.fakes.broker_parts import (
    EPOCH,
    T0,
    T1,
    TOPIC_ID,
    Logs,
    logs_in,
    message_of,
    record_batch,
    reply,
)
from tests.fakes.handlers import context

LEADER, FOLLOWER = 5, 6
LOG_ID = "b" * 32
BATCH = len(record_batch())


class Following:
    """A leader with two partitions, of which the first moves to the follower."""

    def __init__(self, logs: Logs) -> None:
        self.logs = logs
        self.sessions = ReplicaSessions(logs.here.find)
        self.followers = Followers(clock=logs.clock, written=self.sessions.changed)
        self.holds = Holds()
        self.moves = {T0: MovePayload(to=[FOLLOWER], since_us=1)}
        self.assigned: dict[TopicPartition, list[int]] = {}
        self.members = [LEADER]
        self.handler = ReplicateHandler(
            LEADER,
            logs.here.as_replica_manager(),
            self.sessions,
            followers=self.followers,
            holds=self.holds,
            standing=lambda where, _: self.moves.get(where),
            assigned=lambda where, _: self.assigned.get(where, ()),
            members=lambda _: self.members,
            clock=logs.clock,
            max_wait_ms=60_000,
            max_fetch_bytes=1 << 20,
            metrics=RequestMetrics(logs.clock),
        )
        for each in (T0, T1):
            logs.lead(each)

    @property
    def led(self) -> LeaderPartition:
        return self.logs.here.leader_of(T0)

    def append(self, count: int = 1, *, where: TopicPartition = T0, epoch: int = EPOCH) -> None:
        for _ in range(count):
            log = self.logs.here.leader_of(where).log
            log.append_as_leader(record_batch(), leader_epoch=epoch)

    def ask(
        self,
        *parts: FollowedPartition,
        broker_id: int = FOLLOWER,
        wait_ms: int = 1_000,
        max_bytes: int = 1 << 20,
    ) -> Answer:
        """Begins a session."""
        self.context = context()
        self.sequence = 0
        return self.again(*parts, broker_id=broker_id, wait_ms=wait_ms, max_bytes=max_bytes)

    def again(
        self,
        *parts: FollowedPartition,
        broker_id: int = FOLLOWER,
        wait_ms: int = 1_000,
        max_bytes: int = 1 << 20,
        left: Sequence[TopicPartition] = (),
    ) -> Answer:
        """Asks again, in the session."""
        self.sequence += 1
        gone = [PartitionLeft(each.topic, each.partition) for each in left]
        request = ReplicateRequest(broker_id, self.sequence, wait_ms, max_bytes, list(parts), gone)
        return self.handler.handle(request, self.context)

    def wait(self, *parts: FollowedPartition) -> DelayedResponse:
        """Begins a session, and asks again until there is nothing left to be told."""
        answer = self.ask(*parts)
        while not isinstance(answer, DelayedResponse):
            answer = self.again()
        return waits(answer)

    def told(self) -> Copy | None:
        follower = self.followers.find(self.led, FOLLOWER)
        return None if follower is None else follower.copy


def copy(offset: int = 0, flushed: int | None = None, **fields: Any) -> FollowedPartition:
    """The first partition, as its follower has it."""
    part = FollowedPartition(
        T0.topic, T0.partition, TOPIC_ID, 1, EPOCH, LOG_ID, offset, EPOCH if offset else -1,
        offset if flushed is None else flushed, offset if flushed is None else flushed, 1 << 20,
    )  # fmt: skip
    return msgspec.structs.replace(part, **fields)


def results(answer: Answer) -> list[ReplicateResult]:
    response = reply(answer)
    message = message_of(Api.REPLICATE, response)
    assert isinstance(message, ReplicateResponse)
    lengths = [
        length
        for result in message.results
        for length in (result.length, *(each.length for each in result.staged))
        if length
    ]
    assert [piece.length for piece in response.slices] == lengths
    return message.results


def one(answer: Answer) -> ReplicateResult:
    (result,) = results(answer)
    return result


def waits(answer: Answer) -> DelayedResponse:
    assert isinstance(answer, DelayedResponse)
    assert answer.poll() is None
    return answer


@pytest.fixture
def following(tmp_path: Path) -> Iterator[Following]:
    with logs_in(tmp_path / "data", LogConfig(index_interval_bytes=128)) as logs:
        yield Following(logs)


def test_what_is_written_is_sent_before_it_is_flushed(following: Following) -> None:
    following.append(3)
    result = one(following.ask(copy()))
    assert (result.length, result.log_end, result.high_watermark) == (3 * BATCH, 3, 0)
    assert (result.leader_epoch, result.remaining_bytes) == (EPOCH, 3 * BATCH)
    following.logs.flush()
    result = one(following.ask(copy(2)))
    assert (result.length, result.high_watermark, result.remaining_bytes) == (BATCH, 3, BATCH)


def test_an_append_wakes_who_waits_and_costs_nothing_once_nobody_follows(
    following: Following,
) -> None:
    answer = following.wait(copy())
    woken: list[bool] = []
    answer.subscribe(lambda: woken.append(True))
    following.append()
    assert woken
    assert one(answer).length == BATCH
    following.followers.forget(T0)
    assert following.led.log._writer.on_written is None


def test_an_answer_comes_when_the_time_is_over(following: Following) -> None:
    answer = following.wait(copy())
    following.logs.clock.advance(1)
    assert results(answer) == []
    answer = following.wait(copy())
    following.handler.end_waiting()
    assert results(answer) == []


def test_what_is_told_is_known_of_the_present_leader_epoch_only(following: Following) -> None:
    following.append(3)
    following.ask(copy(2, 1))
    told = following.told()
    assert told is not None
    assert (told.broker_id, told.log_id, told.offset, told.flushed_end) == (FOLLOWER, LOG_ID, 2, 1)
    following.logs.here.led[T0] = LeaderPartition(following.led.log, EPOCH + 1)
    assert following.told() is None
    result = one(following.ask(copy(3)))
    assert isinstance(_error(result), NotLeaderError)
    assert result.leader_epoch == EPOCH + 1
    assert f"in epoch {EPOCH + 1}" in str(_error(result))
    assert f"follows epoch {EPOCH}" in str(_error(result))
    assert following.told() is None


def test_another_log_of_the_follower_begins_anew(following: Following) -> None:
    following.append(3)
    following.ask(copy(3))
    following.ask(copy(0, log_id="c" * 32))
    told = following.told()
    assert told is not None
    assert (told.log_id, told.flushed_end) == ("c" * 32, 0)


def _error(result: ReplicateResult) -> Exception | None:
    return None if result.error is None else result.error.to_exception()


@pytest.mark.parametrize(
    ("part", "kind", "words"),
    [
        (copy(topic_id="other"), UnknownTopicError, "that is meant has the id other"),
        (copy(topic="u"), NotLeaderError, "u-0 is not led here"),
        (copy(partition=-1), NotLeaderError, "not led here"),
        (copy(3, 4), InvalidRequestError, "cannot end at 3, with 4"),
        (copy(-1), InvalidRequestError, "cannot end at -1"),
        (copy(3, -1), InvalidRequestError, "with -1 as the end"),
        (copy(3, last_epoch=-2), InvalidRequestError, "-2 as its last leader epoch"),
        (copy(log_id="b" * 101), InvalidRequestError, "a log id of 101 characters"),
        (copy(partition=1), NotLeaderError, "t-1 is not to move to broker 6 since 1 µs"),
    ],
)
def test_what_makes_no_sense_is_refused_and_not_believed(
    following: Following, part: FollowedPartition, kind: type[Exception], words: str
) -> None:
    following.append(3)
    error = _error(one(following.ask(part)))
    assert isinstance(error, kind)
    assert words in str(error)
    assert not following.followers.all()


def test_only_the_broker_to_which_the_partition_moves_is_believed(following: Following) -> None:
    following.append(3)
    error = _error(one(following.ask(copy(3), broker_id=7)))
    assert isinstance(error, NotLeaderError)
    assert "t-0 is not to move to broker 7 since 1 µs, as far as broker 5 knows" in str(error)
    assert isinstance(_error(one(following.ask(copy(3, since_us=2)))), NotLeaderError)
    assert following.told() is None
    following.moves.clear()
    assert isinstance(_error(one(following.ask(copy(3)))), NotLeaderError)
    assert following.told() is None
    with pytest.raises(InvalidRequestError, match="Broker 5 is this one"):
        following.ask(copy(3), broker_id=LEADER)
    with pytest.raises(InvalidRequestError, match="names a partition twice"):
        following.ask(copy(), copy())
    with pytest.raises(InvalidRequestError, match="names no partition"):
        following.ask()


def test_a_broker_to_which_the_partition_is_assigned_is_believed(following: Following) -> None:
    following.append(3)
    error = _error(one(following.ask(copy(3, since_us=0))))
    assert isinstance(error, NotLeaderError)
    assert "t-0 is not assigned to broker 6, as far as broker 5 knows" in str(error)
    assert following.told() is None
    following.assigned[T0] = [LEADER, FOLLOWER]
    assert one(following.ask(copy(3, since_us=0), wait_ms=0)).error is None
    told = following.told()
    assert told is not None
    assert (told.broker_id, told.flushed_end, told.since_us) == (FOLLOWER, 3, 0)
    assert isinstance(_error(one(following.ask(copy(3, since_us=0), broker_id=7))), NotLeaderError)
    following.assigned[T0] = [LEADER]
    assert isinstance(_error(one(following.ask(copy(3, since_us=0)))), NotLeaderError)


def test_a_log_that_is_offline_is_not_copied(following: Following) -> None:
    following.append(3)
    following.led.log.stop(StorageError("The disk is gone."))
    error = _error(one(following.ask(copy(3))))
    assert isinstance(error, StorageError)
    assert str(error) == "The disk is gone."
    assert following.told() is None


def test_a_copy_with_more_is_to_be_cut_back_and_is_not_believed(following: Following) -> None:
    following.append(3, epoch=EPOCH - 1)
    following.append(2)
    cases = [
        (copy(6), LogPoint(EPOCH, 5)),  # ahead
        (copy(4, last_epoch=EPOCH - 1), LogPoint(EPOCH - 1, 3)),  # of a leader before
        (copy(3, last_epoch=EPOCH + 1), LogPoint(EPOCH, 5)),  # of one that never was
        (copy(6, last_epoch=-1), LogPoint(EPOCH, 5)),
    ]
    for part, point in cases:
        result = one(following.ask(part))
        assert (result.diverges, result.length) == (point, 0)
        assert following.told() is None
    assert one(following.ask(copy(3, last_epoch=EPOCH - 1))).length == 2 * BATCH


def test_a_copy_that_ends_before_the_log_begins_is_told_where_to_begin(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=1024, retention_bytes=1024)
    with logs_in(tmp_path / "data", config) as logs:
        following = Following(logs)
        following.append(40)
        logs.flush()
        logs.directory.maintain()
        start = following.led.log.ends().log_start_offset
        assert start > 0
        result = one(following.ask(copy(1)))
        assert (result.log_start_offset, result.length, result.diverges) == (start, 0, None)
        result = one(following.ask(copy(0, log_id="", last_epoch=-5)))
        assert (result.log_start_offset, result.log_end, result.length) == (start, 40, 0)
        assert result.remaining_bytes > 0
        assert following.told() is None or following.told() == Copy(FOLLOWER, LOG_ID, 1, 1, 1)


def test_a_follower_passes_over_what_is_lost(following: Following) -> None:
    following.append(2)
    following.led.log.go_on_at(10)
    following.append()
    result = one(following.ask(copy(2)))
    assert (result.go_on_at, result.length) == (10, 0)
    assert one(following.ask(copy(10))).length == BATCH


def test_a_hand_over_asks_a_follower_once_how_far_it_is_and_whether_it_works(
    following: Following,
) -> None:
    """A follower that has all tells nothing by itself, also when its disk has died since."""
    following.append()
    answer = following.wait(copy(1))
    for _ in range(2):
        following.holds.begin(T0)
        following.sessions.changed(T0)
        result = one(answer)
        assert (result.hand_over, result.waits) == (True, True)
        answer = waits(following.again(copy(1, refuses=True)))
        told = following.told()
        assert told is not None
        assert told.refuses
        following.sessions.changed(T0)
        assert answer.poll() is None, "it has just told"
        following.holds.end(T0)


def test_an_answer_holds_no_more_than_is_asked_for(following: Following) -> None:
    following.moves[T1] = following.moves[T0]
    following.append(3)
    following.append(3, where=T1)
    parts = (copy(), copy(partition=1))
    found = results(following.ask(*parts, max_bytes=2 * BATCH))
    assert [each.length for each in found] == [2 * BATCH]
    found = results(following.again(copy(2), max_bytes=2 * BATCH))
    assert [(each.partition, each.length) for each in found] == [(1, 2 * BATCH)], "its turn first"
    found = results(following.ask(*parts, max_bytes=5 * BATCH))
    assert [each.length for each in found] == [3 * BATCH, 2 * BATCH]
    found = results(following.ask(copy(max_bytes=BATCH), parts[1]))
    assert [each.length for each in found] == [BATCH, 3 * BATCH]
    assert one(following.ask(copy(max_bytes=-5), max_bytes=0)).length == BATCH


def test_a_hand_over_asks_for_what_is_not_on_the_followers_disk(following: Following) -> None:
    following.append()
    answer = following.wait(copy(1, 0))
    following.holds.begin(T0)
    following.sessions.changed(T0)
    assert one(answer).hand_over
    answer = waits(following.again(copy(1)))
    following.holds.end(T0)
    following.followers.hand_over(T0, TOPIC_ID, FOLLOWER)
    led = following.logs.here.led.pop(T0)
    following.sessions.changed(T0)
    result = one(answer)
    assert (result.handed_over, result.error) == (True, None)
    assert not one(following.ask(copy(1, topic_id="other"))).handed_over
    following.logs.clock.advance(61)
    following.followers.forget_handed_over()
    assert isinstance(_error(one(following.ask(copy(1)))), NotLeaderError)
    following.followers.hand_over(T0, TOPIC_ID, FOLLOWER)
    following.logs.here.led[T0] = led
    following.wait(copy(1))  # it came back


def test_how_a_copy_gets_on_is_known(following: Following) -> None:
    clock = following.logs.clock
    following.append(4)
    following.ask(copy())
    clock.advance(2)
    following.ask(copy(2, max_bytes=2 * BATCH))
    follower = following.followers.find(following.led, FOLLOWER)
    assert follower is not None
    assert follower.rate == pytest.approx(2 * BATCH)
    assert (follower.lacking_bytes, follower.got_on_at) == (2 * BATCH, clock.monotonic())
    clock.advance(3)
    following.ask(copy(2))
    follower = following.followers.find(following.led, FOLLOWER)
    assert follower is not None
    assert follower.told_at - follower.got_on_at == 3


# -- what atomic writes have staged -------------------------------------------------------------


def staged(following: Following, part: FollowedPartition) -> list[tuple[int, int, int, int]]:
    """Write, size, position and length of what the answer has of each write."""
    result = one(following.ask(part))
    assert result.error is None
    return [(each.write, each.size, each.position, each.length) for each in result.staged]


def position_of(following: Following, write: int) -> StagedPosition:
    found = following.led.log.staging.position_of(write)
    assert found is not None
    return found


def test_what_is_staged_is_sent_from_the_followers_position_on(following: Following) -> None:
    following.append(2)
    log = following.led.log
    stage(log, attempt(1), 1, flush=False)
    first = position_of(following, WRITE)
    size = first.size_bytes
    assert staged(following, copy()) == [(WRITE, size, 0, size)]
    answer = one(following.ask(copy(2)))
    assert (answer.length, answer.remaining_bytes) == (0, size)
    told = StagedCopy(WRITE, size, 0, first.digest)
    answer_later = following.wait(copy(2, staged=[told]))
    stage(log, attempt(1), 1, 1, start=1)
    result = one(answer_later)
    assert [(each.position, each.length) for each in result.staged] == [(size, 2 * size)]
    stage(log, attempt(1, write=78), 1)
    found = staged(following, copy(2, staged=[told]))
    assert found == [(WRITE, 3 * size, size, 2 * size), (78, size, 0, size)]
    found = staged(following, copy(2, staged=[told], max_bytes=3 * size))
    assert found == [(WRITE, 3 * size, size, 2 * size), (78, size, 0, size)]
    found = staged(following, copy(2, staged=[told], max_bytes=2 * size))
    assert found == [(WRITE, 3 * size, size, 2 * size), (78, size, 0, 0)]


def test_a_staging_wakes_who_waits(following: Following) -> None:
    following.append()
    answer = following.wait(copy(1))
    woken: list[bool] = []
    answer.subscribe(lambda: woken.append(True))
    stage(following.led.log, attempt(1), 1, flush=False)
    assert woken
    assert one(answer).staged[0].length > 0


@pytest.mark.parametrize("wrong", ["digest", "longer", "half"])
def test_a_copy_of_something_else_is_to_be_cut_back(following: Following, wrong: str) -> None:
    stage(following.led.log, attempt(1), 1)
    there = position_of(following, WRITE)
    size, digest = there.size_bytes, there.digest
    told = {
        "digest": StagedCopy(WRITE, size, size, digest ^ 1),
        "longer": StagedCopy(WRITE, size + 1, size, digest),
        "half": StagedCopy(WRITE, size - 1, 0, digest),
    }[wrong]
    (source,) = one(following.ask(copy(staged=[told]))).staged
    assert (source.write, source.size, source.position, source.length) == (WRITE, size, 0, 0)
    assert source.points == [StagedPoint(size, digest)]
    other = following.followers.find(following.led, FOLLOWER)
    assert other is not None
    assert not other.copy.has(0, [there])


def test_a_write_that_is_over_is_not_named(following: Following) -> None:
    assert staged(following, copy(staged=[StagedCopy(5, 10, 10, 3)])) == []
    following.wait(copy())


@pytest.mark.parametrize(
    "told",
    [
        [StagedCopy(5, 10, 11, 0)],
        [StagedCopy(5, -1, -1, 0)],
        [StagedCopy(5, 10, -1, 0)],
        [StagedCopy(5, 10, 10, 0)] * 2,
        [StagedCopy(each, 10, 10, 0) for each in range(1_001)],
    ],
)
def test_copies_that_cannot_be_are_refused(following: Following, told: list[StagedCopy]) -> None:
    error = _error(one(following.ask(copy(staged=told))))
    assert isinstance(error, InvalidRequestError)
    assert following.told() is None


# -- damage -------------------------------------------------------------------------------------


def test_a_follower_waits_for_what_is_damaged_while_others_are_in_sync(
    following: Following,
) -> None:
    """Another replica leads soon, and what is damaged here comes from there."""
    following.append(3)
    following.logs.flush()
    log = following.led.log
    (path,) = log.directory.glob("*.log")
    with path.open("r+b") as file:
        file.seek(BATCH)
        file.write(bytes(BATCH))
    following.members = [LEADER, 9]
    for _ in range(2):  # the damage is not known at first
        result = one(following.ask(copy(1)))
        assert isinstance(_error(result), CorruptRecordBatchError)
        assert (result.go_on_at, result.length) == (None, 0)
    assert one(following.ask(copy(2))).length == BATCH
    following.members = [LEADER]
    assert one(following.ask(copy(1))).go_on_at == 2


def test_a_follower_passes_over_damage_that_is_known(following: Following) -> None:
    following.append(6)
    following.logs.flush()
    log = following.led.log
    (path,) = log.directory.glob("*.log")
    data = bytearray(path.read_bytes())
    data[2 * BATCH : 4 * BATCH] = bytes(2 * BATCH)
    path.write_bytes(data)
    with pytest.raises(CorruptRecordBatchError):
        log.read(3, max_bytes=1)
    sent = offset = 0
    passed: list[tuple[int, int]] = []
    while offset < 6:
        result = one(following.ask(copy(offset)))
        assert result.error is None
        sent += result.length
        if result.go_on_at is not None:
            passed.append((offset, result.go_on_at))
            offset = result.go_on_at
        else:
            assert result.length
            offset += result.length // BATCH
    assert passed == [(2, 4)]
    assert sent == 4 * BATCH
    one(following.ask(copy(6), wait_ms=0))
    follower = following.followers.find(following.led, FOLLOWER)
    assert follower is not None
    assert follower.lacking_bytes == 0

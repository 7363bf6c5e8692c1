"""Sessions of followers: what is told once stands, and only what has changed is answered for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_logbus.broker.handlers import replica_sessions as module
from spark_logbus.broker.replica.followers import Copy
from spark_logbus.broker.replica.states import LeaderPartition
from spark_logbus.errors import (
    InvalidRequestError,
    LimitExceededError,
    NotLeaderError,
    ReplicaSessionError,
    StorageError,
)
from spark_logbus.log import FlushPolicy, LogConfig, PartitionLog
from spark_logbus.network import Answer, DelayedResponse
from spark_logbus.protocol import Api, ReplicateRequest, ReplicateResponse, StagedCopy
from tests.fakes.broker_parts import EPOCH, T0, T1, logs_in, message_of
from tests.fakes.handlers import context
from tests.unit.broker.handlers.test_replicate import (
    BATCH,
    FOLLOWER,
    LEADER,
    Following,
    copy,
    one,
    results,
    waits,
)

OTHER = 8


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Following]:
    """Two partitions that are assigned to the follower and to another broker."""
    with logs_in(tmp_path / "data", LogConfig(index_interval_bytes=128)) as logs:
        world = Following(logs)
        world.assigned = {each: [LEADER, FOLLOWER, OTHER] for each in (T0, T1)}
        yield world


def answer_of(answer: Answer) -> ReplicateResponse:
    message = message_of(Api.REPLICATE, answer)
    assert isinstance(message, ReplicateResponse)
    return message


def begin(world: Following) -> DelayedResponse:
    """A session with both partitions, which has nothing to be told."""
    return world.wait(copy(since_us=0), copy(since_us=0, partition=1))


def test_only_a_partition_that_has_something_is_answered_for(world: Following) -> None:
    answer = begin(world)
    world.append(where=T1)
    assert [(each.partition, each.length) for each in results(answer)] == [(1, BATCH)]
    waits(world.again(copy(1, since_us=0, partition=1)))
    assert {each.flushed_end for each in tells(world)} == {0, 1}


def tells(world: Following) -> list[Copy]:
    return [each.copy for each in world.followers.all()]


def test_what_was_answered_is_not_answered_again_before_the_follower_tells(
    world: Following,
) -> None:
    answer = begin(world)
    world.append()
    result = one(answer)
    assert (result.length, result.waits) == (BATCH, True)
    world.append()
    waits(world.again())
    assert one(world.again(copy(1, since_us=0))).length == BATCH


def test_a_session_that_nobody_knows_is_begun_anew(world: Following) -> None:
    begin(world)
    world.sequence += 1
    with pytest.raises(ReplicaSessionError, match="request 4 of a session of broker 6 came after"):
        world.again()
    with pytest.raises(ReplicaSessionError, match="Broker 6 has no session on this connection"):
        world.again()
    world.append()
    assert one(world.ask(copy(since_us=0))).length == BATCH
    for sequence in (0, -1, 2, 1 << 62):
        with pytest.raises(ReplicaSessionError):
            world.handler.handle(ReplicateRequest(FOLLOWER, sequence, 0, 1), context())


def test_the_newest_session_of_a_broker_counts(world: Following) -> None:
    """An older one is on a connection that broke without a sign, or of another process."""
    answer, before, sequence = begin(world), world.context, world.sequence
    woken: list[bool] = []
    answer.subscribe(lambda: woken.append(True))
    begin(world)
    assert woken
    with pytest.raises(ReplicaSessionError, match="began another session since"):
        answer_of(answer)
    request = ReplicateRequest(FOLLOWER, sequence + 1, 0, 1)
    with pytest.raises(ReplicaSessionError):
        world.handler.handle(request, before)
    assert world.sessions.count() == 1
    assert all(len(each) == 1 for each in world.sessions._followers.values())


def test_a_session_of_each_broker(world: Following) -> None:
    first = begin(world)
    second = waits_for(world, OTHER)
    world.append()
    assert one(first).length == one(second).length == BATCH


def waits_for(world: Following, broker_id: int) -> DelayedResponse:
    answer = world.ask(copy(since_us=0), broker_id=broker_id)
    while not isinstance(answer, DelayedResponse):
        answer = world.again(broker_id=broker_id)
    return waits(answer)


def test_nothing_is_kept_of_who_follows_nothing(world: Following) -> None:
    """Asks as a stranger, and as a broker that follows what it may not."""
    names = [copy(since_us=0, topic="u", partition=each) for each in range(2_000)]
    found = results(world.ask(*names, broker_id=77))
    assert len(found) == 2_000
    assert all(each.error is not None for each in found)
    assert len(results(world.ask(*names))) == 2_000
    assert world.sessions.count() == 0
    assert world.sessions._followers == {}
    error = one(world.ask(copy(since_us=0, leader_epoch=EPOCH + 9))).error
    assert error is not None
    assert isinstance(error.to_exception(), NotLeaderError)
    assert world.sessions.count() == 0


def test_the_copies_of_staged_writes_of_a_session_are_bounded(
    world: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_COPIES", 5)
    staged = [StagedCopy(each, 1, 1, 0) for each in range(3)]
    found = results(
        world.ask(
            copy(since_us=0, staged=staged), copy(since_us=0, partition=1, staged=staged), wait_ms=0
        )
    )
    errors = [each.error.to_exception() for each in found if each.error is not None]
    assert [type(each) for each in errors] == [LimitExceededError]
    for _ in range(3):
        world.again(copy(since_us=0, staged=staged))
    (session,) = world.sessions._sessions.values()
    assert session._copies == 3, "what is told anew takes the place of what was told before"


def test_a_fault_of_one_partition_is_answered_for_that_one(
    world: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = begin(world)
    read = PartitionLog.read_as_replica

    def fail(log: PartitionLog, *args: object, **fields: object) -> object:
        if log.topic_partition == T0:
            raise ValueError("Nobody thought of that.")
        return read(log, *args, **fields)  # type: ignore[arg-type]

    monkeypatch.setattr(PartitionLog, "read_as_replica", fail)
    world.append()
    world.append(where=T1)
    found = {each.partition: each for each in results(answer)}
    assert found[1].length == BATCH
    error = found[0].error
    assert error is not None
    assert isinstance(error.to_exception(), StorageError)
    assert "t-0 cannot be sent: ValueError: Nobody thought of that." in error.message
    monkeypatch.undo()
    assert one(world.again(copy(since_us=0))).length == BATCH


def test_a_high_watermark_is_told_a_little_later(world: Following) -> None:
    """The follower is not woken for it, for it moves with every round of appends."""
    answer = begin(world)
    world.append()
    one(answer)
    answer = waits(world.again(copy(1, since_us=0)))
    woken: list[bool] = []
    answer.subscribe(lambda: woken.append(True))
    world.logs.flush()
    world.sessions.partition_changed(T0)
    assert not woken
    assert answer.deadline <= world.logs.clock.monotonic() + 0.1
    world.logs.clock.advance(0.11)
    message = answer_of(answer)
    assert message.results == []
    assert [(each.topic, each.partition, each.offset) for each in message.high_watermarks] == [
        ("t", 0, 1)
    ]
    answer = waits(world.again())
    assert answer.deadline == pytest.approx(world.logs.clock.monotonic() + 1), "there is no more"


def test_a_high_watermark_that_rests_costs_ten_looks_a_second(world: Following) -> None:
    answer = begin(world)
    world.append()
    one(answer)
    answer = waits(world.again(copy(1, since_us=0)))
    for _ in range(3):
        world.logs.clock.advance(0.1)
        waits(answer)
        assert answer.deadline == pytest.approx(world.logs.clock.monotonic() + 0.1)


def test_a_partition_that_is_led_elsewhere_is_answered_for_at_once(world: Following) -> None:
    answer = begin(world)
    log = world.led.log
    world.logs.here.led[T0] = LeaderPartition(log, EPOCH + 1)
    world.sessions.partition_changed(T0)
    result = one(answer)
    assert result.error is not None
    assert isinstance(result.error.to_exception(), NotLeaderError)
    assert result.leader_epoch == EPOCH + 1
    assert world.sessions._followers.keys() == {T1}


def test_what_gives_no_notice_is_found_nevertheless(world: Following) -> None:
    begin(world)
    world.assigned[T0] = [LEADER]
    for _ in range(40):
        world.logs.clock.advance(1)
        answer = world.again()
        if isinstance(answer, DelayedResponse):
            waits(answer)
        else:
            assert one(answer).error is not None
            return
    pytest.fail("Nobody looked at it.")


def test_a_partition_that_is_left_is_not_answered_for(world: Following) -> None:
    begin(world)
    answer = waits(world.again(left=[T0]))
    world.append()
    waits(answer)
    world.append(where=T1)
    assert one(answer).partition == 1
    assert one(world.again(copy(since_us=0), left=[T0, T0, T1])).length == BATCH, "it is back"


def test_a_request_has_the_one_before_it_answered(world: Following) -> None:
    first = begin(world)
    second = world.again()
    assert results(first) == []
    waits(second)
    world.append()
    assert one(second).length == BATCH


def test_what_is_written_counts_only_where_flushing_is_left_to_the_system(
    world: Following,
) -> None:
    world.append(3)
    world.ask(copy(3, 1, since_us=0, safe_end=3))
    told = world.told()
    assert told is not None
    assert (told.flushed_end, told.safe_end) == (1, 1)
    world.led.log.configure(LogConfig(flush_policy=FlushPolicy.OS))
    world.ask(copy(3, 1, since_us=0, safe_end=3))
    told = world.told()
    assert told is not None
    assert (told.flushed_end, told.safe_end) == (1, 3)
    error = one(world.ask(copy(3, 1, since_us=0, safe_end=4))).error
    assert error is not None
    assert isinstance(error.to_exception(), InvalidRequestError)


def test_an_answer_that_is_full_goes_on_where_it_ended(world: Following) -> None:
    world.append(5)
    world.append(5, where=T1)
    parts = [copy(since_us=0), copy(since_us=0, partition=1)]
    found = results(world.ask(*parts, max_bytes=BATCH))
    assert [(each.partition, each.length) for each in found] == [(0, BATCH)]
    found = results(world.again(copy(1, since_us=0), max_bytes=BATCH))
    assert [(each.partition, each.length) for each in found] == [(1, BATCH)]
    found = results(world.again(copy(1, since_us=0, partition=1), max_bytes=BATCH))
    assert [(each.partition, each.length) for each in found] == [(0, BATCH)]

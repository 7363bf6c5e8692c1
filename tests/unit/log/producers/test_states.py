"""Idempotent producers, as the log sees them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_logbus.errors import (
    DuplicateSequenceError,
    InvalidRequestError,
    LogbusError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    UnknownProducerError,
)
from spark_logbus.log import LogConfig
from spark_logbus.log.producers.states import (
    MAX_PRODUCERS,
    RUNS_KEPT,
    ProducerCount,
    ProducerStateManager,
    SequenceRun,
)
from tests.builders.producers import A, B, append, batch
from tests.builders.record_batches import joined, record_batch
from tests.fakes.log_directory import TP, Broker, offsets_from


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path / "data", config=LogConfig(segment_bytes=4096))


def test_a_repeated_append_writes_nothing(broker: Broker) -> None:
    log = broker.log()
    broker.append(record_batch(10))
    first = log.append_as_leader(batch(0, 3), leader_epoch=1)
    again = log.append_as_leader(batch(0, 3), leader_epoch=1)
    assert (first.base_offset, first.end_offset) == (10, 13)
    assert (again.base_offset, again.end_offset) == (10, 13)
    assert log.ends().log_end_offset == 13


def test_each_of_the_last_appends_is_recognised(broker: Broker) -> None:
    log = broker.log()
    offsets = []
    for sequence in range(RUNS_KEPT):
        offsets.append(append(log, batch(sequence))[0])
        append(log, record_batch())  # of somebody else: the runs do not join
    assert [append(log, batch(sequence))[0] for sequence in range(RUNS_KEPT)] == offsets


def test_unbroken_appends_are_recognised_however_old(broker: Broker) -> None:
    log = broker.log()
    for sequence in range(200):
        append(log, batch(sequence))
    assert append(log, batch(0)) == (0,)
    assert append(log, batch(3, 5)) == (3,)  # also when it is cut another way


def test_a_repetition_of_unknown_offset_is_refused(broker: Broker) -> None:
    log = broker.log()
    for sequence in range(RUNS_KEPT + 1):
        append(log, batch(sequence))
        append(log, record_batch())
    with pytest.raises(DuplicateSequenceError, match="sequences 0 to 0"):
        append(log, batch(0))
    with pytest.raises(DuplicateSequenceError):  # parts of it are in two places
        append(log, batch(2, 2))


def test_of_an_append_that_is_partly_there_the_rest_is_appended(broker: Broker) -> None:
    log = broker.log()
    append(log, batch(0, 2), batch(2, 2))
    append(log, record_batch(5))
    appended = log.append_as_leader(
        joined(batch(0, 2), batch(2, 2), batch(4, 3), batch(7)), leader_epoch=1
    )
    assert appended.base_offsets == (0, 2, 9, 12)
    assert (appended.base_offset, appended.end_offset) == (0, 13)
    log.flush()
    assert offsets_from(log, 0) == [0, 2, 4, 9, 12]


def test_producers_do_not_meet(broker: Broker) -> None:
    log = broker.log()
    append(log, batch(0, producer=A), batch(0, producer=B), batch(1, producer=A))
    assert append(log, batch(1, producer=B)) == (3,)


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        (lambda: batch(6, epoch=3), OutOfOrderSequenceError, "expected sequence 5"),
        (lambda: batch(1, epoch=4), OutOfOrderSequenceError, "expected sequence 0"),
        (lambda: batch(5, epoch=2), ProducerFencedError, "epoch 3"),
        (lambda: batch(1, producer=B), UnknownProducerError, "Start over from sequence 0"),
        (lambda: batch((1 << 31) - 2, 3, epoch=4), InvalidRequestError, "2147483647"),
        (lambda: batch(-1), InvalidRequestError, "numbers from 0"),
        (lambda: batch(0, producer=-2), InvalidRequestError, "numbers from 0"),
        (lambda: batch(0, epoch=-1), InvalidRequestError, "numbers from 0"),
        (
            lambda: joined(batch(5, epoch=3), batch(7, epoch=3)),
            OutOfOrderSequenceError,
            "expected sequence 6",
        ),
        (
            lambda: joined(batch(5, epoch=3), batch(0, epoch=3)),
            OutOfOrderSequenceError,
            "send what is repeated",
        ),
    ],
)
def test_what_does_not_go_on_is_refused_whole(
    broker: Broker, wrong: Callable[[], memoryview], error: type[LogbusError], says: str
) -> None:
    log = broker.log()
    append(log, batch(0, 5, epoch=3))
    with pytest.raises(error, match=says):
        log.append_as_leader(wrong(), leader_epoch=1)
    assert log.ends().log_end_offset == 5
    assert append(log, batch(5, epoch=3)) == (5,)


def test_a_new_epoch_starts_over_and_fences_the_old_one(broker: Broker) -> None:
    log = broker.log()
    append(log, batch(0, 5))
    assert append(log, batch(0, epoch=1)) == (5,)
    with pytest.raises(ProducerFencedError):
        append(log, batch(5))


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("snapshots", ["kept", "lost", "torn", "old"])
def test_the_state_outlives_a_restart(
    broker: Broker, tmp_path: Path, crash: bool, snapshots: str
) -> None:
    log = broker.log()
    old: tuple[Path, bytes] | None = None
    for sequence in range(60):  # over several segments
        append(log, batch(sequence), record_batch(payload=bytes(100)))
        append(log, batch(sequence, producer=B))
        if old is None:
            old = next(((path, path.read_bytes()) for path in snapshots_of(broker)), None)
    assert old is not None
    log.flush()
    expected = [append(log, batch(sequence, producer=B)) for sequence in range(58, 60)]
    if crash:
        broker = after_a_crash(broker, tmp_path)
    else:
        broker.directory.close()
    for path in snapshots_of(broker):
        if snapshots == "torn":
            path.write_bytes(path.read_bytes()[:-20])
        elif snapshots != "kept":
            path.unlink()
    if snapshots == "old":
        (broker.log_path() / old[0].name).write_bytes(old[1])
    broker.start()
    log = broker.log()
    assert [append(log, batch(sequence, producer=B)) for sequence in range(58, 60)] == expected
    with pytest.raises(OutOfOrderSequenceError, match="expected sequence 60"):
        append(log, batch(61))
    append(log, batch(60))


def snapshots_of(broker: Broker) -> list[Path]:
    return list(broker.log_path().glob("*.producers"))


def after_a_crash(broker: Broker, tmp_path: Path) -> Broker:
    """Broker over what is found if this one dies now; not started yet."""
    copy = tmp_path / "after"
    shutil.copytree(broker.path, copy)
    after = Broker(tmp_path / "elsewhere", config=broker.config)
    after.directory.close()
    after.path = copy
    return after


@pytest.mark.parametrize("snapshot", [False, True], ids=["", "with a snapshot of them"])
def test_records_that_a_crash_took_are_taken_again(
    broker: Broker, tmp_path: Path, snapshot: bool
) -> None:
    log = broker.log()
    append(log, batch(0))
    log.flush()
    append(log, batch(1))
    if snapshot:
        broker.directory.close()
        (broker.path / "checkpoint").unlink()
        (broker.path / "clean-shutdown").unlink()
    broker = after_a_crash(broker, tmp_path)
    last = max(broker.log_path().glob("*.log"))
    with last.open("r+b") as file:
        file.truncate(last.stat().st_size - 8)
    broker.start()
    log = broker.log()
    assert append(log, batch(1)) == (1,)
    assert append(log, batch(0)) == (0,)
    assert log.ends().log_end_offset == 2


def test_only_the_newest_snapshots_are_kept(broker: Broker) -> None:
    log = broker.log()
    for sequence in range(200):
        append(log, batch(sequence))
    assert len(snapshots_of(broker)) == 1
    broker.restart()
    assert len(snapshots_of(broker)) <= 2


def test_a_silent_producer_is_forgotten_and_told_to_start_over(broker: Broker) -> None:
    log = broker.log()
    append(log, batch(0, producer=A))
    broker.clock.advance(20 * 3600)
    append(log, batch(0, producer=B))
    broker.clock.advance(5 * 3600)
    broker.directory.maintain()
    append(log, batch(1, producer=B))
    with pytest.raises(UnknownProducerError):
        append(log, batch(1, producer=A))
    append(log, batch(0, producer=A, epoch=1))


def test_more_producers_than_are_kept(broker: Broker) -> None:
    log = broker.log()
    for producer in range(MAX_PRODUCERS):
        append(log, batch(0, producer=producer))
    append(log, batch(1, producer=0))  # speaks again: not the longest silent any more
    append(log, batch(0, producer=MAX_PRODUCERS))
    append(log, batch(2, producer=0))
    with pytest.raises(UnknownProducerError):
        append(log, batch(1, producer=1))


def test_more_producers_than_all_partitions_together_keep() -> None:
    count = ProducerCount(limit=10)
    first, second = ProducerStateManager(TP, count), ProducerStateManager(TP, count)

    def meet(states: ProducerStateManager, producer: int) -> None:
        states.extend(producer, epoch=0, run=SequenceRun(0, 1, 0), append_time_us=0)

    for producer in range(8):
        meet(first, producer)
    for producer in range(8):
        meet(second, producer)
    assert [producer for producer, _ in first.items()] == list(range(8))
    assert [producer for producer, _ in second.items()] == [6, 7]
    first.forget_all()
    for producer in range(8):
        meet(second, producer)
    assert len(second) == 8

"""Writers, their runs and owners, of what is staged."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from spark_logbus.errors import (
    InvalidRequestError,
    LimitExceededError,
    NotAuthorizedError,
    StagedDataLostError,
    StorageError,
    WriteFencedError,
)
from spark_logbus.log import LogConfig, StagedBy
from spark_logbus.log.staging.staging import MAX_WRITES, MAX_WRITES_OF_A_WRITER
from spark_logbus.log.writer_runs import WriterRuns, owned_mark, writer_mark
from tests.builders.expiring import expire
from tests.builders.producers import batch
from tests.builders.staged import WRITE, attempt, producers_in, publish, share, stage
from tests.fakes.log_directory import Broker, batches_from, offsets_from


def test_runs_that_died_shut_nobody_out(broker: Broker) -> None:
    """Each takes the place of the one before, of a query and of a transaction without runs."""
    log = broker.log()
    for run in range(600):
        by = StagedBy("query:7", f"run {run}") if run % 2 else StagedBy("application:a:t")
        stage(log, attempt(1, write=run), 1, flush=False, by=by)
        if run % 10 == 9:  # a broker looks every two seconds
            expire(broker)
            assert log.staging.totals.writes == 2
    stage(log, attempt(1, write=1000), 1, by=StagedBy("another"))
    stage(log, attempt(1, write=598), 1, start=1, by=StagedBy("application:a:t"))
    log.publishing.check(share(1, 1, write=1000), 1, leader_epoch=0)


def test_a_run_that_was_succeeded_takes_nobody_s_place(broker: Broker) -> None:
    log = broker.log()
    first, second = StagedBy("query", "first"), StagedBy("query", "second")
    stage(log, attempt(1, write=1), 1, by=first)
    stage(log, attempt(1, write=2), 1, by=second)
    stage(log, attempt(1, write=3), 1, by=second)  # of the same run: the one before stays
    with pytest.raises(WriteFencedError, match="after which another has begun"):
        stage(log, attempt(1, write=4), 1, by=first)
    expire(broker)
    assert [log.staging.holds(share(1, write=write).write) for write in (1, 2, 3)] == [
        False, True, True,
    ]  # fmt: skip
    with pytest.raises(WriteFencedError, match="a later run of its writer"):
        stage(log, attempt(2, write=1), 1, by=first)


def test_what_an_earlier_run_has_prepared_goes_with_its_promise(broker: Broker) -> None:
    log = broker.log()
    stage(log, attempt(1, write=1), 1, by=StagedBy("query", "first"))
    log.publishing.check(share(1, 1, write=1), 1, leader_epoch=0)
    stage(log, attempt(1, write=2), 1, by=StagedBy("query", "second"))
    now_us = broker.clock.now_us()
    assert log.staging.has_expired_promises(now_us, 1)
    log.staging.expire(now_us, keep=lambda *_: False, promise=1, leader_epoch=1)
    log.publishing.check(share(1, 1, write=1), 1, leader_epoch=0)
    expire(broker)
    with pytest.raises(StagedDataLostError):
        log.publishing.check(share(1, 1, write=1), 1, leader_epoch=0)


def test_what_an_earlier_run_has_decided_is_published(broker: Broker) -> None:
    log = broker.log()
    stage(log, attempt(1, write=1), 1, by=StagedBy("query", "first"))
    stage(log, attempt(1, write=2), 1, by=StagedBy("query", "second"))
    expire(broker, share(1, write=1).write)
    publish(log, share(1, 1, write=1))
    assert offsets_from(log, 0) == [0]


def test_a_restart_forgets_no_writer(broker: Broker) -> None:
    for write, writer in ((1, "query"), (2, "another"), (3, "")):
        stage(broker.log(), attempt(1, write=write), 1, by=StagedBy(writer, "first"))
    broker.restart()
    log = broker.log()
    stage(log, attempt(1, write=4), 1, by=StagedBy("query", "second"))
    expire(broker)
    held = [log.staging.holds(share(1, write=write).write) for write in (1, 2, 3, 4)]
    assert held == [False, True, True, True]
    publish(log, share(1, 1, write=4))
    assert [header.leader_epoch for header, _ in batches_from(log, 0)] == [1]


def test_a_write_goes_on_after_a_restart(broker: Broker) -> None:
    by = StagedBy("query", "first")
    stage(broker.log(), attempt(1), 1, by=by)
    broker.restart()
    stage(broker.log(), attempt(1), 1, start=1, by=by)
    expire(broker)
    publish(broker.log(), share(2, 1))
    assert offsets_from(broker.log(), 0) == [0, 1]


def test_the_writes_of_one_run_are_bounded(broker: Broker) -> None:
    log = broker.log()
    for write in range(MAX_WRITES_OF_A_WRITER):
        stage(log, attempt(1, write=write), 1, flush=False, by=StagedBy("query", "run"))
    with pytest.raises(LimitExceededError, match="one run of query"):
        stage(log, attempt(1, write=999), 1, by=StagedBy("query", "run"))
    stage(log, attempt(1, write=999), 1, by=StagedBy("another", "run"))


def test_what_many_dead_writers_left_goes_within_minutes(broker: Broker) -> None:
    """Batch writes are each of a writer of its own."""
    log = broker.log()
    for write in range(MAX_WRITES):
        stage(log, attempt(1, write=write), 1, flush=False, by=StagedBy(f"write:{write}"))
    with pytest.raises(LimitExceededError, match="500 writes"):
        stage(log, attempt(1, write=MAX_WRITES), 1, by=StagedBy("one more"))
    broker.clock.advance(590)
    stage(log, attempt(1, write=7), 1, start=1, by=StagedBy("write:7"))  # is alive
    broker.clock.advance(20)
    expire(broker)
    assert log.staging.holds(share(1, write=7).write)
    assert log.staging.totals.writes <= MAX_WRITES // 2
    stage(log, attempt(1, write=MAX_WRITES), 1, by=StagedBy("one more"))


def test_the_order_of_runs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_logbus.log.writer_runs._REMEMBERED", 2)
    runs = WriterRuns()
    assert [runs.order(-1, run) for run in ("a", "b", "a")] == [1, 2, 1]
    assert runs.order(-2, "a") == 3
    assert runs.order(-1, "b") == 4  # was forgotten: it begins anew


def test_a_mark_is_of_a_writer_and_no_leader_epoch() -> None:
    marks = [writer_mark(f"query:{number}") for number in range(2_000)]
    assert writer_mark("") is None
    assert len(set(marks)) == 2_000
    assert all(mark is not None and -(1 << 31) <= mark < 0 for mark in marks)


@pytest.mark.parametrize("kept", [0.5, 0.25, None], ids=["half", "a quarter", "a page"])
def test_a_staged_file_that_ends_early_shows_nothing(tmp_path: Path, kept: float | None) -> None:
    config = LogConfig(segment_bytes=1 << 20, index_interval_bytes=256)
    log = Broker(tmp_path / "data", config=config).log()
    stage(log, attempt(1), *[30] * 60)
    [staged] = log.staging._files.values()
    os.truncate(staged.path, 4096 if kept is None else int(staged.size_bytes * kept))
    with pytest.raises(StorageError):
        publish(log, share(1800, 1))
    log.flush()
    assert log.ends().log_end_offset == log.ends().high_watermark == 0


def test_marks_of_owners_stand_for_principal_and_writer_and_are_kept_secret() -> None:
    marks = {
        owned_mark(writer, owner, secret)
        for writer in ("", "query:1", "query:2")
        for owner in ("user:a", "user:b")
        for secret in (b"one", b"two")
    }
    assert len(marks) == 12
    assert all(-(1 << 31) <= mark < 0 for mark in marks)
    assert StagedBy("query:1").mark == writer_mark("query:1") == -1955543757
    assert StagedBy("query:1", owned=-5).mark == -5


def test_what_is_staged_for_an_owner_is_theirs_after_a_restart(broker: Broker) -> None:
    hers, his = StagedBy("query", "run", -5), StagedBy("query", "run", -6)
    stage(broker.log(), attempt(1), 3, by=hers)
    broker.restart()
    log = broker.log()
    with pytest.raises(NotAuthorizedError, match="begun by another principal"):
        stage(log, attempt(1), 1, start=3, by=his)
    her_share = replace(share(3, 1), writer="query", owned=-5)
    his_share = replace(her_share, owned=-6)
    with pytest.raises(NotAuthorizedError, match="belongs to another principal"):
        log.publishing.check(his_share, 1, leader_epoch=1)
    with pytest.raises(StagedDataLostError, match="belongs to another principal"):
        log.publishing.publish(his_share, leader_epoch=1)
    log.publishing.settle({WRITE: his_share})
    log.publishing.check(her_share, 1, leader_epoch=1)
    publish(log, her_share)
    assert producers_in(log) == [(1, 0)]
    with pytest.raises(NotAuthorizedError):  # also when the file is gone
        stage(log, attempt(2), 1, by=his)
    log.publishing.settle({WRITE: his_share})
    assert WRITE in log.staging.decided, "what is his is over, and hers is not"
    log.publishing.settle({WRITE: her_share})
    assert not log.staging.decided


def test_what_was_staged_for_nobody_is_settled_by_a_principal(broker: Broker) -> None:
    log = broker.log()
    stage(log, attempt(1), 3, by=StagedBy("query", "run"))
    stage(log, attempt(1), 1, start=3, by=StagedBy("query", "run", -5))
    with pytest.raises(NotAuthorizedError):
        stage(log, attempt(2), 1, by=StagedBy("another", "run", -6))
    publish(log, replace(share(4, 1), writer="query", owned=-5))
    assert producers_in(log) == [(1, 0), (1, 3)]


def test_nobody_appends_under_the_ids_of_a_write_that_is_under_way(broker: Broker) -> None:
    log = broker.log()
    stage(log, attempt(1), 3)
    for each in (attempt(1), attempt(2)):
        with pytest.raises(InvalidRequestError, match="which is under way and appends by itself"):
            broker.append(batch(0, 3, producer=each))
    publish(log, share(3, 1))
    with pytest.raises(InvalidRequestError, match="is under way"):
        broker.append(batch(3, 1, producer=attempt(1)))
    log.publishing.settle({WRITE: share(3, 1)})
    broker.append(batch(0, 1, producer=attempt(1)))
    assert producers_in(log) == [(1, 0), (1, 0)]

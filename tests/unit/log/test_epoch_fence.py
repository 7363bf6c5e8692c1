"""A log whose lead is given away."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_logbus.errors import BrokerUnavailableError, NotLeaderError
from spark_logbus.log import PartitionLog
from tests.builders.producers import batch
from tests.builders.staged import attempt, share, stage
from tests.fakes.broker_parts import T0, Logs, logs_in, record_batch
from tests.helpers import wait_until

EPOCH = 7
BUSY = BrokerUnavailableError("It is handed over.")

ACTIONS: dict[str, Callable[[PartitionLog], object]] = {
    "append": lambda log: log.append_as_leader(record_batch(), leader_epoch=EPOCH),
    "append again": lambda log: log.append_as_leader(batch(0, 1, producer=1), leader_epoch=EPOCH),
    "stage": lambda log: log.staging.stage(batch(0, 1, producer=attempt(2)), leader_epoch=EPOCH),
    "stage again": lambda log: log.staging.stage(
        batch(0, 1, producer=attempt(1)), leader_epoch=EPOCH
    ),
    "prepare": lambda log: log.publishing.check(share(1, 1), 1, leader_epoch=EPOCH),
    "publish": lambda log: log.publishing.publish(share(1, 1), leader_epoch=EPOCH),
}


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Logs]:
    with logs_in(tmp_path / "data") as logs:
        yield logs


@pytest.fixture
def log(logs: Logs) -> PartitionLog:
    log = logs.lead(T0)
    log.append_as_leader(batch(0, 1, producer=1), leader_epoch=EPOCH)
    stage(log, attempt(1), 1)
    return log


@pytest.mark.parametrize("action", ACTIONS)
def test_a_fenced_epoch_takes_nothing_until_it_is_unfenced(log: PartitionLog, action: str) -> None:
    before = (log.ends(), log.staging.totals)
    assert log.fence(EPOCH, BUSY, within_s=0)
    for _ in range(2):
        with pytest.raises(BrokerUnavailableError, match="It is handed over"):
            ACTIONS[action](log)
    assert (log.ends(), log.staging.totals) == before
    assert not log.staging.is_promised(77, 1)
    log.fence(EPOCH, NotLeaderError("It is gone."))
    with pytest.raises(NotLeaderError, match="It is gone"):
        ACTIONS[action](log)
    log.unfence(EPOCH)
    ACTIONS[action](log)


def test_a_later_epoch_is_not_fenced_and_an_earlier_one_is(log: PartitionLog) -> None:
    log.fence(EPOCH, BUSY)
    with pytest.raises(BrokerUnavailableError):
        log.append_as_leader(record_batch(), leader_epoch=EPOCH - 1)
    log.append_as_leader(record_batch(), leader_epoch=EPOCH + 1)
    log.unfence(EPOCH - 1)
    with pytest.raises(BrokerUnavailableError):
        log.append_as_leader(record_batch(), leader_epoch=EPOCH)


def test_a_follower_appends_whatever_was_fenced(logs: Logs, log: PartitionLog) -> None:
    log.fence(EPOCH, NotLeaderError("It is gone."))
    log.append_as_leader(record_batch(), leader_epoch=EPOCH + 1)
    source = log.read_as_replica(1, max_bytes=1 << 20)
    assert source is not None
    data = source.read()
    log.truncate_to(1)
    assert log.append_as_follower(memoryview(data)).end_offset == 2


def test_what_is_under_way_is_waited_for(logs: Logs, log: PartitionLog) -> None:
    """An append that has passed the check is through before the fence is known to stand."""
    reached, go_on, fenced = threading.Event(), threading.Event(), threading.Event()
    file = log.staging.file_of(77)
    assert file is not None
    holds: list[threading.Thread] = []

    def hold() -> None:
        with file._writing:
            reached.set()
            assert go_on.wait(60)

    def fence() -> None:
        assert log.fence(EPOCH, BUSY)
        fenced.set()

    for action in (hold, fence):
        holds.append(threading.Thread(target=action))
        holds[-1].start()
        assert reached.wait(60)
    wait_until(lambda: log._writer.fence.epoch == EPOCH)
    assert not fenced.is_set()
    go_on.set()
    for each in holds:
        each.join(60)
    assert fenced.is_set()


def test_each_append_and_staging_is_told_of(log: PartitionLog) -> None:
    told: list[int] = []
    log.when_written(lambda: told.append(log.ends().log_end_offset))
    log.append_as_leader(record_batch(), leader_epoch=EPOCH)
    stage(log, attempt(1), 1, start=1, flush=False)
    assert told == [2, 2]
    log.when_written(None)
    log.append_as_leader(record_batch(), leader_epoch=EPOCH)
    assert len(told) == 2

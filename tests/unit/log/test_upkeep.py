"""Passes over logs leave alone what nothing has happened to, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from spark_logbus.errors import LogbusError, StorageError
from spark_logbus.log import LogConfig, PartitionLog
from spark_logbus.log.upkeep import Upkeep, UpkeepState
from tests.builders.record_batches import record_batch
from tests.fakes.log_directory import Broker

CONFIG = LogConfig(retention_ms=6_000_000, segment_ms=3_600_000, producer_expiration_ms=6_000_000)


class Passes:
    """Passes over one log, which are counted."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.log = broker.log()
        self.count = 0
        self.errors: list[LogbusError] = []
        self._upkeep = Upkeep()

    def upkeep_state(self) -> UpkeepState | None:
        return self.log.upkeep_state()

    def flush_and_roll_if_due(self) -> None:
        self.count += 1
        self.log.flush_and_roll_if_due()

    def expire(self, now_us: int) -> bool:
        return self.log.expire(now_us)

    def looks(self) -> bool:
        """One pass; True if it looked after the log."""
        before, clock = self.count, self.broker.clock
        self._upkeep.look_after(
            [self],
            now_us=clock.now_us(),
            now_s=clock.monotonic(),
            failed=self.errors.append,
        )
        return self.count > before


@pytest.fixture
def passes(tmp_path: Path) -> Iterator[Passes]:
    broker = Broker(tmp_path, config=CONFIG)
    broker.append(record_batch(1))
    found = Passes(broker)
    assert found.looks()
    assert not found.looks()
    yield found
    assert found.errors == []


def configure(log: PartitionLog) -> None:
    log.configure(replace(CONFIG, retention_ms=1))


@pytest.mark.parametrize(
    "change",
    [configure, PartitionLog.pause_deletion, lambda log: log.set_follows(True)],
)
def test_a_log_is_looked_after_when_its_settings_have_changed(
    passes: Passes, change: Callable[[PartitionLog], None]
) -> None:
    change(passes.log)
    assert passes.looks()


def test_a_log_is_looked_after_when_it_was_appended_to(passes: Passes) -> None:
    passes.broker.append(record_batch(1))
    assert passes.looks()
    assert not passes.looks()


def test_a_log_is_looked_after_now_and_then(passes: Passes) -> None:
    """A hundredth of what its records are kept for is 60 seconds."""
    passes.broker.clock.advance(59)
    assert not passes.looks()
    passes.broker.clock.advance(1)
    assert passes.looks()
    assert not passes.looks()


def test_a_log_is_looked_after_when_the_time_of_day_went_back(passes: Passes) -> None:
    passes.broker.clock.jump(-1)
    assert passes.looks()


def test_a_log_is_looked_after_as_soon_as_its_segment_has_its_age(passes: Passes) -> None:
    passes.broker.clock.advance(3_599)
    assert passes.looks()
    assert not passes.looks()
    passes.broker.clock.advance(1)
    assert passes.looks()
    assert passes.log.segment_count == 2


def test_a_log_is_looked_after_at_every_pass_while_a_flush_is_to_come(passes: Passes) -> None:
    passes.log.configure(replace(CONFIG, flush_ms=60_000))
    passes.broker.append(record_batch(1), flush=False)
    assert passes.looks()
    assert passes.looks()


def test_a_log_that_failed_is_looked_after_again(
    passes: Passes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> bool:
        raise StorageError("The disk is away.")

    passes.broker.append(record_batch(1))
    with monkeypatch.context() as patched:
        patched.setattr(passes, "expire", refuse)
        assert passes.looks()
        assert passes.looks()
        passes.errors.clear()
    assert passes.looks()
    assert not passes.looks()

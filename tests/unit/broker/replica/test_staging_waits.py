"""Callbacks for what is staged at all replicas in sync."""

from __future__ import annotations

from spark_logbus.broker.replica.staging_waits import StagingWaits
from spark_logbus.errors import LogbusError, NotLeaderError
from spark_logbus.log import StagedPosition
from tests.fakes.clock import ManualClock


class Replicas:
    """Sizes of writes that are on the disks of all replicas in sync."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.over: set[int] = set()
        self.clock = ManualClock()
        self.waits = StagingWaits(
            lambda write, size: write in self.over or self.sizes.get(write, 0) >= size,
            is_over=lambda write: write in self.over,
            clock=self.clock,
            staged=[StagedPosition(9, 100, 40, digest=0)],
        )
        self.told: list[tuple[str, LogbusError | None]] = []

    def wait(self, write: int, size_bytes: int) -> None:
        name = f"{write}:{size_bytes}"
        self.waits.wait(write, size_bytes, lambda error: self.told.append((name, error)))

    def have(self, write: int, size_bytes: int) -> None:
        self.sizes[write] = size_bytes
        self.waits.look()


def test_who_waits_is_called_back_when_all_have_it() -> None:
    replicas = Replicas()
    replicas.wait(1, 100)
    replicas.wait(1, 200)
    replicas.wait(2, 50)
    assert replicas.told == []
    replicas.have(1, 150)
    assert replicas.told == [("1:100", None)]
    replicas.have(2, 50)
    replicas.have(1, 200)
    assert replicas.told[1:] == [("2:50", None), ("1:200", None)]
    replicas.wait(1, 120)
    assert replicas.told[3:] == [("1:120", None)]


def test_all_are_told_when_the_lead_is_over() -> None:
    replicas = Replicas()
    replicas.wait(1, 100)
    replicas.waits.end(NotLeaderError("another broker leads"))
    replicas.wait(2, 1)
    replicas.have(1, 100)
    assert [name for name, _ in replicas.told] == ["1:100", "2:1"]
    assert all(isinstance(error, NotLeaderError) for _, error in replicas.told)
    first, second = (error for _, error in replicas.told)
    assert first is not second


def test_a_wait_stands_since_it_was_first_asked_for() -> None:
    replicas = Replicas()
    replicas.waits.note(1, 100)
    replicas.clock.advance(5)
    replicas.wait(1, 100)
    replicas.wait(1, 200)
    replicas.clock.advance(5)
    assert replicas.waits.older_than(4) == [(1, 100), (1, 200)]
    assert replicas.waits.older_than(9) == [(1, 100)]
    assert replicas.waits.older_than(11) == []
    replicas.waits.forgive()
    assert replicas.waits.older_than(4) == []
    replicas.clock.advance(5)
    replicas.have(1, 100)
    assert replicas.told == [("1:100", None)]
    assert replicas.waits.older_than(4) == [(1, 200)]


def test_what_is_acknowledged_is_kept_until_the_write_is_over() -> None:
    replicas = Replicas()
    assert replicas.waits.acknowledged() == {9: 40}, "flushed before, and not all of it"
    replicas.wait(1, 200)
    assert replicas.waits.acknowledged() == {9: 40}
    replicas.have(1, 200)
    replicas.wait(1, 100)
    assert replicas.waits.acknowledged() == {9: 40, 1: 200}
    replicas.over = {1, 9}
    replicas.have(2, 50)
    replicas.wait(2, 50)
    assert replicas.waits.acknowledged() == {2: 50}

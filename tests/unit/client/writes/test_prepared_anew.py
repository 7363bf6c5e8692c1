"""Promises that are let go again and again before a write is decided."""

from __future__ import annotations

from typing import Any, cast

import pytest

from spark_logbus.client.cluster.cluster import Cluster
from spark_logbus.client.writes.atomic_write import AtomicWrites, WriteIdentity
from spark_logbus.errors import WriteNotPreparedError
from spark_logbus.protocol import DecideResponse, Decision
from spark_logbus.retry import Backoff, Deadline, no_jitter
from tests.fakes.clock import ManualClock

ME = WriteIdentity(writer="me", version=1)
DECISION = Decision(1, 7, "0")


class StillCluster:
    """Stands in for ``Cluster``: time passes only in its pauses."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.backoff = Backoff(first_ms=50, max_ms=1_000, jitter=no_jitter)

    def retry_deadline(self) -> Deadline:
        return Deadline.after_ms(self.clock, 60_000)

    def pause(self, seconds: float) -> None:
        self.clock.advance(seconds)


class Writes(AtomicWrites):
    """Has the write refused so often."""

    def __init__(self, cluster: StillCluster, *, refusals: int) -> None:
        self._cluster = cast(Cluster, cluster)
        self._published = {}  # type: ignore[assignment]
        self._refusals = refusals
        self.prepared = 0

    def _prepare(self, *_: Any, anew: bool = False) -> dict[int, str]:
        assert anew
        self.prepared += 1
        return {5: str(self.prepared)}

    def _ask_to_decide(self, *_: Any, **named: Any) -> DecideResponse:
        assert named["promises"] == {5: str(self.prepared)}
        if self.prepared < self._refusals:
            raise WriteNotPreparedError("Prepare it.")
        return DecideResponse("decided")


def test_a_write_is_prepared_again_while_partitions_move_away() -> None:
    writes = Writes(StillCluster(), refusals=40)
    assert writes._decide(ME, DECISION, {5: "0"}, None) is None
    assert writes.prepared == 40


def test_it_is_not_prepared_again_for_ever() -> None:
    cluster = StillCluster()
    before = cluster.clock.monotonic()
    with pytest.raises(WriteNotPreparedError):
        Writes(cluster, refusals=1_000)._decide(ME, DECISION, {5: "0"}, None)
    assert 58 < cluster.clock.monotonic() - before <= 60

"""Leads that go back to preferred leaders, and leads of damaged logs."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from spark_logbus.broker.replica.hand_over import HandOvers
from spark_logbus.broker.replica.manager import ReplicaManager
from spark_logbus.broker.replica.preferred_leaders import PreferredLeaders
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.errors import CorruptRecordBatchError
from spark_logbus.model import TopicPartition
from tests.fakes.broker_parts import EPOCH, T0, TOPIC_ID, Logs, logs_in, record_batch

ME, PREFERRED, THIRD = 5, 2, 3
AFTER_S = 300


class Leads:
    """A broker that leads a partition of three, and notes to whom it is to go."""

    def __init__(self, logs: Logs) -> None:
        self.clock = logs.clock
        self.log = logs.lead(T0)
        self.members = [ME, PREFERRED, THIRD]
        self.live = [ME, PREFERRED, THIRD]
        self.asked: list[int] = []
        self.leaders = PreferredLeaders(
            ME,
            replica_manager=cast(ReplicaManager, SimpleNamespace(led=lambda: logs.here.led)),
            hand_overs=cast(HandOvers, self),
            members=lambda _: self.members,
            topic=lambda name: TopicRecord(name, TOPIC_ID, {0: [PREFERRED, ME, THIRD]}, {}),
            live=lambda: self.live,
            is_certain=lambda: True,
            clock=logs.clock,
            after_ms=1_000 * AFTER_S,
        )

    def ask(self, where: TopicPartition, to: int, *, within_s: float) -> Future[None]:
        assert where == T0
        assert within_s > 0
        self.asked.append(to)
        return Future()

    def look(self, after_s: float = 0.0) -> list[int]:
        """Looks once, after so long; returns to whom the partition was to go then."""
        self.clock.advance(after_s)
        self.asked.clear()
        self.leaders.look()
        return list(self.asked)

    def damage(self) -> None:
        for _ in range(3):
            self.log.append_as_leader(record_batch(10), leader_epoch=EPOCH)
        self.log.flush()
        with (self.log.directory / f"{0:020d}.log").open("r+b") as file:
            file.seek(len(record_batch(10)))
            file.write(b"\xff" * 80)
        with pytest.raises(CorruptRecordBatchError):
            self.log.read(10, max_bytes=100)


@pytest.fixture
def leads(tmp_path: Path) -> Iterator[Leads]:
    with logs_in(tmp_path / "data") as logs:
        yield Leads(logs)


def test_a_preferred_leader_gets_its_lead_back_after_a_while(leads: Leads) -> None:
    assert leads.look() == []
    assert leads.look(AFTER_S - 1) == []
    assert leads.look(1) == [PREFERRED]
    assert leads.look(0.1) == [], "it is not asked again at once"


def test_a_damaged_log_leads_no_more_as_soon_as_another_is_in_sync(leads: Leads) -> None:
    """Its broker copies what is damaged from the other one then."""
    leads.members = [ME]
    leads.damage()
    assert leads.look() == []
    leads.members = [ME, THIRD]
    assert leads.look() == [THIRD]
    assert leads.look(0.1) == [], "it is not asked again at once"
    assert leads.look(AFTER_S) == [THIRD]
    leads.live = [ME]
    assert leads.look(AFTER_S) == []

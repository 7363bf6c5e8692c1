"""Leads that a broker gives away as it stops."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import cast

import pytest

from spark_logbus.broker.replica.hand_over import HandOvers
from spark_logbus.broker.replica.manager import ReplicaManager
from spark_logbus.broker.replica.preferred_leaders import PreferredLeaders
from spark_logbus.clock import SystemClock
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.errors import BrokerUnavailableError
from spark_logbus.model import TopicPartition

ME, TWO, THREE = 1, 2, 3
WITHIN_S = 120.0  # longer than any test may take


class Stopping:
    """A broker with two partitions that are led here, and in sync on two other brokers."""

    def __init__(self) -> None:
        self.live = {ME, TWO, THREE}
        self.asked: list[tuple[TopicPartition, int, Future[None]]] = []
        self.asks = threading.Semaphore(0)
        record = TopicRecord("t", "a" * 32, {0: [ME, TWO, THREE], 1: [ME, THREE, TWO]}, {})
        led = {
            where: SimpleNamespace(log=SimpleNamespace(topic_partition=where, topic_id="a" * 32))
            for where in (TopicPartition("t", 0), TopicPartition("t", 1))
        }
        self.leaders = PreferredLeaders(
            ME,
            replica_manager=cast(ReplicaManager, SimpleNamespace(led=lambda: led)),
            hand_overs=cast(HandOvers, SimpleNamespace(ask=self.ask)),
            members=lambda _: [ME, TWO, THREE],
            topic=lambda _: record,
            live=lambda: self.live,
            is_certain=lambda: True,
            clock=SystemClock(),
            after_ms=1,
        )

    def ask(
        self, where: TopicPartition, to: int, *, within_s: float, to_full: bool
    ) -> Future[None]:
        assert within_s == WITHIN_S
        assert to_full
        done: Future[None] = Future()
        self.asked.append((where, to, done))
        self.asks.release()
        return done

    def stop(self) -> threading.Thread:
        """Gives the leads away on a thread of its own, up to where it waits for the others."""
        thread = threading.Thread(target=self.leaders.hand_over_all, args=(WITHIN_S,))
        thread.start()
        for _ in range(2):
            assert self.asks.acquire(timeout=60)
        return thread


@pytest.fixture
def stopping() -> Stopping:
    return Stopping()


def test_leads_go_to_others_in_sync_that_run(
    stopping: Stopping, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    stopping.live = {ME, THREE}
    thread = stopping.stop()
    assert [to for _, to, _ in stopping.asked] == [THREE, THREE]
    stopping.asked[0][2].set_exception(BrokerUnavailableError("It does not follow closely."))
    assert thread.is_alive()
    stopping.asked[1][2].set_result(None)
    thread.join(60)
    assert not thread.is_alive()
    assert "Handed over 1 of the 2 partitions" in caplog.text


def test_brokers_that_stop_as_well_are_not_waited_for(
    stopping: Stopping, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    thread = stopping.stop()
    assert {to for _, to, _ in stopping.asked} == {TWO, THREE}
    stopping.live = {ME}
    thread.join(60)
    assert not thread.is_alive(), "nobody is left who could take a lead"
    assert "Handed over 0 of the 2 partitions" in caplog.text


def test_nobody_is_asked_where_nobody_runs(stopping: Stopping) -> None:
    stopping.live = {ME}
    stopping.leaders.hand_over_all(WITHIN_S)
    assert stopping.asked == []

"""Brokers and a ZooKeeper server of their own, as processes that fail."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

import pytest

from spark_logbus.client import Cluster
from spark_logbus.local.cluster import BrokerProcess, EmbeddedCluster
from tests.fault.load.records import CLIENT
from tests.helpers import frozen, wait_until
from tests.servers.kill_points import KillPoints

SESSION_S: Final = 3.0
SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "broker": {"zookeeper_session_ms": int(1000 * SESSION_S)},
    # Small, so that faults meet rolls, retired indexes and batches of several requests too.
    "log": {"segment_bytes": 1 << 20, "index_interval_bytes": 256},
    # What moved away is deleted while the test runs, and no disk is too full for what comes.
    "moves": {"retention_ms": 5_000, "reserve_bytes": 0},
    "compaction": {"check_interval_ms": 1_000},
}


class ZooKeeperServer(Protocol):
    @property
    def pid(self) -> int: ...

    @property
    def running(self) -> bool: ...

    def start(self) -> None:
        """Returns when it serves."""


class Machines:
    """Three brokers and ZooKeeper. Their faults are over when the methods return."""

    def __init__(
        self,
        brokers: Sequence[BrokerProcess],
        server: ZooKeeperServer,
        *,
        zookeeper: str,
        points: KillPoints,
    ) -> None:
        self.brokers: Mapping[int, BrokerProcess] = {each.broker_id: each for each in brokers}
        self._server = server
        self.zookeeper = zookeeper
        self.points = points
        #: Brokers that a fault has killed, and will start again.
        self.killed: set[int] = set()
        #: Held while a topic is created, until all its replicas are in sync, and while a disk is
        #: lost: before that, the disk of its first leader is all there is of it.
        self.creating = threading.Lock()

    def kill(self, *ids: int, away_s: float = 0) -> None:
        """Kills brokers all at once, and starts them again."""
        for broker_id in ids:
            self.brokers[broker_id].kill()
        pause(away_s)
        for broker_id in ids:
            self.brokers[broker_id].launch()
        for broker_id in ids:
            self.brokers[broker_id].wait_until_ready()

    def stand_still(self, broker_id: int, seconds: float) -> None:
        with frozen(self.brokers[broker_id].pid):
            pause(seconds)

    def kill_zookeeper(self, *, away_s: float = 0) -> None:
        os.kill(self._server.pid, signal.SIGKILL)
        wait_until(lambda: not self._server.running)
        pause(away_s)
        self._server.start()

    def wait_for_point(self, point: str, topic: str) -> int:
        """Waits for a broker to come to an armed point; returns its id. It stands still there."""
        pid = self.points.wait_for(point, topic, self)
        (broker_id,) = [each.broker_id for each in self.brokers.values() if each.pid == pid]
        return broker_id

    def alive(self) -> bool:
        """True; fails if a broker has ended by itself."""
        for broker_id, broker in self.brokers.items():
            assert broker.running or broker_id in self.killed, broker.log_file.read_text()[-5000:]
        return True

    def check_logs(self) -> None:
        """Fails if a broker has met something that nobody expected."""
        for broker in self.brokers.values():
            text = broker.log_file.read_text(errors="replace")
            assert "Traceback (most recent call last)" not in text, f"see {broker.log_file}"

    def connect(self, **options: Any) -> Cluster:
        """A client's connections of its own."""
        return Cluster.from_zookeeper(self.zookeeper, replace(CLIENT, **options))


@contextmanager
def machines(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    """Starts them all. Their processes stop at points that a test arms."""
    points = points_of_brokers(directory, monkeypatch)
    with EmbeddedCluster(directory / "cluster", brokers=3, settings=SETTINGS) as embedded:
        yield Machines(
            embedded.brokers,
            embedded.zookeeper_server,
            zookeeper=embedded.zookeeper,
            points=points,
        )


def points_of_brokers(directory: Path, monkeypatch: pytest.MonkeyPatch) -> KillPoints:
    """Makes points for the brokers that are started from now on."""
    points = KillPoints(directory / "points")
    for variable, value in points.environment.items():
        monkeypatch.setenv(variable, value)  # brokers that are started again have them too
    return points


def pause(seconds: float) -> None:
    """The length of a fault, or the moment at which it happens."""
    threading.Event().wait(seconds)

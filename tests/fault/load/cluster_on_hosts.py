"""Brokers and ZooKeeper on hosts of their own, between which the network fails too."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from spark_logbus.client import Cluster
from spark_logbus.local.cluster import BrokerProcess
from tests.fakes.disk import Survival
from tests.fault.forgetful_broker import command
from tests.fault.forgetful_files import PowerLoss
from tests.fault.load.machines import SETTINGS, Machines, pause, points_of_brokers
from tests.fault.load.records import WAIT_S
from tests.servers.hosts import BrokerOnHost, Host, Network
from tests.servers.kill_points import KillPoints
from tests.servers.zookeeper_on_host import ZooKeeperOnHost

SESSION_S: Final = 2.0
LAG_S: Final = 2.0
#: Clients that leave a silent broker by the end of this alone do not get on in time.
_REQUEST_MS: Final = int(2 * 1000 * WAIT_S)
_SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "broker": {"zookeeper_session_ms": int(1000 * SESSION_S)},
    # Sockets of the machine would get around the network.
    "network": {"local_socket": False},
}
_OF_REPLICAS: Final[Mapping[str, Mapping[str, Any]]] = {
    "replication": {"lag_max_ms": int(1000 * LAG_S), "preferred_after_ms": 2_000}
}
_WITHOUT_COMPACTION: Final[Mapping[str, Mapping[str, Any]]] = {
    "compaction": {"check_interval_ms": 1_000_000_000}
}
_BROKERS: Final = (1, 2, 3)
_ZOOKEEPER: Final = 10
_FIRST_BROKER: Final = 11


class MachinesOnHosts(Machines):
    """Three brokers and ZooKeeper, each on a host. Faults are over when the methods return, or at
    the end of their blocks."""

    def __init__(
        self,
        brokers: Sequence[BrokerOnHost],
        server: ZooKeeperOnHost,
        *,
        network: Network,
        zookeeper: str,
        points: KillPoints,
    ) -> None:
        super().__init__(brokers, server, zookeeper=zookeeper, points=points)
        self._network = network
        self.hosts = {each.broker_id: each.host for each in brokers}
        self.clients = network.here
        self.zookeeper_host = server.host

    @property
    def everything(self) -> list[Host]:
        return [self.clients, self.zookeeper_host, *self.hosts.values()]

    @property
    def data(self) -> Mapping[int, Path]:
        """Directories of the brokers' logs."""
        return {number: broker.directory / "data" for number, broker in self.brokers.items()}

    def connect(self, **options: Any) -> Cluster:
        return super().connect(**{"request_timeout_ms": _REQUEST_MS, **options})

    @contextmanager
    def cut(self, some: Sequence[Host], others: Sequence[Host]) -> Iterator[None]:
        """Loses what they send to each other."""
        self._network.cut(some, others)
        try:
            yield
        finally:
            self._network.mend()

    @contextmanager
    def lose(self, senders: Sequence[Host], receivers: Sequence[Host]) -> Iterator[None]:
        """Loses what some send to others, one way."""
        self._network.lose(senders, receivers)
        try:
            yield
        finally:
            self._network.mend()

    def isolated(self, broker_id: int) -> AbstractContextManager[None]:
        """Cuts a broker off from everything."""
        host = self.hosts[broker_id]
        return self.cut([host], [each for each in self.everything if each is not host])

    @contextmanager
    def gone(self, broker_id: int) -> Iterator[None]:
        """Kills a broker, and starts it again afterwards."""
        self.killed.add(broker_id)
        self.brokers[broker_id].kill()
        yield
        self.brokers[broker_id].start()
        self.killed.discard(broker_id)

    @contextmanager
    def vanished(self, broker_id: int) -> Iterator[None]:
        """Has a broker go whose end nobody hears of: connections to it stay open."""
        with ExitStack() as stack, self.isolated(broker_id):
            stack.enter_context(self.gone(broker_id))
            yield

    def cut_power(self, *ids: int, survival: Survival, away_s: float = 0) -> None:
        """Cuts the power of brokers that can lose it, of all at once, and starts them again."""
        brokers = [self.brokers[broker_id] for broker_id in ids]
        for broker in brokers:
            broker.kill()
        for broker in brokers:
            assert isinstance(broker, ForgetfulBrokerOnHost)
            broker.lose_power(survival)
        pause(away_s)
        for broker in brokers:
            broker.launch()
        for broker in brokers:
            broker.wait_until_ready()

    @contextmanager
    def slow_disks(self, ids: Sequence[int], flush_s: float) -> Iterator[None]:
        with ExitStack() as stack:
            for broker_id in ids:
                pid = self.brokers[broker_id].pid
                stack.enter_context(self.points.slow_flushes(pid, flush_s))
            yield

    def empty_disk(self, broker_id: int) -> None:
        """Kills a broker, and starts it again with an empty disk."""
        broker = self.brokers[broker_id]
        broker.kill()
        shutil.rmtree(broker.directory / "data")
        broker.start()

    def restart(self, broker_id: int) -> None:
        """Stops a broker in order, and starts it again."""
        self.brokers[broker_id].stop()
        self.brokers[broker_id].start()


class ForgetfulBrokerOnHost(BrokerOnHost):
    """A broker whose disk can lose power. Its compaction has to rest: that is another process."""

    def __init__(self, broker_id: int, directory: Path, **rest: Any) -> None:
        super().__init__(broker_id, directory, **rest)
        self._journal = directory / "journal"
        self._power = PowerLoss(directory / "data", self._journal)

    def _prepare(self) -> list[str]:
        super()._prepare()
        config = self.directory / "broker.toml"
        return [*self.host.enter, *command(config, self._ready_file, self._journal)]

    def lose_power(self, survival: Survival) -> None:
        """Loses what was not synced, but for what survives; for one that was killed."""
        self._power.strike(survival)


@contextmanager
def machines_on_hosts(
    directory: Path, monkeypatch: pytest.MonkeyPatch, *, replicas: int, power_fails: bool = False
) -> Iterator[MachinesOnHosts]:
    """Starts them all, in a program that runs on a network of its own. Where ``power_fails``, the
    brokers can lose power, and do not compact."""
    points = points_of_brokers(directory, monkeypatch)
    settings = merged(
        SETTINGS, _SETTINGS, _OF_REPLICAS if replicas > 1 else {},
        _WITHOUT_COMPACTION if power_fails else {},
    )  # fmt: skip
    kind = ForgetfulBrokerOnHost if power_fails else BrokerOnHost
    with ExitStack() as stack:
        network = stack.enter_context(Network(directory))
        server = ZooKeeperOnHost(directory / "zookeeper", network.add(_ZOOKEEPER))
        stack.callback(server.stop)
        server.start()
        zookeeper = f"{server.address}/logbus"
        brokers = [
            kind(
                number, directory / f"broker-{number}",
                zookeeper=zookeeper, settings=settings, host=network.add(_FIRST_BROKER + number),
            )
            for number in _BROKERS
        ]  # fmt: skip
        stack.callback(_stop_all, brokers)
        for broker in brokers:
            broker.launch()
        for broker in brokers:
            broker.wait_until_ready()
        yield MachinesOnHosts(brokers, server, network=network, zookeeper=zookeeper, points=points)


def _stop_all(brokers: Sequence[BrokerProcess]) -> None:
    for broker in brokers:
        broker.ask_to_stop()
    for broker in brokers:
        broker.stop()


def merged(*all_settings: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
    """Returns tables of settings together; later ones count."""
    tables: dict[str, dict[str, Any]] = {}
    for settings in all_settings:
        for table, values in settings.items():
            tables.setdefault(table, {}).update(values)
    return tables

"""A whole cluster on this machine: one real ZooKeeper and N broker processes, as children.

``logbus up``, the demo, the benchmarks and the tests run on it. Everything that it keeps is under
one directory, and a cluster started again on it continues where it was, on the same ports::

    zookeeper/       see spark_logbus.local.zookeeper
    broker-<id>/     the broker's logs; broker.toml, broker.out and broker.ready beside them
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from spark_logbus.errors import ConfigError, EmbeddedServerError
from spark_logbus.local.child_server import ChildServer
from spark_logbus.local.zookeeper import EmbeddedZooKeeper
from spark_logbus.security.profiles import PREFIX

__all__ = ["BrokerProcess", "EmbeddedCluster"]

_START_DEADLINE_S = 90.0  # a crashed broker's registration and a long recovery are waited for
_STOP_GRACE_S = 30.0  # a broker needs half of it when ZooKeeper does not answer
_CHROOT = "logbus"
#: Directory of ZooKeeper in that of the cluster.
ZOOKEEPER: Final = "zookeeper"

# A broker that was killed is expected back at once here, so its registration should not linger.
_SETTINGS: Mapping[str, Mapping[str, Any]] = {"broker": {"port": 0, "zookeeper_session_ms": 4_000}}

Settings = Mapping[str, Mapping[str, Any]]


class BrokerProcess(ChildServer):
    """One broker in a child process; its address is ``host:port``. Stopped, it closes its logs
    cleanly. Use from one thread at a time."""

    def __init__(self, broker_id: int, directory: Path, *, zookeeper: str, settings: Settings):
        super().__init__(
            f"Broker {broker_id}",
            directory,
            kind="broker",
            start_deadline_s=_START_DEADLINE_S,
            stop_grace_s=_STOP_GRACE_S,
        )
        self.broker_id = broker_id
        self._zookeeper = zookeeper
        self._settings = settings

    def _prepare(self) -> list[str]:
        config = self.directory / "broker.toml"
        config.write_text(self._toml(), "utf-8")
        return [
            sys.executable, "-m", "spark_logbus.cli", "broker", "--config", str(config),
            "--ready-file", str(self._ready_file),
        ]  # fmt: skip

    def _toml(self) -> str:
        tables: dict[str, dict[str, Any]] = {}
        for source in (_SETTINGS, self._settings):
            for table, values in source.items():
                tables.setdefault(table, {}).update(values)
        tables["broker"].update(
            id=self.broker_id,
            data_dir=str(self.directory / "data"),
            zookeeper=self._zookeeper,
        )
        lines = []
        for table, values in tables.items():
            lines.append(f"[{table}]")
            lines += [f"{key} = {_toml_value(value)}" for key, value in values.items()]
        return "\n".join(lines) + "\n"


class EmbeddedCluster:
    """ZooKeeper and ``brokers`` brokers on the loopback interface; a context manager.

    ``settings`` are tables of broker configuration (see conf/broker.toml) that all brokers get,
    ``first_settings`` those that only the first one does.
    ZooKeeper's port is ``zookeeper_port``, else that of the last run in ``directory``; at the first
    run it is ``preferred_zookeeper_port`` if that is free, else any. With a ``profile``, brokers
    reach ZooKeeper by that. The brokers die with this process, however it ends. Use from one thread
    at a time.
    """

    def __init__(
        self,
        directory: Path,
        *,
        brokers: int = 1,
        zookeeper_port: int = 0,
        preferred_zookeeper_port: int | None = None,
        settings: Settings | None = None,
        first_settings: Settings | None = None,
        profile: str | None = None,
    ) -> None:
        if brokers < 1:
            raise ConfigError(f"A cluster needs at least one broker, got {brokers}.")
        self._directory = directory.absolute()
        self._zookeeper = EmbeddedZooKeeper(
            self._directory / ZOOKEEPER,
            port=zookeeper_port,
            preferred_port=preferred_zookeeper_port,
        )
        self._count = brokers
        self._settings = settings or {}
        self._first_settings = first_settings or {}
        self._profile = profile
        self.brokers: list[BrokerProcess] = []

    @property
    def zookeeper(self) -> str:
        """The connect string for clients: ``127.0.0.1:port/logbus``."""
        return f"{self._zookeeper.address}/{_CHROOT}"

    @property
    def zookeeper_server(self) -> EmbeddedZooKeeper:
        return self._zookeeper

    def start(self) -> None:
        if self._zookeeper.running or any(broker.running for broker in self.brokers):
            raise EmbeddedServerError(f"The cluster in {self._directory} runs already.")
        try:
            self._zookeeper.start()
            self.brokers = [
                BrokerProcess(
                    number,
                    self._directory / f"broker-{number}",
                    zookeeper=self.zookeeper
                    if self._profile is None
                    else f"{PREFIX}{self._profile}",
                    settings={**self._settings, **(self._first_settings if number == 1 else {})},
                )
                for number in range(1, self._count + 1)
            ]
            for broker in self.brokers:
                broker.launch()
            for broker in self.brokers:
                broker.wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the brokers, then ZooKeeper."""
        try:
            for broker in self.brokers:
                broker.ask_to_stop()
            for broker in self.brokers:
                broker.stop()
        finally:
            self._zookeeper.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _toml_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    # TOML's basic strings are JSON's, but for one control character that JSON leaves as it is.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")

"""A secured cluster of ``logbus up``: from a directory of ``logbus security init``."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any, Final

from spark_logbus.clock import SystemClock
from spark_logbus.config import load_toml
from spark_logbus.errors import ConfigError
from spark_logbus.local.cluster import ZOOKEEPER, EmbeddedCluster
from spark_logbus.local.registry import RegistryProcess
from spark_logbus.security.directory import BROKERS_PROFILE, PROFILES, SecurityDirectory
from spark_logbus.security.profiles import (
    FILE_VARIABLE,
    NAME_VARIABLE,
    PREFIX,
    stored_profiles,
)

# Holds, beside the data, which directory secures it: without that it is not started unsecured.
_REMEMBERED: Final = "security"


def secured_by(data: Path, given: Path | None) -> Securing | None:
    """Returns what secures the cluster in ``data``: the directory that is given, else that of the
    last run; None where there is none. Raises ConfigError for two of them."""
    file = data / _REMEMBERED
    before = Path(file.read_text("utf-8").strip()) if file.exists() else None
    if given is None:
        return None if before is None else Securing(SecurityDirectory.at(before), is_new=False)
    found = SecurityDirectory.at(given)
    if before is not None and before != found.path:
        raise ConfigError(
            f"The cluster in {data} is secured by {before}; give that one, or other --data."
        )
    return Securing(found, is_new=before is None)


class Securing:
    """Starts a cluster on this machine so that it is secured by a directory. It has this process,
    and those that it starts, reach ZooKeeper as brokers do."""

    def __init__(self, directory: SecurityDirectory, *, is_new: bool = True) -> None:
        """``is_new``: the cluster was not secured before."""
        self._directory = directory
        self._is_new = is_new
        servers = directory.zookeeper.partition("/")[0]
        host, _, port = servers.rpartition(":")
        if host not in ("127.0.0.1", "localhost") or not port.isdecimal():
            raise ConfigError(
                f"{directory.path} is for ZooKeeper at {directory.zookeeper}, and `logbus up` "
                "starts one on 127.0.0.1; start its brokers with `logbus broker`."
            )
        self._port = int(port)
        if not directory.brokers():
            raise ConfigError(
                f"{directory.path} has no broker-1; make it: logbus security issue "
                f"{directory.path} broker-1"
            )
        self._broker = directory.broker(directory.brokers()[0])
        self._tables = load_toml(self._broker / "broker.toml", None)
        self.export = self._exported()
        os.environ[FILE_VARIABLE] = str(self._broker / PROFILES)

    def _exported(self) -> str:
        """Returns the command that has a shell use the first user's profile."""
        name, _ = self._directory.first_profile
        try:
            is_known = name in stored_profiles()
        except ConfigError:
            is_known = False
        file = shlex.quote(str(self._directory.path / PROFILES))
        others = "" if is_known else f" {FILE_VARIABLE}={file}"
        return f"export {NAME_VARIABLE}={name}{others}"

    def cluster(self, data: Path, count: int, zookeeper_port: int) -> EmbeddedCluster:
        """Returns the cluster, to be started, and remembers that it is secured. Raises ConfigError
        for another port of ZooKeeper than the profiles have."""
        if zookeeper_port not in (0, self._port):
            raise ConfigError(
                f"--zookeeper-port is {zookeeper_port}, and the profiles in "
                f"{self._directory.path} say {self._port}; leave it out."
            )
        try:
            # What ZooKeeper keeps there are the keys of tokens, and what passwords are checked by.
            (data / ZOOKEEPER).mkdir(parents=True, exist_ok=True)
            (data / ZOOKEEPER).chmod(0o700)
            (data / _REMEMBERED).write_text(f"{self._directory.path}\n", "utf-8")
        except OSError as error:
            raise ConfigError(f"Cannot write into {data}: {error.strerror}.") from error
        return EmbeddedCluster(
            data,
            brokers=count,
            zookeeper_port=self._port,
            settings=self._settings(),
            # The profiles of clients name one gateway, which is beside the first broker.
            first_settings={"gateway": self._tables.get("gateway", {})},
            profile=BROKERS_PROFILE,
        )

    def _settings(self) -> dict[str, dict[str, Any]]:
        """Returns tables of configuration for all brokers, which listen on this machine alone."""
        tls = dict(self._tables["tls"], port=0)
        for key in ("certificate", "key", "client_ca"):
            if key in tls:
                tls[key] = str(self._broker / tls[key])
        metrics = self._tables.get("metrics", {})
        return {"tls": tls, "security": self._tables["security"], "metrics": metrics}

    def registry(self, data: Path, port: int) -> RegistryProcess:
        """Returns the schema registry, to be started."""
        security = self._settings()["security"]
        supers = [
            word for each in security["super_principals"] for word in ("--super-principal", each)
        ]
        files = {"certificate": "broker.pem", "key": "broker.key", "client-ca": "ca.pem"}
        encrypted = [
            word
            for name, file in files.items()
            for word in (f"--tls-{name}", str(self._broker / file))
        ]
        return RegistryProcess(
            data,
            zookeeper=f"{PREFIX}{BROKERS_PROFILE}",
            port=port,
            options=[
                *encrypted, "--client-certificates", "optional", "--authenticate", "--authorize",
                *supers,
            ],
        )  # fmt: skip

    def finish(self) -> None:
        """Makes the first user, and keeps others from nodes that they may use from before the
        cluster was secured. A user who was removed since stays so, as long as there are others."""
        from spark_logbus.coordination.security.users import UserRegistry
        from spark_logbus.zookeeper import Session
        from spark_logbus.zookeeper.guarding import Guarding, open_nodes

        with Session(f"{PREFIX}{BROKERS_PROFILE}", client_name="logbus-up") as session:
            users, user = UserRegistry(session), self._directory.user
            names = users.names()
            if user not in names and (self._is_new or not names):
                password = self._directory.password_file.read_text("utf-8").rstrip("\n")
                users.add(user, password, now_us=SystemClock().now_us())
            if open_nodes(session):
                Guarding(session).apply()

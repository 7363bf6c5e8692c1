"""A ZooKeeper server that encrypts connections, and profiles of its users."""

from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from spark_logbus.local.processes import spawn, stop
from spark_logbus.local.zookeeper import _ask
from spark_logbus.local.zookeeper_command import server_command
from tests.helpers import wait_until
from tests.servers.certificates import Authority, Files
from tests.servers.ports import reserved_port

_HOST: Final = "127.0.0.1"
_NETTY: Final = ("buffer", "codec-base", "codec-compression", "codec", "common", "handler",
                 "resolver", "transport", "transport-classes-epoll",
                 "transport-native-unix-common", "tcnative-classes")  # fmt: skip
_CFG: Final = """\
secureClientPort={port}
secureClientPortAddress={host}
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
ssl.keyStore.type=PEM
ssl.keyStore.location={store}
ssl.trustStore.type=PEM
ssl.trustStore.location={ca}
ssl.clientAuth={client_auth}
client.certReload=true
"""


class GuardedZooKeeper:
    """A server with a port for encrypted connections; a context manager. Its plain port is there
    for what a test does by hand. Use from one thread at a time."""

    def __init__(self, directory: Path, *, client_auth: str = "none") -> None:
        self._directory = directory / "server"
        self._client_auth = client_auth
        self.authority = Authority(directory / "ca", "authority")
        self._profiles = directory / "profiles.toml"
        self._profiles.touch(mode=0o600)
        self._process: subprocess.Popen[bytes] | None = None
        self._reserved = ExitStack()
        self.show(self.authority.files("zookeeper", _HOST))

    @property
    def address(self) -> str:
        """The port of encrypted connections."""
        return f"{_HOST}:{self._secure_port}"

    @property
    def plain_address(self) -> str:
        return f"{_HOST}:{self._port}"

    @property
    def profiles(self) -> Path:
        """The file of all profiles that were made."""
        return self._profiles

    def show(self, files: Files) -> None:
        """Has the server show that certificate, from its next start on."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self._store = self._directory / "store.pem"
        self._store.write_text(files.certificate.read_text() + files.key.read_text())

    def profile(
        self,
        name: str,
        chroot: str,
        *,
        password: str | None = "a long secret",
        host: str | None = None,
        ca: Path | None = None,
        lines: str = "",
    ) -> str:
        """Adds a profile of the chroot, and returns the address that names it."""
        servers = self.address if host is None else f"{host}:{self._secure_port}"
        text = f'[{name}]\nzookeeper = "{servers}{chroot}"\n'
        text += f'zookeeper_tls_ca = "{ca or self.authority.ca_file}"\n{lines}'
        if password is not None:
            secret = self._profiles.parent / f"{name}.password"
            secret.write_text(password)
            text += f'zookeeper_user = "logbus"\nzookeeper_password_file = "{secret}"\n'
        with self._profiles.open("a") as file:
            file.write(text)
        return f"profile:{name}"

    def __enter__(self) -> Self:
        self._port, self._secure_port = (
            self._reserved.enter_context(reserved_port()) for _ in range(2)
        )
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._reserved.close()

    def start(self) -> None:
        """Starts it, and waits until it serves."""
        command = server_command(self._directory, host=_HOST, port=self._port, heap_mb=96)
        with (self._directory / "zoo.cfg").open("a") as config:
            config.write(_CFG.format(
                port=self._secure_port, host=_HOST, store=self._store,
                ca=self.authority.ca_file, client_auth=self._client_auth,
            ))  # fmt: skip
        self._process = spawn(
            _with_netty(command),
            output=self._directory / "zookeeper.out",
            cwd=self._directory,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
        wait_until(self._serves, message="ZooKeeper to serve")

    def stop(self) -> None:
        if self._process is not None:
            stop(self._process, 10)

    def _serves(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._directory / "zookeeper.log").read_text()
        return "Mode: " in _ask(self._port, b"srvr")


def _with_netty(command: list[str]) -> list[str]:
    """Adds the jars to the class path that a server needs for encrypted connections."""
    at = command.index("-cp") + 1
    jars = Path(command[at].split(os.pathsep)[0]).parent
    netty = [str(next(iter(jars.glob(f"netty-{each}-[0-9]*.jar")))) for each in _NETTY]
    return [*command[:at], os.pathsep.join([command[at], *netty]), *command[at + 1 :]]

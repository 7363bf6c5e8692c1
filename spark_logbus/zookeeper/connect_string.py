"""The connect string: ZooKeeper's servers, and the chroot that logbus lives under."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from spark_logbus.errors import ConfigError

DEFAULT_CHROOT = "/logbus"
DEFAULT_PORT = 2181  # ZooKeeper's own
DEFAULT_CONNECT = f"localhost:{DEFAULT_PORT}{DEFAULT_CHROOT}"
ENVIRONMENT_VARIABLE = "LOGBUS_ZOOKEEPER"

# Of another name, as a..b or one too long, a look-up fails in the middle of kazoo's thread.
_LABEL = r"[A-Za-z0-9_-]{1,63}"
_SERVER = re.compile(rf"(?:\[[0-9A-Fa-f:.%]+\]|{_LABEL}(?:\.{_LABEL})*\.?)(?::(\d{{1,5}}))?")
_CHROOT_PART = re.compile(r"[A-Za-z0-9._-]+")
_EXAMPLE = 'use "host:port,host:port/chroot", for example "localhost:2181/logbus"'


@dataclass(frozen=True, slots=True)
class ConnectString:
    """``servers`` as kazoo takes them (``host:port,host:port``) and ``chroot``, which is
    ``""`` for ZooKeeper's own root and else starts with ``/`` and does not end with one."""

    servers: str
    chroot: str

    @classmethod
    def parse(cls, connect: str) -> ConnectString:
        """Parses a connect string. Without a chroot it means ``/logbus``; a lone ``/`` names
        ZooKeeper's root."""
        if not isinstance(connect, str):
            raise ConfigError(
                f"The ZooKeeper connect string is {connect!r}, which is no text; {_EXAMPLE}."
            )
        servers, slash, chroot = connect.strip().partition("/")
        for server in servers.split(","):
            match = _SERVER.fullmatch(server.strip())
            if match is None or not 0 < int(match.group(1) or 2181) < 65_536:
                raise ConfigError(
                    f"{server!r} in the ZooKeeper connect string {connect!r} is not a server; "
                    f"{_EXAMPLE}."
                )
        parts = [part for part in chroot.split("/") if part]
        for part in parts:
            if part in (".", "..") or not _CHROOT_PART.fullmatch(part):
                raise ConfigError(
                    f"The chroot in the ZooKeeper connect string {connect!r} has the unusable "
                    f"part {part!r}; {_EXAMPLE}."
                )
        cleaned = ",".join(server.strip() for server in servers.split(","))
        root = "".join(f"/{part}" for part in parts)
        return cls(servers=cleaned, chroot=root if slash else DEFAULT_CHROOT)

    @property
    def is_default(self) -> bool:
        """True for the servers and chroot that are used when none were given."""
        return str(self) == DEFAULT_CONNECT

    def __str__(self) -> str:
        return f"{self.servers}{self.chroot or '/'}"


def default_connect() -> str:
    """``$LOGBUS_ZOOKEEPER``, else ``localhost:2181/logbus``."""
    return os.environ.get(ENVIRONMENT_VARIABLE) or DEFAULT_CONNECT

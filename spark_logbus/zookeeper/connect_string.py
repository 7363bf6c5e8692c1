"""The connect string: ZooKeeper's servers, and the chroot that logbus lives under."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace

from spark_logbus.errors import ConfigError
from spark_logbus.security import profiles
from spark_logbus.security.profiles import Profile

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
    ``""`` for ZooKeeper's own root and else starts with ``/`` and does not end with one.
    ``profile`` is the one that the address names."""

    servers: str
    chroot: str
    profile: Profile | None = field(default=None, compare=False)

    @classmethod
    def parse(cls, connect: str) -> ConnectString:
        """Parses a connect string. Without a chroot it means ``/logbus``; a lone ``/`` names
        ZooKeeper's root; ``profile:prod`` stands for what the profile ``prod`` says. Raises
        ConfigError."""
        if not isinstance(connect, str):
            raise ConfigError(
                f"The ZooKeeper connect string is {connect!r}, which is no text; {_EXAMPLE}."
            )
        if (name := profiles.named_in(connect.strip())) is not None:
            profile = profiles.load_profile(name)
            return replace(cls.parse(_servers_of(profile)), profile=profile)
        if "@" in connect:  # it is not repeated, as it may hold a password
            raise ConfigError(
                "The ZooKeeper connect string has an @ in it, as if it named a user; put user and "
                f"password in a profile, and name that: {profiles.PREFIX}NAME."
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
        if self.profile is not None:
            return f"{profiles.PREFIX}{self.profile.name}"
        return f"{self.servers}{self.chroot or '/'}"


def default_connect() -> str:
    """The profile that ``$LOGBUS_PROFILE`` names, else ``$LOGBUS_ZOOKEEPER``, else
    ``localhost:2181/logbus``."""
    profile = os.environ.get(profiles.NAME_VARIABLE)
    return f"{profiles.PREFIX}{profile}" if profile else _unnamed_connect()


def _unnamed_connect() -> str:
    return os.environ.get(ENVIRONMENT_VARIABLE) or DEFAULT_CONNECT


def _servers_of(profile: Profile) -> str:
    """Returns what a profile says of ZooKeeper, else the environment. Raises ConfigError where that
    names a profile once more."""
    connect = profile.gateway or profile.zookeeper or _unnamed_connect()
    if profiles.named_in(connect.strip()) is not None:
        raise ConfigError(
            f"The profile {profile.name!r} does not say where ZooKeeper is, and "
            f"{ENVIRONMENT_VARIABLE} is {connect!r}; give the profile the key zookeeper."
        )
    return connect

"""The directory that ``logbus security init`` makes: all that a secured cluster needs to begin.

::

    ca.pem  ca.key           the authority, which signs all certificates
    profiles.toml            the profiles of the first user, and of the brokers
    admin.password           that user's password
    zookeeper.password       the brokers' own, with which they keep others from ZooKeeper's nodes
    broker-1/                one for each broker, whole in itself, to be copied to its machine
        broker.toml  broker.pem  broker.key  ca.pem  profiles.toml  zookeeper.password

A directory is made beside its place, and moved there when it is whole: a process that dies on the
way leaves nothing that looks like one. Nobody else may read any of it.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from spark_logbus.config import load_toml
from spark_logbus.errors import ConfigError
from spark_logbus.security.certificates import (
    Pair,
    common_name_of,
    expires,
    hosts_of,
    issue,
    new_authority,
)
from spark_logbus.security.principals import Principal
from spark_logbus.security.profiles import check_profile_name

AUTHORITY_DAYS: Final = 3_650
CERTIFICATE_DAYS: Final = 365
#: The port at which brokers let clients come to ZooKeeper.
GATEWAY_PORT: Final = 9293
#: The profile with which brokers reach ZooKeeper, in a file beside the configuration of each.
BROKERS_PROFILE: Final = "brokers"
PROFILES: Final = "profiles.toml"
_LOCAL: Final = "127.0.0.1"
_DEFAULT_CHROOT: Final = "logbus"  # as of an address that names none
_ZOOKEEPER_USER: Final = "brokers"
_ZOOKEEPER_PASSWORD: Final = "zookeeper.password"
_PASSWORD_BYTES: Final = 24

Tables = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCluster:
    """Names and addresses for a new directory."""

    #: The profile of the first user.
    profile: str
    user: str
    #: ZooKeeper's servers and chroot.
    zookeeper: str
    #: The port of the first broker's gateway.
    gateway_port: int = GATEWAY_PORT
    #: Names and addresses of the first broker; none: it is for this machine alone.
    hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_profile_name(self.profile)
        if self.profile == BROKERS_PROFILE:
            raise ConfigError(f"The profile {BROKERS_PROFILE!r} is the brokers'; choose another.")
        _check_file_name("user", self.user)
        Principal.parse(f"user:{self.user}")
        if ":" in self.user:
            raise ConfigError(
                f"{self.user!r} cannot be the user: at a gateway a name ends at the first colon."
            )
        _check_hosts(self.hosts)


@dataclass(frozen=True, slots=True)
class SecurityDirectory:
    """A directory that is whole."""

    path: Path

    @classmethod
    def make(cls, path: Path, cluster: NewCluster) -> SecurityDirectory:
        """Makes the directory. Raises ConfigError where there is something already, and for what
        cannot be written."""
        path = path.absolute()
        with _whole(path) as new:
            authority = new_authority(f"logbus {cluster.profile}", days=AUTHORITY_DAYS)
            _write_pair(new, "ca", authority)
            _write(new / f"{cluster.user}.password", _password())
            _write(new / _ZOOKEEPER_PASSWORD, _password())
            made = cls(new)
            _write(new / PROFILES, as_toml(_first_profiles(cluster)))
            _make_directory(new / "broker-1")
            made._fill_broker(new / "broker-1", 1, cluster.hosts, cluster.gateway_port)
        return cls(path)

    @classmethod
    def at(cls, path: Path) -> SecurityDirectory:
        """Returns the one that is there. Raises ConfigError if it is none. The authority's key may
        be kept elsewhere, as long as nothing is to be signed."""
        path = path.absolute()
        for name in ("ca.pem", PROFILES):
            if not (path / name).is_file():
                raise ConfigError(
                    f"{path} has no {name}, so it is no directory of `logbus security init`; make "
                    "one, or give its path."
                )
        return cls(path)

    # -- what stands in it --------------------------------------------------------------------

    @property
    def first_profile(self) -> tuple[str, dict[str, Any]]:
        """The name of the first user's profile and its keys, with files by their whole paths."""
        tables = load_toml(self.path / PROFILES, None)
        if not tables:
            raise ConfigError(f"There is no profile in {self.path / PROFILES}.")
        name, settings = next(iter(tables.items()))
        for key in ("gateway", "user", "password_file"):
            self._require(settings, name, key)
        whole = {
            key: str(self.path / value) if key.endswith(("_file", "_ca")) else value
            for key, value in settings.items()
        }
        return name, whole

    @property
    def user(self) -> str:
        return str(self.first_profile[1]["user"])

    @property
    def password_file(self) -> Path:
        return Path(self.first_profile[1]["password_file"])

    @property
    def zookeeper(self) -> str:
        """ZooKeeper's servers and chroot, as brokers reach it."""
        return str(self._brokers_profile()["zookeeper"])

    @property
    def gateways(self) -> str:
        """The gateways of all brokers and the chroot, as profiles of clients have them."""
        places = []
        for each in self.brokers():
            tables = load_toml(self.broker(each) / "broker.toml", None)
            host = tables.get("broker", {}).get("advertised_host", _LOCAL)
            port = tables.get("gateway", {}).get("port", GATEWAY_PORT)
            places.append(_place(str(host), port))
        return f"{','.join(places)}/{_chroot(self.zookeeper)}"

    def _brokers_profile(self) -> dict[str, Any]:
        settings = load_toml(self.path / PROFILES, None).get(BROKERS_PROFILE, {})
        self._require(settings, BROKERS_PROFILE, "zookeeper")
        return settings

    def _require(self, settings: Mapping[str, Any], name: str, key: str) -> None:
        if not isinstance(settings.get(key), str):
            raise ConfigError(f"[{name}] of {self.path / PROFILES} has no {key}.")

    def brokers(self) -> list[int]:
        """The ids of brokers for which there is a directory."""
        found = [each.name.removeprefix("broker-") for each in self.path.glob("broker-[0-9]*")]
        return sorted(int(each) for each in found if each.isdecimal())

    def broker(self, broker_id: int) -> Path:
        """The directory of a broker's files."""
        return self.path / f"broker-{broker_id}"

    # -- more of it ---------------------------------------------------------------------------

    def add_broker(self, broker_id: int, hosts: Sequence[str]) -> Path:
        """Makes the files of one more broker. Raises ConfigError where they are there."""
        _check_hosts(hosts)
        with _whole(self.broker(broker_id)) as new:
            self._fill_broker(new, broker_id, hosts, GATEWAY_PORT)
        return self.broker(broker_id)

    def add_client(self, name: str) -> Path:
        """Makes a certificate that is ``certificate:name``, and a profile with it, in a directory
        to hand to that client. Raises ConfigError where that is there."""
        check_profile_name(name)
        profile, _ = self.first_profile
        with _whole(self.path / name) as new:
            _write_pair(new, "client", issue(self._authority(), name, hosts=[], days=self._days()))
            _write(new / "ca.pem", _text(self.path / "ca.pem"))
            settings = {
                "gateway": self.gateways,
                "tls_ca": "ca.pem",
                "tls_certificate": "client.pem",
                "tls_key": "client.key",
            }
            _write(new / PROFILES, as_toml({profile: settings}))
        return self.path / name

    def renew(self) -> list[tuple[Path, datetime.datetime]]:
        """Puts new certificates, by the same authority and for the same names, in the place of all
        that it has signed; returns these, and until when they are good. Whoever uses them reads
        them anew; a key is there a moment before its certificate, which is not taken by halves."""
        renewed = []
        authority, days = self._authority(), self._days()
        for certificate in sorted(self.path.glob("*/*.pem")):
            key = certificate.with_suffix(".key")
            if not key.exists():
                continue
            old = _text(certificate)
            pair = issue(authority, common_name_of(old), hosts=hosts_of(old), days=days)
            _replace(key, pair.key)
            _replace(certificate, pair.certificate)
            renewed.append((certificate, expires(pair.certificate)))
        return renewed

    def _authority(self) -> Pair:
        return Pair(_text(self.path / "ca.pem"), _text(self.path / "ca.key"))

    def _days(self) -> int:
        """Returns for how long a certificate is good: not longer than its authority."""
        left = expires(_text(self.path / "ca.pem")) - datetime.datetime.now(datetime.UTC)
        if left.days < 1:
            raise ConfigError(
                f"The authority in {self.path} is no longer good; make a new directory with "
                "`logbus security init`, and give its ca.pem to all clients beside the old one."
            )
        return min(left.days, CERTIFICATE_DAYS)

    def _fill_broker(
        self, new: Path, broker_id: int, hosts: Sequence[str], gateway_port: int
    ) -> None:
        local = ["localhost", _LOCAL, "::1"]
        names = [*hosts, *(each for each in local if each not in hosts)]
        pair = issue(self._authority(), f"broker-{broker_id}", hosts=names, days=self._days())
        _write_pair(new, "broker", pair)
        _write(new / "ca.pem", _text(self.path / "ca.pem"))
        _write(new / _ZOOKEEPER_PASSWORD, _text(self.path / _ZOOKEEPER_PASSWORD))
        _write(new / PROFILES, as_toml({BROKERS_PROFILE: self._brokers_profile()}))
        _write(new / "broker.toml", as_toml(self._configuration(broker_id, hosts, gateway_port)))

    def _configuration(self, broker_id: int, hosts: Sequence[str], gateway_port: int) -> Tables:
        reached = {"host": "0.0.0.0", "advertised_host": hosts[0]} if hosts else {}
        return {
            "broker": {
                "id": broker_id,
                "data_dir": f"data/broker-{broker_id}",
                "zookeeper": f"profile:{BROKERS_PROFILE}",
                **reached,
            },
            "tls": {
                "certificate": "broker.pem",
                "key": "broker.key",
                "client_ca": "ca.pem",
                "client_certificates": "optional",
                "only": True,
            },
            "security": {
                "authenticate": True,
                "authorize": True,
                "super_principals": [f"user:{self.user}"],
            },
            "gateway": {"port": gateway_port},
            # They name topics.
            "metrics": {"tls": True, "authenticate": True},
        }


def _check_hosts(hosts: Sequence[str]) -> None:
    for host in hosts:
        if not host or not host.isascii() or any(each in host for each in '/\\" \t\n*'):
            raise ConfigError(f"{host!r} is no name or address of a host.")


def _first_profiles(cluster: NewCluster) -> Tables:
    host = cluster.hosts[0] if cluster.hosts else _LOCAL
    place = _place(host, cluster.gateway_port)
    return {
        cluster.profile: {
            "gateway": f"{place}/{_chroot(cluster.zookeeper)}",
            "tls_ca": "ca.pem",
            "user": cluster.user,
            "password_file": f"{cluster.user}.password",
        },
        BROKERS_PROFILE: {
            "zookeeper": cluster.zookeeper,
            "zookeeper_user": _ZOOKEEPER_USER,
            "zookeeper_password_file": _ZOOKEEPER_PASSWORD,
        },
    }


def _place(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _chroot(zookeeper: str) -> str:
    """Returns the chroot at the end of ZooKeeper's address, without its slash."""
    _, slash, chroot = zookeeper.partition("/")
    return chroot if slash else _DEFAULT_CHROOT


def add_profile(path: Path, name: str, settings: Mapping[str, Any]) -> bool:
    """Appends a profile to a file that nobody else may read, or makes that; False if it is there.
    Raises ConfigError where another one has that name."""
    known = _profiles_in(path)
    if name in known and known[name] == dict(settings):
        return False
    require_free(path, name)
    before = _text(path).rstrip("\n") if path.exists() else ""
    try:
        _make_directory(path.parent)
    except OSError as error:
        raise ConfigError(f"Cannot make {path.parent}: {error.strerror}.") from error
    _replace(path, (f"{before}\n\n" if before else "") + as_toml({name: settings}))
    return True


def require_free(path: Path, name: str) -> None:
    """Raises ConfigError where a profile of that name is in the file."""
    if name in _profiles_in(path):
        raise ConfigError(
            f"{path} has a profile {name!r} already, which is another one. Take that out, or "
            "choose another name."
        )


def _profiles_in(path: Path) -> dict[str, dict[str, Any]]:
    if not path.exists():
        return {}
    if path.stat().st_mode & 0o077:
        raise ConfigError(f"Others may read {path}, which says how to log in: chmod 600 {path}.")
    return load_toml(path, None)


def as_toml(tables: Tables) -> str:
    """Returns the tables as text."""
    parts = []
    for name, table in tables.items():
        parts.append("\n".join([f"[{name}]", *(f"{k} = {_value(v)}" for k, v in table.items())]))
    return "\n\n".join(parts) + "\n"


def _value(value: Any) -> str:
    # TOML's basic strings, booleans, numbers and lists are JSON's, but for one control character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


@contextlib.contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """Gives a new directory to fill, and moves it to ``path`` when that is done."""
    if path.is_symlink() or path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise ConfigError(f"There is something in {path} already, and nothing of it was changed.")
    try:
        _make_directory(path.parent)
        new = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".new", dir=path.parent))
        try:
            new.chmod(0o700)
            yield new
            _sync(new)
            new.rename(path)  # fails where somebody else was faster
            _sync(path.parent)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
    except OSError as error:
        raise ConfigError(f"Cannot write {path}: {error.strerror}.") from error


def leftovers(path: Path) -> list[Path]:
    """Returns what runs left beside ``path`` that were killed."""
    return sorted(path.absolute().parent.glob(f".{path.name}.*.new"))


def _make_directory(path: Path) -> None:
    """Makes a directory, and those above it, that nobody else may enter, whatever the umask is."""
    if not path.is_dir():
        _make_directory(path.parent)
        path.mkdir(mode=0o700)
        path.chmod(0o700)


def _write_pair(directory: Path, name: str, pair: Pair) -> None:
    _write(directory / f"{name}.pem", pair.certificate)
    _write(directory / f"{name}.key", pair.key)


def _write(path: Path, text: str) -> None:
    """Writes a new file that nobody else may read, whatever the umask is."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, 0o600)
        file.write(text)
        file.flush()
        os.fsync(descriptor)


def _replace(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    try:
        _write(new, text)
        new.replace(path)
        _sync(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise ConfigError(f"Cannot write {path}: {error.strerror}.") from error


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Cannot read {path}: {error}.") from error


def _password() -> str:
    return f"{secrets.token_urlsafe(_PASSWORD_BYTES)}\n"


def _check_file_name(what: str, name: str) -> None:
    if not name or name.startswith(".") or "/" in name or not name.isprintable():
        raise ConfigError(f"{name!r} cannot be the {what}: it names a file.")

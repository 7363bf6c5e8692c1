"""Profiles: how to reach a cluster, and as whom, in a file that nobody else may read.

Wherever the address of a cluster is taken, ``profile:prod`` names the profile ``prod``. So no
password is ever an option, an argument or a setting of a query.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from spark_logbus.config import build, load_toml
from spark_logbus.errors import ConfigError
from spark_logbus.security.logins import PasswordLogin
from spark_logbus.security.tls import ClientFiles, ClientTls

#: What an address begins with that names a profile.
PREFIX: Final = "profile:"
#: Environment variables with the file of profiles, and with the profile to use by default.
FILE_VARIABLE: Final = "LOGBUS_PROFILES"
NAME_VARIABLE: Final = "LOGBUS_PROFILE"
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
_PEM_CERTIFICATE: Final = "CERTIFICATE-----"
_PEM_KEY: Final = "PRIVATE KEY-----"
_DIGEST_USER: Final = re.compile(r"[!-9;-~]{1,100}")
_SECRET: Final = re.compile(r"pass|secret|token", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSettings:
    """The keys of a profile, as they stand in the file; none is a secret."""

    zookeeper: str | None = None
    gateway: str | None = None
    tls_ca: Path | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls: bool | None = None
    user: str | None = None
    password_file: Path | None = None
    password_env: str | None = None
    zookeeper_user: str | None = None
    zookeeper_password_file: Path | None = None
    zookeeper_password_env: str | None = None
    zookeeper_tls: bool | None = None
    zookeeper_tls_ca: Path | None = None
    zookeeper_tls_certificate: Path | None = None
    zookeeper_tls_key: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """A user of ZooKeeper's own, with a password."""

    user: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        # ZooKeeper takes the first colon for the end of the name, and reads the rest as Java's
        # locale has it: of other letters it could make another user, to whom no node would belong.
        if not _DIGEST_USER.fullmatch(self.user):
            raise ConfigError(
                f"The user of ZooKeeper is {self.user!r}; use ASCII letters, digits and signs, "
                "without a colon or spaces."
            )
        if not (self.password and self.password.isascii() and self.password.isprintable()):
            raise ConfigError(
                f"The password of ZooKeeper's user {self.user!r} is empty, or has other than "
                "printable ASCII characters; choose another one."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Settings by which a cluster is reached, and as whom."""

    name: str
    #: ZooKeeper's servers and chroot; None: as without a profile.
    zookeeper: str | None
    #: What brokers have to prove; None: connections are not encrypted.
    tls: ClientTls | None
    login: PasswordLogin | None
    #: Whom ZooKeeper is told that this is.
    digest: Digest | None
    #: What ZooKeeper's servers have to prove; None: connections to them are not encrypted.
    zookeeper_tls: ClientFiles | None = None
    #: Brokers' gateways to ZooKeeper, and the chroot, in the place of ZooKeeper's servers. There it
    #: is ``login``, or the certificate of ``tls``, that counts.
    gateway: str | None = None


def named_in(address: str) -> str | None:
    """Returns the profile that an address names; None for an address of servers."""
    return address[len(PREFIX) :] if address.startswith(PREFIX) else None


def profiles_file() -> Path:
    """Returns ``$LOGBUS_PROFILES``, else ``~/.config/logbus/profiles.toml``."""
    given = os.environ.get(FILE_VARIABLE)
    return Path(given) if given else Path.home() / ".config" / "logbus" / "profiles.toml"


def use_profiles_beside(file: Path) -> None:
    """Has profiles looked for beside ``file``, if they are there and the environment names no
    others."""
    beside = file.absolute().parent / "profiles.toml"
    if not os.environ.get(FILE_VARIABLE) and beside.is_file():
        os.environ[FILE_VARIABLE] = str(beside)


def load_profile(name: str) -> Profile:
    """Reads a profile, and the password that it points to. Raises ConfigError."""
    path = profiles_file()
    check_profile_name(name)
    return _profile(name, _settings_in(_tables_in(path), name, path), path.parent)


def check_profile_name(name: str) -> None:
    """Raises ConfigError for what no profile is called."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no name of a profile; use letters, digits, _ and -.")


def stored_profiles() -> dict[str, ProfileSettings | ConfigError]:
    """Returns what the file says of each profile, or why that cannot be used. Passwords are not
    read. Raises ConfigError for a file that cannot be read as a whole."""
    path = profiles_file()
    tables = _tables_in(path)
    found: dict[str, ProfileSettings | ConfigError] = {}
    for name in tables:
        try:
            check_profile_name(name)
            found[name] = _settings_in(tables, name, path)
        except ConfigError as error:
            found[name] = error
    return found


def _tables_in(path: Path) -> dict[str, dict[str, Any]]:
    _require_private(path)
    return load_toml(path, None)


def _settings_in(tables: dict[str, dict[str, Any]], name: str, path: Path) -> ProfileSettings:
    if name not in tables:
        known = ", ".join(sorted(tables)) or "none"
        raise ConfigError(f"There is no profile {name!r} in {path}; there are: {known}.")
    _refuse_secrets(tables[name], name, path)
    settings = build(ProfileSettings, tables[name], where=f"[{name}] of {path}")
    if settings.zookeeper is not None and named_in(settings.zookeeper.strip()) is not None:
        raise ConfigError(
            f"zookeeper in [{name}] of {path} is {settings.zookeeper!r}, another profile; give "
            "the servers."
        )
    return settings


def _require_private(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise ConfigError(
            f"Cannot read the profiles in {path}: {error.strerror}. Set {FILE_VARIABLE} to their "
            "file."
        ) from error
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigError(f"Others may read {path}, which says how to log in: chmod 600 {path}.")


def _refuse_secrets(table: Mapping[str, Any], name: str, path: Path) -> None:
    for key in table:
        if _SECRET.search(key) and not key.endswith(("_file", "_env")):
            raise ConfigError(
                f"{key!r} in [{name}] of {path} would be a secret itself; name the file that has "
                "it (password_file), or the environment variable (password_env)."
            )


def _profile(name: str, settings: ProfileSettings, directory: Path) -> Profile:
    where = f"The profile {name!r}"
    password = _secret(settings.password_file, settings.password_env, directory, where)
    if (settings.user is None) != (password is None):
        raise ConfigError(f"{where} needs both user and password_file or password_env, or neither.")
    of_zookeeper = _secret(
        settings.zookeeper_password_file, settings.zookeeper_password_env, directory, where
    )
    if (settings.zookeeper_user is None) != (of_zookeeper is None):
        raise ConfigError(
            f"{where} needs both zookeeper_user and zookeeper_password_file or "
            "zookeeper_password_env, or neither."
        )
    tls = _tls(settings, directory, where)
    if settings.gateway is not None:
        _require_gateway(settings, tls, where)
    return Profile(
        name=name,
        zookeeper=settings.zookeeper,
        tls=tls,
        login=None
        if settings.user is None or password is None
        else PasswordLogin(user=settings.user, password=password),
        digest=None
        if settings.zookeeper_user is None or of_zookeeper is None
        else Digest(user=settings.zookeeper_user, password=of_zookeeper),
        zookeeper_tls=_tls_of_zookeeper(settings, directory),
        gateway=settings.gateway,
    )


def _require_gateway(settings: ProfileSettings, tls: ClientTls | None, where: str) -> None:
    of_zookeeper = [
        each for each in dir(settings)
        if each.startswith("zookeeper") and getattr(settings, each) is not None
    ]  # fmt: skip
    if of_zookeeper:
        raise ConfigError(
            f"{where} has a gateway, which stands in ZooKeeper's place, and {of_zookeeper[0]} too; "
            "name one."
        )
    if tls is None:
        raise ConfigError(
            f"{where} has a gateway, to which connections are encrypted: name the authorities to "
            "believe (tls_ca), or set tls = true for those of the machine."
        )
    if settings.user is None and tls.certificate is None:
        raise ConfigError(
            f"{where} has a gateway, which takes nobody whom it does not know: name a user, or a "
            "certificate (tls_certificate and tls_key)."
        )
    if settings.user is not None and ":" in settings.user:
        raise ConfigError(
            f"{where} has a gateway, where the name of a user ends at the first colon: "
            f"{settings.user!r} cannot log in there."
        )


def _tls_of_zookeeper(settings: ProfileSettings, directory: Path) -> ClientFiles | None:
    given = (settings.zookeeper_tls_ca, settings.zookeeper_tls_certificate,
             settings.zookeeper_tls_key)  # fmt: skip
    ca, certificate, key = (None if each is None else directory / each for each in given)
    if not (any(given) if settings.zookeeper_tls is None else settings.zookeeper_tls):
        return None
    return ClientFiles(ca=ca, certificate=certificate, key=key)


def _tls(settings: ProfileSettings, directory: Path, where: str) -> ClientTls | None:
    files = (settings.tls_ca, settings.tls_certificate, settings.tls_key)
    ca, certificate, key = (None if each is None else directory / each for each in files)
    if not (any(files) if settings.tls is None else settings.tls):
        return None
    try:
        text = None if ca is None else ca.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: cannot read the authorities in {ca}: {error}.") from error
    if text is not None and _PEM_CERTIFICATE not in text:
        raise ConfigError(f"{where}: {ca} has no certificate of an authority (PEM); mend tls_ca.")
    if text is not None and _PEM_KEY in text:  # tasks are handed the whole text
        raise ConfigError(
            f"{where}: {ca} has a private key in it; name a file with certificates alone (tls_ca)."
        )
    return ClientTls(ca=text, certificate=certificate, key=key)


def _secret(path: Path | None, variable: str | None, directory: Path, where: str) -> str | None:
    if path is not None and variable is not None:
        raise ConfigError(f"{where} names a file and a variable for one password; name one.")
    if path is not None:
        try:
            return (directory / path).read_text().rstrip("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{where}: cannot read the password in {directory / path}: {error}."
            ) from error
    if variable is not None:
        found = os.environ.get(variable)
        if not found:
            raise ConfigError(f"{where}: the environment variable {variable} is not set.")
        return found
    return None

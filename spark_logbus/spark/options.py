"""Spark options as given, read one by one by name and type.

Names are case-insensitive, as everywhere in Spark. A name that is unknown, or has no meaning for
this kind of read or write, is refused: an option that is silently ignored is a read of the wrong
data.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from spark_logbus.config import nearest
from spark_logbus.errors import ConfigError, InvalidOptionError
from spark_logbus.security.addresses import holds_password
from spark_logbus.security.profiles import PREFIX
from spark_logbus.times import parse_duration_us
from spark_logbus.zookeeper import ENVIRONMENT_VARIABLE, ConnectString, default_connect

LARGEST_NUMBER: Final = (1 << 63) - 1
"""Java's largest long, which people write for "no limit"."""

_SECRET: Final = re.compile(r"pass|secret|token|credential")
_NEEDLESS: Final = ("kafka.", "kafkaconsumer.", "fetchoffset.")


class SparkOptions:
    """The options of one read or write, by lower-cased name. Immutable."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}

    def refuse_unknown(
        self,
        known: Sequence[str],
        *,
        foreign: Mapping[str, str],
        of: str,
        pass_over: Collection[str] = (),
    ) -> None:
        """Raise for a name that is not ``known``, and for an address with a password in it;
        ``foreign`` are names of Spark's Kafka connector with what to write instead, ``of`` is
        source or sink."""
        lower = {name.lower() for name in known}
        for name in sorted(self._values):
            if holds_password(self._values[name]):
                raise InvalidOptionError(
                    f"Option {name} has an address with a password in it, which plans, the UI and "
                    "event logs would show; put user and password in a profile, and name that: "
                    "option profile."
                )
            if name in lower or name in pass_over:
                continue
            if _SECRET.search(name):
                raise InvalidOptionError(
                    f"Option {name} would show a secret in plans, the UI and event logs; put it "
                    "in a profile, and name that: option profile."
                )
            if meant := foreign.get(name):
                hint = f"did you mean {meant}?"
            elif name.startswith(_NEEDLESS):
                hint = "it is for Kafka's client; remove it."
            elif close := nearest(name, known):
                hint = f"did you mean {close}?"
            else:
                hint = f"known are {', '.join(known)}."
            raise InvalidOptionError(f"Option {name} is unknown to the logbus {of}; {hint}")

    def refuse_misplaced(self, names: Sequence[str], *, kind: str, other: str) -> None:
        for name in names:
            if name.lower() in self._values:
                raise InvalidOptionError(
                    f"Option {name} has no meaning for a {kind} read, only for a {other} read; "
                    "remove it."
                )

    def text(self, name: str) -> str | None:
        value = self._values.get(name.lower())
        if value is not None and not value.strip():
            raise InvalidOptionError(f"Option {name} is empty; give a value or leave it out.")
        return value

    def boolean(self, name: str, *, default: bool) -> bool:
        return (
            self.choice(name, ("true", "false"), default="true" if default else "false") == "true"
        )

    def choice(self, name: str, values: Sequence[str], *, default: str) -> str:
        value = self.text(name)
        if value is None:
            return default
        if value.strip().lower() not in values:
            one_of = " or ".join(values) if len(values) == 2 else f"one of {', '.join(values)}"
            raise InvalidOptionError(f"Option {name}: expected {one_of}, got {value!r}.")
        return value.strip().lower()

    def number(self, name: str, *, least: int = 1, maximum: int = LARGEST_NUMBER) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        word = value.strip()
        if not (word.isascii() and word.isdigit()) or not least <= int(word) <= maximum:
            raise InvalidOptionError(
                f"Option {name}: expected a whole number from {least} to {maximum}, got {value!r}."
            )
        return int(word)

    def size(self, name: str, *, minimum: int = 1) -> int | None:
        """Bytes, as in 512m."""
        value = self.text(name)
        if value is None:
            return None
        found = re.fullmatch(r"(\d{1,12})\s*([kmg]?)b?", value.strip().lower(), re.ASCII)
        scale = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
        if found is None or int(found[1]) < minimum:
            raise InvalidOptionError(
                f"Option {name}: expected a number of bytes such as 536870912 or 512m, "
                f"got {value!r}."
            )
        return int(found[1]) * scale[found[2]]

    def duration_us(self, name: str) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        try:
            return parse_duration_us(value)
        except ValueError as error:
            raise InvalidOptionError(f"Option {name}: {error}.") from error


def cluster_address(options: SparkOptions) -> str:
    """The cluster that the options ``profile`` or ``zookeeper`` name, else that of the environment,
    else the local default. Raises InvalidOptionError."""
    profile, zookeeper = options.text("profile"), options.text("zookeeper")
    if profile is None:
        return zookeeper_address(zookeeper)
    if zookeeper is not None:
        raise InvalidOptionError(
            f"Option profile is {profile!r}, but zookeeper says where the cluster is too; give one "
            "of them."
        )
    try:
        ConnectString.parse(f"{PREFIX}{profile}")
    except ConfigError as error:
        raise InvalidOptionError(f"Option profile: {error.message}") from error
    return f"{PREFIX}{profile}"


def zookeeper_address(given: str | None) -> str:
    """The option ``zookeeper``, else ``$LOGBUS_PROFILE`` or ``$LOGBUS_ZOOKEEPER``, else the local
    default.

    Raises InvalidOptionError for what is no connect string.
    """
    connect = given or default_connect()
    try:
        ConnectString.parse(connect)
    except ConfigError as error:
        origin = "" if given else f" is not given, and ${ENVIRONMENT_VARIABLE} is of no use"
        raise InvalidOptionError(f"Option zookeeper{origin}: {error.message}") from error
    return connect

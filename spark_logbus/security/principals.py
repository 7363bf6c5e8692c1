"""Principals: whom a connection belongs to, by what was proved."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Final

from spark_logbus.errors import ConfigError

KINDS: Final = ("user", "certificate", "local", "broker", "anonymous")
_MAX_NAME_CHARS: Final = 200


@dataclass(frozen=True, slots=True)
class Principal:
    """A user, a machine or a process, as ``kind:name``.

    ``user``: has a password in this cluster; ``certificate``: the common name of a client's
    certificate; ``local``: the user of the operating system at the other end of a UNIX socket;
    ``broker``: a broker of this cluster; ``anonymous``: nobody has asked.
    """

    kind: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.name else self.kind

    @classmethod
    def parse(cls, text: str) -> Principal:
        """Raises ConfigError for what no principal is called."""
        kind, _, name = text.partition(":")
        if kind not in KINDS or bool(name) == (kind == "anonymous"):
            raise ConfigError(
                f"{text!r} is no principal; use user:NAME, certificate:NAME, local:NAME, "
                "broker:ID or anonymous."
            )
        if len(name) > _MAX_NAME_CHARS or not name.isprintable():
            raise ConfigError(
                f"The name of a principal has up to {_MAX_NAME_CHARS} printable characters, got "
                f"{name[:50]!r}{'...' if len(name) > 50 else ''}."
            )
        usual = _usual(name)
        if name != usual:
            raise ConfigError(
                f"{text!r} is nobody: a name has no space before or after it, and letters in their "
                f"usual form, as {f'{kind}:{usual}'!r} has."
            )
        if name.endswith("*"):
            raise ConfigError(
                f"{text!r} is nobody: principals have no prefixes. Name each, or * for everybody."
            )
        return cls(kind, name)


def _usual(name: str) -> str:
    """Returns a name in the form in which logins by SCRAM have it: of several that look the same,
    rules and users with another one would never be met, also rules that deny."""
    return unicodedata.normalize("NFKC", name).strip()


ANONYMOUS: Final = Principal("anonymous")

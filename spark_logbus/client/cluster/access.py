"""Tokens that a driver hands to its tasks so that brokers let them in, and how it gets them.

A task has no profile and no password: it has the text of the authorities to believe, and a token
that is good for the topics of its job, for a while.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from spark_logbus.clock import Clock
from spark_logbus.errors import AuthenticationError
from spark_logbus.protocol import IssueTokenResponse
from spark_logbus.security.tokens import Grant

if TYPE_CHECKING:
    from spark_logbus.client.config import ClientConfig
    from spark_logbus.security.tls import ClientTls

#: How long a token is asked for, of which brokers give as much as they are configured to. One that
#: is handed out has two thirds of what they give left at least.
TOKEN_MS: Final = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Token:
    """A token, and when it expires by the brokers' clocks. Compared by ``scope``: who owns it, and
    what it is good for."""

    value: bytes = field(repr=False, compare=False)
    expires_us: int = field(compare=False)
    scope: str


@dataclass(frozen=True, slots=True)
class Access:
    """Means by which a task reaches brokers that encrypt, or ask who it is; sent to tasks. Equal to
    another one where connections that were made with either are as good."""

    tls: ClientTls | None = None
    token: Token | None = None


class ShownToken:
    """The token that a process shows on new connections: of those of one scope that it was handed,
    the one that lasts longest. Thread-safe."""

    def __init__(self, access: Access | None) -> None:
        self._lock = threading.Lock()
        self._token = None if access is None else access.token

    def after_fork(self) -> None:
        self._lock = threading.Lock()

    def take(self, access: Access | None) -> None:
        token = None if access is None else access.token
        with self._lock:
            # A task that is repeated comes with the token of its first attempt.
            if (
                token is not None
                and token == self._token
                and token.expires_us > self._token.expires_us
            ):
                self._token = token

    def get(self) -> bytes:
        if self._token is None:
            raise AuthenticationError("This task was handed no token.")
        return self._token.value


class TokenSource:
    """Tokens for tasks, by what they are good for, each kept until a third of its time has passed.
    Thread-safe. ``issue`` asks a broker."""

    def __init__(
        self, issue: Callable[[tuple[Grant, ...], int], IssueTokenResponse], clock: Clock
    ) -> None:
        self._issue = issue
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[tuple[Grant, ...], _Kept] = {}

    def after_fork(self) -> None:
        self._lock = threading.Lock()

    def get(self, grants: tuple[Grant, ...]) -> Token | None:
        """Returns a token; None where brokers ask nobody who they are."""
        with self._lock:
            now_us, now_s = self._clock.now_us(), self._clock.monotonic()
            self._known = {
                each: kept for each, kept in self._known.items() if kept.is_good(now_us, now_s)
            }
            kept = self._known.get(grants)
            if kept is None:
                answer = self._issue(grants, TOKEN_MS)
                token = None
                if answer.token:
                    token = Token(answer.token, answer.expires_us, answer.scope)
                kept = _Kept(token, answer.lifetime_ms / 3_000, now_us, now_s)
                self._known[grants] = kept
            return kept.token


@dataclass(frozen=True, slots=True)
class _Kept:
    token: Token | None
    lasts_s: float
    since_us: int
    since_s: float

    def is_good(self, now_us: int, now_s: float) -> bool:
        """Tells if it is young by both clocks: one of them stands while a laptop sleeps, and people
        set the other one."""
        return (
            now_s < self.since_s + self.lasts_s
            and 0 <= now_us - self.since_us < self.lasts_s * 1_000_000
        )


def tls_of_tasks(config: ClientConfig) -> ClientTls | None:
    """Returns what tasks are to believe; the certificate of the driver itself stays with it."""
    from spark_logbus.security.tls import ClientTls

    return None if config.tls is None else ClientTls(ca=config.tls.ca)

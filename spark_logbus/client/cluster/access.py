"""What a driver hands to its tasks so that brokers let them in, and how it gets that.

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

#: How long a token is asked for. One that is handed out has two thirds of that left at least.
TOKEN_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class Access:
    """Means by which a task reaches brokers that encrypt, or ask who it is; sent to tasks."""

    tls: ClientTls | None = None
    token: bytes | None = field(default=None, repr=False)


class ShownToken:
    """The token that a process shows on new connections, the newest that it was handed.
    Thread-safe."""

    def __init__(self, token: bytes | None) -> None:
        self._token = token

    def take(self, access: Access | None) -> None:
        if access is not None and access.token is not None:
            self._token = access.token

    def get(self) -> bytes:
        if self._token is None:
            raise AuthenticationError("This task was handed no token.")
        return self._token


class TokenSource:
    """Tokens for tasks, by what they are good for, each kept until a third of its time has passed.
    Thread-safe. ``issue`` asks a broker."""

    def __init__(
        self, issue: Callable[[tuple[Grant, ...], int], IssueTokenResponse], clock: Clock
    ) -> None:
        self._issue = issue
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[tuple[Grant, ...], tuple[bytes, float]] = {}

    def after_fork(self) -> None:
        self._lock = threading.Lock()

    def get(self, grants: tuple[Grant, ...]) -> bytes:
        with self._lock:
            now = self._clock.monotonic()
            token, good_until = self._known.get(grants, (b"", now))
            if now >= good_until:
                answer = self._issue(grants, TOKEN_MS)
                token, good_until = answer.token, now + answer.lifetime_ms / 3_000
                self._known = {known: kept for known, kept in self._known.items() if kept[1] > now}
                self._known[grants] = token, good_until
            return token


def tls_of_tasks(config: ClientConfig) -> ClientTls | None:
    """Returns what tasks are to believe; the certificate of the driver itself stays with it."""
    from spark_logbus.security.tls import ClientTls

    return None if config.tls is None else ClientTls(ca=config.tls.ca)

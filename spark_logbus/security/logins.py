"""Logins of clients: with a password, or with a token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from spark_logbus.errors import ProtocolError
from spark_logbus.security import tokens

STRONGEST: Final = "SCRAM-SHA-512"


class Exchange(Protocol):
    """One login. ``first`` begins it; ``answer`` takes the broker's data of each round and returns
    what to send next, None when nothing more is to be sent. Raises AuthenticationError,
    ProtocolError."""

    mechanism: str

    def first(self) -> bytes: ...

    def answer(self, data: bytes, *, goes_on: bool) -> bytes | None: ...


class Login(Protocol):
    """Begins logins, one for each connection. Thread-safe."""

    def begin(self) -> Exchange: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PasswordLogin:
    """Logs in as a user of the cluster; the password itself is never sent."""

    user: str
    password: str = field(repr=False)
    mechanism: str = STRONGEST

    def begin(self) -> Exchange:
        return _Scram(self.mechanism, self.user, self.password)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogin:
    """Logs in with the token that ``get`` returns, a new one when the last is about to expire."""

    get: Callable[[], bytes] = field(repr=False)

    def begin(self) -> Exchange:
        return _Token(self.get())


class _Scram:
    def __init__(self, mechanism: str, user: str, password: str) -> None:
        from spark_logbus.security import scram  # tasks have a token, and no use for the library

        self.mechanism = mechanism
        self._exchange = scram.ClientExchange(mechanism, user, password)
        self._has_answered = False

    def first(self) -> bytes:
        return self._exchange.first()

    def answer(self, data: bytes, *, goes_on: bool) -> bytes | None:
        if not self._has_answered:
            if not goes_on:
                raise ProtocolError("The broker ended a login before it could know the user.")
            self._has_answered = True
            return self._exchange.final(data)
        if goes_on:
            raise ProtocolError("The broker goes on with a login that is over.")
        self._exchange.check(data)
        return None


class _Token:
    mechanism = tokens.MECHANISM

    def __init__(self, token: bytes) -> None:
        self._token = token

    def first(self) -> bytes:
        return self._token

    def answer(self, data: bytes, *, goes_on: bool) -> bytes | None:
        if goes_on:
            raise ProtocolError("The broker goes on with a login that is over.")
        return None

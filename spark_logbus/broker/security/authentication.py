"""The login, in the handshake of a connection."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Mapping
from typing import Final

from spark_logbus.broker.config import SecurityConfig
from spark_logbus.broker.security.known import SecurityState
from spark_logbus.clock import Clock
from spark_logbus.errors import AuthenticationError, LogbusError, ProtocolError
from spark_logbus.metrics import Counter
from spark_logbus.network import Connection
from spark_logbus.protocol import HandshakeRequest
from spark_logbus.security import scram, tokens
from spark_logbus.security.attempts import LoginLimits, TooManyFailuresError
from spark_logbus.security.audit_log import AuditLog
from spark_logbus.security.certificates import common_name
from spark_logbus.security.identity import NOBODY, Identity
from spark_logbus.security.principals import Principal

_CERTIFICATE: Final = "certificate"
_LOCAL: Final = "local"
# Of who shows nothing at all, and of mechanisms that there are not: a client may name any.
_NOTHING: Final = "none"
_OTHER: Final = "other"


class Authentication:
    """Finds out whom a connection belongs to. Thread-safe.

    A mechanism is asked for by the client: one of SCRAM's, or a token. Without one, a process of
    this machine is known by its user, and who has shown a certificate by its name.
    """

    def __init__(
        self,
        config: SecurityConfig,
        state: SecurityState,
        *,
        audit: AuditLog,
        clock: Clock,
        now_us: Callable[[], int],
    ) -> None:
        self._state = state
        self._audit = audit
        self._now_us = now_us
        #: Limits on failed logins, at whatever port of this broker.
        self.limits: Final = LoginLimits(clock)
        self._takes_anonymous = config.anonymous
        self._supers = frozenset(config.super_principals)
        self._own_name = _user_name(os.geteuid())
        self.mechanisms: Final = (*scram.MECHANISMS, tokens.MECHANISM)
        #: Logins by mechanism and outcome.
        self.logins: Final[Mapping[tuple[str, str], Counter]] = {
            (mechanism, outcome): Counter()
            for mechanism in (*self.mechanisms, _CERTIFICATE, _LOCAL, _NOTHING, _OTHER)
            for outcome in ("succeeded", "failed", "limited")
        }

    def answer(self, connection: Connection, request: HandshakeRequest) -> tuple[bytes, bool]:
        """Returns the answer to a handshake, and if it ends the login; ``connection.identity`` is
        then whom it belongs to. Raises AuthenticationError, ProtocolError."""
        exchange, connection.login = connection.login, None  # it goes on only where it is put back
        address, mechanism = _address(connection), self._mechanism(connection, request, exchange)
        try:
            if mechanism in (_CERTIFICATE, _LOCAL, _NOTHING):
                data, identity = b"", self._without_mechanism(connection)
            elif mechanism == tokens.MECHANISM and exchange is None:
                data, identity = b"", self.by_token(request.data)
            else:
                exchange = exchange or self._begin(request.mechanism)
                data, found = self._by_password(exchange, request, address)
                if found is None:
                    connection.login = exchange
                    return data, False
                identity = found
        except TooManyFailuresError:
            self.logins[mechanism, "limited"].add()
            raise
        except LogbusError as error:
            user = "" if exchange is None else exchange.user
            if exchange is not None:
                self.limits.failed(address, user)
            self.logins[mechanism, "failed"].add()
            self._audit.login_failed(connection.peer, user, request.mechanism or mechanism, error)
            raise
        self.logins[mechanism, "succeeded"].add()
        connection.identity = identity
        return data, True

    def _mechanism(
        self,
        connection: Connection,
        request: HandshakeRequest,
        exchange: scram.ServerExchange | None,
    ) -> str:
        """Returns the name under which a login is counted."""
        if exchange is not None:
            return exchange.mechanism
        if request.mechanism:
            return request.mechanism if request.mechanism in self.mechanisms else _OTHER
        if connection.local and connection.uid is not None:
            return _LOCAL
        return _NOTHING if connection.certificate() is None else _CERTIFICATE

    def by_token(self, token: bytes) -> Identity:
        """Returns whom a token lets in, and for what. Raises AuthenticationError."""
        # Nobody guesses one, and to look at it costs next to nothing: so it is never limited, and
        # no task is kept out by whoever fails at its address.
        principal, scope, mark = tokens.verify(token, self._state.keys, now_us=self._now_us())
        identity = Identity(principal, scope, mark)
        if principal.kind == "local" and principal.name == self._own_name:
            # On another broker's machine somebody else may have that name.
            raise AuthenticationError(
                f"{principal} is known to this broker over its UNIX socket only, and by no token: "
                "log in as a user, or show a certificate."
            )
        if not self._state.is_current(identity):
            raise AuthenticationError(
                f"{principal} is no user any more, or has another password than when the token was "
                "given."
            )
        return identity

    def _begin(self, mechanism: str) -> scram.ServerExchange:
        if mechanism not in scram.MECHANISMS:
            raise AuthenticationError(
                f"{mechanism[:40]!r} is no way to log in here; use {', '.join(self.mechanisms)}."
            )
        return scram.ServerExchange(mechanism, self._state.credential, secret=self._state.secret)

    def _by_password(
        self, exchange: scram.ServerExchange, request: HandshakeRequest, address: str
    ) -> tuple[bytes, Identity | None]:
        if request.mechanism != exchange.mechanism:
            raise ProtocolError(
                f"A login by {exchange.mechanism} cannot go on by {request.mechanism[:40]!r}."
            )
        # Before the proof is looked at: of many that come at once none is tried beyond the limit,
        # and a right one is not told apart.
        if exchange.user:
            self.limits.require(address, exchange.user)
        data, is_done = exchange.answer(request.data)
        if not is_done:
            self.limits.require(address, exchange.user)
            return data, None
        identity = self._state.user(exchange.user, exchange.mechanism, exchange.credential)
        if identity is None:
            raise AuthenticationError("The user or the password is wrong.")
        self.limits.succeeded(address, exchange.user)
        return data, identity

    def _without_mechanism(self, connection: Connection) -> Identity:
        if connection.local and connection.uid is not None:
            return Identity(Principal("local", _user_name(connection.uid)))
        certificate = connection.certificate()
        if certificate is not None:
            return Identity(Principal("certificate", common_name(certificate)))
        if self._takes_anonymous:
            return NOBODY
        raise AuthenticationError(
            "This broker takes nobody whom it does not know: log in as a user "
            f"({', '.join(scram.MECHANISMS)}), or show a token or a certificate. Clients take that "
            "from a profile."
        )

    def is_super(self, principal: Principal) -> bool:
        """Tells if rules do not bind it: brokers, who runs this one, and whom it is told to be."""
        return (
            principal.kind == "broker"
            or str(principal) in self._supers
            or (principal.kind == "local" and principal.name == self._own_name)
        )


def _address(connection: Connection) -> str:
    """Returns by what failures are counted: a process makes others, but has one user."""
    return connection.address if connection.uid is None else f"user {connection.uid}"


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)

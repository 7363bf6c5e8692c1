"""The login, in the handshake of a connection."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from typing import Final

from spark_logbus.broker.config import SecurityConfig
from spark_logbus.broker.security.known import SecurityState
from spark_logbus.clock import Clock
from spark_logbus.errors import AuthenticationError, LogbusError
from spark_logbus.network import Connection
from spark_logbus.protocol import HandshakeRequest
from spark_logbus.security import scram, tokens
from spark_logbus.security.attempts import LoginLimits
from spark_logbus.security.audit_log import AuditLog
from spark_logbus.security.certificates import common_name
from spark_logbus.security.identity import NOBODY, Identity
from spark_logbus.security.principals import Principal


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
        self._config = config
        self._state = state
        self._audit = audit
        self._now_us = now_us
        self._limits = LoginLimits(clock)
        self.mechanisms: Final = (*scram.MECHANISMS, tokens.MECHANISM)

    def answer(self, connection: Connection, request: HandshakeRequest) -> tuple[bytes, bool]:
        """Returns the answer to a handshake, and if it ends the login; ``connection.identity`` is
        then whom it belongs to. Raises AuthenticationError, ProtocolError."""
        mechanism = request.mechanism
        if not mechanism and connection.login is None:
            connection.identity = self._without_mechanism(connection)
            return b"", True
        self._limits.require(connection.address)
        try:
            return self._with_mechanism(connection, mechanism, request.data)
        except LogbusError as error:
            connection.login, exchange = None, connection.login
            user = exchange.user if isinstance(exchange, scram.ServerExchange) else ""
            self._limits.failed(connection.address, user)
            self._audit.login_failed(connection.peer, user, mechanism, error)
            raise

    def _with_mechanism(
        self, connection: Connection, mechanism: str, data: bytes
    ) -> tuple[bytes, bool]:
        if mechanism == tokens.MECHANISM:
            principal, scope = tokens.verify(data, self._state.keys, now_us=self._now_us())
            self._require_user(principal)
            connection.identity = Identity(principal, scope)
            return b"", True
        exchange = connection.login
        if exchange is None:
            if mechanism not in scram.MECHANISMS:
                raise AuthenticationError(
                    f"{mechanism[:40]!r} is no way to log in here; use "
                    f"{', '.join(self.mechanisms)}."
                )
            exchange = connection.login = scram.ServerExchange(
                mechanism, self._state.credential, secret=self._state.secret
            )
        answer, is_done = exchange.answer(data)
        self._limits.require(connection.address, exchange.user)
        if is_done:
            connection.login = None
            connection.identity = Identity(Principal("user", exchange.user))
            self._require_user(connection.identity.principal)
        return answer, is_done

    def _require_user(self, principal: Principal) -> None:
        if self._state.is_gone(principal):
            raise AuthenticationError("The user or the password is wrong.")

    def _without_mechanism(self, connection: Connection) -> Identity:
        if connection.local and connection.uid is not None:
            return Identity(Principal("local", _user_name(connection.uid)))
        certificate = connection.certificate()
        if certificate is not None:
            return Identity(Principal("certificate", common_name(certificate)))
        if self._config.authenticate:
            raise AuthenticationError(
                "This broker takes nobody whom it does not know: log in as a user "
                f"({', '.join(scram.MECHANISMS)}), or show a token or a certificate. Clients take "
                "that from a profile."
            )
        return NOBODY

    def is_super(self, principal: Principal) -> bool:
        """Tells if rules do not bind it: brokers, who runs this one, and whom it is told to be."""
        return (
            principal.kind == "broker"
            or str(principal) in self._config.super_principals
            or (principal.kind == "local" and principal.name == _user_name(os.geteuid()))
        )


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)

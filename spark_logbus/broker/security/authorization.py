"""The one place where it is decided what a request may do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from spark_logbus.broker.security.known import SecurityState
from spark_logbus.errors import (
    AuthenticationError,
    LogbusError,
    LoginExpiredError,
    NotAuthorizedError,
)
from spark_logbus.metrics import Counter
from spark_logbus.network import Connection, Response
from spark_logbus.protocol import APIS, Api, Message, Need, encode_error
from spark_logbus.security.acls import Operation, Resource
from spark_logbus.security.audit_log import AuditLog
from spark_logbus.security.identity import Identity
from spark_logbus.security.principals import Principal

_ADMINISTRATIVE = frozenset(
    {
        Api.CREATE_TOPIC,
        Api.ALTER_TOPIC,
        Api.DELETE_TOPIC,
        Api.MOVE,
        Api.ELECT,
        Api.ELECT_UNCLEAN,
    }
)


class Authorization:
    """Decides by the access rules as they are at the moment. Thread-safe."""

    def __init__(
        self,
        state: SecurityState,
        *,
        is_super: Callable[[Principal], bool],
        audit: AuditLog,
        now_us: Callable[[], int],
        authorizes: bool,
        takes_anybody: bool = False,
    ) -> None:
        self._state = state
        self._is_super = is_super
        self._audit = audit
        self._now_us = now_us
        self._takes_anybody = takes_anybody
        #: Whether rules are asked at all.
        self.authorizes: Final = authorizes
        #: Requests that were refused, by API.
        self.denials: Final = {api: Counter() for api in Api}

    def check(self, connection: Connection, api: Api, request: Message) -> None:
        """Raises NotAuthorizedError, and AuthenticationError for who is nobody any more."""
        identity = connection.identity
        self.require_current(identity)
        needs = APIS[api].needs
        asked = None if needs is None else list(needs(request))
        refused = self._refused(identity, asked)
        if refused is not None:
            self._audit.denied(identity, connection.peer, api.name, refused)
            self.denials[api].add()
            if asked is None:
                raise NotAuthorizedError(
                    f"{identity.principal} is no broker of this cluster. Set [security] "
                    "authenticate = true at the broker that asks, which then signs a token."
                )
            if self._refused(Identity(identity.principal), asked) is None:
                raise NotAuthorizedError(
                    f"A token of {identity.principal} is not good to {refused}: the job that it "
                    "was given to did not say that it would."
                )
            raise NotAuthorizedError(
                f"{identity.principal} may not {refused}. Ask an administrator of the cluster for "
                "it (logbus acls add)."
            )
        if api in _ADMINISTRATIVE:
            on = ", ".join(f"{kind.value} {name}" for _, kind, name in asked or ())
            self._audit.asked(identity, connection.peer, api.name, on)
        elif api is Api.ISSUE_TOKEN:
            self._audit.token_given(identity, connection.peer)

    @property
    def version(self) -> int:
        """A number that is another one after each change of users or rules."""
        return self._state.version

    def guard(
        self, connection: Connection, api: Api, request: Message, *, seen: int
    ) -> Callable[[], Response | None]:
        """Returns a check for a request that waits, which looks again whenever rules have changed
        since the version ``seen``: the error that ends it, or None."""

        def refused() -> Response | None:
            nonlocal seen
            if seen == self._state.version:
                return None
            seen = self._state.version
            try:
                self.check(connection, api, request)
            except LogbusError as error:
                if isinstance(error, AuthenticationError):
                    connection.end_when_answered()
                return Response(encode_error(error))
            return None

        return refused

    def allows(
        self, identity: Identity, operation: Operation, resource: Resource, name: str
    ) -> bool:
        """Tells if an identity may do that now."""
        return self._refused(identity, [(operation, resource, name)]) is None

    def is_unbound(self, identity: Identity) -> bool:
        """Tells if no rule binds an identity."""
        return identity.scope is None and (
            not self.authorizes or self._is_super(identity.principal)
        )

    def require_current(self, identity: Identity) -> None:
        """Raises AuthenticationError for a user who was removed, or a token that has expired."""
        if not self._state.is_current(identity):
            raise AuthenticationError(
                f"{identity.principal} is no user of this cluster any more, or has another "
                "password since."
            )
        if identity.principal.kind == "broker":
            return  # its token is for the moment in which it connects
        if identity.scope is not None and self._now_us() >= identity.scope.expires_us:
            raise LoginExpiredError("The token that this connection began with has expired.")

    def _refused(self, identity: Identity, needs: Iterable[Need] | None) -> str | None:
        """Returns what of that is refused, in words; None if nothing is."""
        if needs is None:
            # A broker that is not secured yet proves nothing.
            is_broker = identity.principal.kind == "broker" or self._takes_anybody
            return None if is_broker else "act as a broker"
        if not self.authorizes and identity.scope is None:
            return None
        for operation, resource, name in needs:
            allowed = (
                not self.authorizes
                or self._state.rules.allows(identity.principal, operation, resource, name)
                or self._is_super(identity.principal)
            )
            if not allowed or (
                identity.scope is not None and not identity.scope.covers(operation, resource, name)
            ):
                return f"{operation.value} the {resource.value} {name}"
        return None

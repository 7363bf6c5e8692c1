"""Rights of those who ask the REST service.

A route needs an operation on the subject that its path names, or on the cluster where it names
none. What is about many subjects shows those that whoever asks may see. A schema's id is shown to
whoever may read one of the subjects that have it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from spark_logbus.coordination.security.known import UsersAndRules
from spark_logbus.errors import ConfigError
from spark_logbus.http import Handler, HttpError, Request, Response
from spark_logbus.schemas.rest.requests import subject_or_none
from spark_logbus.security.acls import EVERYBODY, Operation, Resource
from spark_logbus.security.audit_log import AuditLog
from spark_logbus.security.http_logins import HttpLogins
from spark_logbus.security.identity import Identity
from spark_logbus.security.principals import Principal
from spark_logbus.security.tls import ServerTls

_NOT_AUTHORIZED: Final = 40301
_VERSIONS: Final = "/subjects/{subject}/versions"
#: Routes that answer everybody.
_OPEN: Final = frozenset({"GET /healthz"})
#: What a route needs; None: that it is known who asks, as its handler looks further.
_NEEDS: Final[Mapping[str, Operation | None]] = {
    "GET /": None,
    "POST /": None,
    "GET /subjects": None,
    "POST /subjects/{subject}": Operation.READ,
    "DELETE /subjects/{subject}": Operation.DELETE,
    f"GET {_VERSIONS}": Operation.READ,
    f"POST {_VERSIONS}": Operation.WRITE,
    f"GET {_VERSIONS}/{{version}}": Operation.READ,
    f"DELETE {_VERSIONS}/{{version}}": Operation.DELETE,
    f"GET {_VERSIONS}/{{version}}/schema": Operation.READ,
    f"GET {_VERSIONS}/{{version}}/referencedby": Operation.READ,
    f"POST {_VERSIONS}/{{version}}/tags": Operation.WRITE,
    "GET /subjects/{subject}/metadata": Operation.READ,
    "GET /schemas": None,
    "GET /schemas/types": None,
    "GET /schemas/ids/{id}": None,
    "GET /schemas/ids/{id}/schema": None,
    "GET /schemas/ids/{id}/subjects": None,
    "GET /schemas/ids/{id}/versions": None,
    "GET /schemas/guids/{guid}": None,
    "GET /schemas/guids/{guid}/ids": None,
    f"POST /compatibility{_VERSIONS}": Operation.READ,
    f"POST /compatibility{_VERSIONS}/{{version}}": Operation.READ,
    "GET /config": Operation.DESCRIBE,
    "PUT /config": Operation.ALTER,
    "DELETE /config": Operation.ALTER,
    "GET /config/{subject}": Operation.DESCRIBE,
    "PUT /config/{subject}": Operation.ALTER,
    "DELETE /config/{subject}": Operation.ALTER,
    "GET /mode": Operation.DESCRIBE,
    "PUT /mode": Operation.ALTER,
    "DELETE /mode": Operation.ALTER,
    "GET /mode/{subject}": Operation.DESCRIBE,
    "PUT /mode/{subject}": Operation.ALTER,
    "DELETE /mode/{subject}": Operation.ALTER,
    # Of what is not kept here: nothing is shown or changed.
    "GET /contexts": None,
    "DELETE /contexts/{context}": None,
    "GET /associations/subjects/{subject}": None,
    "GET /associations/resources/{resource}": None,
    "GET /associations/resources/{namespace}/{name}": None,
    "POST /associations": None,
    "PUT /associations/resources/{resource}": None,
    "DELETE /associations/resources/{resource}": None,
}
#: Operations that the audit log notes.
_ADMINISTRATIVE: Final = frozenset({Operation.WRITE, Operation.DELETE, Operation.ALTER})
_SEEN_S: Final = 60.0
_MAX_SEEN: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrySecurity:
    """Settings of who may connect to a registry, and do what. All off by default."""

    #: What connections are encrypted with; None: they are not.
    tls: ServerTls | None = None
    #: Take nobody who has not logged in by HTTP Basic, or shown a certificate.
    authenticate: bool = False
    #: Let principals do what access rules about subjects allow, and nothing else.
    authorize: bool = False
    #: Principals whom no rule binds, such as ``user:admin``.
    super_principals: Collection[str] = ()

    def __post_init__(self) -> None:
        if self.authenticate and self.tls is None:
            raise ConfigError(
                "A registry that asks for passwords needs a certificate and a key "
                "(--tls-certificate, --tls-key), or they would cross the network as they are."
            )
        if self.authorize and not self.authenticate:
            raise ConfigError(
                "Access rules are about those who are known: authenticate them, too "
                "(--authenticate)."
            )
        for each in self.super_principals:
            Principal.parse(each)


class Access:
    """Decides by the access rules as they are at the moment. Thread-safe."""

    def __init__(
        self,
        security: RegistrySecurity,
        *,
        known: UsersAndRules | None = None,
        logins: HttpLogins | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        self._security = security
        self._known = known
        self._logins = logins
        self._audit = audit
        self._seen: dict[int, tuple[Collection[str], float]] = {}

    def guarded(self, route: str, handler: Handler) -> Handler:
        """Returns the handler of a route, for those who may ask it."""
        if route in _OPEN:
            return handler
        needed = _NEEDS[route]
        if self._logins is None:
            return handler
        logins = self._logins

        def handle(request: Request) -> Response:
            known = replace(request, caller=logins.principal(request))
            if needed is not None:
                self.require(known, needed, subject_or_none(known))
            if needed in _ADMINISTRATIVE and self._audit is not None:
                on = _resource(subject_or_none(known))
                self._audit.asked(Identity(known.caller), request.address, route, on)
            return handler(known)

        return handle

    def allows(self, request: Request, operation: Operation, subject: str | None) -> bool:
        """Tells if whoever asks may do that with a subject, or (None) with the cluster."""
        if self._known is None or self._binds_nobody(request):
            return True
        kind, name = (
            (Resource.CLUSTER, EVERYBODY) if subject is None else (Resource.SUBJECT, subject)
        )
        return self._known.rules.allows(request.caller, operation, kind, name)

    def require(self, request: Request, operation: Operation, subject: str | None) -> None:
        """Raises HttpError (403)."""
        if not self.allows(request, operation, subject):
            self._refuse(request, f"{operation.value} {_resource(subject)}")

    def require_id(
        self, request: Request, schema_id: int, subjects_of: Callable[[], Collection[str]]
    ) -> None:
        """Raises HttpError (403) for whoever may read none of the subjects that have an id. They
        are remembered for a minute, as many tasks ask for one id."""
        if self._known is None or self._binds_nobody(request):
            return
        seen, until = self._seen.get(schema_id, ((), 0.0))
        if until > time.monotonic() and self._reads_one(request, seen):
            return
        found = frozenset(subjects_of())
        if len(self._seen) >= _MAX_SEEN:
            self._seen.clear()
        self._seen[schema_id] = found, time.monotonic() + _SEEN_S
        if not self._reads_one(request, found):
            self._refuse(request, f"read a subject that has the schema {schema_id}")

    def _reads_one(self, request: Request, subjects: Collection[str]) -> bool:
        return any(self.allows(request, Operation.READ, each) for each in subjects)

    def _binds_nobody(self, request: Request) -> bool:
        return not self._security.authorize or str(request.caller) in (
            self._security.super_principals
        )

    def _refuse(self, request: Request, what: str) -> None:
        if self._audit is not None:
            self._audit.denied(Identity(request.caller), request.address, request.method, what)
        raise HttpError(
            403,
            f"{request.caller} may not {what}. Ask an administrator of the cluster for it "
            "(logbus acls add).",
            code=_NOT_AUTHORIZED,
        )


def _resource(subject: str | None) -> str:
    return "the cluster" if subject is None else f"the subject {subject[:200]}"

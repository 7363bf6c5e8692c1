"""Owners of atomic writes: a write belongs to the principal that began it.

What somebody stages is marked as theirs (see ``log.writer_runs``), and a decision carries the same
mark; a writer's node names the principal that decided as it first. So all leaders, and whoever
leads next, know whose a write is. A token acts as its owner. What was begun while nobody was asked
belongs to nobody.
"""

from __future__ import annotations

from typing import Final

from spark_logbus.broker.security.security import Security
from spark_logbus.errors import LogbusError, NotAuthorizedError
from spark_logbus.log import StagedBy, owned_mark
from spark_logbus.network import Connection
from spark_logbus.protocol import Api
from spark_logbus.security.acls import Operation, Resource


class Caller:
    """Sender of a request about an atomic write. Without ``security`` that is nobody in particular,
    who may do everything."""

    def __init__(self, connection: Connection, security: Security | None) -> None:
        self._connection = connection
        self._security = security
        self.owner: Final = "" if security is None else str(connection.identity.principal)

    def mark(self, writer: str) -> int | None:
        """Returns the mark of what it stages and decides as that writer."""
        if self._security is None:
            return None
        return owned_mark(writer, self.owner, self._security.state.secret)

    def may(self, operation: Operation, resource: Resource, name: str) -> bool:
        if self._security is None:
            return True
        identity = self._connection.identity
        return self._security.authorization.allows(identity, operation, resource, name)

    def require_writer(self, writer: str) -> None:
        """Raises NotAuthorizedError for who may not write as that writer."""
        if not self.may(Operation.WRITE, Resource.WRITER, writer):
            raise NotAuthorizedError(
                f"{self.owner} may not write the writer {writer}. Ask an administrator of the "
                "cluster for it (logbus acls add)."
            )

    def may_discard(self, topic: str) -> bool:
        return self.may(Operation.WRITE, Resource.TOPIC, topic)

    def discards(self, writer: str) -> StagedBy:
        """Returns what it may discard: its own as that writer, and what is the writer's and belongs
        to nobody, where it may write as that; all, for a super principal."""
        security = self._security
        if security is None or security.authorization.is_unbound(self._connection.identity):
            return StagedBy()
        may_write = bool(writer) and self.may(Operation.WRITE, Resource.WRITER, writer)
        return StagedBy(writer if may_write else "", owned=self.mark(writer))

    def note(self, api: Api, error: LogbusError | None) -> None:
        """Has the audit log tell of an error, if it says that the caller may not do that."""
        if self._security is not None and isinstance(error, NotAuthorizedError):
            self._security.authorization.denials[api].add()
            self._security.audit.denied(
                self._connection.identity, self._connection.peer, api.name, error.message
            )


class WriteOwners:
    """Tells callers apart where access is decided by rules. Thread-safe."""

    def __init__(self, security: Security | None = None) -> None:
        #: Whether owners are known, or may be to another broker, while rules are introduced or
        #: taken back broker by broker.
        self.may_be_known: Final = security is not None
        decides = security is not None and security.authorization.authorizes
        self._security = security if decides else None

    def caller(self, connection: Connection) -> Caller:
        return Caller(connection, self._security)

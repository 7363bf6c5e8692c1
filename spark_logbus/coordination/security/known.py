"""Users and access rules as last heard, for a server that asks by them."""

from __future__ import annotations

from collections.abc import Mapping

from spark_logbus.coordination.security.access_rules import RuleRegistry
from spark_logbus.coordination.security.payloads import UserPayload
from spark_logbus.coordination.security.users import UserRegistry
from spark_logbus.errors import CoordinationError
from spark_logbus.security.acls import AccessRules
from spark_logbus.security.scram import Credential
from spark_logbus.zookeeper.session import Session


class UsersAndRules:
    """Thread-safe: each is replaced as a whole, on ZooKeeper's thread."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._users: Mapping[str, UserPayload] | None = None
        self._rules: AccessRules | None = None

    def start(self) -> None:
        """Reads all, and follows it from then on. Raises CoordinationError."""
        UserRegistry(self._session).watch(self._take_users)
        RuleRegistry(self._session).watch(self._take_rules)

    @property
    def rules(self) -> AccessRules:
        """Raises CoordinationError before they are known."""
        if self._rules is None:
            raise _unknown()
        return self._rules

    def credential(self, user: str, mechanism: str) -> Credential | None:
        """Raises CoordinationError before users are known."""
        if self._users is None:
            raise _unknown()
        found = self._users.get(user)
        return None if found is None else found.credentials.get(mechanism)

    def _take_users(self, users: Mapping[str, UserPayload]) -> None:
        self._users = users

    def _take_rules(self, rules: AccessRules) -> None:
        self._rules = rules


def _unknown() -> CoordinationError:
    return CoordinationError("Users and access rules were not read from ZooKeeper yet; ask again.")

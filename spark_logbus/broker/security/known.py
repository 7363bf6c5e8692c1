"""What this broker knows of users, access rules and keys, from ZooKeeper, as it changes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from spark_logbus.coordination.security.access_rules import RuleRegistry
from spark_logbus.coordination.security.payloads import TokenKeysPayload, UserPayload
from spark_logbus.coordination.security.token_keys import TokenKeys
from spark_logbus.coordination.security.users import UserRegistry
from spark_logbus.errors import CoordinationError
from spark_logbus.security.acls import AccessRules
from spark_logbus.security.principals import Principal
from spark_logbus.security.scram import Credential
from spark_logbus.security.tokens import Claims, sign
from spark_logbus.zookeeper.session import Session

logger = logging.getLogger(__name__)


class SecurityState:
    """Users, rules and keys as last heard. Thread-safe: each is replaced as a whole.

    ``changed`` is called, on ZooKeeper's thread, when something may be forbidden that was not.
    """

    def __init__(self, session: Session, *, stamp_us: Callable[[], int]) -> None:
        self.users: Mapping[str, UserPayload] = {}
        self.rules = AccessRules()
        self.version = 0
        self.changed: Callable[[], None] = lambda: None
        self._users = UserRegistry(session)
        self._rules = RuleRegistry(session)
        self._tokens = TokenKeys(session)
        self._stamp_us = stamp_us
        self._keys = TokenKeysPayload(keys={}, secret=b"")

    def start(self) -> None:
        """Reads all, and follows it from then on. Raises CoordinationError."""
        self._take_keys(self._tokens.renew(now_us=self._stamp_us()))
        self._tokens.watch(self._take_keys)
        self._users.watch(self._take_users)
        self._rules.watch(self._take_rules)

    def renew_keys(self) -> None:
        """Makes a new key where the newest is a day old. To be called now and then."""
        try:
            self._take_keys(self._tokens.renew(now_us=self._stamp_us()))
        except CoordinationError as error:
            logger.warning("The keys of tokens could not be looked at: %s", error.message)

    def credential(self, user: str, mechanism: str) -> Credential | None:
        found = self.users.get(user)
        return None if found is None else found.credentials.get(mechanism)

    @property
    def secret(self) -> bytes:
        return self._keys.secret

    @property
    def keys(self) -> dict[int, bytes]:
        return {number: each.key for number, each in self._keys.keys.items()}

    def token(self, claims_of: Callable[[int], Claims]) -> bytes:
        """Signs what ``claims_of`` makes of the newest key's id."""
        newest = max(self._keys.keys)
        return sign(claims_of(newest), self._keys.keys[newest].key)

    def is_gone(self, principal: Principal) -> bool:
        """Tells if that was a user who is no more."""
        return principal.kind == "user" and principal.name not in self.users

    def _take_keys(self, keys: TokenKeysPayload) -> None:
        self._keys = keys

    def _take_users(self, users: Mapping[str, UserPayload]) -> None:
        self.users = users
        self._note_change()

    def _take_rules(self, rules: AccessRules) -> None:
        self.rules = rules
        self._note_change()

    def _note_change(self) -> None:
        self.version += 1
        self.changed()

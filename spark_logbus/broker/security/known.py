"""Users, access rules and keys as this broker knows them from ZooKeeper, as they change."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from spark_logbus.coordination.security.access_rules import RuleRegistry
from spark_logbus.coordination.security.payloads import TokenKeysPayload, UserPayload
from spark_logbus.coordination.security.token_keys import TokenKeys
from spark_logbus.coordination.security.users import UserRegistry
from spark_logbus.errors import CoordinationError
from spark_logbus.security.acls import AccessRules
from spark_logbus.security.audit_log import AuditLog
from spark_logbus.security.identity import Identity
from spark_logbus.security.principals import Principal
from spark_logbus.security.scram import Credential, mark
from spark_logbus.security.tokens import Claims, sign
from spark_logbus.zookeeper.session import Session

logger = logging.getLogger(__name__)

# A key that is younger signs nothing yet, as some brokers may not have heard of it.
_SETTLED_US: Final = 600 * 1_000_000


class SecurityState:
    """Users, rules and keys as last heard. Thread-safe: each is replaced as a whole.

    Who follows it is called, on ZooKeeper's thread, when something may be forbidden that was not.
    """

    def __init__(self, session: Session, *, audit: AuditLog, stamp_us: Callable[[], int]) -> None:
        self.users: Mapping[str, UserPayload] = {}
        self.rules = AccessRules()
        self.version = 0
        self._followers: list[Callable[[], None]] = []
        self._marks: Mapping[str, bytes] = {}
        self._audit = audit
        self._is_started = False
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
        self._is_started = True

    def follow(self, changed: Callable[[], None]) -> None:
        """Has ``changed`` called at each change from now on; it must not block."""
        self._followers.append(changed)

    def renew_keys(self) -> None:
        """Makes a new key where the newest is a day old. To be called now and then."""
        try:
            self._take_keys(self._tokens.renew(now_us=self._stamp_us()))
        except CoordinationError as error:
            logger.warning("The keys of tokens could not be looked at: %s", error.message)

    def user(self, name: str, mechanism: str, credential: Credential | None) -> Identity | None:
        """Returns who has proved to know the password of that credential; None if the user has
        another one by now, or is gone."""
        found = self.users.get(name)
        if found is None or credential is None or found.credentials.get(mechanism) != credential:
            return None
        return Identity(Principal("user", name), mark=mark(found.credentials))

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
        """Signs what ``claims_of`` makes of the id of the newest key that all brokers know."""
        keys, settled_us = self._keys.keys, self._stamp_us() - _SETTLED_US
        newest = max((each for each in keys if keys[each].made_us < settled_us), default=min(keys))
        return sign(claims_of(newest), keys[newest].key)

    def is_current(self, identity: Identity) -> bool:
        """Tells if what was proved still holds: the user is there, with the same password."""
        principal = identity.principal
        return principal.kind != "user" or self._marks.get(principal.name) == identity.mark

    def _take_keys(self, keys: TokenKeysPayload) -> None:
        self._keys = keys

    def _take_users(self, users: Mapping[str, UserPayload]) -> None:
        before, self.users = self.users, users
        self._marks = {name: mark(each.credentials) for name, each in users.items()}
        self._note_change()
        if self._is_started:
            both = before.keys() & users.keys()
            self._audit.changed(
                "users",
                added=users.keys() - before.keys(),
                removed=before.keys() - users.keys(),
                altered={each for each in both if before[each] != users[each]},
            )

    def _take_rules(self, rules: AccessRules) -> None:
        before, self.rules = self.rules, rules
        self._note_change()
        if self._is_started:
            now, then = {*map(str, rules.rules)}, {*map(str, before.rules)}
            self._audit.changed("rules", added=now - then, removed=then - now)

    def _note_change(self) -> None:
        self.version += 1
        for changed in self._followers:
            changed()

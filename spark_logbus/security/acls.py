"""Access rules, and the decision by all of them.

A rule allows or denies principals an operation on resources of a kind, by name or prefix. What is
denied is denied, whatever else allows it; what no rule allows is denied.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from spark_logbus.errors import ConfigError
from spark_logbus.security.principals import Principal

EVERYBODY: Final = "*"
_MAX_NAME_CHARS: Final = 500
_NAME: Final = re.compile(r"[A-Za-z0-9._-]*")
_MAX_DECIDED: Final = 10_000


class Operation(enum.Enum):
    """An access right that a request needs; the words are Kafka's."""

    __hash__ = object.__hash__  # in C, as each request is looked up by it

    READ = "read"
    WRITE = "write"
    CREATE = "create"
    ALTER = "alter"
    DELETE = "delete"
    DESCRIBE = "describe"


class Resource(enum.Enum):
    """The kind of thing on which a request needs its right."""

    __hash__ = object.__hash__

    CLUSTER = "cluster"
    TOPIC = "topic"
    GROUP = "group"
    SUBJECT = "subject"
    WRITER = "writer"
    LOCK = "lock"
    MIRROR = "mirror"


#: Those whose names are free text, as an address is.
_FREE: Final = frozenset({"writer", "lock"})
#: Whoever may do one of these may know that the thing is there.
_IMPLY_DESCRIBE: Final = frozenset({"read", "write", "alter", "delete"})


@dataclass(frozen=True, slots=True, order=True)
class Rule:
    """One rule. ``principal`` is ``kind:name`` or ``*``; a ``name`` that ends with ``*`` is a
    prefix; ``operation`` is one of ``Operation``'s words, or ``all``."""

    resource: str
    name: str
    principal: str
    operation: str
    allow: bool = True

    @classmethod
    def checked(
        cls, *, resource: str, name: str, principal: str, operation: str, allow: bool
    ) -> Rule:
        """Raises ConfigError for what can never hold."""
        kinds = [each.value for each in Resource]
        words = [*(each.value for each in Operation), "all"]
        if resource not in kinds:
            raise ConfigError(
                f"{resource!r} is no kind of resource; use one of {', '.join(kinds)}."
            )
        if operation not in words:
            raise ConfigError(f"{operation!r} is no operation; use one of {', '.join(words)}.")
        if not 0 < len(name) <= _MAX_NAME_CHARS or "*" in name[:-1]:
            raise ConfigError(
                f"{name!r} names no {resource}; use its name, a prefix with * at its end, or * "
                "for all."
            )
        # A rule that denies would else look as if it did.
        is_one = _NAME.fullmatch(name.removesuffix("*"))
        if not is_one and (resource not in _FREE or not name.isprintable()):
            raise ConfigError(
                f"{name!r} names no {resource}; names have letters, digits, '.', '_' and '-'."
            )
        if resource == Resource.CLUSTER.value and name != EVERYBODY:
            raise ConfigError(f"There is one cluster, so {name!r} names none; use *.")
        if principal != EVERYBODY:
            Principal.parse(principal)
        return cls(resource, name, principal, operation, allow)

    def __str__(self) -> str:
        verb = "may" if self.allow else "may not"
        what = "do anything with" if self.operation == "all" else self.operation
        return f"{self.principal} {verb} {what} {self.resource} {self.name}"


class AccessRules:
    """All rules, made ready to decide by. Immutable, but for the last decisions, which it keeps."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self.rules: Final = tuple(sorted(set(rules)))
        self._literal: dict[tuple[str, str], list[Rule]] = {}
        self._prefixed: dict[str, list[tuple[str, Rule]]] = {}
        self._decided: dict[tuple[Principal, Operation, Resource, str], bool] = {}
        for rule in self.rules:
            if rule.name.endswith("*"):
                self._prefixed.setdefault(rule.resource, []).append((rule.name[:-1], rule))
            else:
                self._literal.setdefault((rule.resource, rule.name), []).append(rule)

    def allows(
        self, principal: Principal, operation: Operation, resource: Resource, name: str
    ) -> bool:
        """Tells if the rules let the principal do that."""
        asked = principal, operation, resource, name
        decided = self._decided.get(asked)
        if decided is None:
            if len(self._decided) >= _MAX_DECIDED:
                self._decided.clear()
            decided = self._decide(*asked)
            if len(name) <= _MAX_NAME_CHARS:
                self._decided[asked] = decided
        return decided

    def _decide(
        self, principal: Principal, operation: Operation, resource: Resource, name: str
    ) -> bool:
        who, kind, allowed = str(principal), resource.value, False
        for rule in self._literal.get((kind, name), ()):
            if _is_about(rule, who, operation):
                if not rule.allow:
                    return False
                allowed = True
        for prefix, rule in self._prefixed.get(kind, ()):
            if name.startswith(prefix) and _is_about(rule, who, operation):
                if not rule.allow:
                    return False
                allowed = True
        return allowed

    def reasons(
        self, principal: Principal, operation: Operation, resource: Resource, name: str
    ) -> list[Rule]:
        """Returns the rules that are about that, those that deny first."""
        who = str(principal)
        found = [
            *self._literal.get((resource.value, name), ()),
            *(
                rule
                for prefix, rule in self._prefixed.get(resource.value, ())
                if name.startswith(prefix)
            ),
        ]
        return sorted(
            (each for each in found if _is_about(each, who, operation)), key=lambda one: one.allow
        )


def _is_about(rule: Rule, who: str, operation: Operation) -> bool:
    if rule.principal not in (who, EVERYBODY):
        return False
    if rule.operation in (operation.value, "all"):
        return True
    return operation is Operation.DESCRIBE and rule.allow and rule.operation in _IMPLY_DESCRIBE

"""Rights that an operation on a node of ZooKeeper's takes: the rule of each path. Pure.

Nodes that are not known here are for nobody but those whom no rule binds: a new kind of node is
closed until it gets its line.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from spark_logbus.coordination import paths
from spark_logbus.errors import InvalidNameError
from spark_logbus.model import check_name
from spark_logbus.protocol import Need
from spark_logbus.security.acls import Operation, Resource

_MAX_PATH_CHARS: Final = 2_000


class Act(enum.Enum):
    """An act on one node."""

    READ = "read"  # its content, or whether it is there; also as a condition of a transaction
    LIST = "list"
    CREATE = "create"
    SET = "set"
    DELETE = "delete"


class Open(enum.Enum):
    """A rule that names no right."""

    KNOWN = "everybody who has logged in"
    UNBOUND = "those whom no rule binds"
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class Listing:
    """The names of all resources of a kind; who may not describe the cluster sees those that he may
    describe. ``name_of`` tells a resource by its node's name, None of a node that is none."""

    resource: Resource
    name_of: Callable[[str], str | None]


Rule = Need | Open | Listing

_DESCRIBE_CLUSTER: Final[Need] = (Operation.DESCRIBE, Resource.CLUSTER, "*")
_ALTER_CLUSTER: Final[Need] = (Operation.ALTER, Resource.CLUSTER, "*")
# Schemas, ids and digests are shared by all subjects: who writes one wrongly has others read it.
_WRITE_ALL_SUBJECTS: Final[Need] = (Operation.WRITE, Resource.SUBJECT, "*")
_DELETE_ALL_SUBJECTS: Final[Need] = (Operation.DELETE, Resource.SUBJECT, "*")

#: Nodes above all others, which a gateway makes before clients come: they make none of them.
ROOTS: Final = (
    paths.BROKERS, paths.DRAINED, paths.TOPICS, paths.CONSUMERS, paths.SCHEMA_SETTINGS,
    paths.SCHEMA_IDS, paths.SCHEMA_CONTENTS, paths.SCHEMA_SUBJECTS, paths.LOCKS, paths.MIRRORS,
    paths.USERS, paths.ACLS,
)  # fmt: skip
_PARENTS: Final = frozenset({"", "/brokers", "/schemas", *ROOTS})


def is_canonical(path: str) -> bool:
    """Tells if a path is written in the only way in which a node is named."""
    if path == "/":
        return True
    return (
        0 < len(path) <= _MAX_PATH_CHARS
        and path.isprintable()
        and path[0] == "/"
        and all(part not in ("", ".", "..") for part in path[1:].split("/"))
    )


def rule_of(act: Act, path: str, *, numbered: bool = False) -> Rule:
    """Returns what an act takes on the node at ``path``, which is relative to the chroot: empty for
    the chroot itself. ``numbered``: the name of a node that is made gets a number at its end, so
    ``path`` does not tell which resource it would be."""
    if path == paths.TOKEN_KEYS or path.startswith(f"{paths.TOKEN_KEYS}/"):
        return Open.NOBODY
    if path in _PARENTS and act in (Act.READ, Act.LIST):
        return _of_parent(act, path)
    for root, rule in _RULES.items():
        if path == root or path.startswith(f"{root}/"):
            below = path[len(root) + 1 :].split("/") if path != root else []
            if numbered and len(below) < 2:
                return Open.UNBOUND
            return rule(act, below)
    return Open.UNBOUND


def _of_parent(act: Act, path: str) -> Rule:
    if path in (paths.USERS, paths.ACLS, paths.DRAINED):
        return _DESCRIBE_CLUSTER
    if act is Act.LIST and path in _LISTINGS:
        return _LISTINGS[path]
    return Open.KNOWN


def _ids(act: Act, below: list[str]) -> Rule:
    """Registrations of brokers: who registers is one, and what a dead one left can be removed."""
    if act in (Act.READ, Act.LIST):
        return Open.KNOWN
    return _ALTER_CLUSTER if act is Act.DELETE and len(below) == 1 else Open.UNBOUND


def _drained(act: Act, below: list[str]) -> Rule:
    if act in (Act.READ, Act.LIST):
        return _DESCRIBE_CLUSTER
    return _ALTER_CLUSTER if len(below) == 1 else Open.UNBOUND


def _topics(act: Act, below: list[str]) -> Rule:
    """Topics are made and altered by brokers, on request; of lost logs administrators write."""
    name = _named("topic")(below[0]) if below else None
    if name is None:
        return Open.UNBOUND
    if act in (Act.READ, Act.LIST):
        return Operation.DESCRIBE, Resource.TOPIC, name
    return _ALTER_CLUSTER


def _owned(
    resource: Resource, name_of: Callable[[str], str | None], *, depth: int
) -> Callable[[Act, list[str]], Rule]:
    """Returns the rule of a resource that is one node with up to ``depth - 1`` levels below it."""

    def rule(act: Act, below: list[str]) -> Rule:
        name = name_of(below[0]) if below else None
        if name is None or len(below) > depth:
            return Open.UNBOUND
        if act in (Act.READ, Act.LIST):
            return Operation.DESCRIBE, resource, name
        is_whole = act is Act.DELETE and len(below) == 1 and resource is not Resource.LOCK
        return Operation.DELETE if is_whole else Operation.WRITE, resource, name

    return rule


def _shared(act: Act, below: list[str]) -> Rule:
    """Ids and contents of schemas: everybody may read what an id stands for, as everybody has to
    who meets one in a record."""
    if len(below) > 1 or not (below or act is Act.SET):
        return Open.UNBOUND
    if act in (Act.READ, Act.LIST):
        return Open.KNOWN
    return _DELETE_ALL_SUBJECTS if act is Act.DELETE else _WRITE_ALL_SUBJECTS


def _settings(act: Act, below: list[str]) -> Rule:
    return _ALTER_CLUSTER if act is Act.SET and not below else Open.UNBOUND


def _access(act: Act, below: list[str]) -> Rule:
    """Users and rules: who writes these may let himself do anything. Contents of users are what
    their passwords are checked by."""
    return _ALTER_CLUSTER if len(below) == 1 else Open.UNBOUND


def _access_rules(act: Act, below: list[str]) -> Rule:
    if act in (Act.READ, Act.LIST):
        return _DESCRIBE_CLUSTER
    return _access(act, below)


def _named(kind: str) -> Callable[[str], str | None]:
    def name_of(node_name: str) -> str | None:
        try:
            return check_name(kind, node_name)
        except InvalidNameError:
            return None

    return name_of


_LISTINGS: Final = {
    paths.TOPICS: Listing(Resource.TOPIC, _named("topic")),
    paths.CONSUMERS: Listing(Resource.GROUP, _named("group")),
    paths.SCHEMA_SUBJECTS: Listing(Resource.SUBJECT, _named("subject")),
    paths.LOCKS: Listing(Resource.LOCK, paths.lock_of),
    paths.MIRRORS: Listing(Resource.MIRROR, _named("mirror")),
}

_RULES: Final[dict[str, Callable[[Act, list[str]], Rule]]] = {
    paths.BROKERS: _ids,
    paths.DRAINED: _drained,
    paths.TOPICS: _topics,
    paths.CONSUMERS: _owned(Resource.GROUP, _named("group"), depth=4),
    paths.LOCKS: _owned(Resource.LOCK, paths.lock_of, depth=1),
    paths.MIRRORS: _owned(Resource.MIRROR, _named("mirror"), depth=2),
    paths.SCHEMA_SUBJECTS: _owned(Resource.SUBJECT, _named("subject"), depth=1),
    paths.SCHEMA_IDS: _shared,
    paths.SCHEMA_CONTENTS: _shared,
    paths.SCHEMA_SETTINGS: _settings,
    paths.USERS: _access,
    paths.ACLS: _access_rules,
}

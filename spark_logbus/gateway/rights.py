"""The decision about a request, by the rule of each node and the access rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from spark_logbus.broker.security.authorization import Authorization
from spark_logbus.gateway.needs import Act, Listing, Open, Rule, is_canonical, rule_of
from spark_logbus.gateway.requests import Request, Touch
from spark_logbus.protocol import Need
from spark_logbus.security.acls import Operation, Resource
from spark_logbus.security.identity import Identity

_DESCRIBE_CLUSTER: Final[Need] = (Operation.DESCRIBE, Resource.CLUSTER, "*")
_ADMINISTRATIVE: Final = frozenset({Operation.ALTER})


class Rights:
    """The rights at one gateway. Used by its thread."""

    def __init__(self, authorization: Authorization, *, chroot: str) -> None:
        self._authorization = authorization
        self._chroot = chroot

    def refused(self, identity: Identity, request: Request) -> str | None:
        """Returns what of a request is refused, in words; None if nothing is."""
        if request.touches is None:
            return "send requests of this kind"
        if request.synced is not None:
            inside = self._relative(request.synced) is not None
            return None if inside else f"synchronise {request.synced[:200]!r}"
        allowed: set[Rule] = set()  # operations of one transaction mostly need the same
        for touch in request.touches:
            rule = self._rule(touch)
            if rule in allowed:
                continue
            if rule is None or not self._allows(identity, rule):
                return _words(touch, rule)
            allowed.add(rule)
        return None

    def may_read(self, identity: Identity, path: str) -> bool:
        """Tells if an identity may know of a change at ``path``."""
        rule = self._rule(Touch(Act.READ, path))
        return rule is not None and self._allows(identity, rule)

    def hidden(self, identity: Identity, request: Request) -> Callable[[str], bool] | None:
        """Returns the test of the names that an allowed listing is to show; None for all."""
        for touch in request.touches or ():
            rule = self._rule(touch)
            if isinstance(rule, Listing) and not self._may(identity, _DESCRIBE_CLUSTER):
                return self._visible(identity, rule)
        return None

    def altered(self, request: Request) -> list[str]:
        """Returns the nodes by which a request administers the cluster."""
        found = []
        for touch in request.touches or ():
            rule = self._rule(touch)
            if touch.act in (Act.CREATE, Act.SET, Act.DELETE) and (
                isinstance(rule, Open) or (isinstance(rule, tuple) and rule[0] in _ADMINISTRATIVE)
            ):
                found.append(f"{touch.act.value} {touch.path}")
        return found

    def _visible(self, identity: Identity, listing: Listing) -> Callable[[str], bool]:
        def visible(node_name: str) -> bool:
            name = listing.name_of(node_name)
            return name is not None and self._may(
                identity, (Operation.DESCRIBE, listing.resource, name)
            )

        return visible

    def _relative(self, path: str) -> str | None:
        """Returns the path below the chroot; None for one that is elsewhere, or not canonical."""
        if not is_canonical(path):
            return None
        if path == self._chroot or (path == "/" and not self._chroot):
            return ""
        return path[len(self._chroot) :] if path.startswith(f"{self._chroot}/") else None

    def _rule(self, touch: Touch) -> Rule | None:
        relative = self._relative(touch.path)
        return None if relative is None else rule_of(touch.act, relative, numbered=touch.numbered)

    def _allows(self, identity: Identity, rule: Rule) -> bool:
        if rule is Open.NOBODY:
            return False
        if rule is Open.UNBOUND:
            return self._authorization.is_unbound(identity)
        return not isinstance(rule, tuple) or self._may(identity, rule)

    def _may(self, identity: Identity, need: Need) -> bool:
        return self._authorization.allows(identity, *need)


def _words(touch: Touch, rule: Rule | None) -> str:
    if isinstance(rule, tuple):
        operation, resource, name = rule
        return f"{operation.value} the {resource.value} {name} ({touch.act.value} {touch.path})"
    return f"{touch.act.value} {touch.path[:200]!r}"

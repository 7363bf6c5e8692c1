"""Access rules: one node for each kind of resource."""

from __future__ import annotations

from collections.abc import Callable, Collection

from spark_logbus.coordination import paths
from spark_logbus.coordination.payloads import decode, encode
from spark_logbus.coordination.security.payloads import RulePayload, RulesPayload
from spark_logbus.errors import InvalidRequestError
from spark_logbus.retry import Deadline
from spark_logbus.security.acls import AccessRules, Resource, Rule
from spark_logbus.zookeeper.nodes import Node, Nodes
from spark_logbus.zookeeper.session import Session
from spark_logbus.zookeeper.transactions import Create, Operation, SetData
from spark_logbus.zookeeper.unreadable import foreign_node
from spark_logbus.zookeeper.watches import ChildrenView

_MAX_BYTES = 900_000


class RuleRegistry:
    """Reads and changes access rules. Thread-safe."""

    def __init__(self, session: Session) -> None:
        self._nodes = Nodes(session)

    def all(self) -> AccessRules:
        return AccessRules(rule for kind in Resource for rule in self._read(kind.value)[0])

    def add(self, rules: Collection[Rule]) -> list[Rule]:
        """Adds the rules, all or none; returns those that were new."""
        return self._change(rules, lambda there, given: there | given)

    def remove(self, rules: Collection[Rule]) -> list[Rule]:
        """Removes the rules, all or none; returns those that were there."""
        return self._change(rules, lambda there, given: there - given)

    def _change(
        self, rules: Collection[Rule], change: Callable[[set[Rule], set[Rule]], set[Rule]]
    ) -> list[Rule]:
        changed: set[Rule] = set()

        def attempt(deadline: Deadline) -> None:
            changed.clear()
            operations: list[Operation] = []
            for kind in sorted({rule.resource for rule in rules}):
                there, node = self._read(kind, deadline)
                after = change({*there}, {each for each in rules if each.resource == kind})
                if after == {*there}:
                    continue
                changed.update(after ^ {*there})
                operations.append(_write(kind, after, node))
            if operations:
                self._nodes.transact("change access rules", operations, deadline=deadline)

        self._nodes.ensure(paths.ACLS, private=True)
        self._nodes.repeat("change access rules", attempt)
        return sorted(changed)

    def _read(self, kind: str, deadline: Deadline | None = None) -> tuple[list[Rule], Node | None]:
        path = paths.acls(kind)
        node = self._nodes.get(path, deadline=deadline)
        return ([] if node is None else _rules(kind, node)), node

    def watch(self, deliver: Callable[[AccessRules], None]) -> None:
        """Calls ``deliver`` with all rules: now, on this thread, and at each change."""
        self._nodes.ensure(paths.ACLS, private=True)
        ChildrenView(
            self._nodes,
            paths.ACLS,
            decode=_decode,
            deliver=lambda found: deliver(
                AccessRules(rule for rules in found.values() for rule in rules)
            ),
        ).start()


def _write(kind: str, rules: Collection[Rule], node: Node | None) -> Operation:
    path = paths.acls(kind)
    data = encode(
        RulesPayload(
            rules=[
                RulePayload(
                    name=each.name, principal=each.principal, operation=each.operation,
                    allow=each.allow,
                )
                for each in sorted(rules)
            ]
        )
    )  # fmt: skip
    if len(data) > _MAX_BYTES:
        raise InvalidRequestError(
            f"The rules for {kind}s would take {len(data)} bytes, the limit is {_MAX_BYTES}; use "
            "prefixes in place of names."
        )
    return (
        Create(path, data, private=True)
        if node is None
        else SetData(path, data, version=node.version)
    )


def _rules(kind: str, node: Node) -> list[Rule]:
    payload = decode(RulesPayload, node.data, path=paths.acls(kind))
    return [
        Rule(kind, each.name, each.principal, each.operation, each.allow) for each in payload.rules
    ]


def _decode(name: str, node: Node) -> list[Rule]:
    if name not in {each.value for each in Resource}:
        raise foreign_node(f"{paths.ACLS}/{name}", "kind of resource")
    return _rules(name, node)

"""Subjects of the schema registry, as far as their nodes tell: versions and ids, not schemas.

For those who are not to know schemas, as brokers are not. The registry itself is
``spark_logbus.schemas.registry``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spark_logbus.coordination import paths
from spark_logbus.coordination.payloads import SubjectPayload, decode
from spark_logbus.zookeeper.nodes import Node, Nodes
from spark_logbus.zookeeper.session import Session
from spark_logbus.zookeeper.unreadable import CorruptNodeError


@dataclass(frozen=True, slots=True)
class SubjectIds:
    """The schema ids of a subject: of all its versions, and of those that are not soft-deleted."""

    all_ids: frozenset[int] = frozenset()
    live_ids: frozenset[int] = frozenset()


class SubjectReader:
    """Reads subjects. Thread-safe, keeps nothing."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._nodes = Nodes(session)

    def read(self, names: Iterable[str]) -> dict[str, SubjectIds | CorruptNodeError]:
        """The ids of subjects, none of one that there is not, or why a node cannot be read. Sees
        whatever was registered before the call. Raises CoordinationError."""
        deadline = self._session.deadline()
        by_path = {paths.subject(name): name for name in names}
        self._nodes.sync(deadline=deadline)
        found = self._nodes.get_many(by_path, deadline=deadline)
        return {name: _ids(path, found[path]) for path, name in by_path.items()}


def _ids(path: str, node: Node | None) -> SubjectIds | CorruptNodeError:
    if node is None:
        return SubjectIds()
    try:
        versions = decode(SubjectPayload, node.data, path=path).versions
    except CorruptNodeError as failure:
        return failure.again()
    return SubjectIds(
        frozenset(each.id for each in versions),
        frozenset(each.id for each in versions if not each.deleted),
    )

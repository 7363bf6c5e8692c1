"""Access lists of all nodes of a cluster: told, and set while brokers and clients run.

Parents come before their children. Only who may change a parent makes or removes its children,
and they are listed once their parent is guarded: so none can come behind the walk's back, and a
walk that died half way has left nothing that the next one does not find. It is done again until it
finds nothing: a session may have made a node before it learned that the chroot was guarded. They
are told at once, and get a moment for it; one that was cut off all that time is found by the next.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from kazoo.security import ACL, OPEN_ACL_UNSAFE

from spark_logbus.errors import ConfigError
from spark_logbus.zookeeper.access import acl_of
from spark_logbus.zookeeper.guard import is_open
from spark_logbus.zookeeper.nodes import Nodes
from spark_logbus.zookeeper.session import Session
from spark_logbus.zookeeper.unreadable import CorruptNodeError

logger = logging.getLogger(__name__)

_BATCH: Final = 500
_WALKS: Final = 10
_NAMED: Final = 10
_MOMENT_S: Final = 2.0
_ROOT: Final = ""
_ZOOKEEPERS_OWN: Final = "/zookeeper"


@dataclass(slots=True)
class Survey:
    """The nodes that a walk has seen."""

    nodes: int = 0
    #: Those with another access list than they are to have; ``changed`` were given theirs.
    others: int = 0
    changed: int = 0
    #: Some of the nodes that belong to another user of ZooKeeper, and how many there are.
    foreign: list[str] = field(default_factory=list)
    foreign_count: int = 0


class Guarding:
    """Tells and sets the access lists of a session's cluster, with the login of its session."""

    def __init__(self, session: Session, *, opened: bool = False) -> None:
        owner = session.access.owner
        if owner is None:
            raise ConfigError(
                f"{session.connect} names no user of ZooKeeper, to whom the nodes could belong: "
                "give a profile with zookeeper_user and zookeeper_password_file."
            )
        self._nodes = Nodes(session)
        self._session = session
        self._wanted: list[ACL] = OPEN_ACL_UNSAFE if opened else acl_of(owner)

    def survey(self, progress: Callable[[int], None] = lambda _: None) -> Survey:
        """Looks at all nodes. Changes nothing."""
        return self._walk(progress, change=False)

    def apply(self, progress: Callable[[int], None] = lambda _: None) -> Survey:
        """Gives all nodes their access list. ``progress`` is told how many nodes were looked at.
        May be called again after it died at any step."""
        told = self._tell_sessions()
        done = self._walk(progress, change=True)
        done.changed += told
        if done.changed:
            self._session.pause(_MOMENT_S)
        for _ in range(_WALKS):
            again = self._walk(progress, change=True)
            done.nodes, done.others = again.nodes, again.others - again.changed
            done.foreign, done.foreign_count = again.foreign, again.foreign_count
            done.changed += again.changed
            if not again.changed:
                break
        return done

    def _tell_sessions(self) -> int:
        """Sets the chroot's list, then writes the chroot as it is: see ``guard``."""
        deadline = self._session.deadline()
        before = self._nodes.access_lists([_ROOT], deadline=deadline)[_ROOT]
        changed = 0
        if isinstance(before, CorruptNodeError):
            raise before
        if before != self._wanted:
            self._nodes.set_access_lists([_ROOT], self._wanted, deadline=deadline)
            changed = 1
        self._nodes.touch(_ROOT, deadline=deadline)
        return changed

    def _walk(self, progress: Callable[[int], None], *, change: bool) -> Survey:
        survey = Survey()
        waiting = [_ROOT]
        while waiting:
            batch, waiting = waiting[-_BATCH:], waiting[:-_BATCH]
            self._look(batch, survey, change=change)
            waiting.extend(self._children(batch, survey))
            progress(survey.nodes)
        return survey

    def _look(self, batch: list[str], survey: Survey, *, change: bool) -> None:
        deadline = self._session.deadline()
        others = []
        for path, found in self._nodes.access_lists(batch, deadline=deadline).items():
            if found is None:
                continue  # removed meanwhile
            survey.nodes += 1
            if found == self._wanted:
                continue
            survey.others += 1
            if isinstance(found, CorruptNodeError):
                _note_foreign(survey, path)
            else:
                others.append(path)
        if not change:
            return
        for path, is_set in self._nodes.set_access_lists(
            others, self._wanted, deadline=deadline
        ).items():
            if is_set:
                survey.changed += 1
            else:
                _note_foreign(survey, path)

    def _children(self, batch: list[str], survey: Survey) -> Iterable[str]:
        listed = self._nodes.children_of(batch, deadline=self._session.deadline())
        for path, names in listed.items():
            if isinstance(names, CorruptNodeError) or names is None:
                continue  # told of when its list was read, or removed
            for name in names:
                child = f"{path}/{name}"
                if self._session.connect.chroot or child != _ZOOKEEPERS_OWN:
                    yield child


def _note_foreign(survey: Survey, path: str) -> None:
    survey.foreign_count += 1
    if len(survey.foreign) < _NAMED:
        survey.foreign.append(path or "/")


def warn_of_open_nodes(session: Session) -> None:
    """Says in the log that a cluster is open whose session has a user that it could belong to."""
    if session.access.owner is None or not (found := open_nodes(session)):
        return
    logger.warning(
        "Whoever reaches ZooKeeper at %s may change %s there, though this broker logs in as %s. "
        "Once all brokers and clients do, guard the cluster: logbus security zookeeper --execute.",
        session.connect.servers,
        ", ".join(found[:_NAMED]),
        session.access.name,
    )


def open_nodes(session: Session) -> list[str]:
    """Returns those of the chroot and the nodes right below it that anybody may change."""
    nodes, deadline = Nodes(session), session.deadline()
    names = nodes.children_of([_ROOT], deadline=deadline)[_ROOT]
    below = [] if isinstance(names, CorruptNodeError) or names is None else names
    paths = [_ROOT, *(f"/{name}" for name in below if f"/{name}" != _ZOOKEEPERS_OWN)]
    lists = nodes.access_lists(paths, deadline=deadline)
    return [path or "/" for path, found in lists.items() if isinstance(found, list)
            and is_open(found)]  # fmt: skip

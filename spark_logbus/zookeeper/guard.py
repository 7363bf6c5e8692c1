"""Access lists of nodes to be made: of a user of ZooKeeper's alone where the chroot says so.

A cluster is guarded from its first node on if a session with a login makes its chroot. One from
before stays open while its brokers and clients get the login, one after the other: a node that
only some of them may read would be lost on the others. It is guarded by an act of its own (see
``guarding``), which begins at the chroot. ZooKeeper tells nobody of access lists that change, so
that act also writes the chroot, which every session with a login watches.
"""

from __future__ import annotations

from typing import Any

from kazoo.exceptions import NoNodeError
from kazoo.security import ACL, ANYONE_ID_UNSAFE, Permissions

from spark_logbus.security.profiles import Digest
from spark_logbus.zookeeper.access import acl_of
from spark_logbus.zookeeper.nodes import Nodes
from spark_logbus.zookeeper.session import Session
from spark_logbus.zookeeper.watches import Change, WatchedRefresh


class Guard:
    """Follows the access list of a session's chroot. Thread-safe."""

    def __init__(self, session: Session, client: Any, owner: Digest) -> None:
        self._session = session
        self._client = client
        self._owner = owner
        self._path = session.connect.chroot or "/"
        self._refreshed = WatchedRefresh(Nodes(session), self._path, self._refresh)

    def start(self) -> None:
        """Learns how nodes are to be made. Raises ZooKeeperAccessError if they are another's."""
        self._refreshed.start()

    def _refresh(self, _: Change) -> None:
        description, deadline = f"read {self._path}", self._session.deadline()
        watch = self._refreshed.watch
        try:
            self._session.call(description, lambda c: c.get_async(self._path, watch), deadline)
            acls, _stat = self._session.call(
                description, lambda c: c.get_acls_async(self._path), deadline
            )
        except NoNodeError:
            return  # removed as a whole: there is no cluster
        # The list that kazoo gives to nodes that are made without one.
        self._client.default_acl = None if is_open(acls) else acl_of(self._owner)


def is_open(acls: list[ACL]) -> bool:
    """Tells whether anybody may do anything with a node."""
    return ACL(Permissions.ALL, ANYONE_ID_UNSAFE) in acls

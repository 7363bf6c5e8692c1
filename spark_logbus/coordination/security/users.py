"""Users with passwords: one node each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from spark_logbus.coordination import paths
from spark_logbus.coordination.payloads import decode, encode
from spark_logbus.coordination.security.payloads import UserPayload
from spark_logbus.errors import InvalidRequestError
from spark_logbus.retry import Deadline
from spark_logbus.security.principals import Principal
from spark_logbus.security.scram import new_credentials
from spark_logbus.zookeeper.nodes import Node, Nodes
from spark_logbus.zookeeper.session import Session
from spark_logbus.zookeeper.transactions import Create, Delete, SetData
from spark_logbus.zookeeper.unreadable import foreign_node
from spark_logbus.zookeeper.watches import ChildrenView

logger = logging.getLogger(__name__)


class UserRegistry:
    """Adds, changes, removes and lists users. Thread-safe."""

    def __init__(self, session: Session) -> None:
        self._nodes = Nodes(session)
        self._unreadable = session.unreadable

    def add(self, name: str, password: str, *, now_us: int) -> None:
        """Raises InvalidRequestError for one that is there, ConfigError for a bad password or a
        name with which nobody could log in."""
        Principal.parse(f"user:{name}")
        path, payload = paths.user(name), _payload(password, now_us)

        def attempt(deadline: Deadline) -> None:
            if self._nodes.exists(path, deadline=deadline):
                raise InvalidRequestError(
                    f"There is a user {name!r}; give it another password with 'logbus users "
                    "passwd'."
                )
            self._nodes.transact(
                f"add the user {name}", [Create(path, payload, private=True)], deadline=deadline
            )

        self._nodes.ensure(paths.USERS, private=True)
        self._nodes.repeat(f"add the user {name}", attempt)

    def set_password(self, name: str, password: str, *, now_us: int) -> None:
        """Raises InvalidRequestError for a user that is not there."""
        path, payload = paths.user(name), _payload(password, now_us)

        def attempt(deadline: Deadline) -> None:
            node = self._nodes.get(path, deadline=deadline)
            if node is None:
                raise _unknown(name)
            self._nodes.transact(
                f"change the password of {name}",
                [SetData(path, payload, version=node.version)],
                deadline=deadline,
            )

        self._nodes.repeat(f"change the password of {name}", attempt)

    def remove(self, name: str) -> None:
        """Raises InvalidRequestError for a user that is not there."""
        path = paths.user(name)

        def attempt(deadline: Deadline) -> None:
            if not self._nodes.exists(path, deadline=deadline):
                raise _unknown(name)
            self._nodes.transact(f"remove the user {name}", [Delete(path)], deadline=deadline)

        self._nodes.repeat(f"remove the user {name}", attempt)

    def names(self) -> list[str]:
        found = []
        for node_name in self._nodes.children(paths.USERS) or ():
            name = paths.user_of(node_name)
            if name is None:
                path = f"{paths.USERS}/{node_name}"
                self._unreadable.met(path, foreign_node(path, "user"), instead="It is none.")
            else:
                found.append(name)
        return sorted(found)

    def watch(self, deliver: Callable[[Mapping[str, UserPayload]], None]) -> None:
        """Calls ``deliver`` with all users: now, on this thread, and at each change."""
        self._nodes.ensure(paths.USERS, private=True)
        ChildrenView(
            self._nodes,
            paths.USERS,
            decode=_decode,
            deliver=lambda found: deliver(dict(found.values())),
        ).start()


def _payload(password: str, now_us: int) -> bytes:
    return encode(UserPayload(credentials=new_credentials(password), changed_us=now_us))


def _unknown(name: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"There is no user {name!r}; see 'logbus users list', or add it with 'logbus users add'."
    )


def _decode(node_name: str, node: Node) -> tuple[str, UserPayload]:
    path = f"{paths.USERS}/{node_name}"
    name = paths.user_of(node_name)
    if name is None:
        raise foreign_node(path, "user")
    return name, decode(UserPayload, node.data, path=path)

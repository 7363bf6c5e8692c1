"""Typed operations on ZooKeeper's nodes, and transactions over them.

Everything above works with these values; kazoo's results and errors end here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.security import ACL

from spark_logbus.errors import (
    CoordinationError,
    InvalidNameError,
    InvalidRequestError,
    ZooKeeperAccessError,
)
from spark_logbus.model import check_name
from spark_logbus.retry import Deadline
from spark_logbus.zookeeper.access import acl_of
from spark_logbus.zookeeper.session import ReplyLostError, Session
from spark_logbus.zookeeper.transactions import (
    MAX_TRANSACTION_BYTES,
    Check,
    Create,
    Delete,
    Operation,
    SetData,
    size_of,
)
from spark_logbus.zookeeper.unreadable import CorruptNodeError, foreign_node

_PIPELINE = 500  # requests sent before the first reply is awaited

_CONFLICTS = (NoNodeError, NodeExistsError, BadVersionError, NotEmptyError)

# Called on kazoo's thread with its event; must not block or make requests.
Watch = Callable[[Any], None]
T = TypeVar("T")


class ConflictError(CoordinationError):
    """The tree is not as the transaction expected; inside this package, which reads again."""


class LostReplies(list[T]):
    """The writes of one operation that may have been done: their replies were lost.

    An operation that is repeated notes each write that it attempts, and first looks if one of the
    noted ones is what it reads now: then that was its own. Not thread-safe.
    """

    @contextmanager
    def noting(self, write: T) -> Iterator[None]:
        """The attempt of ``write``; it stays noted only if its reply is lost."""
        self.append(write)
        try:
            yield
        except ConflictError:
            self.pop()  # certainly not done, though an earlier attempt of the same may have been
            raise
        self.pop()


@dataclass(frozen=True, slots=True)
class Node:
    #: Keys of tokens, at times; or why it may not be read, and the rest is unknown then.
    content: bytes | CorruptNodeError = field(repr=False)
    version: int
    owner: int  # session id of an ephemeral node's owner, 0 for others
    changed: tuple[int, int]  # ZooKeeper's transaction ids of creation and last change

    @property
    def data(self) -> bytes:
        """CorruptNodeError when ZooKeeper does not let us read the node."""
        if isinstance(self.content, CorruptNodeError):
            raise self.content
        return self.content

    @property
    def refused(self) -> bool:
        """ZooKeeper does not let us read the node; no watch was set on it either."""
        return isinstance(self.content, CorruptNodeError)


class Nodes:
    """The nodes under a session's chroot. Thread-safe, holds nothing itself."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._root = session.connect.chroot

    # -- reads ---------------------------------------------------------------------------

    def get(
        self, path: str, *, watch: Watch | None = None, deadline: Deadline | None = None
    ) -> Node | None:
        """The node, or None; the watch is set only if there is one."""
        return self.get_many([path], watch=watch, deadline=deadline)[path]

    def get_many(
        self,
        paths: Iterable[str],
        *,
        watch: Watch | None = None,
        deadline: Deadline | None = None,
    ) -> dict[str, Node | None]:
        """Reads nodes in a few round trips. One that may not be read is among them all the same."""
        found = self._read_many(
            paths,
            lambda client, path: client.get_async(path, watch),
            deadline,
            is_view=watch is not None,
        )
        return {path: _node(path, reply) for path, reply in found.items()}

    def exists(
        self, path: str, *, watch: Watch | None = None, deadline: Deadline | None = None
    ) -> bool:
        """Tells whether there is such a node. Unlike ``get`` it also watches one that is not there
        yet."""
        reply = self.session.call(
            f"read {path}",
            lambda client: client.exists_async(self._absolute(path), watch),
            deadline or self.session.deadline(),
        )
        return reply is not None

    def children(
        self, path: str, *, watch: Watch | None = None, deadline: Deadline | None = None
    ) -> list[str] | None:
        """Names in order, or None when there is no such node (no watch is set then)."""
        return self.children_many([path], watch=watch, deadline=deadline)[path]

    def children_many(
        self,
        paths: Iterable[str],
        *,
        watch: Watch | None = None,
        deadline: Deadline | None = None,
    ) -> dict[str, list[str] | None]:
        found: dict[str, list[str] | None] = {}
        for path, names in self.children_of(paths, watch=watch, deadline=deadline).items():
            if isinstance(names, CorruptNodeError):
                raise names
            found[path] = names
        return found

    def children_of(
        self,
        paths: Iterable[str],
        *,
        watch: Watch | None = None,
        deadline: Deadline | None = None,
    ) -> dict[str, list[str] | CorruptNodeError | None]:
        """Names below each node in order, an error in the place of those that may not be listed."""
        found: dict[str, list[str] | CorruptNodeError | None] = {}
        for path, names in self._read_many(
            paths,
            lambda client, path: client.get_children_async(path, watch),
            deadline,
            is_view=watch is not None,
        ).items():
            if isinstance(names, NoAuthError):
                found[path] = _not_ours(path)
            else:
                found[path] = None if names is None else sorted(names)
        return found

    def sync(self, *, deadline: Deadline | None = None) -> None:
        """Make the next reads see every write that ended before now, by whomever."""
        self.session.call(
            "synchronise",
            lambda client: client.sync_async(self._root or "/"),
            deadline or self.session.deadline(),
        )

    def descendants(self, path: str, *, deadline: Deadline) -> list[str]:
        """All paths below ``path``, each after its parent."""
        found: list[str] = []
        level = [path]
        while level:
            listed = self.children_many(level, deadline=deadline)
            level = [f"{parent}/{name}" for parent in listed for name in listed[parent] or ()]
            found.extend(level)
        return found

    def _read_many(
        self,
        paths: Iterable[str],
        read: Callable[[Any, str], Any],
        deadline: Deadline | None,
        *,
        is_view: bool = False,
    ) -> dict[str, Any]:
        """Raises ZooKeeperAccessError for what a gateway does not let be read. A view goes on
        without it, as without any other node that may not be read."""
        deadline = deadline or self.session.deadline()
        wanted = list(dict.fromkeys(paths))
        found: dict[str, Any] = {}
        for start in range(0, len(wanted), _PIPELINE):
            part = wanted[start : start + _PIPELINE]
            description = f"read {part[0]}" + (
                f" and {len(part) - 1} more nodes" if part[1:] else ""
            )
            absolute = [self._absolute(path) for path in part]
            replies = self.session.call(description, partial(_submit_all, read, absolute), deadline)
            found.update(zip(part, replies, strict=True))
        if self.session.access.at_gateway is not None and not is_view:
            for path, reply in found.items():
                if isinstance(reply, NoAuthError):
                    raise self.session.access_refused(f"read {path}")
        return found

    # -- writes --------------------------------------------------------------------------

    def ensure(self, path: str, *, private: bool = False, deadline: Deadline | None = None) -> None:
        """Create the node and its parents, without data, where they are missing; ``private`` as
        in ``Create``."""
        deadline = deadline or self.session.deadline()
        while True:
            try:
                self.session.call(
                    f"create {path}",
                    lambda client: client.ensure_path_async(
                        self._absolute(path), acl=self._acl(private)
                    ),
                    deadline,
                )
                return
            except NoNodeError:
                continue  # a parent was removed between its creation and its child's

    def transact(
        self, description: str, operations: Sequence[Operation], *, deadline: Deadline
    ) -> None:
        """Performs all of the operations or none. Raises ConflictError when the nodes are not as
        expected, ReplyLostError when nobody knows; ``repeat`` handles both."""
        size = size_of(operations)
        if size > MAX_TRANSACTION_BYTES:
            raise InvalidRequestError(
                f"One ZooKeeper transaction holds {MAX_TRANSACTION_BYTES} bytes, this one needs "
                f"{size} ({description}); do it in smaller parts."
            )

        def submit(client: Any) -> Any:
            transaction = client.transaction()
            for operation in operations:
                self._add(transaction, operation)
            return transaction.commit_async()

        try:
            results = self.session.call(description, submit, deadline, check=True)
        except ZooKeeperAccessError as error:
            if not isinstance(error.__cause__, NoAuthError):
                raise
            # A gateway refuses all of it, and does not say for which part.
            changed = [each.path for each in operations if not isinstance(each, Check)]
            raise self.session.access_refused(description, changed) from error.__cause__
        for operation, result in zip(operations, results, strict=True):
            if isinstance(result, (RolledBackError, RuntimeInconsistency)):
                continue  # undone or not tried because of the one that failed
            if isinstance(result, _CONFLICTS):
                raise ConflictError(
                    f"ZooKeeper's nodes changed meanwhile ({description}: {type(result).__name__})."
                ) from result
            if isinstance(result, NoAuthError):
                raise self.session.access_refused(f"{description} at {operation.path}") from result
            if isinstance(result, KazooException):
                raise CoordinationError(
                    f"ZooKeeper refused to {description} ({type(result).__name__}); see its log."
                ) from result

    def repeat(self, description: str, attempt: Callable[[Deadline], T]) -> T:
        """Run ``attempt`` until it neither conflicts nor loses its reply.

        ``attempt`` reads before it writes, so a repetition sees what the one before has done. If
        the nodes alone do not say whose doing that was, ``LostReplies`` does.
        """
        deadline = self.session.deadline()
        last: CoordinationError | None = None
        while True:
            try:
                return attempt(deadline)
            except (ConflictError, ReplyLostError) as error:
                last = error.again()
            except CoordinationError:
                # Cut short by the time that was left: what used it up is the reason.
                if last is None or not deadline.expired:
                    raise
            if deadline.expired:
                raise CoordinationError(
                    f"It was not possible to {description} within {deadline.timeout_ms} ms: "
                    f"{last.message} Try again."
                ) from last

    def _acl(self, private: bool) -> list[ACL] | None:
        """Returns the list for a node to be made; None: as the cluster has it (see ``guard``)."""
        owner = self.session.access.owner
        return acl_of(owner) if private and owner is not None else None

    def _add(self, transaction: Any, operation: Operation) -> None:
        path = self._absolute(operation.path)
        match operation:
            case Create(data=data, ephemeral=ephemeral, private=private):
                transaction.create(path, data, acl=self._acl(private), ephemeral=ephemeral)
            case SetData(data=data, version=version):
                transaction.set_data(path, data, version)
            case Delete(version=version):
                transaction.delete(path, version)
            case Check(version=version):
                transaction.check(path, version)

    # -- access lists --------------------------------------------------------------------

    def access_lists(
        self, paths: Iterable[str], *, deadline: Deadline
    ) -> dict[str, list[ACL] | CorruptNodeError | None]:
        """Access lists of nodes, an error in the place of those that are another user's."""
        found: dict[str, list[ACL] | CorruptNodeError | None] = {}
        for path, reply in self._read_many(
            paths, lambda client, path: client.get_acls_async(path), deadline
        ).items():
            if isinstance(reply, NoAuthError):
                found[path] = _not_ours(path)
            else:
                found[path] = None if reply is None else reply[0]
        return found

    def set_access_lists(
        self, paths: Iterable[str], acl: list[ACL], *, deadline: Deadline
    ) -> dict[str, bool]:
        """Sets the access list of nodes, and tells of those that are there whether it may."""
        replies = self._read_many(
            paths, lambda client, path: client.set_acls_async(path, acl), deadline
        )
        return {
            path: not isinstance(reply, NoAuthError)
            for path, reply in replies.items()
            if reply is not None
        }

    def touch(self, path: str, *, deadline: Deadline) -> None:
        """Writes a node as it is, which sets off its watches."""

        def attempt(deadline: Deadline) -> None:
            node = self.get(path, deadline=deadline)
            if node is not None:
                operation = SetData(path, node.data, node.version)
                self.transact(f"write {path or '/'}", [operation], deadline=deadline)

        self.repeat(f"write {path or '/'}", attempt)

    def _absolute(self, path: str) -> str:
        return self._root + path or "/"

    def relative(self, absolute: str) -> str:
        """The path of an event, as this tree names it."""
        return absolute.removeprefix(self._root)


def own_names(
    nodes: Nodes, parent: str, kind: str, *, deadline: Deadline | None = None
) -> list[str]:
    """The children that a ``kind`` (topic, group) can be named after; others are reported."""
    own = []
    for name in nodes.children(parent, deadline=deadline) or ():
        path = f"{parent}/{name}"
        try:
            own.append(check_name(kind, name))
        except InvalidNameError:
            failure = foreign_node(path, kind)
            nodes.session.unreadable.met(path, failure, instead="It is passed over.")
    return own


def _submit_all(read: Callable[[Any, str], Any], absolute: list[str], client: Any) -> _Gathered:
    return _Gathered([read(client, path) for path in absolute])


class _Gathered:
    """Joins several of kazoo's async results; a missing node reads as None, and one that may not be
    read as its error, which is not that of the others."""

    def __init__(self, results: list[Any]) -> None:
        self._results = results

    def get(self, timeout: float) -> list[Any]:
        # kazoo answers in order: one wait, for the last, instead of a switch of threads each. What
        # has not come by then is not waited for again, or the bound would be no bound.
        if self._results:
            self._results[-1].wait(timeout)
        replies: list[Any] = []
        for result in self._results:
            failure = result.exception  # not raised: it would keep all that is at hand here
            if isinstance(failure, NoNodeError):
                replies.append(None)
            elif isinstance(failure, NoAuthError):
                replies.append(failure)
            else:
                replies.append(result.get_nowait())
        return replies


def _not_ours(path: str) -> CorruptNodeError:
    return CorruptNodeError(
        f"ZooKeeper does not let logbus read the node {path or '/'} (NoAuth). Log in as the user "
        "of ZooKeeper that it belongs to, give this one the right to, or remove the node by hand."
    )


def _node(path: str, reply: Any) -> Node | None:
    if reply is None:
        return None
    if isinstance(reply, NoAuthError):
        return Node(content=_not_ours(path), version=-1, owner=0, changed=(0, 0))
    data, stat = reply
    return Node(
        content=data or b"",
        version=stat.version,
        owner=stat.ephemeralOwner or 0,
        changed=(stat.czxid, stat.mzxid),
    )


def name_of(path: str) -> str:
    """The last part of a path."""
    return path.rpartition("/")[2]


def parent_of(path: str) -> str:
    return path.rpartition("/")[0]

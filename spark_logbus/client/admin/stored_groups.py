"""What consumer groups have stored: offsets, rewinds, owners and members, read and cleared.

All of it is in ZooKeeper, so this needs a session there and no broker, and imports no client that
would.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from spark_logbus.coordination.groups.membership import GroupMembers, Member
from spark_logbus.coordination.groups.offsets import CommittedOffset, GroupOffsets
from spark_logbus.coordination.groups.owners import GroupOwner
from spark_logbus.coordination.groups.rewinds import GroupRewinds, Rewind
from spark_logbus.errors import InvalidRequestError
from spark_logbus.model import TopicPartition, check_name
from spark_logbus.zookeeper import CorruptNodeError, Session, default_connect

_SHOWN: Final = 20  # groups named in an error


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSummary:
    """A group as a list shows it. ``owners`` are the queries and loads that hold it, by topic;
    ``members`` the consumers that share it; ``rewinds`` is their number."""

    name: str
    committed: dict[TopicPartition, CommittedOffset]
    owners: dict[str, GroupOwner]
    members: list[Member]
    rewinds: int

    @property
    def topics(self) -> list[str]:
        """Topics that the group has committed offsets for."""
        return sorted({each.topic for each in self.committed})

    @property
    def last_commit_us(self) -> int | None:
        return max((entry.committed_at_us for entry in self.committed.values()), default=None)


@dataclass(frozen=True, slots=True)
class ListedGroups:
    """The groups that can be read, by name, and why the others cannot."""

    found: list[GroupSummary]
    unreadable: dict[str, CorruptNodeError]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGroup:
    """A group as ``GroupSummary`` has it, with the rewinds themselves, and the consumer of each
    partition that is read."""

    name: str
    committed: dict[TopicPartition, CommittedOffset]
    owners: dict[str, GroupOwner]
    members: list[Member]
    readers: dict[TopicPartition, GroupOwner]
    rewinds: list[Rewind]


class StoredGroups:
    """Groups as ZooKeeper has them, read in ``session``. Thread-safe.

    ``offsets`` and ``rewinds`` are those of all groups.
    """

    def __init__(self, session: Session) -> None:
        self.offsets: Final = GroupOffsets(session)
        self.rewinds: Final = GroupRewinds(session)
        self._members = GroupMembers(session)

    def names(self) -> list[str]:
        """All groups that ever committed, were rewound, or had an owner or a member."""
        return self.offsets.groups()

    def summaries(self) -> ListedGroups:
        """All groups; a node that cannot be read costs the list the group that it is of."""
        found: list[GroupSummary] = []
        unreadable: dict[str, CorruptNodeError] = {}
        for name in self.names():
            try:
                found.append(self._summary(name))
            except CorruptNodeError as failure:
                unreadable[name] = failure
        return ListedGroups(found, unreadable)

    def _summary(self, group: str) -> GroupSummary:
        return GroupSummary(
            name=group,
            committed=self.offsets.committed(group),
            owners=self.offsets.owners(group),
            members=self._members.members(group),
            rewinds=self.rewinds.epoch(group),
        )

    def read(self, group: str) -> StoredGroup:
        """Returns all of one group. InvalidRequestError for one that is unknown."""
        read = StoredGroup(
            name=group,
            committed=self.offsets.committed(group),
            owners=self.offsets.owners(group),
            members=self._members.members(group),
            readers=self._members.readers(group),
            rewinds=self.rewinds.history(group),
        )
        if not (read.committed or read.owners or read.members or read.rewinds):
            self.require_known([group])
        return read

    def require_known(self, groups: Iterable[str]) -> None:
        """InvalidRequestError for one that there is not."""
        known = self.names()
        for group in groups:
            check_name("group", group)
            if group not in known:
                raise _without_offsets(group, known)

    def require_offsets(self, group: str) -> dict[TopicPartition, CommittedOffset]:
        """Returns what the group has committed; InvalidRequestError if that is nothing."""
        committed = self.offsets.committed(group)
        if not committed:
            raise _without_offsets(group, self.names())
        return committed

    def forget(self, group: str, topics: Iterable[str]) -> list[str]:
        """Forget what the group has committed for ``topics``; those for which that was something.
        InvalidRequestError while anybody reads one for the group, or if it has committed nothing
        at all."""
        self.require_offsets(group)
        return self.offsets.forget(group, topics)

    def delete(self, group: str) -> None:
        """Forget a group's offsets and rewinds. InvalidRequestError while anybody uses it, or if
        there is no such group."""
        self.require_known([group])
        self.offsets.delete(group)


@contextmanager
def stored_groups(zookeeper: str | None) -> Iterator[StoredGroups]:
    """Opens the groups of a cluster, by default that of the environment, in a short session."""
    connect = zookeeper or default_connect()
    with Session(connect, client_name="logbus-groups", expects_cluster=True) as session:
        yield StoredGroups(session)


def _without_offsets(group: str, known: list[str]) -> InvalidRequestError:
    others = [name for name in known if name != group]
    if not others:
        return InvalidRequestError(
            f"Group {group!r} has committed no offsets, and there is no other group. A consumer, "
            "query or rewind of a group makes it."
        )
    more = f" and {len(others) - _SHOWN:,} more" if len(others) > _SHOWN else ""
    return InvalidRequestError(
        f"Group {group!r} has committed no offsets; other groups: "
        f"{', '.join(others[:_SHOWN])}{more}."
    )

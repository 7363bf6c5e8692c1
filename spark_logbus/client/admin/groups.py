"""Consumer groups: listed, described, rewound and deleted, for tools and notebooks.

What a group has is in ZooKeeper, so each call opens a short session there.
"""

from __future__ import annotations

import getpass
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from spark_logbus.clock import SystemClock
from spark_logbus.coordination.group_offsets import CommittedOffset, GroupOffsets
from spark_logbus.coordination.group_owners import GroupOwner
from spark_logbus.coordination.membership import GroupMembers, Member
from spark_logbus.coordination.rewinds import GroupRewinds, Rewind
from spark_logbus.errors import InvalidRequestError
from spark_logbus.model import Latest, TopicPartition
from spark_logbus.offsets.descriptions import LogQueries
from spark_logbus.offsets.rewind import RewindPlan, Target, apply, prepare, require_rows
from spark_logbus.offsets.snapshot import take_snapshot
from spark_logbus.position_text import parse_position
from spark_logbus.selection import Topics
from spark_logbus.zookeeper import Session, default_connect


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPosition:
    """A committed offset, if there is one, beside what the partition holds now; ``state`` says why
    that is unknown, or ``ok``. ``reader`` is the consumer that reads it, if one does."""

    topic_partition: TopicPartition
    committed: CommittedOffset | None
    high_watermark: int | None
    state: str
    reader: GroupOwner | None

    @property
    def lag(self) -> int | None:
        """Records between the committed offset and the end."""
        end = self.high_watermark
        if end is None or self.committed is None:
            return None
        return max(0, end - self.committed.offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """``owners`` are the queries and loads that hold the group, by topic; ``members`` the consumers
    that share it."""

    name: str
    owners: dict[str, GroupOwner]
    members: list[Member]
    positions: list[GroupPosition]
    rewinds: list[Rewind]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRewind:
    """A rewind as it would be, or was: ``recorded`` is None for a dry run. ``deleted`` topics,
    which are no more, are left out."""

    plan: RewindPlan
    recorded: Rewind | None
    deleted: list[str]


class GroupAdmin:
    """See the methods of ``Admin``, which names those that are for everybody. Thread-safe."""

    def __init__(self, logs: LogQueries, zookeeper: str | None) -> None:
        self._logs = logs
        self._connect = zookeeper or default_connect()

    @contextmanager
    def _session(self) -> Iterator[Session]:
        with Session(self._connect, client_name="logbus-groups", expects_cluster=True) as session:
            yield session

    def names(self) -> list[str]:
        with self._session() as session:
            return GroupOffsets(session).groups()

    def describe(self, group: str) -> GroupDescription:
        with self._session() as session:
            offsets, sharing = GroupOffsets(session), GroupMembers(session)
            committed, owners = offsets.committed(group), offsets.owners(group)
            members, readers = sharing.members(group), sharing.readers(group)
            rewinds = GroupRewinds(session).history(group)
            if not (committed or owners or members or rewinds):
                raise _unknown(group, offsets.groups())
        return GroupDescription(
            name=group,
            owners=owners,
            members=members,
            positions=self._positions(committed, readers),
            rewinds=rewinds,
        )

    def _positions(
        self,
        committed: Mapping[TopicPartition, CommittedOffset],
        readers: Mapping[TopicPartition, GroupOwner],
    ) -> list[GroupPosition]:
        topics = {topic.name: topic for topic in self._logs.topics()}
        states: dict[TopicPartition, str] = {}
        for each in sorted({*committed, *readers}):
            entry, topic = committed.get(each), topics.get(each.topic)
            if topic is None or each.partition not in topic.partitions:
                states[each] = "topic deleted"
            elif entry is not None and not entry.is_of(topic.topic_id):
                states[each] = "topic recreated"
            else:
                states[each] = "ok"
        ends = self._logs.list_offsets(
            {each: Latest() for each, state in states.items() if state == "ok"}
        )
        return [
            GroupPosition(
                topic_partition=each,
                committed=committed.get(each),
                high_watermark=ends.get(each),
                state=state,
                reader=readers.get(each),
            )
            for each, state in states.items()
        ]

    def rewind(
        self,
        group: str,
        to: Target | str,
        *,
        topics: Sequence[str] | None = None,
        execute: bool = False,
        why: str = "",
        by: str | None = None,
    ) -> GroupRewind:
        target = parse_position(to, what="The place to rewind to") if isinstance(to, str) else to
        with self._session() as session:
            groups = GroupOffsets(session)
            names = sorted({each.topic for each in groups.committed(group)})
            wanted = list(topics) if topics else names
            if not wanted:
                raise _unknown(group, groups.groups())
            snapshot = take_snapshot(self._logs, Topics(tuple(wanted)), missing_ok=not topics)
            plan = prepare(
                group,
                target,
                admin=self._logs,
                groups=groups,
                snapshot=snapshot,
                now_us=SystemClock().now_us,
            )
            require_rows(plan)
            recorded = None
            if execute:
                recorded = apply(plan, rewinds=GroupRewinds(session), by=by or _user(), why=why)
        deleted = sorted(set(wanted) - set(snapshot.topic_ids))
        return GroupRewind(plan=plan, recorded=recorded, deleted=deleted)

    def forget(self, group: str, topics: Iterable[str]) -> list[str]:
        """Those of ``topics`` for which the group had committed offsets."""
        with self._session() as session:
            groups = GroupOffsets(session)
            if not groups.committed(group):
                raise _unknown(group, groups.groups())
            return [name for name in topics if groups.forget(group, name)]

    def delete(self, group: str) -> None:
        with self._session() as session:
            groups = GroupOffsets(session)
            known = groups.groups()
            if group not in known:
                raise _unknown(group, known)
            groups.delete(group)


def _unknown(group: str, known: list[str]) -> InvalidRequestError:
    names = ", ".join(known) or "none"
    return InvalidRequestError(
        f"Group {group!r} has committed no offsets; groups that have: {names}."
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no entry
        return "unknown"

"""Consumer groups: what they have stored beside what the brokers hold; described and rewound."""

from __future__ import annotations

import getpass
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_logbus.client.admin.stored_groups import StoredGroup, stored_groups
from spark_logbus.clock import SystemClock
from spark_logbus.coordination.groups.membership import Member
from spark_logbus.coordination.groups.offsets import CommittedOffset
from spark_logbus.coordination.groups.owners import GroupOwner
from spark_logbus.coordination.groups.rewinds import Rewind
from spark_logbus.model import Latest, LostOffsets, TopicPartition, check_name
from spark_logbus.offsets.descriptions import LogQueries
from spark_logbus.offsets.rewind import RewindPlan, Target, apply, prepare, require_rows
from spark_logbus.offsets.snapshot import Span, span_of, take_snapshot
from spark_logbus.position_text import parse_position
from spark_logbus.selection import Topics


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPosition:
    """A committed offset, if there is one, beside what the partition holds now; ``state`` says why
    that is unknown, ``records lost`` where the offset lies among lost ones, or ``ok``. ``reader``
    is the consumer that reads it, if one does."""

    topic_partition: TopicPartition
    committed: CommittedOffset | None
    high_watermark: int | None
    state: str
    reader: GroupOwner | None
    lost: tuple[LostOffsets, ...] = ()
    """Ranges of the partition's offsets whose records were given up."""

    @property
    def lag(self) -> int | None:
        """Records between the committed offset and the end."""
        end = self.high_watermark
        if end is None or self.committed is None:
            return None
        return Span(0, end, self.lost).count(self.committed.offset, end)


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


def describe_group(logs: LogQueries, stored: StoredGroup) -> GroupDescription:
    """Describes a group, with what the partitions hold now of which it has offsets."""
    return GroupDescription(
        name=stored.name,
        owners=stored.owners,
        members=stored.members,
        positions=_positions(logs, stored.committed, stored.readers),
        rewinds=stored.rewinds,
    )


def _positions(
    logs: LogQueries,
    committed: Mapping[TopicPartition, CommittedOffset],
    readers: Mapping[TopicPartition, GroupOwner],
) -> list[GroupPosition]:
    topics = {topic.name: topic for topic in logs.topics()}
    states: dict[TopicPartition, str] = {}
    for each in sorted({*committed, *readers}):
        entry, topic = committed.get(each), topics.get(each.topic)
        if topic is None or each.partition not in topic.partitions:
            states[each] = "topic deleted"
        elif entry is not None and not entry.is_of(topic.topic_id):
            states[each] = "topic recreated"
        else:
            states[each] = "ok"
    present = [each for each, state in states.items() if state == "ok"]
    ends = logs.list_offsets(dict.fromkeys(present, Latest()))
    lost = _lost(logs, present)
    return [
        GroupPosition(
            topic_partition=each,
            committed=committed.get(each),
            high_watermark=ends.get(each),
            state=_state(state, committed.get(each), lost.get(each, ())),
            reader=readers.get(each),
            lost=lost.get(each, ()),
        )
        for each, state in states.items()
    ]


def _lost(
    logs: LogQueries, topic_partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, tuple[LostOffsets, ...]]:
    described = logs.describe(sorted({each.topic for each in topic_partitions}))
    found = {
        each: described[each.topic].partitions[each.partition].ends
        for each in topic_partitions
        if each.topic in described
    }
    return {each: span_of(ends).lost for each, ends in found.items() if ends is not None}


def rewind_group(
    logs: LogQueries,
    zookeeper: str | None,
    group: str,
    to: Target | str,
    *,
    topics: Sequence[str] | None,
    execute: bool,
    why: str,
    by: str | None,
) -> GroupRewind:
    """Rewinds a group, or tells what a rewind would do: see ``Admin.rewind``."""
    check_name("group", group)
    target = parse_position(to, what="The place to rewind to") if isinstance(to, str) else to
    with stored_groups(zookeeper) as groups:
        wanted = list(topics or ())
        if not wanted:
            wanted = sorted({each.topic for each in groups.require_offsets(group)})
        snapshot = take_snapshot(logs, Topics(tuple(wanted)), missing_ok=not topics)
        plan = prepare(
            group,
            target,
            admin=logs,
            groups=groups.offsets,
            snapshot=snapshot,
            now_us=SystemClock().now_us,
        )
        require_rows(plan)
        recorded = None
        if execute:
            recorded = apply(plan, rewinds=groups.rewinds, by=by or _user(), why=why)
    deleted = sorted(set(wanted) - set(snapshot.topic_ids))
    return GroupRewind(plan=plan, recorded=recorded, deleted=deleted)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no entry
        return "unknown"


def _state(state: str, committed: CommittedOffset | None, lost: tuple[LostOffsets, ...]) -> str:
    """``state``, unless whoever goes on at ``committed`` will be told that records are lost."""
    if committed is not None and any(each.start <= committed.offset < each.end for each in lost):
        return "records lost"
    return state

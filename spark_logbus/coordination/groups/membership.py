"""A consumer's place in its group: who the members are, and which partitions each is to read.

The rebalance is the Kafka paper's, without a coordinator: every member watches the members and the
topics, and computes the same assignment from the same sorted lists. What they agree on is one
node, the *assignment*, which whoever sees a change first writes by compare-and-set, as the next
generation; the others find that it says what they would have written. So members that saw the
changes in another order still follow one assignment, and a sticky one can build on the last.

A member *is to read* what the newest assignment gives it, and *reads* what it owns (see
``partition_owners``). It gives up what it is not to read any more at its own time, when what it has
handed out is dealt with, and claims what it is to read as soon as the owner before has let go.
Partitions that stay with their member are read on meanwhile.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from spark_logbus.coordination import paths
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.cluster.topics import TopicRegistry
from spark_logbus.coordination.groups.assignment import Assignment, Assignor, assign
from spark_logbus.coordination.groups.owners import GroupOwner, OwnerNodes, group_owner
from spark_logbus.coordination.payloads import AssignmentPayload, MemberPayload, decode, encode
from spark_logbus.errors import InvalidRequestError
from spark_logbus.model import TopicPartition, check_name
from spark_logbus.retry import Deadline
from spark_logbus.selection import Pattern, Topics, matching_topics, named_topics
from spark_logbus.zookeeper.ephemeral import EphemeralNode
from spark_logbus.zookeeper.nodes import Node, Nodes
from spark_logbus.zookeeper.session import Session
from spark_logbus.zookeeper.transactions import Check, Create, Operation, SetData
from spark_logbus.zookeeper.unreadable import CorruptNodeError
from spark_logbus.zookeeper.watches import Change, ChildrenView, WatchedRefresh

logger = logging.getLogger(__name__)


Subscribed = Topics | Pattern
"""What a member subscribes to."""


def check_subscribed(topics: Subscribed) -> None:
    """InvalidRequestError for names and patterns that can be of no topic."""
    match topics:
        case Pattern(pattern):
            try:
                re.compile(pattern)
            except re.error as error:
                raise InvalidRequestError(
                    f"The pattern {pattern!r} is no regular expression: {error}."
                ) from error
        case Topics(names):
            if not names:
                raise InvalidRequestError("Subscribe to at least one topic.")
            for name in names:
                check_name("topic", name)


@dataclass(frozen=True, slots=True)
class Generation:
    """An assignment that members follow; ``version`` is that of its node, -1 for none."""

    number: int
    version: int
    assignment: Assignment

    def of(self, member: str) -> frozenset[TopicPartition]:
        return frozenset(each for each, one in self.assignment.items() if one == member)


_NONE = Generation(number=0, version=-1, assignment={})


class GroupMembership:
    """One member of ``group``, from ``join`` to ``leave``. Thread-safe.

    ``on_change`` is called, on the session's worker, when there is another assignment, or when the
    session was renewed, with which all that was owned is lost. It must not block.
    """

    def __init__(
        self,
        session: Session,
        group: str,
        *,
        member: str,
        topics: Subscribed,
        assignor: Assignor,
        on_change: Callable[[], None],
    ) -> None:
        self._session = session
        self._nodes = Nodes(session)
        self._group = group
        self._member = member
        self._on_change = on_change
        self._path = paths.assignment(group)
        check_subscribed(topics)
        self._wanted = topics
        payload = MemberPayload(
            topics=list(topics.names) if isinstance(topics, Topics) else [],
            pattern=topics.pattern if isinstance(topics, Pattern) else None,
            assignor=assignor,
            host=os.uname().nodename,
            pid=os.getpid(),
            since_us=session.clock.now_us(),
            session_timeout_ms=session.session_timeout_ms,
        )
        self._node = EphemeralNode(
            self._nodes,
            paths.member(group, member),
            encode(payload),
            to_acquire=f"join the group {group}",
            to_release=f"leave the group {group}",
        )
        self._topics = TopicRegistry(session)
        self._topic_view: ChildrenView[TopicRecord] | None = None
        self._following = False
        self._generation = _NONE
        self._registered_in = 0  # the session of which ``on_change`` has told
        self._member_view = ChildrenView(
            self._nodes,
            paths.members(group),
            decode=_decode_member,
            deliver=self._changed,
        )
        self._assignment_view = WatchedRefresh(
            self._nodes, f"the assignment of the group {group}", self._refresh
        )

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        """Partitions that the newest known assignment gives this member."""
        return self._generation.of(self._member)

    def join(self) -> None:
        """Register, and follow the group from now on. Raises CoordinationError."""
        taken = self._node.try_acquire()
        if taken is not None:
            raise InvalidRequestError(
                f"The group {self._group!r} has a live member {self._member!r} already; give this "
                "consumer another name."
            )
        self._node.guard(on_acquired=self._acquired, on_taken=self._taken)
        self._topic_view = self._topics.watch(self._changed)
        self._member_view.start()
        self._assignment_view.start()
        self._following = True
        self._assignment_view.invalidate()  # what has changed since
        self._warn_of_missing()

    def _warn_of_missing(self) -> None:
        names = named_topics(self._wanted)
        missing = sorted(set(names or ()) - self._topics.some(names or ()).keys())
        if missing:
            logger.warning(
                "Group %s: there is no topic %s; it is read as soon as there is.",
                self._group, ", ".join(missing),
            )  # fmt: skip

    def leave(self) -> None:
        """Follow the group no more, and have the others share what this one was to read."""
        self._following = False
        self._assignment_view.cancel()
        self._member_view.cancel()
        if self._topic_view is not None:
            self._topic_view.cancel()
        self._node.release()

    def holds(self, limit_s: float) -> bool:
        """Asks ZooKeeper if the member's node is of the present session, for which ``on_change``
        was called. Raises CoordinationError without an answer within ``limit_s`` seconds."""
        deadline = Deadline.after_ms(self._session.clock, int(limit_s * 1000))
        session_id = self._session.session_id
        self._nodes.sync(deadline=deadline)
        node = self._node.current(deadline=deadline)
        ours = node is not None and self._node.is_ours(node)
        return ours and session_id == self._session.session_id == self._registered_in

    # -- what changes, on the session's worker ----------------------------------------------

    def _acquired(self, new_session: bool) -> None:
        session_id = self._session.session_id
        if new_session:
            logger.warning(
                "The consumer %s of the group %s has a new ZooKeeper session; what it owned is "
                "shared anew.", self._member, self._group,
            )  # fmt: skip
            self._on_change()
        self._registered_in = session_id

    def _taken(self, node: Node) -> None:
        logger.error(
            "Somebody else has registered as the member %s of the group %s; this one waits.",
            self._member, self._group,
        )  # fmt: skip

    def _changed(self, _: object) -> None:
        if self._following:
            self._assignment_view.invalidate()

    def _refresh(self, _: Change) -> None:
        # Sets the watch on a node that is not there yet, too.
        self._nodes.exists(self._path, watch=self._assignment_view.watch)
        self._assignment_changed(self._plan())

    def _assignment_changed(self, generation: Generation) -> None:
        if generation == self._generation:
            return
        self._generation = generation
        logger.info(
            "Group %s, generation %d: %s is to read %d partitions.",
            self._group, generation.number, self._member, len(generation.of(self._member)),
        )  # fmt: skip
        self._on_change()

    def _plan(self) -> Generation:
        """The assignment as it is, after it was brought up to date."""
        description = f"assign the partitions of the group {self._group}"

        def attempt(deadline: Deadline) -> Generation:
            self._nodes.sync(deadline=deadline)
            # First, so that an assignment by members that came later is not undone.
            current = self._read(deadline)
            # Not by a view, which may be behind: two members that plan by different ones would
            # undo each other's assignments.
            members = read_members(self._nodes, self._group, deadline=deadline)
            if self._member not in members:
                return current  # its registration is being renewed, after which it plans again
            records = self._read_topics(members.values())
            wanted = assign(
                _assignor_of(members),
                {
                    name: matching_topics(_subscribed(each), records)
                    for name, each in members.items()
                },
                {name: record.partitions for name, record in records.items()},
                previous=current.assignment,
            )
            if wanted == current.assignment and current.version >= 0:
                return current
            payload = encode(_payload(current.number + 1, wanted))
            operation: Operation = (
                Create(self._path, payload)
                if current.version < 0
                else SetData(self._path, payload, current.version)
            )
            self._nodes.transact(description, [operation], deadline=deadline)
            return self._read(deadline)

        return self._nodes.repeat(description, attempt)

    def _read_topics(self, members: Iterable[MemberPayload]) -> dict[str, TopicRecord]:
        """Reads the topics that any member may mean."""
        if any(each.pattern is not None for each in members):
            return self._topics.all()
        return self._topics.some({name for each in members for name in each.topics})

    def _read(self, deadline: Deadline) -> Generation:
        node = self._nodes.get(self._path, deadline=deadline)
        if node is None:
            return _NONE
        payload = decode(AssignmentPayload, node.data, path=self._path)
        assignment = {
            TopicPartition(topic, number): member
            for member, topics in payload.members.items()
            for topic, numbers in topics.items()
            for number in numbers
        }
        return Generation(payload.generation, node.version, assignment)

    def condition(self) -> Check:
        """Condition that the assignment is still the newest that is known here."""
        return Check(self._path, self._generation.version)


@dataclass(frozen=True, slots=True)
class Member:
    """A consumer that has subscribed."""

    name: str
    host: str
    pid: int
    since_us: int


class GroupMembers:
    """Reads the members of groups. Thread-safe."""

    def __init__(self, session: Session) -> None:
        self._nodes = Nodes(session)

    def members(self, group: str) -> list[Member]:
        """Returns the members of a group, in the order of their names."""
        return [
            Member(name, one.host, one.pid, one.since_us)
            for name, one in read_members(self._nodes, group).items()
        ]

    def readers(self, group: str) -> dict[TopicPartition, GroupOwner]:
        """The consumer that reads each partition, of those that are read."""
        consumers = OwnerNodes(self._nodes, group).consumers()
        return {each: group_owner(owner) for each, owner in consumers.items()}


def read_members(
    nodes: Nodes, group: str, *, deadline: Deadline | None = None
) -> dict[str, MemberPayload]:
    """Returns the members whose nodes are in order, by name."""
    parent = paths.members(group)
    names = nodes.children(parent, deadline=deadline) or ()
    by_path = {f"{parent}/{name}": name for name in names}
    found = {}
    for path, node in nodes.get_many(by_path, deadline=deadline).items():
        if node is not None:
            with contextlib.suppress(CorruptNodeError):  # a member's view of them reports it
                found[by_path[path]] = decode(MemberPayload, node.data, path=path)
    return found


def _payload(number: int, assignment: Assignment) -> AssignmentPayload:
    members: defaultdict[str, defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for each, member in sorted(assignment.items()):
        members[member][each.topic].append(each.partition)
    return AssignmentPayload(
        generation=number, members={name: dict(topics) for name, topics in members.items()}
    )


def _decode_member(name: str, node: Node) -> MemberPayload | None:
    return decode(MemberPayload, node.data, path=name)


def _subscribed(payload: MemberPayload) -> Subscribed:
    return Topics(tuple(payload.topics)) if payload.pattern is None else Pattern(payload.pattern)


def _assignor_of(members: Mapping[str, MemberPayload]) -> Assignor:
    """Sticky once all members want that; range works with any."""
    wanted = {each.assignor for each in members.values()}
    return Assignor.STICKY if wanted == {Assignor.STICKY} else Assignor.RANGE

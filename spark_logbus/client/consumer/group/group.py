"""The committed offsets of a consumer's group, in ZooKeeper.

Imported when a consumer first needs its group: most users of clients never talk to ZooKeeper.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence

from spark_logbus.client.cluster.topic_identity import recreated
from spark_logbus.client.consumer.group.member import GroupMember, MemberSettings
from spark_logbus.coordination.cluster.topics import TopicRegistry
from spark_logbus.coordination.groups.assignment import Assignor
from spark_logbus.coordination.groups.membership import Subscribed
from spark_logbus.coordination.groups.offsets import GroupOffsets
from spark_logbus.coordination.groups.rewinds import GroupRewinds
from spark_logbus.coordination.groups.topic_owners import NoOwnership
from spark_logbus.errors import UnknownTopicError
from spark_logbus.model import RewindMark, TopicPartition
from spark_logbus.zookeeper import Session, SessionState, default_connect


class ConsumerGroup:
    """One consumer's access to its group, in a ZooKeeper session of its own. Not thread-safe.

    Commits name the last rewind before the positions began, so that a consumer cannot
    commit over a rewind that it has not seen.
    """

    def __init__(
        self,
        connect: str | None,
        group: str,
        *,
        client_id: str,
        session_timeout_ms: int = 10_000,
    ) -> None:
        self._group = group
        self._client_id = client_id
        self._session = Session(
            connect or default_connect(),
            client_name=client_id,
            session_timeout_ms=session_timeout_ms,
            expects_cluster=True,
        )
        self._session.start()
        self._offsets = GroupOffsets(self._session)
        self._rewinds = GroupRewinds(self._session)
        self._topics = TopicRegistry(self._session)
        self._no_ownership = NoOwnership(self._session, group)
        self._mark: RewindMark | None = None
        self._member: GroupMember | None = None

    def join(
        self, topics: Subscribed, *, assignor: Assignor, max_poll_interval_ms: int
    ) -> GroupMember:
        """Become a member, which owns the partitions that it commits."""
        settings = MemberSettings(
            name=f"{self._client_id}-{uuid.uuid4().hex[:12]}",
            topics=topics,
            assignor=assignor,
            max_poll_interval_ms=max_poll_interval_ms,
        )
        member = GroupMember(self._session, self._group, settings)
        member.join()
        self._member = member
        return member

    def leave(self) -> None:
        """Be a member no more."""
        self._member = None

    @property
    def connected(self) -> bool:
        """ZooKeeper can be asked at the moment."""
        return self._session.state is SessionState.CONNECTED

    def require_no_query(self, topics: Iterable[str]) -> None:
        """GroupHeldError if a query or load reads one of ``topics`` for the group."""
        self._no_ownership.require_no_query(topics)

    def starting_offsets(
        self, topic_partitions: Sequence[TopicPartition], topic_ids: Mapping[str, str]
    ) -> dict[TopicPartition, int]:
        """The committed offsets to begin at. GroupHeldError if a query or a load holds the group:
        no commit would come through."""
        self._last_rewind()
        if self._member is None:
            self._no_ownership.require_no_owner(
                topic_partition.topic for topic_partition in topic_partitions
            )
        return self.committed_offsets(topic_partitions, topic_ids)

    def committed_offsets(
        self, topic_partitions: Iterable[TopicPartition], topic_ids: Mapping[str, str] | None = None
    ) -> dict[TopicPartition, int]:
        """The offsets that were committed for ``topic_ids``, or for the topics as they are now."""
        self._last_rewind()
        committed = self._offsets.committed(self._group, topic_partitions)
        if topic_ids is None:
            topic_ids = self._current_ids(committed)
        return {
            topic_partition: one.offset
            for topic_partition, one in committed.items()
            if one.is_of(topic_ids.get(topic_partition.topic))
        }

    def commit_offsets(
        self, offsets: Mapping[TopicPartition, int], known: Mapping[TopicPartition, str]
    ) -> None:
        """Commit ``offsets``, all or none; ``known`` are the ids of the topics that they are of,
        where they were read from one."""
        mark = self._last_rewind()
        if not offsets:
            return
        current = self._current_ids(offsets)
        self._offsets.commit(
            self._group,
            offsets,
            actor=self._client_id,
            topic_ids={
                topic_partition.topic: _meant(topic_partition, known.get(topic_partition), current)
                for topic_partition in offsets
            },
            expected_mark=mark,
            ownership=self._no_ownership if self._member is None else self._member.ownership,
        )

    def follow_rewinds(self) -> None:
        """Commit after the group's present last rewind from now on."""
        self._mark = None
        self._last_rewind()

    def _last_rewind(self) -> RewindMark:
        if self._mark is None:
            self._mark = self._rewinds.mark(self._group)
        return self._mark

    def _current_ids(self, topic_partitions: Iterable[TopicPartition]) -> dict[str, str]:
        """The ids that ZooKeeper has for those of the topics that there are."""
        topics = sorted({topic_partition.topic for topic_partition in topic_partitions})
        found = [self._topics.get(topic) for topic in topics]
        return {record.name: record.topic_id for record in found if record is not None}

    def close(self) -> None:
        self._session.close()


def _meant(topic_partition: TopicPartition, known: str | None, current: Mapping[str, str]) -> str:
    """The id of the topic that an offset of ``topic_partition`` is of."""
    now = current.get(topic_partition.topic)
    if known is None and now is None:
        raise UnknownTopicError(
            f"The cluster has no topic {topic_partition.topic!r} to commit an offset for."
        )
    if known is not None and now is not None and known != now:
        raise recreated(topic_partition.topic, expected=known, actual=now)
    return known or now or ""

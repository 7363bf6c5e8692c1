"""The committed offsets of a consumer's group, in ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from spark_logbus.client.cluster.cluster import Cluster
from spark_logbus.client.cluster.topic_identity import recreated
from spark_logbus.client.config import ConsumerConfig
from spark_logbus.errors import ConfigError, UnknownTopicError
from spark_logbus.model import RewindMark, TopicPartition

if TYPE_CHECKING:
    from spark_logbus.coordination.group_offsets import CommittedOffset


class GroupStore(Protocol):
    """Where a consumer reads and writes its group's offsets."""

    def mark(self) -> RewindMark:
        """The group's last rewind."""
        ...

    def committed(
        self, topic_partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset]: ...

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """The ids that ZooKeeper has for those of ``topics`` that there are."""
        ...

    def require_unclaimed(self, topics: Iterable[str]) -> None:
        """GroupHeldError if a query or a load holds the group for one of ``topics``."""
        ...

    def commit(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        topic_ids: Mapping[str, str],
        mark: RewindMark,
    ) -> None: ...

    def close(self) -> None: ...


class ZooKeeperGroup:
    """One group in its own ZooKeeper session. Thread-safe."""

    def __init__(self, connect: str | None, group: str, *, client_id: str) -> None:
        # Imported here: most users of this package never talk to ZooKeeper.
        from spark_logbus.coordination.group_offsets import GroupOffsets
        from spark_logbus.coordination.group_owners import Unclaimed
        from spark_logbus.coordination.rewinds import GroupRewinds
        from spark_logbus.coordination.topics import TopicRegistry
        from spark_logbus.zookeeper import Session, default_connect

        self._group = group
        self._by = client_id
        self._session = Session(
            connect or default_connect(), client_name=client_id, expects_cluster=True
        )
        self._session.start()
        self._offsets = GroupOffsets(self._session)
        self._rewinds = GroupRewinds(self._session)
        self._topics = TopicRegistry(self._session)
        self._unclaimed = Unclaimed(self._session, group)

    def mark(self) -> RewindMark:
        return self._rewinds.mark(self._group)

    def committed(
        self, topic_partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset]:
        return self._offsets.committed(self._group, topic_partitions)

    def require_unclaimed(self, topics: Iterable[str]) -> None:
        self._unclaimed.require(topics)

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        found = [self._topics.get(topic) for topic in sorted(set(topics))]
        return {record.name: record.topic_id for record in found if record is not None}

    def commit(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        topic_ids: Mapping[str, str],
        mark: RewindMark,
    ) -> None:
        self._offsets.commit(
            self._group,
            offsets,
            by=self._by,
            topic_ids=topic_ids,
            expected_generation=mark.generation,
            expected_token=mark.token,
            claims=self._unclaimed,
        )

    def close(self) -> None:
        self._session.close()


class ConsumerGroup:
    """A consumer's dealings with its group: opened when first needed. Not thread-safe.

    Commits name the last rewind before the positions began, so that a consumer cannot
    commit over a rewind that it has not seen.
    """

    def __init__(self, cluster: Cluster, config: ConsumerConfig, store: GroupStore | None) -> None:
        self._cluster = cluster
        self._config = config
        self._store = store
        self._mark: RewindMark | None = None

    def begin(
        self, topic_partitions: Sequence[TopicPartition], topic_ids: Mapping[str, str]
    ) -> dict[TopicPartition, int]:
        """The committed offsets to begin at. GroupHeldError if a query or a load holds the group:
        no commit would come through."""
        self._opened()[0].require_unclaimed(
            topic_partition.topic for topic_partition in topic_partitions
        )
        return self.committed(topic_partitions, topic_ids)

    def committed(
        self, topic_partitions: Iterable[TopicPartition], topic_ids: Mapping[str, str] | None = None
    ) -> dict[TopicPartition, int]:
        """The offsets that were committed for ``topic_ids``, or for the topics as they are now."""
        store, _ = self._opened()
        committed = store.committed(topic_partitions)
        if topic_ids is None:
            topic_ids = store.topic_ids(topic_partition.topic for topic_partition in committed)
        return {
            topic_partition: one.offset
            for topic_partition, one in committed.items()
            # An offset of a deleted topic says nothing about the new one of that name.
            if one.topic_id is None or one.topic_id == topic_ids.get(topic_partition.topic)
        }

    def commit(
        self, offsets: Mapping[TopicPartition, int], known: Mapping[TopicPartition, str]
    ) -> None:
        """Commit ``offsets``, all or none; ``known`` are the ids of the topics that they are of,
        where they were read from one."""
        store, mark = self._opened()
        if offsets:
            current = store.topic_ids(topic_partition.topic for topic_partition in offsets)
            topic_ids = {
                topic_partition.topic: _meant(topic_partition, known.get(topic_partition), current)
                for topic_partition in offsets
            }
            store.commit(offsets, topic_ids=topic_ids, mark=mark)

    def follow_rewinds(self) -> None:
        """Commit behind the group's present last rewind from now on."""
        self._mark = None
        self._opened()

    def _opened(self) -> tuple[GroupStore, RewindMark]:
        if self._config.group is None:
            raise ConfigError("This consumer has no group; set group in its ConsumerConfig.")
        if self._store is None:
            self._store = ZooKeeperGroup(
                self._config.zookeeper,
                self._config.group,
                client_id=self._cluster.config.client_id,
            )
        if self._mark is None:
            self._mark = self._store.mark()
        return self._store, self._mark

    def close(self) -> None:
        if self._store is not None:
            self._store.close()


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

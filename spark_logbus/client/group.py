"""The committed offsets of a consumer's group, in ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from spark_logbus.client.cluster import Cluster
from spark_logbus.client.config import ConsumerConfig
from spark_logbus.errors import ConfigError
from spark_logbus.model import TopicPartition

if TYPE_CHECKING:
    from spark_logbus.coordination import CommittedOffset


class GroupStore(Protocol):
    """Where a consumer reads and writes its group's offsets."""

    def generation(self) -> int:
        """How often the group was rewound."""
        ...

    def committed(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset]: ...

    def commit(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        topic_ids: Mapping[str, str],
        expected_generation: int,
    ) -> None: ...

    def close(self) -> None: ...


class ZooKeeperGroup:
    """One group in its own ZooKeeper session. Thread-safe."""

    def __init__(self, connect: str | None, group: str, *, client_id: str) -> None:
        # Imported here: most users of this package never talk to ZooKeeper.
        from spark_logbus.coordination import (
            GroupOffsets,
            GroupRewinds,
            Session,
            default_connect,
        )

        self._group = group
        self._by = client_id
        self._session = Session(connect or default_connect(), client_name=client_id)
        self._session.start()
        self._offsets = GroupOffsets(self._session)
        self._rewinds = GroupRewinds(self._session)

    def generation(self) -> int:
        return self._rewinds.generation(self._group)

    def committed(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        return self._offsets.committed(self._group, tps)

    def commit(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        topic_ids: Mapping[str, str],
        expected_generation: int,
    ) -> None:
        self._offsets.commit(
            self._group,
            offsets,
            by=self._by,
            topic_ids=topic_ids,
            expected_generation=expected_generation,
        )

    def close(self) -> None:
        self._session.close()


class ConsumerGroup:
    """A consumer's dealings with its group: opened when first needed. Not thread-safe.

    Commits name the rewind generation that the positions began in, so that a consumer cannot
    commit over a rewind that it has not seen.
    """

    def __init__(self, cluster: Cluster, config: ConsumerConfig, store: GroupStore | None) -> None:
        self._cluster = cluster
        self._config = config
        self._store = store
        self._generation: int | None = None

    def committed(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        committed = self._opened()[0].committed(tps)
        topic_ids = self._topic_ids(committed)
        return {
            tp: one.offset
            for tp, one in committed.items()
            # An offset of a deleted topic says nothing about the new one of that name.
            if one.topic_id is None or one.topic_id == topic_ids[tp.topic]
        }

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        store, generation = self._opened()
        if offsets:
            topic_ids = self._topic_ids(offsets)
            store.commit(offsets, topic_ids=topic_ids, expected_generation=generation)

    def follow_rewinds(self) -> None:
        """Commit in the group's present rewind generation from now on."""
        self._generation = None
        self._opened()

    def _opened(self) -> tuple[GroupStore, int]:
        if self._config.group is None:
            raise ConfigError("This consumer has no group; set group in its ConsumerConfig.")
        if self._store is None:
            self._store = ZooKeeperGroup(
                self._config.zookeeper,
                self._config.group,
                client_id=self._cluster.config.client_id,
            )
        if self._generation is None:
            self._generation = self._store.generation()
        return self._store, self._generation

    def _topic_ids(self, tps: Iterable[TopicPartition]) -> dict[str, str]:
        deadline = self._cluster.retry_deadline()
        names = {tp.topic for tp in tps}
        return {name: self._cluster.topic(name, deadline).topic_id for name in names}

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

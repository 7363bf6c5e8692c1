"""Moves of partitions to and from this broker, as far as it knows of them."""

from __future__ import annotations

from typing import Final, NamedTuple

from spark_logbus.broker.metadata_cache import MetadataCache
from spark_logbus.broker.replica.followers import Followers
from spark_logbus.broker.replica.manager import ReplicaManager
from spark_logbus.coordination.payloads import MovePayload
from spark_logbus.model import TopicPartition

_STUCK_S: Final = 60.0


class _Move(NamedTuple):
    topic_partition: TopicPartition
    replicas: list[int]
    move: MovePayload

    @property
    def coming(self) -> set[int]:
        """Brokers that are to have a replica and have none yet."""
        return {*self.move.to} - {*self.replicas}

    @property
    def leaving(self) -> set[int]:
        return {*self.replicas} - {*self.move.to}


class MovesHere:
    """Reads what the topics' nodes and the followers say, when it is asked. Thread-safe."""

    def __init__(
        self,
        broker_id: int,
        *,
        metadata_cache: MetadataCache,
        replica_manager: ReplicaManager,
        followers: Followers,
    ) -> None:
        self._broker_id = broker_id
        self._metadata_cache = metadata_cache
        self._replica_manager = replica_manager
        self._followers = followers

    def leaving(self) -> int:
        """Returns how many partitions are on their way from this broker to another one."""
        return sum(not each.move.error and self._broker_id in each.leaving for each in self._all())

    def coming(self) -> int:
        """Returns how many partitions are on their way to this broker."""
        return sum(not each.move.error and self._broker_id in each.coming for each in self._all())

    def failed(self) -> dict[TopicPartition, str]:
        """Returns the moves to and from this broker that have failed, with the reason of each."""
        return {
            each.topic_partition: f"The move of {each.topic_partition} from {_named(each.replicas)}"
            f" to {_named(each.move.to)} has failed: {each.move.error}"
            for each in self._all()
            if each.move.error
        }

    def stuck(self) -> dict[TopicPartition, str]:
        """Returns the partitions of which another broker has begun a copy that does not grow."""
        found = {}
        for each in self._all():
            led = self._replica_manager.find(each.topic_partition)
            if led is None or each.move.error:
                continue
            for broker_id in sorted(each.coming):
                progress = self._followers.progress(led, broker_id)
                if progress is not None and progress.quiet_ms >= _STUCK_S * 1000:
                    found[each.topic_partition] = (
                        f"{each.topic_partition} is on its way to broker {broker_id} and has not "
                        f"got on for {progress.quiet_ms // 60_000} min: see the log of that broker."
                    )
        return found

    def _all(self) -> list[_Move]:
        found = []
        for record in self._metadata_cache.topics.values():
            for partition, move in record.moves.items():
                replicas = record.partitions.get(partition, [])
                if self._broker_id in {*replicas, *move.to}:
                    found.append(_Move(TopicPartition(record.name, partition), replicas, move))
        return found


def _named(brokers: list[int]) -> str:
    return f"broker{'s' * (len(brokers) > 1)} {', '.join(map(str, brokers))}"

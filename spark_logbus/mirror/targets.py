"""Topics of the target: made as those of the source are, and given the partitions that come."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from spark_logbus.client import Admin, TopicDescription
from spark_logbus.coordination.mirrors import MirroredTopic, Point
from spark_logbus.errors import BrokerUnavailableError, InvalidRequestError, TopicRecreatedError
from spark_logbus.mirror.source.source import SourceTopic
from spark_logbus.model import Latest, TopicPartition
from spark_logbus.topic_replication import REPLICATION_KEYS

logger = logging.getLogger(__name__)

ConfigDifferences = Mapping[str, tuple[str | None, str | None]]


def config_differences(
    source: Mapping[str, str], target: Mapping[str, str]
) -> dict[str, tuple[str | None, str | None]]:
    """Returns the keys that differ in two configurations, with their values. Pure."""
    return {
        key: (source.get(key), target.get(key))
        for key in sorted({*source, *target})
        if source.get(key) != target.get(key)
    }


def _copied(config: Mapping[str, str]) -> dict[str, str]:
    """Returns what source and target are to have the same of a configuration: not what is said of
    replicas, as the target may have another number of brokers. Pure."""
    return {key: text for key, text in config.items() if key not in REPLICATION_KEYS}


class Targets:
    """Sees to it that topics are there. Not thread-safe."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._told: dict[str, ConfigDifferences] = {}

    def ensure(
        self, topics: Mapping[str, SourceTopic], known: Mapping[str, MirroredTopic],
        names: Mapping[str, str],
    ) -> dict[str, MirroredTopic]:  # fmt: skip
        """Returns the entries of these source topics, whose ``names`` in the target are given:
        known ones, with partitions that are new, and new ones."""
        there = {topic.name: topic for topic in self._admin.topics()}
        entries = {}
        for name, topic in sorted(topics.items()):
            entry = known.get(name)
            if entry is not None and entry.target != names[name]:
                raise InvalidRequestError(
                    f"The topic {name} is mirrored into {entry.target}, and is now to go into "
                    f"{names[name]}. Name it as before, or begin anew with `logbus mirror forget`."
                )
            target = self._ensure(topic, entry, names[name], there.get(names[name]))
            self._tell(topic, target)
            entries[name] = self._entry(topic, entry, target)
        return entries

    def _ensure(
        self,
        topic: SourceTopic,
        entry: MirroredTopic | None,
        name: str,
        target: TopicDescription | None,
    ) -> TopicDescription:
        partitions = max(topic.spans, default=0) + 1
        if entry is not None and (target is None or target.topic_id != entry.target_id):
            raise TopicRecreatedError(
                f"The topic {name}, into which {topic.name} was mirrored, was deleted in the "
                f"target{'' if target is None else ' and created again'}. To copy {topic.name} "
                "anew, from its beginning, use `logbus mirror forget`."
            )
        if target is None:
            config = _copied(topic.config)
            return self._admin.create_topic(name, partitions=partitions, config=config)
        if entry is None:
            self._require_empty(topic, target)
        if len(target.partitions) < partitions:
            self._admin.alter_topic(name, partitions=partitions)
            return self._admin.describe([name], ends=False)[name]
        return target

    def _require_empty(self, topic: SourceTopic, target: TopicDescription) -> None:
        ends = self._ends(target)
        if any(ends.values()):
            raise InvalidRequestError(
                f"The target has a topic {target.name} with records that this mirror has not "
                f"copied, so it would not be the same as {topic.name}. Choose another name for "
                "the copy (--rename), or delete that topic."
            )

    def _ends(self, target: TopicDescription) -> dict[int, int]:
        wanted = {TopicPartition(target.name, number): Latest() for number in target.partitions}
        found = self._admin.list_offsets(wanted, topic_ids={target.name: target.topic_id})
        return {at.partition: end or 0 for at, end in found.items()}

    def _entry(
        self, topic: SourceTopic, entry: MirroredTopic | None, target: TopicDescription
    ) -> MirroredTopic:
        """Returns the entry of a topic with a point for each partition that had none."""
        points = {} if entry is None else dict(entry.points)
        new = [number for number in sorted(topic.spans) if number not in points]
        if new:
            ends = self._ends(target)
            if any(number not in ends for number in new):
                raise BrokerUnavailableError(f"Not all brokers know all partitions of {target}.")
            points |= {number: (Point(topic.spans[number].start, ends[number]),) for number in new}
        if entry is not None:
            return replace(entry, points=points) if new else entry
        return MirroredTopic(topic.topic_id, target.name, target.topic_id, points)

    def _tell(self, topic: SourceTopic, target: TopicDescription) -> None:
        """Warns of how the configurations differ, each time that changes."""
        differences = config_differences(_copied(topic.config), _copied(target.config))
        if differences != self._told.get(topic.name, {}):
            shown = ", ".join(
                f"{key} is {here or 'not set'} in the source and {there or 'not set'} in the target"
                for key, (here, there) in differences.items()
            )
            logger.warning("Of %s, %s.", target.name, shown or "the configurations are the same")
        self._told[topic.name] = differences

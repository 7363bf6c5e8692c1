"""The offset of a streaming query, as it stands in Spark's checkpoint.

::

    {"version": 2,
     "from":   {"orders": {"0": 100, "1": 90}},    where this micro-batch starts
     "to":     {"orders": {"0": 120, "1": 95}},    where it ends, and the next one starts
     "topics": {"orders": "5f0c..."},              ids: a recreated topic is another topic
     "group": "loader",                            only with a group
     "rewind_epoch": 1,                            rewinds of the group that are followed
     "rewind": "9a41..."}                          the last one's token; only where it is known

The offset before the first micro-batch is ``{"version": 2, "unresolved": true}``: where a query
starts is looked up when its first micro-batch is planned, and stands in that one's ``from``.
Version 1 is the same with ``generation`` for ``rewind_epoch``.

An end offset carries its own start. Spark hands a source a start too, but asks ``initialOffset``
anew for a first micro-batch that failed, and "latest" has moved by then; and a rewind moves the
start of a micro-batch away from the end of the one before. What was written to the checkpoint
before a micro-batch ran is replayed exactly.

Spark compares offsets as JSON text, so the order of keys is part of the format: fields as above,
topics by name, partitions by number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from spark_logbus.errors import InvalidRequestError, UnsupportedVersionError
from spark_logbus.model import NEVER_REWOUND, OffsetRange, RewindMark, TopicPartition

VERSION = 2

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """One micro-batch's start and end. Immutable; every partition of ``to`` is in ``start``."""

    start: Mapping[TopicPartition, int]
    to: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str]
    group: str | None = None
    mark: RewindMark = NEVER_REWOUND
    resolved: bool = True

    def ranges(self) -> list[OffsetRange]:
        """The ranges of the micro-batch that ends here, in partition order."""
        return [
            OffsetRange(topic_partition, self.start[topic_partition], end)
            for topic_partition, end in sorted(self.to.items())
            if end > self.start[topic_partition]
        ]

    def spans(self) -> dict[TopicPartition, OffsetRange]:
        """Each partition's range, those without records too."""
        return {
            topic_partition: OffsetRange(topic_partition, self.start[topic_partition], end)
            for topic_partition, end in self.to.items()
        }

    def cut(self, ends: Mapping[TopicPartition, int]) -> StreamOffset:
        """Returns this micro-batch with earlier ends."""
        return replace(self, to=dict(ends))

    def to_json(self) -> dict[str, Any]:
        """Returns the form that Spark stores; equal offsets give equal text."""
        if not self.resolved:
            return {"version": VERSION, "unresolved": True}
        return {
            "version": VERSION,
            "from": nest(self.start),
            "to": nest(self.to),
            "topics": dict(sorted(self.topic_ids.items())),
            **({} if self.group is None else {"group": self.group}),
            "rewind_epoch": self.mark.epoch,
            **({"rewind": self.mark.token} if self.mark.token else {}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StreamOffset:
        """Read what a checkpoint holds, whichever release wrote it.

        Raises UnsupportedVersionError for a newer release's offset, InvalidRequestError for
        something that is no offset of this source.
        """
        version = value.get("version")
        if not isinstance(version, int) or version < 1:
            raise InvalidRequestError(
                "The checkpoint holds an offset that is not one of the logbus source "
                f"({_short(value)}); give this query a checkpoint of its own."
            )
        if version > VERSION:
            raise UnsupportedVersionError(
                "The checkpoint was written by a newer release of logbus: its offset has "
                f"version {version}, this release reads up to {VERSION}. Upgrade, or start a new "
                "checkpoint."
            )
        if value.get("unresolved") is True:
            return UNRESOLVED
        epoch = "generation" if version == 1 else "rewind_epoch"
        try:
            offset = cls(
                start=flatten(value["from"]),
                to=flatten(value["to"]),
                topic_ids={str(topic): str(id_) for topic, id_ in value["topics"].items()},
                group=value.get("group"),
                mark=RewindMark(int(value[epoch]), str(value.get("rewind", ""))),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidRequestError(
                f"The checkpoint holds a damaged offset ({_short(value)}): {error!r}."
            ) from error
        lacking = sorted(set(offset.to) - set(offset.start))
        if lacking:
            raise InvalidRequestError(
                f"The checkpoint holds a damaged offset: it has no start for {lacking[0]}."
            )
        return offset


UNRESOLVED = StreamOffset(start={}, to={}, topic_ids={}, resolved=False)
"""Before the first micro-batch: where to start is not looked up yet."""


def nest(positions: Mapping[TopicPartition, T]) -> dict[str, dict[str, T]]:
    """``{"topic": {"0": 23}}``, topics by name and partitions by number."""
    nested: dict[str, dict[str, T]] = {}
    for topic_partition in sorted(positions):
        nested.setdefault(topic_partition.topic, {})[str(topic_partition.partition)] = positions[
            topic_partition
        ]
    return nested


def flatten(nested: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, partitions in nested.items()
        for partition, offset in partitions.items()
    }


def _short(value: Mapping[str, Any]) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else text[:200] + "..."

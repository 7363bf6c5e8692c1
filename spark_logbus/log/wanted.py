"""Logs as their topics want them, and as they are made and opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from spark_logbus.errors import InvalidRequestError
from spark_logbus.log.checkpoint import PartitionMetadata
from spark_logbus.log.config import LogConfig
from spark_logbus.model import TopicPartition, check_name
from spark_logbus.record import format as fmt

_MAX_TOPIC_ID_LENGTH: Final = 64


@dataclass(frozen=True, slots=True)
class WantedLog:
    """A partition's log as its topic wants it. ``known_end`` is an offset that this topic's log has
    reached on disk, and None if it is not known to have had a log; ``known_id`` is the id that this
    log had when it led last, and empty where that is not known.

    With ``follows`` it starts where its leader's does, so nothing is deleted from it by age or
    size. ``base_offset`` is where it begins if it is made anew. With ``reopens`` one that went
    offline is opened anew, as other brokers have its records too.
    """

    topic_partition: TopicPartition
    topic_id: str
    config: Mapping[str, str]
    known_end: int | None = None
    follows: bool = False
    base_offset: int = 0
    known_id: str = ""
    reopens: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSpec:
    """A log as its topic wants it. ``config`` is what the topic's own keys make of the defaults;
    ``base_offset`` is where it begins if it is made anew. ``follows`` says that its start is a
    leader's to move; ``reopens`` that it is opened anew if it went offline."""

    metadata: PartitionMetadata
    config: LogConfig
    topic_config: Mapping[str, str]
    base_offset: int = 0
    follows: bool = False
    reopens: bool = False

    @classmethod
    def of(cls, wanted: WantedLog, defaults: LogConfig) -> Self:
        """Raises InvalidRequestError, and ConfigError for a configuration that cannot be used."""
        check_name("topic", wanted.topic_partition.topic)
        _check_topic_id(wanted.topic_id)
        if not 0 <= wanted.base_offset <= fmt.MAX_OFFSET:
            raise InvalidRequestError(
                f"The log of {wanted.topic_partition} cannot begin at offset {wanted.base_offset}: "
                f"offsets are 0 to {fmt.MAX_OFFSET}."
            )
        return cls(
            metadata=PartitionMetadata(wanted.topic_partition, wanted.topic_id),
            config=LogConfig.from_topic_config(wanted.config, defaults),
            topic_config=wanted.config,
            base_offset=wanted.base_offset,
            follows=wanted.follows,
            reopens=wanted.reopens,
        )

    @property
    def topic_partition(self) -> TopicPartition:
        return self.metadata.topic_partition


def _check_topic_id(topic_id: str) -> None:
    """Refuses a topic id that cannot name a directory, with a suffix."""
    check_name("topic id", topic_id)
    if len(topic_id) > _MAX_TOPIC_ID_LENGTH:
        raise InvalidRequestError(
            f"A topic id has at most {_MAX_TOPIC_ID_LENGTH} characters, got {len(topic_id)}."
        )

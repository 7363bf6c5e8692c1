"""Where to start and where to stop, as a user writes it (pure).

``startingOffsets`` and ``endingOffsets`` take ``earliest``, ``latest``, a JSON object with one
offset per partition, or, for a start with a group, ``committed``::

    {"orders": {"0": 23, "1": -2}, "clicks": {"0": -1}}

-2 stands for earliest and -1 for latest, as in Spark's Kafka source.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_logbus.errors import InvalidOptionError
from spark_logbus.model import AtOffset, Earliest, Latest, OffsetSpec, TopicPartition

EARLIEST_NUMBER = -2
LATEST_NUMBER = -1
MAX_OFFSET = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Committed:
    """The group's committed offsets; earliest for a partition that has none."""


@dataclass(frozen=True, slots=True)
class PerPartition:
    """One specification for each partition that is read, in partition order."""

    items: tuple[tuple[TopicPartition, OffsetSpec], ...]

    def as_dict(self) -> dict[TopicPartition, OffsetSpec]:
        return dict(self.items)


Positions = Earliest | Latest | Committed | PerPartition


def parse_positions(text: str, *, option: str) -> Positions:
    """The value of ``option``; InvalidOptionError says what is wrong with it."""
    word = text.strip()
    match word.lower():
        case "earliest":
            return Earliest()
        case "latest":
            return Latest()
        case "committed":
            return Committed()
    if not word.startswith("{"):
        raise InvalidOptionError(
            f"Option {option}: expected earliest, latest, committed or a JSON object such as "
            f'{{"topic": {{"0": 23, "1": -2}}}}, got {text!r}.'
        )
    numbers = parse_partition_numbers(text, option=option)
    return PerPartition(tuple((tp, _spec(number)) for tp, number in sorted(numbers.items())))


def parse_partition_numbers(text: str, *, option: str) -> dict[TopicPartition, int]:
    """``{"topic": {"0": 23}}`` as numbers by partition, each -2, -1 or an offset."""
    numbers: dict[TopicPartition, int] = {}
    for topic, partitions in parse_json_object(text, option=option).items():
        if not isinstance(partitions, dict) or not partitions:
            raise InvalidOptionError(
                f"Option {option}: expected an object of offsets by partition for topic "
                f"{topic}, got {json.dumps(partitions)}."
            )
        for partition, number in partitions.items():
            tp = TopicPartition(topic, _partition_number(partition, topic=topic, option=option))
            if not _is_int(number) or not EARLIEST_NUMBER <= number <= MAX_OFFSET:
                raise InvalidOptionError(
                    f"Option {option}: expected an offset, -2 (earliest) or -1 (latest) for "
                    f"{tp}, got {json.dumps(number)}."
                )
            numbers[tp] = number
    return numbers


def parse_assignment(text: str, *, option: str) -> tuple[TopicPartition, ...]:
    """``{"topic": [0, 1]}`` as partitions, sorted, without repetitions."""
    found: set[TopicPartition] = set()
    for topic, partitions in parse_json_object(text, option=option).items():
        if not isinstance(partitions, list) or not partitions:
            raise InvalidOptionError(
                f"Option {option}: expected a list of partitions for topic {topic}, such as "
                f"[0, 1], got {json.dumps(partitions)}."
            )
        for partition in partitions:
            if not _is_int(partition) or partition < 0:
                raise InvalidOptionError(
                    f"Option {option}: expected partition numbers from 0 on for topic {topic}, "
                    f"got {json.dumps(partition)}."
                )
            found.add(TopicPartition(topic, partition))
    return tuple(sorted(found))


def parse_json_object(text: str, *, option: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidOptionError(
            f"Option {option}: {text!r} is not valid JSON ({error})."
        ) from error
    if not isinstance(value, dict) or not value:
        raise InvalidOptionError(
            f"Option {option}: expected a JSON object with at least one topic, got {text!r}."
        )
    return value


def _partition_number(text: str, *, topic: str, option: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise InvalidOptionError(
            f"Option {option}: expected partition numbers from 0 on for topic {topic}, "
            f"got {text!r}."
        )
    return int(text)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _spec(number: int) -> OffsetSpec:
    match number:
        case -2:
            return Earliest()
        case -1:
            return Latest()
        case _:
            return AtOffset(number)

"""Positions as users write them, in the source's options and on the command line (pure).

``model.OffsetSpec`` is one position for any partition; clients take these. Here are those that
need more than a log: one for each partition, or a group's committed offsets.

``startingOffsets`` and ``endingOffsets`` take ``earliest``, ``latest``, a JSON object with one
offset per partition, a position before the end (``-1000`` records, ``-10 minutes``), or, for a
start with a group, ``committed``::

    {"orders": {"0": 23, "1": -2}, "clicks": {"0": -1}}

-2 stands for earliest and -1 for latest, as in Spark's Kafka source. Timestamps are milliseconds
since 1970, as there, one for all partitions or one for each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from spark_logbus.errors import InvalidOptionError
from spark_logbus.model import (
    AtOffset,
    AtTimestamp,
    Earliest,
    Latest,
    OffsetSpec,
    TopicPartition,
)
from spark_logbus.position_text import before_end
from spark_logbus.record.format import MAX_OFFSET
from spark_logbus.times import US_PER_MS, parse_moment_us

EARLIEST_NUMBER = -2
LATEST_NUMBER = -1
MAX_TIMESTAMP_MS = ((1 << 63) - 1) // US_PER_MS


AbsoluteSpec = Earliest | Latest | AtOffset | AtTimestamp


@dataclass(frozen=True, slots=True)
class Committed:
    """The group's committed offsets; earliest for a partition that has none."""


@dataclass(frozen=True, slots=True)
class ShiftBack:
    """Position ``count`` records before the group's committed offsets, or before the end of a
    partition that has none. For rewinds."""

    count: int


@dataclass(frozen=True, slots=True)
class PerPartition:
    """One position for each partition that is meant, in partition order."""

    items: tuple[tuple[TopicPartition, AbsoluteSpec], ...]

    def as_dict(self) -> dict[TopicPartition, AbsoluteSpec]:
        return dict(self.items)


Positions = OffsetSpec | Committed | PerPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetBound:
    """A start or an end, and the option that says so."""

    positions: Positions
    option: str

    latest_without_match: bool = False
    """A timestamp that no record reaches means the end of the partition; otherwise an error."""

    is_end: bool = False
    """The reading ends there: an offset behind which records are lost is as good as any."""


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
    if word.startswith("-"):
        return before_end(word, what=f"Option {option}")
    if not word.startswith("{"):
        raise InvalidOptionError(
            f"Option {option}: expected earliest, latest, committed, a place before the end such "
            'as -1000 or -10 minutes, or a JSON object such as {"topic": {"0": 23, "1": -2}}, '
            f"got {text!r}."
        )
    return parse_partition_offsets(text, option=option)


def parse_timestamp(text: str, *, option: str) -> AtTimestamp:
    """Milliseconds since 1970, or a moment in ISO 8601 (UTC where it has no zone)."""
    word = text.strip()
    if word.isascii() and word.isdigit() and int(word) <= MAX_TIMESTAMP_MS:
        return AtTimestamp(int(word) * US_PER_MS)
    try:
        moment_us = parse_moment_us(word)
    except (ValueError, OverflowError):
        moment_us = -1
    if moment_us < 0 or word.isdigit():
        raise InvalidOptionError(
            f"Option {option}: expected milliseconds since 1970 (0 to {MAX_TIMESTAMP_MS}) or a "
            f"moment such as 2026-01-31T12:00:00Z, got {text!r}."
        )
    return AtTimestamp(moment_us)


def parse_partition_timestamps(text: str, *, option: str) -> PerPartition:
    """``{"topic": {"0": 1769860800000}}``: one timestamp for each partition that is read."""
    numbers = _partition_values(
        text, option, "timestamps", f"milliseconds since 1970 (0 to {MAX_TIMESTAMP_MS})", 0,
        MAX_TIMESTAMP_MS,
    )  # fmt: skip
    return PerPartition(
        tuple(
            (topic_partition, AtTimestamp(number * US_PER_MS))
            for topic_partition, number in sorted(numbers.items())
        )
    )


def parse_partition_offsets(text: str, *, option: str) -> PerPartition:
    """``{"topic": {"0": 23, "1": -2}}``: for each partition -2, -1 or an offset."""
    numbers = _partition_values(
        text, option, "offsets", "an offset, -2 (earliest) or -1 (latest)", EARLIEST_NUMBER,
        MAX_OFFSET,
    )  # fmt: skip
    return PerPartition(
        tuple(
            (topic_partition, _spec(number)) for topic_partition, number in sorted(numbers.items())
        )
    )


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


def _checked(option: str, parse: Callable[[str], int], text: str) -> int:
    try:
        return parse(text)
    except ValueError as error:
        raise InvalidOptionError(f"Option {option}: {error}.") from error


def _partition_values(
    text: str, option: str, values: str, expected: str, lowest: int, highest: int
) -> dict[TopicPartition, int]:
    numbers: dict[TopicPartition, int] = {}
    for topic, partitions in parse_json_object(text, option=option).items():
        if not isinstance(partitions, dict) or not partitions:
            raise InvalidOptionError(
                f"Option {option}: expected an object of {values} by partition for topic "
                f"{topic}, got {json.dumps(partitions)}."
            )
        for partition, number in partitions.items():
            topic_partition = TopicPartition(
                topic, _partition_number(partition, topic=topic, option=option)
            )
            if not _is_int(number) or not lowest <= number <= highest:
                raise InvalidOptionError(
                    f"Option {option}: expected {expected} for {topic_partition}, got "
                    f"{json.dumps(number)}."
                )
            numbers[topic_partition] = number
    return numbers


def _partition_number(text: str, *, topic: str, option: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise InvalidOptionError(
            f"Option {option}: expected partition numbers from 0 on for topic {topic}, "
            f"got {text!r}."
        )
    return int(text)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _spec(number: int) -> AbsoluteSpec:
    match number:
        case -2:
            return Earliest()
        case -1:
            return Latest()
        case _:
            return AtOffset(number)

"""Start and end of a read: three options each, of which the more special one wins.

``startingTimestamp`` goes before ``startingOffsetsByTimestamp``, and that before
``startingOffsets``; the same holds for ends. So it is in Spark's Kafka source.
"""

from __future__ import annotations

from typing import Final

from spark_logbus.errors import InvalidOptionError
from spark_logbus.model import AtOffset, Earliest, Latest
from spark_logbus.offsets.position import (
    Committed,
    OffsetBound,
    PerPartition,
    Positions,
    parse_partition_timestamps,
    parse_positions,
    parse_timestamp,
)
from spark_logbus.spark.options import SparkOptions

STARTS: Final = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
ENDS: Final = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
STRATEGY: Final = "startingOffsetsByTimestampStrategy"


def starting(given: SparkOptions, *, streaming: bool, group: str | None) -> OffsetBound:
    latest = given.choice(STRATEGY, ("error", "latest"), default="error") == "latest"
    option, positions = _chosen(given, STARTS)
    if positions is None:
        positions = Latest() if streaming else Earliest()
    if isinstance(positions, Committed) and group is None:
        raise InvalidOptionError(
            f"Option {option}: committed needs the option group, whose offsets are meant."
        )
    if not streaming and _mentions(positions, Latest()):
        raise InvalidOptionError(
            f"Option {option}: a batch read cannot start at latest (-1), nothing would be "
            "read; give earliest or offsets."
        )
    return OffsetBound(positions=positions, option=option, latest_without_match=latest)


def ending(given: SparkOptions) -> OffsetBound:
    option, positions = _chosen(given, ENDS)
    if isinstance(positions, Committed):
        raise InvalidOptionError(
            f"Option {option}: committed is for startingOffsets only; give latest or offsets."
        )
    if positions is not None and _mentions(positions, Earliest()):
        raise InvalidOptionError(
            f"Option {option}: a batch read cannot end at earliest (-2), nothing would be "
            "read; give latest or offsets."
        )
    # No record at or after a time: everything is before it.
    return OffsetBound(
        positions=positions or Latest(), option=option, latest_without_match=True, is_end=True
    )


def _chosen(given: SparkOptions, names: tuple[str, str, str]) -> tuple[str, Positions | None]:
    """The option that counts, and what it says; the last name and None if none is given."""
    at_once, by_partition, offsets = names
    if (text := given.text(at_once)) is not None:
        return at_once, parse_timestamp(text, option=at_once)
    if (text := given.text(by_partition)) is not None:
        return by_partition, parse_partition_timestamps(text, option=by_partition)
    if (text := given.text(offsets)) is not None:
        return offsets, parse_positions(text, option=offsets)
    return offsets, None


def _mentions(positions: Positions, spec: Earliest | Latest | AtOffset) -> bool:
    if isinstance(positions, PerPartition):
        return any(own == spec for _, own in positions.items)
    return positions == spec

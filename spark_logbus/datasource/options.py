"""The options of ``spark.read`` and ``spark.readStream``, parsed once into one frozen value.

Names are case-insensitive, as everywhere in Spark. A name that is unknown, or has no meaning for
this kind of read, is refused: an option that is silently ignored is a read of the wrong data.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from spark_logbus.errors import InvalidNameError, InvalidOptionError
from spark_logbus.model import AtOffset, Earliest, Latest, check_name
from spark_logbus.offsets import (
    DEFAULT_MAX_BYTES,
    MAX_OFFSET,
    Committed,
    Partitions,
    Pattern,
    PerPartition,
    Positions,
    Selection,
    Topics,
    default_zookeeper,
    parse_assignment,
    parse_positions,
)

SELECTIONS: Final = ("subscribe", "assign", "subscribePattern")
COMMON: Final = (
    "zookeeper", *SELECTIONS, "path", "group", "startingOffsets", "failOnDataLoss",
    "includeHeaders", "minPartitions", "maxBytesPerInputPartition",
)  # fmt: skip
BATCH_ONLY: Final = ("endingOffsets",)
STREAM_ONLY: Final = ("maxOffsetsPerTrigger",)

# What people who come from Spark's Kafka source write, and what to write here.
_FOREIGN: Final = {
    "kafka.bootstrap.servers": "zookeeper",
    "bootstrap.servers": "zookeeper",
    "kafka.group.id": "group",
    "group.id": "group",
    "groupidprefix": "group",
    "topic": "subscribe",
    "topics": "subscribe",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What to read, from where to where, and in what pieces."""

    zookeeper: str
    """Connect string, with the chroot behind a slash."""

    selection: Selection
    """Topics, partitions or a pattern."""

    starting: Positions
    """Where a batch read, or a stream without checkpoint, starts."""

    ending: Positions = Latest()
    """Where a batch read ends."""

    group: str | None = None
    """Group whose committed offsets are read (``committed``) and, by streams, written."""

    fail_on_data_loss: bool = True
    """Fail when records that should be read are no longer there."""

    include_headers: bool = False
    """Add the column ``headers``."""

    max_offsets_per_trigger: int | None = None
    """Bound on the records of one micro-batch."""

    min_partitions: int | None = None
    """At least so many input partitions, if there are that many records."""

    max_bytes_per_input_partition: int = DEFAULT_MAX_BYTES
    """A larger range is cut into several input partitions."""


def parse_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """All options of a read; InvalidOptionError names the one that is wrong, and the remedy."""
    given = _Given(options)
    given.refuse_unknown()
    given.refuse_misplaced(streaming=streaming)
    group = given.text("group")
    if group is not None:
        _checked_name("group", group, option="group")
    starting = _starting(given, streaming=streaming, group=group)
    if group is not None and not streaming and not isinstance(starting, Committed):
        raise InvalidOptionError(
            "Option group: a batch read commits nothing, so a group is only of use with "
            "startingOffsets set to committed; set that, or remove the group."
        )
    return SourceOptions(
        zookeeper=given.zookeeper(),
        selection=_selection(given),
        starting=starting,
        ending=_ending(given),
        group=group,
        fail_on_data_loss=given.boolean("failOnDataLoss", default=True),
        include_headers=given.boolean("includeHeaders", default=False),
        max_offsets_per_trigger=given.number("maxOffsetsPerTrigger"),
        min_partitions=given.number("minPartitions", maximum=1_000_000),
        max_bytes_per_input_partition=given.size("maxBytesPerInputPartition", DEFAULT_MAX_BYTES),
    )


def wants_headers(options: Mapping[str, str]) -> bool:
    """``includeHeaders`` alone, for the schema, which is asked for before the kind of read."""
    given = _Given(options)
    given.refuse_unknown()
    return given.boolean("includeHeaders", default=False)


class _Given:
    """The options as given, by lower-cased name. Not shared."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}

    def refuse_unknown(self) -> None:
        known = {name.lower(): name for name in (*COMMON, *BATCH_ONLY, *STREAM_ONLY)}
        for name in sorted(self._values):
            if name in known:
                continue
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
            meant = _FOREIGN.get(name) or (known[close[0]] if close else None)
            hint = f"did you mean {meant}?" if meant else f"known are {', '.join(known.values())}."
            raise InvalidOptionError(f"Option {name} is unknown to the logbus source; {hint}")

    def refuse_misplaced(self, *, streaming: bool) -> None:
        kind, other = ("streaming", "batch") if streaming else ("batch", "streaming")
        for name in BATCH_ONLY if streaming else STREAM_ONLY:
            if name.lower() in self._values:
                raise InvalidOptionError(
                    f"Option {name} has no meaning for a {kind} read, only for a {other} read; "
                    "remove it."
                )

    def text(self, name: str) -> str | None:
        value = self._values.get(name.lower())
        if value is not None and not value.strip():
            raise InvalidOptionError(f"Option {name} is empty; give a value or leave it out.")
        return value

    def zookeeper(self) -> str:
        return self.text("zookeeper") or default_zookeeper()

    def boolean(self, name: str, *, default: bool) -> bool:
        value = self.text(name)
        match value.strip().lower() if value is not None else None:
            case None:
                return default
            case "true":
                return True
            case "false":
                return False
        raise InvalidOptionError(f"Option {name}: expected true or false, got {value!r}.")

    def number(self, name: str, *, maximum: int = MAX_OFFSET) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        word = value.strip()
        if not (word.isascii() and word.isdigit()) or not 1 <= int(word) <= maximum:
            raise InvalidOptionError(
                f"Option {name}: expected a whole number from 1 to {maximum}, got {value!r}."
            )
        return int(word)

    def size(self, name: str, default: int) -> int:
        value = self.text(name)
        if value is None:
            return default
        found = re.fullmatch(r"(\d{1,12})\s*([kmg]?)b?", value.strip().lower(), re.ASCII)
        scale = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
        if found is None or not int(found[1]):
            raise InvalidOptionError(
                f"Option {name}: expected a number of bytes such as 536870912 or 512m, "
                f"got {value!r}."
            )
        return int(found[1]) * scale[found[2]]


def _selection(given: _Given) -> Selection:
    values = {name: value for name in SELECTIONS if (value := given.text(name)) is not None}
    path = given.text("path")
    if path is not None:
        if values:
            raise InvalidOptionError(
                f"Give either load({path!r}), which means subscribe, or the option "
                f"{next(iter(values))}, not both."
            )
        values = {"subscribe": path}
    if len(values) != 1:
        got = f"got {' and '.join(values)}" if values else "got none"
        raise InvalidOptionError(
            f"Exactly one of the options subscribe, assign, subscribePattern is needed; {got}."
        )
    [(name, value)] = values.items()
    match name:
        case "subscribe":
            return Topics(_topic_list(value, option="load" if path is not None else name))
        case "assign":
            partitions = parse_assignment(value, option=name)
            for tp in partitions:
                _checked_name("topic", tp.topic, option=name)
            return Partitions(partitions)
        case _:
            return Pattern(_regex(value, option=name))


def _topic_list(value: str, *, option: str) -> tuple[str, ...]:
    names = [part.strip() for part in value.split(",")]
    for name in names:
        if not name:
            raise InvalidOptionError(
                f"Option {option}: expected topic names with commas between them, got {value!r}."
            )
        _checked_name("topic", name, option=option)
    return tuple(sorted(set(names)))


def _checked_name(kind: str, name: str, *, option: str) -> None:
    try:
        check_name(kind, name)
    except InvalidNameError as error:
        raise InvalidOptionError(f"Option {option}: {error.message}") from error


def _regex(value: str, *, option: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise InvalidOptionError(
            f"Option {option}: {value!r} is not a regular expression ({error})."
        ) from error
    return value


def _starting(given: _Given, *, streaming: bool, group: str | None) -> Positions:
    value = given.text("startingOffsets")
    if value is None:
        return Latest() if streaming else Earliest()
    positions = parse_positions(value, option="startingOffsets")
    if isinstance(positions, Committed) and group is None:
        raise InvalidOptionError(
            "Option startingOffsets: committed needs the option group, whose offsets are meant."
        )
    if not streaming and _mentions(positions, Latest()):
        raise InvalidOptionError(
            "Option startingOffsets: a batch read cannot start at latest (-1), nothing would be "
            "read; give earliest or offsets."
        )
    return positions


def _ending(given: _Given) -> Positions:
    value = given.text("endingOffsets")
    if value is None:
        return Latest()
    positions = parse_positions(value, option="endingOffsets")
    if isinstance(positions, Committed):
        raise InvalidOptionError(
            "Option endingOffsets: committed is for startingOffsets only; give latest or offsets."
        )
    if _mentions(positions, Earliest()):
        raise InvalidOptionError(
            "Option endingOffsets: a batch read cannot end at earliest (-2), nothing would be "
            "read; give latest or offsets."
        )
    return positions


def _mentions(positions: Positions, spec: Earliest | Latest | AtOffset) -> bool:
    if isinstance(positions, PerPartition):
        return any(own == spec for _, own in positions.items)
    return positions == spec

"""The options of ``spark.read`` and ``spark.readStream``, parsed once into one frozen value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from spark_logbus.datasource import bounds
from spark_logbus.errors import InvalidNameError, InvalidOptionError
from spark_logbus.model import Latest, OnUndecodable, check_name
from spark_logbus.offsets.position import Committed, OffsetBound, parse_assignment
from spark_logbus.offsets.ranges import DEFAULT_MAX_BYTES
from spark_logbus.offsets.trigger_limits import DEFAULT_MAX_DELAY_MS, TriggerLimits
from spark_logbus.selection import Partitions, Pattern, Selection, Topics
from spark_logbus.spark.options import SparkOptions, cluster_address

SELECTIONS: Final = ("subscribe", "assign", "subscribePattern")
COMMON: Final = (
    "zookeeper", "profile", *SELECTIONS, "path", "group", *bounds.STARTS, bounds.STRATEGY,
    "failOnDataLoss", "includeHeaders", "minPartitions", "maxRecordsPerPartition",
    "maxBytesPerInputPartition", "columns", "flatten", "schemaVersion", "onUndecodable", "rack",
)  # fmt: skip
BATCH_ONLY: Final = bounds.ENDS
STREAM_ONLY: Final = (
    "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger",
    "maxPrefetchBytes",
)  # fmt: skip
DEFAULT_MAX_PREFETCH_BYTES: Final = 1 << 20
KNOWN: Final = (*COMMON, *BATCH_ONLY, *STREAM_ONLY)

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
class ValueOptions:
    """Options for values of a topic with a schema."""

    columns: tuple[str, ...] | None = None
    """The columns to read, of the record and of the value; None: all."""

    flatten: bool = False
    """The fields of the value are columns of their own."""

    version: int | None = None
    """The version of the schema to read under; None: the latest."""

    on_undecodable: OnUndecodable = OnUndecodable.FAIL

    @property
    def given(self) -> bool:
        """True if any is not as it is by default."""
        return self != ValueOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaOptions:
    """Options that the columns of a read depend on."""

    zookeeper: str
    selection: Selection
    include_headers: bool
    values: ValueOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of one read: partitions, bounds, and sizes of pieces."""

    zookeeper: str
    """Connect string, with the chroot after a slash."""

    selection: Selection
    """Topics, partitions or a pattern."""

    starting: OffsetBound
    """Start of a batch read, or of a stream without checkpoint."""

    ending: OffsetBound = OffsetBound(positions=Latest(), option="endingOffsets")
    """End of a batch read."""

    group: str | None = None
    """Group whose committed offsets are read (``committed``) and, by streams, written."""

    fail_on_data_loss: bool = True
    """Fail when records that should be read are no longer there."""

    include_headers: bool = False
    """Add the column ``headers``."""

    values: ValueOptions = ValueOptions()
    """Options for values of a topic with a schema."""

    trigger: TriggerLimits = TriggerLimits()
    """Bounds on one micro-batch."""

    min_partitions: int | None = None
    """At least so many input partitions, if there are that many records."""

    max_records_per_partition: int | None = None
    """At most so many records in an input partition."""

    max_bytes_per_input_partition: int = DEFAULT_MAX_BYTES
    """A larger range is cut into several input partitions."""

    max_prefetch_bytes: int = DEFAULT_MAX_PREFETCH_BYTES
    """A micro-batch of no more bytes of rows is read by the planner, without a task; 0: none is."""

    rack: str | None = None
    """The rack of the tasks, which read from replicas of the same; None: as each machine says."""


def parse_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """All options of a read; InvalidOptionError names the one that is wrong, and the remedy."""
    given = _given(options)
    if streaming:
        given.refuse_misplaced(BATCH_ONLY, kind="streaming", other="batch")
    else:
        given.refuse_misplaced(STREAM_ONLY, kind="batch", other="streaming")
    group = given.text("group")
    if group is not None:
        _checked_name("group", group, option="group")
    start = bounds.starting(given, streaming=streaming, group=group)
    if group is not None and not streaming and not isinstance(start.positions, Committed):
        raise InvalidOptionError(
            "Option group: a batch read commits nothing, so a group is only of use with "
            "startingOffsets set to committed; set that, or remove the group."
        )
    prefetch = given.size("maxPrefetchBytes", minimum=0)
    return SourceOptions(
        zookeeper=cluster_address(given),
        selection=_selection(given),
        starting=start,
        ending=bounds.ending(given),
        group=group,
        fail_on_data_loss=given.boolean("failOnDataLoss", default=True),
        include_headers=given.boolean("includeHeaders", default=False),
        values=_values(given),
        trigger=_trigger(given),
        min_partitions=given.number("minPartitions", maximum=1_000_000),
        max_records_per_partition=given.number("maxRecordsPerPartition"),
        max_bytes_per_input_partition=given.size("maxBytesPerInputPartition") or DEFAULT_MAX_BYTES,
        max_prefetch_bytes=DEFAULT_MAX_PREFETCH_BYTES if prefetch is None else prefetch,
        rack=given.text("rack"),
    )


def schema_options(options: Mapping[str, str]) -> SchemaOptions:
    """Parses the options that the schema depends on; Spark asks for it before the kind of read is
    known."""
    given = _given(options)
    return SchemaOptions(
        zookeeper=cluster_address(given),
        selection=_selection(given),
        include_headers=given.boolean("includeHeaders", default=False),
        values=_values(given),
    )


def _values(given: SparkOptions) -> ValueOptions:
    names = given.text("columns")
    columns = None
    if names is not None:
        columns = tuple(name.strip() for name in names.split(","))
        if not all(columns) or len({*columns}) < len(columns):
            raise InvalidOptionError(
                f"Option columns: expected different names with commas between them, got {names!r}."
            )
    ways = [way.value for way in OnUndecodable]
    return ValueOptions(
        columns=columns,
        flatten=given.boolean("flatten", default=False),
        version=_version(given),
        on_undecodable=OnUndecodable(
            given.choice("onUndecodable", ways, default=OnUndecodable.FAIL.value)
        ),
    )


def _version(given: SparkOptions) -> int | None:
    """A version of a schema; None: the latest, as where none is given."""
    word = given.text("schemaVersion")
    if word is not None and word.strip().lower() in ("latest", "-1"):
        return None
    return given.number("schemaVersion", maximum=(1 << 31) - 1)


def _given(options: Mapping[str, str]) -> SparkOptions:
    given = SparkOptions(options)
    given.refuse_unknown(KNOWN, foreign=_FOREIGN, of="source")
    return given


def _trigger(given: SparkOptions) -> TriggerLimits:
    least, most = given.number("minOffsetsPerTrigger"), given.number("maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise InvalidOptionError(
            f"Option minOffsetsPerTrigger is {least}, more than maxOffsetsPerTrigger, which is "
            f"{most}; lower one or raise the other."
        )
    delay_us = given.duration_us("maxTriggerDelay")
    return TriggerLimits(
        max_records=most,
        max_bytes=given.size("maxBytesPerTrigger"),
        min_records=least,
        max_delay_ms=DEFAULT_MAX_DELAY_MS if delay_us is None else delay_us // 1000,
    )


def _selection(given: SparkOptions) -> Selection:
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
            for topic_partition in partitions:
                _checked_name("topic", topic_partition.topic, option=name)
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

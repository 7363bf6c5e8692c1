"""The records of a load as a data frame: read where their ranges say, and divided by a layout."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_logbus.datasource.batch_reader import LogbusBatchReader
from spark_logbus.datasource.input_partition import RangesPartition
from spark_logbus.datasource.source import reader_of_batch, source_schema
from spark_logbus.errors import ConfigError
from spark_logbus.load.config import TargetConfig
from spark_logbus.load.errors import reason
from spark_logbus.load.layout import EVENT_TIME, Layout
from spark_logbus.load.read.shuffle import sampled
from spark_logbus.load.read.values import (
    RECORD,
    UNDECODABLE,
    VALUE,
    AvroFields,
    fields_of_schema,
    json_fields,
    parse_json,
)
from spark_logbus.model import OffsetRange, TopicPartition
from spark_logbus.spark.hang_ups import end_quietly_when_dropped
from spark_logbus.spark.unlogged import unlogged


@dataclass(frozen=True, slots=True)
class Decoding:
    """The way in which values become columns; without any of the first three they stay bytes."""

    has_schema: bool = False
    json: StructType | None = None
    avro: AvroFields | None = None
    drop_value: bool = False
    dead_letters: bool = False

    @staticmethod
    def of(config: TargetConfig) -> Decoding:
        """Parses the fields that values are to have. Raises ConfigError; needs a Spark session."""
        drop_value, dead_letters = config.drop_value, config.dead_letters
        json = avro = None
        if config.json_schema is not None:
            json = json_fields(config.json_schema, drop_value=drop_value)
        if config.avro_schema is not None:
            avro = AvroFields(config.avro_schema, dead_letters=dead_letters, drop_value=drop_value)
        return Decoding(False, json, avro, drop_value, dead_letters)

    @property
    def names(self) -> list[str]:
        """Names of the fields that were given with the options."""
        fields = self.json if self.avro is None else self.avro.fields
        return [] if fields is None else fields.names

    @property
    def options(self) -> dict[str, str]:
        """The source's options for what is read of a record."""
        kept = {"onUndecodable": "keep"} if self._apart_when_read else {}
        return {"includeHeaders": "true", **kept}

    @property
    def columns_read(self) -> list[str]:
        """Names of the source's columns that are read, in the order of those that are made."""
        return ["key", VALUE, *RECORD[1:], *([UNDECODABLE] if self._apart_when_read else [])]

    @property
    def _apart_when_read(self) -> bool:
        return self.has_schema and self.dead_letters

    def for_topic(self, topic: str, *, has_schema: bool) -> Decoding:
        """Returns the decoding of a topic's values.

        Raises ConfigError where the options are not for those of the topic.
        """
        json, avro = self.json is not None, self.avro is not None
        given = "--json-schema" if json else "--avro-schema" if avro else None
        if has_schema and given is not None:
            raise ConfigError(
                f"{given} is for values of topics without a schema, and those of {topic} have "
                "one, whose fields are loaded as columns; leave it out."
            )
        if self.dead_letters and not has_schema and given is None:
            raise ConfigError(
                f"--dead-letters is for values that are decoded, and those of {topic} are "
                "loaded as they are; give --json-schema or --avro-schema, or leave it out."
            )
        return replace(self, has_schema=has_schema)


@dataclass(frozen=True, slots=True)
class PlannedRead:
    """Plan of what ``spark.read.format("logbus")`` reads, made in this process, with the fields of
    Avro values decoded where they are read. Nothing is read before an action on a frame.

    Spark asks a Python source for its columns and for its input partitions in a process of its own
    each, which takes longer to start than a small load does to read. This one has all that they
    would import.
    """

    spark: SparkSession
    reader: LogbusBatchReader
    schema: StructType
    partitions: tuple[RangesPartition, ...]
    avro: AvroFields | None

    @property
    def frame(self) -> DataFrame:
        """All records."""
        return self._of(self.partitions)

    def sample(self) -> DataFrame:
        """Reads some records, from places that are spread over all of them."""
        if not self.partitions:
            return self.frame
        ranges = [each for partition in self.partitions for each in partition.ranges]
        return self._of([replace(self.partitions[0], ranges=sampled(ranges))])

    def _of(self, partitions: Sequence[RangesPartition]) -> DataFrame:
        made = self.schema if self.avro is None else self.avro.added_to(self.schema)
        if not partitions:
            return self.spark.createDataFrame([], made)
        tasks = self.spark.range(0, len(partitions), numPartitions=len(partitions))
        with unlogged():  # the partitions have the token of the tasks
            return tasks.mapInArrow(partial(_read, self.reader, partitions, self.avro, made), made)


def read(
    spark: SparkSession,
    ranges: Sequence[OffsetRange],
    zookeeper: str,
    topic: str,
    decoding: Decoding,
) -> PlannedRead:
    """Exactly the records of ``ranges``, whose values are not decoded yet but for those with a
    schema."""
    options = [
        {**options_of(each, zookeeper, topic), **decoding.options} for each in in_reads(ranges)
    ]
    offered = source_schema(options[0])
    schema = StructType([offered[name] for name in decoding.columns_read])
    readers = [reader_of_batch(each, schema) for each in options]
    partitions = [partition for reader in readers for partition in reader.partitions()]
    # Any of them reads the input partitions of all.
    return PlannedRead(spark, readers[0], schema, tuple(partitions), decoding.avro)


def in_reads(ranges: Sequence[OffsetRange]) -> list[list[OffsetRange]]:
    """Divides ranges into those of one read each (pure): the source's options name one of each
    partition. A window has more of a partition where the log has given up records between."""
    reads: list[list[OffsetRange]] = [[]]
    places: Counter[TopicPartition] = Counter()
    for each in ranges:
        place = places[each.topic_partition]
        places[each.topic_partition] += 1
        if place == len(reads):
            reads.append([])
        reads[place].append(each)
    return reads


def options_of(ranges: Sequence[OffsetRange], zookeeper: str, topic: str) -> dict[str, str]:
    """The source's options for exactly the records of ``ranges``, one of each partition."""

    def positions(pick: str) -> str:
        return json.dumps(
            {topic: {str(r.topic_partition.partition): getattr(r, pick) for r in ranges}}
        )

    return {
        "zookeeper": zookeeper,
        "assign": json.dumps({topic: [r.topic_partition.partition for r in ranges]}),
        "startingOffsets": positions("start"),
        "endingOffsets": positions("end"),
    }


def decoded(frame: DataFrame, decoding: Decoding) -> DataFrame:
    """The fields of values as columns, and what does not decode as ``UNDECODABLE`` if it is to be
    kept apart.

    Raises ConfigError where a field has the name of a column that a load adds.
    """
    if decoding.json is not None:
        return parse_json(
            frame,
            decoding.json,
            drop_value=decoding.drop_value,
            dead_letters=decoding.dead_letters,
        )
    return fields_of_schema(frame) if decoding.has_schema else frame


def without_dead_letters(frame: DataFrame, decoding: Decoding) -> DataFrame:
    """Records of a ``decoded`` frame that are not to be kept apart."""
    if not decoding.dead_letters:
        return frame
    return frame.where(f"{UNDECODABLE} is null").drop(UNDECODABLE)


def partitioned(frame: DataFrame, layout: Layout) -> DataFrame:
    """``frame`` with the columns of the period of each record's event time.

    Raises ConfigError where the records cannot be divided as the layout wants it.
    """
    layout.check_columns(frame.schema)
    if not layout.period_columns:
        return frame
    try:
        timed = frame.withColumn(EVENT_TIME, F.expr(layout.event_time))
    except PySparkException as error:
        raise ConfigError(
            f"--event-time is {layout.event_time!r}: {reason(error)} Name a column, or give an "
            "expression of Spark SQL that makes a timestamp of columns."
        ) from error
    made = layout.expressions(timed.schema[EVENT_TIME].dataType)
    return timed.withColumns(
        {name: F.expr(sql) for name, sql in zip(layout.period_columns, made, strict=True)}
    ).drop(EVENT_TIME)


def _read(
    reader: LogbusBatchReader,
    partitions: Sequence[RangesPartition],
    avro: AvroFields | None,
    schema: StructType,
    tasks: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """The records of the input partitions whose numbers come in."""
    end_quietly_when_dropped()
    for numbers in tasks:
        for number in numbers.column(0).to_pylist():
            batches = reader.read(partitions[number])
            yield from batches if avro is None else avro.decode(batches, schema)

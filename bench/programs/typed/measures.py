"""Measures of typed topics, each by its letter."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
from pyspark.sql import DataFrame, DataFrameReader
from pyspark.sql import functions as F

from bench.kit.baselines import PARTITIONS
from bench.kit.harness import console, drain
from bench.kit.program import Row
from bench.kit.result import LOGBUS, Rounds
from bench.kit.rounds import CPU, RATE, SECONDS, works_in_turn
from bench.kit.same import Same
from bench.programs.avro import FLIGHT, TIMESTAMP
from bench.programs.typed import rows
from bench.programs.typed.bench import Bench
from bench.programs.typed.flights import FEW, FIELDS, SCHEMA
from bench.programs.typed.rows import (
    ALL,
    ALL_AND_OWN,
    FEW_OF_ALL,
    FROM_AVRO,
    FROM_JSON,
    LOGBUS_AVRO,
    MEANS,
    READY_MADE,
    TYPED,
)
from bench.programs.typed.topics import AVRO, COLUMNS, DATUMS, JSON
from bench.servers.kafka import Kafka
from bench.servers.tuning import TUNED_SOURCE
from spark_logbus.client import RangeReader
from spark_logbus.client.fetch.values import ValueReader
from spark_logbus.model import Compression, OffsetRange

LOOP: Final = "fastavro's loop"
LOOPED_PART: Final = 10  # one in so many records is for fastavro's loop


Parts = Iterator[tuple[str, Rounds]]


# -- beside ready-made Arrow --------------------------------------------------------------


def all_columns(bench: Bench) -> Parts:
    """Reads all columns."""
    for title, fields in ((ALL_AND_OWN, None), (ALL, FIELDS)):
        yield title, _beside_ready_made(bench, "a", fields)


def few_columns(bench: Bench) -> Parts:
    """Reads a few columns, and counts the bytes that come for them from another machine."""
    yield FEW_OF_ALL, _beside_ready_made(bench, "b", FEW)
    topic = bench.topics.topic(COLUMNS)
    yield (
        "bytes that come over TCP",
        _bytes(
            {
                ALL: bench.topics.bytes_over_tcp(topic, None),
                "3 of them": bench.topics.bytes_over_tcp(topic, FEW),
            }
        ),
    )


def _beside_ready_made(bench: Bench, name: str, fields: Sequence[str] | None) -> Rounds:
    frame = bench.read(COLUMNS, fields)
    return bench.compare(name, {READY_MADE: bench.ready_made(frame), LOGBUS: frame})


def _bytes(sizes: Mapping[str, int]) -> Rounds:
    return {what: [{"bytes": float(size)}] for what, size in sizes.items()}


# -- beside values that Spark decodes -----------------------------------------------------


_NAMES: Final = {"int": "int", "long": "bigint", "string": "string", "double": "double"}


def _spark_name(kind: Any) -> str:
    """Returns Spark's name of a field's type; a union with null has the other's."""
    one = kind[1] if isinstance(kind, list) else kind
    return "timestamp" if isinstance(one, dict) else _NAMES[one]


_KINDS: Final = {str(one["name"]): _spark_name(one["type"]) for one in FLIGHT["fields"]}


def _from_json(values: DataFrame, fields: Sequence[str]) -> DataFrame:
    schema = ", ".join(f"{name} {_KINDS[name]}" for name in fields)
    event = F.from_json(F.col("value").cast("string"), schema).alias("event")
    return values.select(event).select("event.*")


def _from_avro(values: DataFrame, fields: Sequence[str]) -> DataFrame:
    from pyspark.sql.avro.functions import from_avro

    event = from_avro("value", SCHEMA).alias("event")
    return values.select(event).select("event.*").select(*fields)


def _mean_delays(frame: DataFrame) -> list[tuple[object, ...]]:
    means = frame.groupBy("carrier").agg(F.avg("arr_delay"), F.avg("distance"))
    return sorted(tuple(row) for row in means.collect())


def beside_json(bench: Bench) -> Parts:
    """Reads JSON that Spark decodes, of logbus as well."""
    json = bench.values(JSON)
    for title, fields, work in ((ALL, FIELDS, None), (FEW_OF_ALL, FEW, None),
                                (MEANS, FEW, _mean_delays)):  # fmt: skip
        frames = {FROM_JSON: _from_json(json, fields), TYPED: bench.read(COLUMNS, fields)}
        if work is not None:
            same = Same()
            for each, frame in frames.items():
                same.require(f"c: {each}", str(work(frame)))
        yield rows.beside_json(title), bench.compare("c", frames, work=work or drain)


def beside_kafka(bench: Bench) -> Parts:
    """Reads Kafka's topics of the same flights, which Spark decodes."""
    if bench.kafka is None:
        console.print("k: left out, as Kafka is not at hand.")
        return
    ways = [("JSON", JSON, "from_json", _from_json)]
    if bench.has_from_avro:
        ways.append(("Avro", DATUMS, "from_avro", _from_avro))
    else:
        console.print("k: left out beside Avro, as Spark's from_avro is not at hand.")
    for values, form, does, decoded in ways:
        kafka = _in_kafka(bench, bench.kafka, form)
        frames = {
            f"Kafka, {does}": decoded(kafka.load(), FEW),
            f"Kafka tuned, {does}": decoded(kafka.options(**TUNED_SOURCE).load(), FEW),
            f"{LOGBUS}, {does}": decoded(bench.values(form), FEW),
            TYPED: bench.read(COLUMNS, FEW),
        }
        yield rows.beside_kafka(values), bench.compare("k", frames)


def _in_kafka(bench: Bench, kafka: Kafka, form: str) -> DataFrameReader:
    """Reads a topic of Kafka's that holds what logbus's topic in that form does."""
    server = {"kafka.bootstrap.servers": kafka.bootstrap}
    kafka.create_topic(form, partitions=PARTITIONS)
    with console.status("Filling Kafka's topic ..."):
        to_kafka = bench.values(form).write.format("kafka").options(**server)
        to_kafka.option("topic", form).save()
    return bench.spark.read.format("kafka").options(**server).option("subscribe", form)


def beside_from_avro(bench: Bench) -> Parts:
    """Reads Avro datums that Spark decodes, of logbus as well."""
    if not bench.has_from_avro:
        console.print("d: left out, as Spark's from_avro is not at hand.")
        return
    datums = bench.values(DATUMS)
    for title, fields in ((ALL, FIELDS), (FEW_OF_ALL, FEW)):
        typed = bench.read(COLUMNS, fields)
        frames = {
            FROM_AVRO: _from_avro(datums, fields),
            LOGBUS_AVRO: bench.read(AVRO, fields),
            TYPED: typed,
            READY_MADE: bench.ready_made(typed),
        }
        yield rows.beside_from_avro(title), bench.compare("d", frames)


# -- without Spark ------------------------------------------------------------------------


def avro_alone(bench: Bench) -> Parts:
    """Decodes Avro on one core: the loop makes a dict of each record, nobody's columns yet."""
    plain, typed = bench.topics.topic(DATUMS), bench.topics.topic(AVRO)
    values, schema = bench.topics.values(typed), _schema_for_loop()
    whole = [each for each in bench.topics.ranges(typed) if each.end]
    looped = [
        OffsetRange(each.topic_partition, 0, -(-each.end // LOOPED_PART))
        for each in bench.topics.ranges(plain)
        if each.end
    ]

    def by_loop() -> tuple[int, float]:
        return _looped(bench, looped, schema)

    def by_column() -> tuple[int, float]:
        return _by_column(bench, whole, values)

    part = [
        OffsetRange(own.topic_partition, 0, part.end)
        for own, part in zip(whole, looped, strict=True)
    ]
    Same(by_loop(), by="the loop").require("e: logbus", _by_column(bench, part, values))
    processors = pa.cpu_count()
    pa.set_cpu_count(1)
    try:
        took = works_in_turn(
            {LOOP: by_loop, LOGBUS_AVRO: by_column},
            records=sum(each.end for each in whole),
            rounds=bench.rounds,
        )
    finally:
        pa.set_cpu_count(processors)
    # As if the loop had read them all.
    ratio = sum(each.end for each in whole) / sum(each.end for each in looped)
    for one in took[LOOP]:
        one |= {SECONDS: one[SECONDS] * ratio, CPU: one[CPU] * ratio, RATE: one[RATE] / ratio}
    yield "Avro datums read and decoded by one thread", took


def _schema_for_loop() -> Any:
    """Returns a schema with plain numbers, not datetimes: the loop is faster so."""
    fields = [
        {**one, "type": "long" if one["type"] == TIMESTAMP else one["type"]}
        for one in FLIGHT["fields"]
    ]
    return fastavro.parse_schema({**FLIGHT, "fields": fields})


def _looped(bench: Bench, ranges: Sequence[OffsetRange], schema: Any) -> tuple[int, float]:
    """Returns the number of records and the miles that they flew."""
    count, miles = 0, 0.0
    for each in ranges:
        with RangeReader(bench.topics.system.client, each) as reader:
            for batch in reader:
                for datum in batch.arrow_batch.column("value").to_pylist():
                    record: Any = fastavro.schemaless_reader(io.BytesIO(datum), schema, None)
                    count += 1
                    miles += record["distance"]
    return count, miles


def _by_column(
    bench: Bench, ranges: Sequence[OffsetRange], values: ValueReader
) -> tuple[int, float]:
    count, miles = 0, 0.0
    for each in ranges:
        with RangeReader(bench.topics.system.client, each, values=values) as reader:
            for batch in reader:
                value = batch.arrow_batch.column("value")
                count += len(value)
                miles += pc.sum(value.field("distance")).as_py()
    return count, miles


def on_disk(bench: Bench) -> Parts:
    """Counts bytes of distinct flights: repeated ones would be easy to compress."""
    flights, count = bench.flights.distinct, bench.flights.distinct.num_rows
    parquet = bench.directory / "flights.parquet"
    pyarrow.parquet.write_table(flights, parquet, compression="zstd")
    sizes = {"Parquet, ZSTD": parquet.stat().st_size}
    for compression in (Compression.ZSTD, Compression.NONE):
        for form in (COLUMNS, AVRO):
            topic = bench.topics.topic(form, rows=count, compression=compression)
            shown = compression.name if compression else "not compressed"
            sizes[f"{form}, {shown}"] = bench.topics.stored_bytes(topic)
    yield f"bytes on disk of {count:,} flights", _bytes(sizes)


@dataclass(frozen=True)
class Measure:
    """Row of one or several parts, each named by what it compares."""

    title: str
    parts: Callable[[Bench], Parts]
    unit: str = "s, bytes"

    def measure(self, bench: Bench) -> Parts:
        for what, rounds in self.parts(bench):
            yield f", {what}", rounds


MEASURES: Final[Mapping[str, Row[Bench]]] = {
    "a": Measure("all columns, of ready-made Arrow batches", all_columns),
    "b": Measure("3 of 19 columns, of ready-made Arrow batches; bytes over TCP", few_columns),
    "c": Measure("beside JSON that Spark decodes", beside_json),
    "d": Measure("beside Avro that Spark decodes", beside_from_avro),
    "e": Measure("Avro decoded without Spark, beside fastavro", avro_alone),
    "f": Measure("bytes on disk, beside Parquet", on_disk),
    "k": Measure("3 of 19 columns, beside Kafka's source", beside_kafka),
}

"""Loads of values that do not all decode, and loads within bounds."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql import SparkSession

from spark_logbus.audit.warehouse import local_warehouse
from spark_logbus.client import Producer
from spark_logbus.clock import Clock
from spark_logbus.errors import ConfigError
from spark_logbus.load import (
    FileFormat,
    LayoutChoice,
    LoadConfig,
    Loaded,
    Period,
    SparkCounts,
    Warehouse,
    WarehouseError,
    run_load,
)
from tests.fakes.clock import ManualClock
from tests.servers.cluster import Logbus

SECOND_US = 1_000_000
DEAD = "_logbus/dead_letters"
FARE = {
    "type": "record",
    "name": "Fare",
    "fields": [
        {"name": "route", "type": "string"},
        {"name": "cents", "type": ["null", "int"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}


def datum(route: str, cents: int | None, at_ms: int = 0) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, FARE, {"route": route, "cents": cents, "at": at_ms})
    return out.getvalue()


class Job:
    """Loads of one topic into one directory, read back as tables."""

    def __init__(self, spark: SparkSession, logbus: Logbus, root: Path, topic: str) -> None:
        self._spark = spark
        self._logbus = logbus
        self._root = root
        self.topic = topic
        self.directory = root / topic

    def produce(self, *values: bytes | str | None, at_us: int = 0, partition: int = 0) -> None:
        with Producer(self._logbus.cluster) as producer:
            for value in values:
                data = value.encode() if isinstance(value, str) else value
                producer.send(self.topic, data, key=b"k", partition=partition, timestamp_us=at_us)
            producer.flush()

    def load(self, clock: Clock | None = None, **more: Any) -> Loaded:
        config = LoadConfig(self.topic, str(self._root), self._logbus.zookeeper, **more)
        return run_load(self._spark, config, clock=clock)

    def rows(self, *columns: str, under: str = "") -> list[tuple[Any, ...]]:
        table = self._spark.read.parquet(str(self.directory / under))
        ordered = table.orderBy("partition", "offset").selectExpr(*columns)
        return [tuple(row) for row in ordered.collect()]


@pytest.fixture
def job(spark: SparkSession, logbus: Logbus, tmp_path: Path) -> Job:
    return Job(spark, logbus, tmp_path, logbus.topic(partitions=2))


def test_json_that_does_not_parse_becomes_a_dead_letter(job: Job) -> None:
    job.produce('{"n": 1, "s": "x"}', '{"n": "one", "s": "y"}', "{", None, "[]", '{"other": 1}')
    loaded = job.load(json_schema="n int, s string", dead_letters=True)
    assert loaded.commit is not None
    assert (loaded.commit.records, loaded.commit.dead_letters) == (3, 3)
    assert loaded.to_json()["dead_letters"] == 3
    assert job.rows("offset", "n", "s") == [(0, 1, "x"), (3, None, None), (5, None, None)]
    told = job.rows(
        "topic", "partition", "offset", "cast(key as string)", "cast(value as string)",
        "unix_micros(timestamp)", "reason", under=DEAD,
    )  # fmt: skip
    assert told == [
        (job.topic, 0, 1, "k", '{"n": "one", "s": "y"}', 0, "n is not int"),
        (job.topic, 0, 2, "k", "{", 0, "the value is not JSON"),
        (job.topic, 0, 4, "k", "[]", 0, "the value is no JSON object of these fields"),
    ]
    job.produce('{"n": 2}', "}")
    job.load(json_schema="n int, s string", dead_letters=True)
    assert [row[0] for row in job.rows("offset", under=DEAD)] == [1, 2, 4, 7]
    assert job.load().nothing_new


def test_avro_values_become_columns_and_dead_letters(job: Job) -> None:
    schema = json.dumps(FARE)
    job.produce(datum("JFK-LAX", 9900, 86_400_000), None, b"\x02", datum("EWR-SFO", None))
    with pytest.raises(WarehouseError, match=r"offset 2 of partition 0 does not decode .*too"):
        job.load(avro_schema=schema)
    loaded = job.load(avro_schema=schema, dead_letters=True, drop_value=True)
    assert loaded.commit is not None
    assert (loaded.commit.records, loaded.commit.dead_letters) == (3, 1)
    assert job.rows("offset", "route", "cents", "unix_seconds(at)") == [
        (0, "JFK-LAX", 9900, 86_400),
        (1, None, None, None),
        (3, "EWR-SFO", None, 0),
    ]
    ((offset, value, reason),) = job.rows("offset", "value", "reason", under=DEAD)
    assert (offset, value) == (2, b"\x02")
    assert reason


def test_what_is_in_confluents_wire_format_is_called_so(job: Job) -> None:
    framed = b"\0" + (7).to_bytes(4, "big") + datum("JFK-LAX", 9900)
    job.produce(datum("", None), framed)  # the first one begins with a byte 0 as well
    with pytest.raises(
        WarehouseError, match=r"offset 1 of .* Confluent's wire format with the .*7"
    ):
        job.load(avro_schema=json.dumps(FARE))
    job.load(avro_schema=json.dumps(FARE), dead_letters=True)
    ((offset, value, reason),) = job.rows("offset", "value", "reason", under=DEAD)
    assert (offset, value) == (1, framed)
    assert "wire format with the schema id 7, which belongs into a topic with a schema" in reason


def test_values_of_a_topic_with_a_schema_become_dead_letters(
    spark: SparkSession, logbus: Logbus, tmp_path: Path
) -> None:
    name = logbus.topic_name()
    logbus.admin.create_topic(
        name, partitions=1, config={"retention.ms": "-1"}, value_schema=json.dumps(FARE),
        value_encoding="avro",
    )  # fmt: skip
    job = Job(spark, logbus, tmp_path, name)
    unknown, good = b"\0" + (1 << 30).to_bytes(4, "big"), datum("a", 1)
    with Producer(logbus.cluster) as producer:
        producer.send(name, {"route": "a", "cents": 1, "at": 0}).result(60)
    job.produce(unknown + good, None)
    with pytest.raises(WarehouseError, match="the first has offset 1: its schema id is"):
        job.load()
    loaded = job.load(dead_letters=True)
    assert loaded.commit is not None
    assert (loaded.commit.records, loaded.commit.dead_letters) == (2, 1)
    assert job.rows("offset", "route", "cents") == [(0, "a", 1), (2, None, None)]
    ((offset, value, reason),) = job.rows("offset", "value", "reason", under=DEAD)
    assert (offset, value) == (1, unknown + good)
    assert reason.startswith("its schema id is")


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"dead_letters": True}, "--dead-letters is for values that are decoded"),
        ({"avro_schema": '"int"'}, "--avro-schema is the schema of int, which has no fields"),
        (
            {"avro_schema": json.dumps(FARE).replace("cents", "ROUTE")},
            "names the fields route and ROUTE, which differ only in case",
        ),
    ],
)
def test_decoding_that_is_refused(job: Job, more: dict[str, Any], named: str) -> None:
    job.produce("a")
    with pytest.raises(ConfigError, match=named):
        job.load(**more)
    assert not job.directory.exists()


class KilledError(BaseException):
    """Stands for SIGKILL: nothing of the load runs after it."""


@pytest.mark.parametrize("step", ["commit", "publish"])
@pytest.mark.long
def test_dead_letters_are_committed_with_the_records(
    job: Job, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"json_schema": "n int", "dead_letters": True}
    job.produce('{"n": 0}', "bad")

    def killed(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(Warehouse, step, killed)
        with pytest.raises(KilledError):
            job.load(**options)
    job.produce('{"n": 1}', "worse")
    job.load(**options)
    assert job.rows("n", "offset") == [(0, 0), (1, 2)]
    assert job.rows("cast(value as string)", under=DEAD) == [("bad",), ("worse",)]


def test_loads_within_bounds_bring_everything_once(job: Job) -> None:
    """Loads from a time on, a few records at a time, fairly over the partitions, up to a time."""
    for number in range(8):
        job.produce(f"a{number}", at_us=number * SECOND_US)
        job.produce(f"b{number}", at_us=number * SECOND_US, partition=1)
    bounds: dict[str, Any] = {"start": "1970-01-01T00:00:02Z", "until": "1970-01-01T00:00:06Z"}
    loaded = job.load(**bounds, max_records=4)
    assert loaded.commit is not None
    assert [(r.start, r.end) for r in loaded.commit.ranges] == [(2, 4), (2, 4)]
    assert job.load(**bounds, max_bytes=1).commit is not None  # a record batch of each partition
    while not job.load(**bounds).nothing_new:
        pass
    assert [row[0] for row in job.rows("offset")] == [2, 3, 4, 5] * 2
    job.load(until=json.dumps({job.topic: {"0": 7, "1": -1}}))
    assert [row[0] for row in job.rows("offset")] == [2, 3, 4, 5, 6, 2, 3, 4, 5, 6, 7]
    job.load()
    assert [row[0] for row in job.rows("offset")] == [2, 3, 4, 5, 6, 7] * 2


def test_a_load_goes_by_the_clock_that_it_is_given(job: Job) -> None:
    for minute in range(3):
        job.produce(f"{minute}", at_us=minute * 60 * SECOND_US)
    clock = ManualClock(wall_us=150 * SECOND_US)
    loaded = job.load(clock, start="-100 seconds", until="-60 seconds")
    assert job.rows("cast(value as string)") == [("1",)]
    assert {loaded.seconds, *loaded.steps.values()} == {0.0}


def test_a_first_load_keeps_where_it_was_told_to_begin(job: Job) -> None:
    """Covers a first load with nothing new: the next one must not begin later."""
    job.produce("old", at_us=0)
    first = job.load(start="1970-01-01T00:00:01Z")
    assert first.nothing_new
    assert first.commit is not None
    job.produce("new", at_us=0)
    assert not job.load(start="1970-01-01T00:00:01Z").nothing_new
    assert job.rows("cast(value as string)") == [("new",)]


def test_an_audit_counts_all_that_is_in_whatever_the_layout(
    job: Job, spark: SparkSession, logbus: Logbus, tmp_path: Path
) -> None:
    """Dead letters too, and nothing twice that a rewrite has put elsewhere."""
    layout = LayoutChoice(period=Period.NONE, columns=("n",), format=FileFormat.ORC)
    options: dict[str, Any] = {"json_schema": "n int", "dead_letters": True}
    for value in ("bad", "worse"):
        job.produce('{"n": 1}', '{"n": 2}', value)
        job.load(**options, layout=layout, audit=True)
    assert job.load(**options, compact=2).files_replaced == 4
    counts = SparkCounts(spark, logbus.cluster, logbus.zookeeper, job.topic)
    for place in (
        local_warehouse(logbus.cluster, job.topic, tmp_path),
        counts.warehouse(str(tmp_path)),
    ):
        copy = place(3_600_000_000, 0)
        assert sum(tally.records for tally in copy.counts.tallies.values()) == 6
        assert copy.notes == ()

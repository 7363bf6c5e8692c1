"""Loads: what is stored of a record, under which date, and what is refused or discarded."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_logbus.coordination.locks import Lock
from spark_logbus.errors import ConfigError, DataLossError, LockHeldError
from spark_logbus.lake import union_read
from spark_logbus.load import (
    Commit,
    IncompatibleColumnsError,
    LoadConfig,
    SupersededError,
    Warehouse,
    WarehouseError,
    run_load,
)
from spark_logbus.load.files.hadoop import HadoopDirectory
from spark_logbus.load.read.reading import Decoding, read
from spark_logbus.model import OffsetRange, TopicPartition
from spark_logbus.zookeeper import Session
from tests.helpers import spanning
from tests.integration.load.loaded_directory import KilledError, LoadedDirectory, read_only
from tests.integration.load.loaded_lake import FORMATS, catalog_at
from tests.servers.cluster import Logbus

SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US


class Topic(LoadedDirectory):
    """A topic of one partition, and its directory in a warehouse."""

    def __init__(self, spark: SparkSession, logbus: Logbus, root: Path) -> None:
        self._spark = spark
        self._logbus = logbus
        self._root = root
        self.name = logbus.topic()
        self.directory = root / self.name

    def produce(self, *values: str | None, at_us: int = 0, **more: Any) -> None:
        self._logbus.produce(self.name, values, timestamp_us=at_us, **more)

    def load(self, *, root: str | None = None, **more: Any) -> Commit | None:
        config = LoadConfig(self.name, root or str(self._root), self._logbus.zookeeper, **more)
        return run_load(self._spark, config).commit

    def rows(self, *columns: str, merge: bool = False) -> list[tuple[Any, ...]]:
        table = self._spark.read.option("mergeSchema", merge).parquet(str(self.directory))
        return [tuple(row) for row in table.orderBy("offset").selectExpr(*columns).collect()]

    @property
    def columns(self) -> list[str]:
        return self._spark.read.parquet(str(self.directory)).columns

    def everything(self) -> list[Path]:
        """All files and directories."""
        return sorted(self.directory.rglob("*"))


@pytest.fixture
def topic(spark: SparkSession, logbus: Logbus, tmp_path: Path) -> Topic:
    return Topic(spark, logbus, tmp_path)


@pytest.mark.long
def test_dates_are_of_utc_wherever_the_session_is(topic: Topic, spark: SparkSession) -> None:
    """The session of the tests is half a day from UTC's midnight, at +05:30."""
    assert spark.conf.get("spark.sql.session.timeZone") == "Asia/Kolkata"
    for at_us in (DAY_US - 1, DAY_US, -1, -DAY_US, 1_356_998_399 * SECOND_US):
        topic.produce("x", at_us=at_us)
    assert topic.load() is not None
    dates = [str(date) for (date,) in topic.rows("date")]
    assert dates == ["1970-01-01", "1970-01-02", "1969-12-31", "1969-12-31", "2012-12-31"]


def test_all_of_a_record_is_kept(topic: Topic) -> None:
    topic.produce("a", key="k", headers=[("h", b"1"), ("h", None)], at_us=DAY_US + 5)
    topic.produce(None)
    topic.load()
    rows = topic.rows("key", "value", "partition", "offset", "headers")
    assert [row[:4] for row in rows] == [(b"k", b"a", 0, 0), (None, None, 0, 1)]
    assert [tuple(header) for header in rows[0][4]] == [("h", b"1"), ("h", None)]
    assert rows[1][4] is None
    assert topic.rows("unix_micros(timestamp)") == [(DAY_US + 5,), (0,)]


@pytest.mark.long
def test_json_that_does_not_fit_is_kept_as_it_came(topic: Topic) -> None:
    values = ['{"n": 1, "s": "x"}', '{"n": "one"}', "{", "", "null", "[]", '{"other": 1}', None]
    topic.produce(*values)
    topic.load(json_schema="n int, s string")
    rows = topic.rows("n", "s", "malformed_value")
    assert rows[0] == (1, "x", None)
    assert rows[1] == (None, None, b'{"n": "one"}')
    assert rows[2] == (None, None, b"{")
    assert rows[6] == (None, None, None)  # an object without those fields is no mistake
    # Nothing is lost: what gave no field is there as bytes, unless it was null itself.
    for row, value in zip(rows[2:6], values[2:6], strict=True):
        assert row[2] == (value or "").encode()
    assert rows[7] == (None, None, None)


NOT_NAMED = ['{"n": 1, "more": 2}', '{"N": 1}', '{"n": 1} and so on', '{"n": 1, "n": 2}', "\xff"]


def test_of_json_nothing_is_dropped_unless_told(topic: Topic) -> None:
    """Keys without a field or of another case, and text behind the object, stay in the value."""
    topic.produce(*NOT_NAMED, None)
    topic.load(json_schema="n int")
    rows = topic.rows("value")
    assert rows == [*((value.encode(),) for value in NOT_NAMED), (None,)]


@pytest.mark.long
def test_values_are_dropped_when_told(topic: Topic) -> None:
    topic.produce('{"n": 1, "more": 2}', "{")
    topic.load(json_schema="n int", drop_value=True)
    columns = ["key", "partition", "offset", "timestamp", "headers", "n", "malformed_value", "date"]
    assert topic.columns == columns
    assert topic.rows("n", "malformed_value") == [(1, None), (None, b"{")]
    with pytest.raises(ConfigError, match="--drop-value without --json-schema"):
        topic.load(drop_value=True)


@pytest.mark.long
def test_a_field_may_take_the_place_of_the_value(topic: Topic) -> None:
    topic.produce('{"value": 5}')
    with pytest.raises(ConfigError, match="names value, the column that keeps each value"):
        topic.load(json_schema="value int")
    topic.load(json_schema="value int", drop_value=True)
    assert topic.rows("value") == [(5,)]


@pytest.mark.long
def test_columns_may_be_added_and_left_out(topic: Topic) -> None:
    """Reads the whole after each load, with one schema for all and with each file's own."""
    schemas = [None, "a int", "b string, s struct<x: int>", "a int, s struct<y: string, x: int>"]
    for day, schema in enumerate(schemas):
        topic.produce('{"a": 1, "b": "b", "s": {"x": 2, "y": "z"}}', at_us=day * DAY_US)
        topic.load(json_schema=schema)
        assert topic.rows("offset") == [(number,) for number in range(day + 1)]
    rows = topic.rows("a", "b", "s.x", "s.y", "value is null", merge=True)
    assert rows == [
        (None, None, None, None, False),
        (1, None, None, None, False),
        (None, "b", 2, None, False),
        (1, None, 2, "z", False),
    ]


@pytest.mark.parametrize(
    "keeps_schema", [pytest.param(True, id="kept"), pytest.param(False, id="of an earlier release")]
)
@pytest.mark.long
def test_a_changed_type_is_refused_before_writing(topic: Topic, keeps_schema: bool) -> None:
    topic.produce('{"delay": 5, "carrier": "UA"}')
    topic.load(json_schema="delay int", drop_value=not keeps_schema)
    if not keeps_schema:
        forget_schema(topic.commits[-1])
    topic.produce('{"delay": 7.5, "carrier": "AA"}', at_us=DAY_US)
    before = topic.everything()
    with pytest.raises(IncompatibleColumnsError) as refused:
        topic.load(json_schema="carrier string, delay double")
    message = refused.value.message
    for word in ("Field delay", "int", "double", "as int and convert it when reading", "directory"):
        assert word in message
    with pytest.raises(IncompatibleColumnsError, match=r"Field delay .* is written Delay"):
        topic.load(json_schema="Delay int")
    assert topic.everything() == before
    topic.load(json_schema="carrier string, delay int")
    assert topic.rows("delay", "carrier", merge=True) == [(5, None), (None, "AA")]
    assert topic.rows("delay", "cast(date as string)") == [(5, "1970-01-01"), (None, "1970-01-02")]


def test_a_column_that_one_load_left_out_keeps_its_type(topic: Topic) -> None:
    for schema in ("delay int", "carrier string"):
        topic.produce('{"delay": 5, "carrier": "UA"}')
        topic.load(json_schema=schema)
    topic.produce('{"delay": 5, "carrier": "UA"}')
    with pytest.raises(
        IncompatibleColumnsError, match=r"Field delay .* has the type int, and string"
    ):
        topic.load(json_schema="delay string")


def forget_schema(commit: Path) -> None:
    """Takes the schema out of a commit, as earlier releases wrote it."""
    data = json.loads(commit.read_text())
    assert data.pop("schema") is not None
    commit.write_text(json.dumps(data))
    commit.with_name(f".{commit.name}.crc").unlink()


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ("n int, Date string", "a field Date, a column that the load adds itself"),
        ("no such thing at all", "--json-schema is 'no such thing at all': "),
        ("int", "which is a single type"),
        ("ID string, id string", "names the fields ID and id, which differ only in case"),
        ("n int, n int", "names the field n twice"),
        ("a array<struct<n:int,N:int>>", "names the fields n and N in a, which differ only"),
        ("key int, value_key int", "names the fields key and value_key. The first would be"),
        ("", "is '', which names no fields"),
        ("struct<>", "which names no fields"),
        ("`` int", "a field without a name"),
        ("a struct<` `:int>", "a field without a name in a"),
        ("n map<int,string>", "which JSON has no values for: .* Name such a field as string"),
        ("n varchar(3)", "which JSON has no values for"),
        ("n decimal(50,2)", "exceeds max precision 38"),
        ("a-b int", "must be back quoted as: `a-b`"),
        ("n timestamp_ltz(3)", "seconds precision 3"),
        ("n array<interval>", "which no file of a warehouse can hold: n is interval"),
    ],
)
def test_schemas_that_are_refused(topic: Topic, schema: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named) as refused:
        topic.load(json_schema=schema)
    assert len(refused.value.message.splitlines()) == 1
    assert not topic.directory.exists()


def test_one_directory_has_one_lock_however_it_is_written(
    topic: Topic, logbus: Logbus, spark: SparkSession
) -> None:
    topic.produce("a")
    root = topic.directory.parent
    path = Warehouse(spark, str(root), topic.name).path
    with (
        Session(logbus.zookeeper, client_name="test") as session,
        Lock(session, f"load {path}", holder="the first load"),
    ):
        for same in (f"file:{root}/", f"file://{root}", f"{root}/../{root.name}"):
            with pytest.raises(LockHeldError, match=r"is locked by the first load\. Wait"):
                topic.load(root=same)


@pytest.mark.long
def test_two_commits_of_one_number(topic: Topic, spark: SparkSession) -> None:
    """Were the lock to fail, the second is refused and changes nothing."""
    topic.produce("a")
    first = topic.load()
    assert first is not None
    warehouse = Warehouse(spark, str(topic.directory.parent), topic.name)
    (topic.directory / "_logbus" / "staging" / "other").mkdir(parents=True)
    other = Commit(1, "other", first.topic_id, (), {0: 99}, 0, ())
    warehouse.prepare(other)
    with pytest.raises(SupersededError, match="Load 1 stood still"):
        warehouse.commit(other)
    assert warehouse.last_commit() == first
    assert topic.staged == []


class NoLock:
    """Stands for a lock that a load believes to hold, and that went with its session."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> NoLock:
        return self

    def __exit__(self, *_: object) -> None: ...

    def check(self) -> None: ...


@pytest.mark.parametrize(
    ("step", "outcome"),
    [
        ("claim", "Nothing of it was committed"),
        ("publish", None),
        ("rename", "is committed.* another load has taken over"),
        ("delete", None),
    ],
)
@pytest.mark.long
def test_a_load_that_stands_still_while_others_run(
    topic: Topic, step: str, outcome: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stands still at any place after its lock check: each record is there once when all have
    ended; what it has committed counts, and what it has not does not."""
    from spark_logbus.load import run as module

    kind: Any = Warehouse if step == "publish" else HadoopDirectory
    original = getattr(kind, step)

    def overtaken(self: Any, *arguments: Any) -> None:
        patch.setattr(kind, step, original)
        topic.produce("b", at_us=DAY_US)
        topic.load()
        original(self, *arguments)

    monkeypatch.setattr(module, "Lock", NoLock)
    topic.produce("a", at_us=DAY_US)
    with monkeypatch.context() as patch:
        patch.setattr(kind, step, overtaken)
        if outcome is None:
            topic.load()
        else:
            with pytest.raises(SupersededError, match=outcome):
                topic.load()
    topic.produce("c", at_us=DAY_US)
    topic.load()
    assert topic.rows("value") == [(b"a",), (b"b",), (b"c",)]
    assert (topic.staged, topic.fenced) == ([], [])
    assert len(topic.commits) == (2 if step == "claim" else 3)


def test_a_load_that_was_fenced_cannot_stage_anew(topic: Topic) -> None:
    """Tasks of a load that still runs make its directory again; the next load removes it."""
    topic.produce("a")
    for where in ("staging", "fenced"):
        again = topic.directory / "_logbus" / where / "1-of-a-slow-load"
        again.mkdir(parents=True)
        (again / "part-0").touch()
    assert topic.load() is not None
    assert (topic.staged, topic.fenced) == ([], [])
    assert topic.rows("value") == [(b"a",)]


@pytest.mark.parametrize("method", ["flush", "write", "claim"])
@pytest.mark.long
def test_killed_within_the_commit(
    topic: Topic, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shows that nothing has happened before its one rename, and everything after it."""
    topic.produce("a")
    original = getattr(HadoopDirectory, method)

    def killed(self: HadoopDirectory, *arguments: Any) -> None:
        if method == "claim":
            original(self, *arguments)
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(HadoopDirectory, method, killed)
        with pytest.raises(KilledError):
            topic.load()
    assert len(topic.commits) == (1 if method == "claim" else 0)
    topic.produce("b")
    topic.load()
    assert topic.rows("value") == [(b"a",), (b"b",)]
    assert topic.staged == []
    assert len(topic.commits) == (2 if method == "claim" else 1)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda frame: frame.where("offset > 0"), "Expected 2 records, .* staged 1;"),
        (lambda frame: frame.union(frame), "Expected 2 records, .* staged 4;"),
        (
            lambda frame: frame.withColumn("offset", F.lit(0).cast("long")),
            "Expected 2 records, .* staged 2 others;",
        ),
    ],
)
@pytest.mark.long
def test_only_records_that_were_read_are_committed(
    topic: Topic,
    change: Callable[[DataFrame], DataFrame],
    named: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic.produce("a", "b")
    from spark_logbus.load.files import staging as module
    from spark_logbus.load.files.staging import write

    with monkeypatch.context() as patch:
        patch.setattr(
            module, "write", lambda frame, *given, **more: write(change(frame), *given, **more)
        )
        with pytest.raises(DataLossError, match=named):
            topic.load()
    assert topic.commits == []
    assert topic.load() is not None


def test_a_topic_without_compaction_has_a_record_at_each_offset(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers a reader that passes over some without a word."""
    topic.produce("a", "b")
    with monkeypatch.context() as patch:
        read_only(patch, "offset > 0")
        with pytest.raises(DataLossError, match=r"Expected 2 records in .* found 1; nothing was"):
            topic.load()
        assert topic.commits == []
        commit = topic.load(allow_gaps=True)
    assert commit is not None
    assert commit.records == 1
    assert topic.load() is None


def test_offsets_without_records_are_passed_over(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stands for new records that were all deletions whose time is over."""
    topic.produce("a", "b")
    with monkeypatch.context() as patch:
        read_only(patch, "offset > 1")
        commit = topic.load(allow_gaps=True)
    assert commit is not None
    assert (commit.records, commit.files, commit.ends) == (0, (), {0: 2})
    topic.produce("c")
    assert topic.load() is not None
    assert topic.rows("value") == [(b"c",)]


def test_a_published_file_that_is_gone_is_reported(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reports it as long as the load is not finished: afterwards the files are the user's."""
    topic.produce("a")
    with monkeypatch.context() as patch:
        patch.setattr(HadoopDirectory, "delete", _raise_killed)
        with pytest.raises(KilledError):
            topic.load()
    (published,) = topic.directory.glob("date=*/*.parquet")
    published.rename(published.with_suffix(".away"))
    with pytest.raises(WarehouseError, match="is missing, and so is its staged copy"):
        topic.load()
    published.with_suffix(".away").rename(published)
    assert topic.load() is None
    assert topic.rows("value") == [(b"a",)]


def _raise_killed(*_: object) -> None:
    raise KilledError


def test_a_commit_says_what_came_in(topic: Topic) -> None:
    topic.produce("a", "b", at_us=DAY_US)
    topic.load()
    topic.produce("c", at_us=DAY_US)
    topic.load()
    first, second = (json.loads(path.read_text()) for path in topic.commits)
    assert [path.name for path in topic.commits] == [f"{n:020d}.json" for n in (1, 2)]
    assert first["ranges"] == [{"partition": 0, "start": 0, "end": 2}]
    assert second["ranges"] == [{"partition": 0, "start": 2, "end": 3}]
    assert second["ends"] == {"0": 3}
    for commit in (first, second):
        assert all(os.path.isfile(topic.directory / name) for name in commit["files"])


def test_a_directory_that_cannot_be_written(topic: Topic, tmp_path: Path) -> None:
    topic.produce("a")
    (tmp_path / "file").touch()
    with pytest.raises(WarehouseError, match="Cannot ") as refused:
        topic.load(root=str(tmp_path / "file"))
    assert len(refused.value.message.splitlines()) == 1


def test_ranges_of_one_partition_are_all_read(
    topic: Topic, spark: SparkSession, logbus: Logbus
) -> None:
    """A window has several where the log has given up records between."""
    topic.produce(*"abcdefghij")
    own = TopicPartition(topic.name, 0)
    ranges = [OffsetRange(own, start, end) for start, end in ((0, 2), (4, 5), (8, 10))]
    planned = read(spark, ranges, logbus.zookeeper, topic.name, Decoding())
    assert sorted(row["offset"] for row in planned.frame.collect()) == [0, 1, 4, 8, 9]


@pytest.mark.parametrize(("form", "inside"), spanning(FORMATS, [True, False]))
def test_a_directory_that_is_a_table_of_a_lake_is_refused(
    spark: SparkSession, logbus: Logbus, tmp_path: Path, form: str, inside: bool
) -> None:
    """Refuses it for loads and reads: clean-ups of the table would delete a load's files."""
    topic = Topic(spark, logbus, tmp_path / "lake")
    topic.produce("a")
    table = topic.directory if inside else tmp_path / "lake"
    columns = pa.schema([("offset", pa.int64())])
    if form == "delta":
        DeltaTable.create(table, columns)
    else:
        catalog = load_catalog("test", **catalog_at(tmp_path))
        catalog.create_namespace("n")
        catalog.create_table("n.t", columns, location=str(table))
    before = sorted((tmp_path / "lake").rglob("*"))
    kind = "a Delta table" if form == "delta" else "an Iceberg table"
    refused = f"{table} is {kind} and no directory of a warehouse."
    told = rf"{re.escape(refused)} .* --{form}, "
    with pytest.raises(ConfigError, match=told):
        topic.load()
    with pytest.raises(ConfigError, match=told):
        union_read(spark, topic.name, str(tmp_path / "lake"), zookeeper=logbus.zookeeper)
    assert sorted((tmp_path / "lake").rglob("*")) == before

"""Loads into tables of a lake, of both formats."""

from __future__ import annotations

import datetime as dt
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from spark_logbus.errors import ConfigError, DataLossError, LockHeldError
from spark_logbus.load import (
    DeltaTable,
    IcebergTable,
    IncompatibleColumnsError,
    LayoutChangedError,
    LayoutChoice,
    Period,
    SupersededError,
    WarehouseError,
)
from spark_logbus.load import run as load_run
from spark_logbus.load.lake import staging
from spark_logbus.load.lake.letters import DeadLetters
from spark_logbus.load.lake.marks import OwnDirectory
from spark_logbus.load.lake.table import VersionConflictError
from spark_logbus.load.lake.target import LakeTarget
from spark_logbus.load.lake.writing import WrittenDirectly, write_directly
from spark_logbus.load.read import input as load_input
from spark_logbus.load.read.reading import PlannedRead, read
from spark_logbus.model import OffsetRange
from tests.builders.typed import flights
from tests.helpers import spanning, wait_until
from tests.integration.load import lake_load_driver_program
from tests.integration.load.loaded_directory import KilledError
from tests.integration.load.loaded_lake import FORMATS, LoadedLake, table_named
from tests.integration.load.loaded_table import NoLock
from tests.integration.spark.test_typed import publish, topic_of
from tests.servers.spark import PROJECT

DAY_US = 86_400_000_000
PERIODS = (Period.HOUR, Period.DAY, Period.MONTH, Period.NONE)


def append_beside(lake: LoadedLake) -> None:
    """Another writer adds a row that is of no topic."""
    match lake.table:
        case DeltaTable(uri):
            table = deltalake.DeltaTable(uri)
            schema = pa.schema(table.schema().to_arrow())
            deltalake.write_deltalake(table, _row(schema), mode="append")
        case IcebergTable() as name:
            iceberg = load_catalog(name.catalog, **name.properties).load_table(name.identifier)
            iceberg.append(_row(iceberg.schema().as_arrow()))


def _row(schema: pa.Schema) -> pa.Table:
    """A row of nulls, but for the event time's partition."""
    values = {
        field.name: pa.array([dt.date(2020, 1, 1)] if field.name == "date" else [None], field.type)
        for field in schema
    }
    return pa.table(values, schema=pa.schema([field.with_nullable(True) for field in schema]))


def test_each_load_brings_what_is_new_with_its_offsets(lake: LoadedLake) -> None:
    headers = [("trace", b"\x00\xff"), ("empty", None)]
    lake.produce("a", None, key="k", headers=headers, timestamp_us=1_383_456_789_123_456)
    lake.produce("c", partition=1, timestamp_us=-1)
    first = lake.load(group=f"group-{lake.name}")
    assert first.commit is not None
    assert (first.commit.number, first.records) == (1, 3)
    assert len(first.commit.files) == len(lake.files()) == 2
    assert first.size_bytes == sum(path.stat().st_size for path in lake.data_files())
    utc = dt.UTC
    told = [{"key": "trace", "value": b"\x00\xff"}, {"key": "empty", "value": None}]
    at = dt.datetime(2013, 11, 3, 5, 33, 9, 123456, utc)
    columns = ("partition", "offset", "key", "value", "timestamp", "headers")
    # pyiceberg reads a list of structs that is null as an empty one.
    rows = [(*row[:-1], row[-1] or None) for row in lake.rows(*columns)]
    assert rows == [
        (0, 0, b"k", b"a", at, told),
        (0, 1, b"k", None, at, told),
        (1, 0, None, b"c", dt.datetime(1969, 12, 31, 23, 59, 59, 999999, utc), None),
    ]
    assert lake.load().nothing_new
    lake.produce("d")
    second = lake.load().commit
    assert second is not None
    assert (second.number, second.records) == (2, 1)
    assert lake.rows("partition", "offset") == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert lake.marks() == []
    assert sorted(lake.logbus.committed(f"group-{lake.name}").values()) == [1, 2]
    version = lake.opened.newest()
    assert version is not None
    progress = version.progress()
    assert progress is not None
    assert (progress.number, progress.ends) == (2, {0: 3, 1: 1})
    assert progress.loads.spans == {0: [(0, 3)], 1: [(0, 1)]}


@pytest.mark.long
def test_fields_keep_every_value_in_its_type(lake: LoadedLake) -> None:
    """Loads also in a session whose time zone is another than UTC."""
    lake.produce(
        '{"text": "O\'Neil \\"x\\" \\\\ é", "n": -1, "big": 9007199254740993, "x": 0.1, "ok": true,'
        ' "money": 12.34, "day": "2013-03-10", "at": "2013-11-03T01:30:00.123456-04:00",'
        ' "wall": "2013-03-10T02:30:00.000001", "many": [1, null], "in": {"a": null,'
        ' "t": "2013-01-01T00:00:00.000001Z"}, "map": {"a": 1}, "we`ird \\"name": "w"}'
    )
    lake.load(
        json_schema="text string, n int, big bigint, x double, ok boolean, money decimal(10,2), "
        "day date, at timestamp, wall timestamp_ntz, many array<int>, map map<string, int>, "
        'in struct<a: int, t: timestamp>, `we``ird "name` string',
    )
    (row,) = lake.rows(
        "text", "n", "big", "x", "ok", "money", "day", "at", "wall", "many", "in", "map",
        'we`ird "name',
    )  # fmt: skip
    assert [str(value) for value in row[5:9]] == [
        "12.34", "2013-03-10", "2013-11-03 05:30:00.123456+00:00", "2013-03-10 02:30:00.000001",
    ]  # fmt: skip
    assert row[:5] == ('O\'Neil "x" \\ é', -1, 9007199254740993, 0.1, True)
    assert row[9:] == (
        [1, None], {"a": None, "t": dt.datetime(2013, 1, 1, 0, 0, 0, 1, dt.UTC)}, [("a", 1)], "w"
    )  # fmt: skip


@pytest.mark.long
def test_fields_of_a_topic_with_a_schema_are_columns(lake: LoadedLake) -> None:
    lake.topic = topic_of(lake.logbus, "columns")
    publish(lake.logbus, lake.topic, flights(0, 30))
    lake.load()
    rows = lake.rows("carrier", "number", "tail", "delay")
    names = ("carrier", "number", "tail", "delay")
    assert rows == [tuple(row[name] for name in names) for row in flights(0, 30)]


@pytest.mark.long
@pytest.mark.parametrize(("lake", "period"), spanning(FORMATS, PERIODS), indirect=["lake"])
def test_records_go_to_the_partition_of_their_event_time(lake: LoadedLake, period: Period) -> None:
    times = ["2013-01-31T23:30:00Z", "2013-02-01T00:30:00Z", "2013-02-01T00:40:00Z"]
    times += ["1969-12-31T23:59:59Z"]
    lake.produce(*(f'{{"at": "{at}", "k": "a b/%=é"}}' for at in times), '{"k": "x"}')
    layout = LayoutChoice(period=period, event_time="at", columns=("k",))
    loaded = lake.load(json_schema="at timestamp, k string", layout=layout)
    parts = {Period.HOUR: 4, Period.DAY: 4, Period.MONTH: 4, Period.NONE: 2}[period]
    assert loaded.commit is not None
    assert len(loaded.commit.files) == len(lake.files()) == parts
    assert loaded.without_event_time == (0 if period is Period.NONE else 1)
    assert [k for (k,) in lake.rows("k")] == ["a b/%=é"] * 4 + ["x"]
    lake.produce('{"at": "2013-01-31T23:45:00Z", "k": "y"}')
    lake.load(json_schema="at timestamp, k string")  # has the layout that it was begun with
    assert len(lake.rows("k")) == 6
    other = LayoutChoice(period=Period.DAY if period is not Period.DAY else Period.HOUR)
    with pytest.raises(LayoutChangedError, match="--partition-by"):
        lake.load(json_schema="at timestamp, k string", layout=other)


def test_dead_letters_go_into_a_table_of_their_own(lake: LoadedLake) -> None:
    lake.produce('{"n": 1}', "{", '{"n": "one"}', None)
    loaded = lake.load(json_schema="n int", dead_letters=True, drop_value=True)
    assert loaded.commit is not None
    assert (loaded.commit.records, loaded.commit.dead_letters) == (2, 2)
    assert loaded.dead_letters_path.endswith(f"{lake.name}_dead_letters")
    assert lake.rows("offset", "n") == [(0, 1), (3, None)]
    assert lake.rows("topic", "offset", "value", "reason", letters=True) == [
        (lake.topic, 1, b"{", "the value is not JSON"),
        (lake.topic, 2, b'{"n": "one"}', "n is not int"),
    ]
    assert lake.marks() == []


# -- killed, overtaken, lost replies ------------------------------------------------------------


def _die(*_: Any, **__: Any) -> None:
    raise KilledError


def _then(kind: Any, name: str, after: Callable[[], None]) -> Callable[..., Any]:
    original = getattr(kind, name)

    def run(*given: Any, **more: Any) -> Any:
        made = original(*given, **more)
        after()
        return made

    return run


#: Steps of a load, as the method after (or in place of) which it is killed.
STEPS: dict[str, tuple[Any, str, bool]] = {
    "marked": (OwnDirectory, "write", True),
    "written": (LakeTarget, "prepare", False),
    "listed": (LakeTarget, "commit", False),
    "committed": (LakeTarget, "publish", False),
    "letters put": (DeadLetters, "put", True),
}


@pytest.mark.parametrize(("lake", "step"), spanning(FORMATS, [*STEPS]), indirect=["lake"])
def test_killed_at_each_step_nothing_is_lost_and_nothing_is_there_twice(
    lake: LoadedLake, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = {"json_schema": "n int", "dead_letters": True}
    lake.produce('{"n": 0}', "{")
    lake.load(**decode)
    lake.produce('{"n": 2}', "{", '{"n": 4}')
    kind, method, after = STEPS[step]
    with monkeypatch.context() as patch:
        patch.setattr(kind, method, _then(kind, method, _die) if after else _die)
        with pytest.raises(KilledError):
            lake.load(**decode)
    assert lake.marks() != []
    lake.produce('{"n": 5}')
    again = lake.load(**decode)
    assert again.commit is not None
    assert lake.rows("offset", "n") == [(0, 0), (2, 2), (4, 4), (5, 5)]
    assert lake.rows("offset", letters=True) == [(1,), (3,)]
    assert lake.marks() == []
    # What the killed load has written is gone where no version names it.
    assert len(lake.data_files()) == len(lake.files()) + 2


@pytest.mark.long
@pytest.mark.parametrize(
    ("lake", "step"), spanning(FORMATS, ["written", "committed"]), indirect=["lake"]
)
def test_a_driver_that_is_killed_is_made_good(lake: LoadedLake, step: str) -> None:
    lake.produce('{"n": 0}', "{", '{"n": 2}')
    killed = subprocess.run(
        [
            sys.executable, lake_load_driver_program.__file__, lake.logbus.zookeeper, lake.topic,
            lake.form, str(lake.directory), lake.name, step,
        ],
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        timeout=240,
        check=False,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    lake.produce('{"n": 3}')

    def load() -> bool:
        try:
            lake.load(json_schema="n int", dead_letters=True)
        except LockHeldError:
            return False
        return True

    wait_until(load, message="the dead load's lock to go")
    assert lake.rows("offset", "n") == [(0, 0), (2, 2), (3, 3)]
    assert lake.rows("offset", letters=True) == [(1,)]


def test_a_load_whose_reply_is_lost_has_committed(
    lake: LoadedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.produce("a")
    lake.load()
    lake.produce("b")
    version = lake.opened.newest()

    def fail() -> None:
        raise WarehouseError("The reply is lost.")

    with monkeypatch.context() as patch:
        patch.setattr(type(version), "commit", _then(type(version), "commit", fail))
        loaded = lake.load()
    assert loaded.commit is not None
    assert loaded.commit.number == 2
    assert lake.values() == ["a", "b"]
    assert lake.load().nothing_new


@pytest.mark.parametrize(
    ("lake", "point"), spanning(FORMATS, ["prepare", "commit"]), indirect=["lake"]
)
def test_of_two_loads_at_once_one_commits(
    lake: LoadedLake, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Takes the lock away: the second load runs in the middle of the first."""
    lake.produce("a", "b")
    lake.load()
    lake.produce("c", partition=1)
    monkeypatch.setattr(load_run, "Lock", NoLock)
    original, began = getattr(LakeTarget, point), [False]

    def overtaken(self: LakeTarget, commit: Any) -> None:
        if not began[0]:
            began[0] = True
            assert lake.load().records == 1
        original(self, commit)

    monkeypatch.setattr(LakeTarget, point, overtaken)
    with pytest.raises(SupersededError, match="another load has taken over"):
        lake.load()
    assert lake.values() == ["a", "b", "c"]
    assert len(lake.data_files()) == len(lake.files())
    assert lake.load().nothing_new


@pytest.mark.long
def test_a_zombie_of_a_first_load_is_refused_by_a_fence_alone(
    lake: LoadedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The load that takes over dies in its turn before it commits."""
    lake.produce("a")
    monkeypatch.setattr(load_run, "Lock", NoLock)
    prepare = LakeTarget.prepare
    calls: list[str] = []

    def overtaken(self: LakeTarget, commit: Any) -> None:
        calls.append("prepare")
        if len(calls) == 1:
            with pytest.raises(KilledError):
                lake.load()
        elif len(calls) == 2:
            raise KilledError
        prepare(self, commit)

    monkeypatch.setattr(LakeTarget, "prepare", overtaken)
    with pytest.raises(SupersededError):
        lake.load()
    assert lake.rows("offset") == []
    assert lake.load().records == 1
    assert lake.values() == ["a"]


# -- others beside us -----------------------------------------------------------------------------


def test_another_writer_commits_meanwhile(
    lake: LoadedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits twice between what a load looks at and its commit."""
    lake.produce("a")
    lake.load()
    lake.produce("b")
    version: Any = type(lake.opened.newest())
    original, left = version.commit, [2]

    def commit(self: Any, change: Any) -> None:
        if left[0]:
            left[0] -= 1
            append_beside(lake)
        original(self, change)

    with monkeypatch.context() as patch:
        patch.setattr(version, "commit", commit)
        lake.load()
    found = lake.rows("partition", "offset")
    assert sorted(found, key=str) == sorted([(0, 0), (0, 1), (None, None), (None, None)], key=str)
    assert lake.load().nothing_new


@pytest.mark.long
def test_another_writer_takes_a_column_away_meanwhile(
    lake: LoadedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lake.form == "delta":
        pytest.skip("a column of a Delta table goes only with a feature that loads refuse")
    lake.produce('{"n": 1}')
    lake.load(json_schema="n int")
    lake.produce('{"n": 2}')
    prepare = LakeTarget.prepare

    def drop(self: LakeTarget, commit: Any) -> None:
        name = lake.table
        assert isinstance(name, IcebergTable)
        iceberg = load_catalog(name.catalog, **name.properties).load_table(name.identifier)
        with iceberg.update_schema() as update:
            update.delete_column("n")
        prepare(self, commit)

    with monkeypatch.context() as patch:
        patch.setattr(LakeTarget, "prepare", drop)
        with pytest.raises(IncompatibleColumnsError, match="written: n"):
            lake.load(json_schema="n int")
    lake.load()
    assert lake.rows("offset") == [(0,), (1,)]


def restore(lake: LoadedLake) -> None:
    """Sets the table back to what it was after its first load."""
    match lake.table:
        case DeltaTable(uri):
            table = deltalake.DeltaTable(uri)
            first = min(
                version
                for version in range(table.version() + 1)
                if deltalake.DeltaTable(uri, version=version).file_uris()
            )
            table.restore(first)
        case IcebergTable() as name:
            iceberg = load_catalog(name.catalog, **name.properties).load_table(name.identifier)
            oldest = min(iceberg.snapshots(), key=lambda each: each.sequence_number or 0)
            iceberg.manage_snapshots().rollback_to_snapshot(oldest.snapshot_id).commit()


def test_a_table_that_was_set_back_is_told_and_gone_on_with_if_wanted(lake: LoadedLake) -> None:
    lake.produce("a", "b")
    lake.load()
    lake.produce("c")
    lake.load()
    restore(lake)
    assert lake.values() == ["a", "b"]
    with pytest.raises(WarehouseError, match="--accept-restore") as error:
        lake.load()
    assert "3" in error.value.message
    assert "2" in error.value.message
    lake.produce("d")
    assert lake.load(accept_restore=True).records == 2
    assert lake.values() == ["a", "b", "c", "d"]
    assert lake.load().nothing_new


# -- columns --------------------------------------------------------------------------------------


def test_new_columns_come_where_they_are_wanted(lake: LoadedLake) -> None:
    lake.produce('{"n": 1, "in": {"a": 1}, "x": 1.5}')
    lake.load(json_schema="n int, in struct<a: int>")
    before = lake.files()
    more = "n int, in struct<a: int, b: string>, x double"
    lake.produce('{"n": 2, "in": {"a": 2, "b": "b"}, "x": 2.5}')
    with pytest.raises(IncompatibleColumnsError, match="--evolve"):
        lake.load(json_schema=more)
    assert lake.files() == before
    lake.load(json_schema=more, evolve=True)
    assert lake.rows("n", "x") == [(1, None), (2, 2.5)]
    assert [row["in"] for row in lake.arrow().sort_by("offset").to_pylist()] == [
        {"a": 1, "b": None}, {"a": 2, "b": "b"},
    ]  # fmt: skip
    lake.produce('{"n": 3}')
    lake.load(json_schema="n int")  # what is left out is null
    assert lake.rows("n", "x") == [(1, None), (2, 2.5), (3, None)]


@pytest.mark.long
def test_types_widen_where_the_format_allows_it(lake: LoadedLake) -> None:
    lake.produce('{"n": 1}')
    lake.load(json_schema="n int")
    lake.produce('{"n": 5000000000}')
    if lake.form == "delta":
        with pytest.raises(IncompatibleColumnsError, match="wider"):
            lake.load(json_schema="n bigint", evolve=True)
        return
    with pytest.raises(IncompatibleColumnsError, match="--evolve"):
        lake.load(json_schema="n bigint")
    lake.load(json_schema="n bigint", evolve=True)
    assert lake.rows("n") == [(1,), (5_000_000_000,)]
    lake.produce('{"n": 3}')
    lake.load(json_schema="n int")  # narrower ones always fit
    lake.produce('{"n": 4}')
    with pytest.raises(IncompatibleColumnsError, match="n of"):
        lake.load(json_schema="n string", evolve=True)


@pytest.mark.long
def test_a_table_that_was_there_is_loaded_into(lake: LoadedLake) -> None:
    schema = pa.schema(
        {
            "own": pa.string(),
            "partition": pa.int64(),
            "offset": pa.int64(),
            "timestamp": pa.timestamp("us", "UTC"),
            "key": pa.binary(),
            "value": pa.binary(),
        }
    )
    row = pa.table({each.name: pa.array([None], each.type) for each in schema}, schema=schema)
    match lake.table:
        case DeltaTable(uri):
            deltalake.write_deltalake(uri, row)
        case IcebergTable() as name:
            catalog = load_catalog(name.catalog, **name.properties)
            catalog.create_namespace_if_not_exists("lake")
            catalog.create_table(name.identifier, schema).append(row)
    lake.produce("a")
    undivided = LayoutChoice(period=Period.NONE)
    with pytest.raises(IncompatibleColumnsError, match="headers"):
        lake.load(layout=undivided)
    lake.load(layout=undivided, evolve=True)
    assert sorted(lake.rows("own", "partition", "value"), key=str) == [
        (None, 0, b"a"), (None, None, None),
    ]  # fmt: skip
    lake.produce("b")
    lake.load()
    assert lake.rows("partition", "offset")[:2] == [(0, 0), (0, 1)]


# -- other topics, lost records -------------------------------------------------------------------


@pytest.mark.long
def test_other_topics_and_a_topic_made_anew_are_refused(lake: LoadedLake) -> None:
    lake.produce("a")
    lake.load()
    first = lake.topic
    lake.topic = lake.logbus.topic(partitions=1)
    lake.produce("x")
    with pytest.raises(WarehouseError, match=f"holds the topic {first}"):
        lake.load()
    lake.topic = first
    lake.logbus.admin.delete_topic(first)
    lake.logbus.topic(partitions=2, name=first)
    lake.produce("x")
    with pytest.raises(DataLossError, match="deleted and created again"):
        lake.load()
    assert lake.values() == ["a"]


@pytest.mark.long
@pytest.mark.parametrize(("lake", "direct"), spanning(FORMATS, [True, False]), indirect=["lake"])
def test_records_that_readers_pass_over_are_missed(
    lake: LoadedLake, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers tasks that write what they read, and Spark, which hands it on to others."""
    lake.produce("a", "b", "c")
    with monkeypatch.context() as patch:
        patch.setattr(load_input, "read", _read_without_offset_1)
        patch.setattr(staging, "ONE_TASK_BYTES", 1 << 30 if direct else -1)
        with pytest.raises(DataLossError, match="Expected 3 records"):
            lake.load()
    assert lake.load().records == 3
    assert lake.values() == ["a", "b", "c"]


def _read_without_offset_1(*given: Any, **more: Any) -> PlannedRead:
    """Plans a read that passes over a record without a word."""
    planned = read(*given, **more)
    partitions = []
    for each in planned.partitions:
        (whole,) = each.ranges
        own = whole.topic_partition
        pieces = OffsetRange(own, whole.start, 1), OffsetRange(own, 2, whole.end)
        partitions.append(replace(each, ranges=pieces))
    return replace(planned, partitions=tuple(partitions))


# -- small files, windows -------------------------------------------------------------------------


def test_small_files_of_a_lakes_table_become_one(
    lake: LoadedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        lake.produce(f"{number}", timestamp_us=DAY_US)
        lake.load()
    lake.produce("4", timestamp_us=DAY_US)
    with monkeypatch.context() as patch:
        commit = LakeTarget.commit

        def die_at_the_second(self: LakeTarget, staged: Any) -> None:
            if staged.replaces:
                raise KilledError
            commit(self, staged)

        patch.setattr(LakeTarget, "commit", die_at_the_second)
        with pytest.raises(KilledError):
            lake.load(compact=5)
    assert len(lake.files()) == 5
    loaded = lake.load(compact=5)
    assert (loaded.files_replaced, loaded.files_rewritten) == (5, 1)
    assert len(lake.files()) == 1
    assert lake.values() == ["0", "1", "2", "3", "4"]
    lake.produce("5", timestamp_us=DAY_US)
    lake.load()
    assert lake.values() == ["0", "1", "2", "3", "4", "5"]


@pytest.mark.long
def test_others_who_compact_do_not_touch_offsets(lake: LoadedLake) -> None:
    for number in range(3):
        lake.produce(f"{number}", timestamp_us=DAY_US)
        lake.load()
    match lake.table:
        case DeltaTable(uri):
            table = deltalake.DeltaTable(uri)
            table.optimize.compact()
            table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
            table.create_checkpoint()
        case IcebergTable() as name:
            iceberg = load_catalog(name.catalog, **name.properties).load_table(name.identifier)
            iceberg.overwrite(iceberg.scan().to_arrow())
    lake.produce("3", timestamp_us=DAY_US)
    assert lake.load().records == 1
    assert lake.values() == ["0", "1", "2", "3"]


def test_a_window_of_a_lakes_table_is_decoded_anew_and_all_others_stay(lake: LoadedLake) -> None:
    lake.produce('{"n": 1}', "{", '{"n": 3}', '{"n": "4"}', timestamp_us=DAY_US)
    lake.load(json_schema="n int", dead_letters=True)
    append_beside(lake)
    lake.produce('{"n": 5}', "[", timestamp_us=DAY_US)
    lake.load(json_schema="n int", dead_letters=True)
    window = {"0": 1, "1": 0}
    until = f'{{"{lake.topic}": {{"0": 5, "1": 0}}}}'
    planned = lake.reprocess(
        window, until=until, json_schema="n int, m int", dead_letters=True, evolve=True,
        dry_run=True,
    )  # fmt: skip
    assert (planned.columns_added, planned.before.kept) == (("m",), 1)
    done = lake.reprocess(window, until=until, json_schema="n int, m int", dead_letters=True,
                          evolve=True)  # fmt: skip
    assert (done.before.records, done.before.dead_letters) == (2, 2)
    assert (done.records, done.dead_letters) == (2, 2)
    assert done.columns_added == ("m",)
    rows = [row for row in lake.rows("offset", "n", "m") if row[0] is not None]
    assert rows == [(0, 1, None), (2, 3, None), (4, 5, None)]
    assert len(lake.rows("offset")) == 4
    assert lake.rows("offset", letters=True) == [(1,), (3,), (5,)]
    lake.produce('{"n": 6}', timestamp_us=DAY_US)
    lake.load(json_schema="n int, m int", dead_letters=True)
    assert (6, 6) in lake.rows("offset", "n")


@pytest.mark.long
def test_dead_letters_that_decode_now_leave_their_table(
    lake: LoadedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills the job between the two tables as well."""
    lake.produce('{"n": 1}', '{"n": "two"}', "{")
    lake.load(json_schema="n int", dead_letters=True, drop_value=True)
    with monkeypatch.context() as patch:
        patch.setattr(LakeTarget, "publish", _die)
        with pytest.raises(KilledError):
            lake.reprocess(
                "earliest", json_schema="n int, `value` string", dead_letters=True, drop_value=True,
                evolve=True, until=f'{{"{lake.topic}": {{"0": 2, "1": 0}}}}',
            )  # fmt: skip
    lake.load(json_schema="n int", dead_letters=True, drop_value=True)
    assert lake.rows("offset", letters=True) == [(1,), (2,)]


@pytest.mark.long
def test_random_deaths_leave_each_record_once(
    lake: LoadedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loads, compactions and deaths at steps drawn by a seed, one after the other."""
    draw = random.Random(11)
    decode = {"json_schema": "n int", "dead_letters": True}
    for number in range(6):
        lake.produce(f'{{"n": {number}}}', "{", partition=number % 2, timestamp_us=DAY_US)
        kind, method, after = STEPS[draw.choice([*STEPS])]
        with monkeypatch.context() as patch:
            patch.setattr(kind, method, _then(kind, method, _die) if after else _die)
            try:
                lake.load(compact=draw.choice([None, 2]), **decode)
            except KilledError:
                continue
    lake.load(**decode)
    assert [n for (n,) in lake.rows("n")] == [0, 2, 4, 1, 3, 5]
    assert len(lake.rows("offset", letters=True)) == 6


def test_conflicts_without_end_are_told(lake: LoadedLake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.produce("a")
    lake.load()
    lake.produce("b")
    version = type(lake.opened.newest())

    def busy(*_: Any) -> None:
        raise VersionConflictError("Another version is there.")

    with monkeypatch.context() as patch:
        patch.setattr(version, "commit", busy)
        with pytest.raises(WarehouseError, match="others have committed"):
            lake.load()
    assert lake.load().records == 1


def test_files_are_another_target(lake: LoadedLake) -> None:
    with pytest.raises(ConfigError, match="--hive-table"):
        lake.config(hive_table="a.b")


# -- written where they are read ------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(("lake", "period"), spanning(FORMATS, PERIODS), indirect=["lake"])
def test_records_that_are_written_where_they_are_read_are_the_same(
    lake: LoadedLake, period: Period, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.topic = topic_of(lake.logbus, "columns")
    publish(lake.logbus, lake.topic, flights(0, 40))
    layout = LayoutChoice(period=period, columns=("carrier",))
    with monkeypatch.context() as patch:
        patch.setattr(staging, "ONE_TASK_BYTES", -1)
        gathered = lake.load(layout=layout)
    rows, files = _by_partition(lake)
    lake.name = f"{lake.name}_direct"
    lake.table = table_named(lake.form, lake.directory, lake.name)
    written: list[WrittenDirectly] = []

    def noted(*given: Any, **more: Any) -> WrittenDirectly:
        written.append(write_directly(*given, **more))
        return written[-1]

    monkeypatch.setattr(load_input, "most_directories", lambda *_, **__: 1_000)
    monkeypatch.setattr(staging, "write_directly", noted)
    direct = lake.load(layout=layout)
    is_direct = lake.form == "iceberg" or period is not Period.MONTH  # a text that Spark makes
    assert len(written) == is_direct
    assert direct.records == gathered.records == 40
    assert direct.without_event_time == gathered.without_event_time == 0
    again, others = _by_partition(lake)
    assert again == rows
    assert others == files


def _by_partition(lake: LoadedLake) -> tuple[list[tuple[Any, ...]], set[tuple[str | None, ...]]]:
    """All rows, and the partitions that the table has."""
    version = lake.opened.newest()
    assert version is not None
    columns = [name for name in lake.arrow().column_names if name != "headers"]
    return lake.rows(*columns), {file.partition for file in version.files()}


@pytest.mark.long
def test_avro_values_and_dead_letters_are_written_where_they_are_read(
    lake: LoadedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = '{"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}'
    lake.logbus.produce(lake.topic, ["\x02", "\x80", None, "\x04"], timestamp_us=-1)
    monkeypatch.setattr(load_input, "most_directories", lambda *_, **__: 1_000)
    loaded = lake.load(avro_schema=schema, dead_letters=True, drop_value=True)
    assert loaded.commit is not None
    assert (loaded.commit.records, loaded.commit.dead_letters) == (3, 1)
    assert lake.rows("offset", "n") == [(0, 1), (2, None), (3, 2)]
    assert lake.rows("offset", letters=True) == [(1,)]

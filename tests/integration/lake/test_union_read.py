"""One read over table and log, for files and for a table of a real PostgreSQL."""

from __future__ import annotations

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from spark_logbus.errors import ConfigError, DataLossError
from spark_logbus.lake import seam
from spark_logbus.load import IncompatibleColumnsError, LayoutChoice, Period, WarehouseError
from spark_logbus.load.files import history
from spark_logbus.load.files.hadoop import HadoopDirectory
from spark_logbus.load.files.target import FileTarget
from spark_logbus.model import TopicPartition
from tests.builders.typed import flights
from tests.helpers import wait_until
from tests.integration.lake.loaded_target import (
    LoadedTarget,
    assert_alike,
    columns_of,
    is_of_a_file_that_is_gone,
    kinds,
    rows,
)
from tests.integration.load.loaded_directory import KilledError
from tests.integration.load.test_values import FARE, datum
from tests.integration.spark.test_typed import publish, topic_of

LONG = pytest.mark.long


def test_the_union_is_what_a_load_of_all_would_make(job: LoadedTarget) -> None:
    headers = [("trace", b"\x00\xff"), ("empty", None)]
    job.produce("a", None, key="k", headers=headers, timestamp_us=1_383_456_789_123_456)
    job.produce("c", partition=1, timestamp_us=-1)
    job.load()
    job.produce("d", key="k", headers=headers, timestamp_us=1_383_456_789_123_456)
    job.produce(None, partition=1, headers=[], timestamp_us=-1)
    found = job.union()
    assert len(rows(found)) == 5
    job.load()
    assert_alike(found, job.table())
    assert_alike(job.union(), job.table())


FIELDS = (
    "at timestamp, wall timestamp_ntz, n int, x float, small tinyint, money decimal(10,2), "
    "day date, ok boolean, kind string, many array<int>, in struct<a: int, t: timestamp>, "
    "`a.b ``c` string"
)
EVENT = {
    "at": "2013-11-03T23:30:00.123456Z", "wall": "2013-03-10T02:30:00.000001", "n": 1, "x": 0.5,
    "small": 7, "money": 12.34, "day": "2013-03-10", "ok": True, "kind": "007", "many": [1, None],
    "in": {"a": None, "t": "2013-01-01T00:00:00.000001Z"}, "a.b `c": "w",
}  # fmt: skip


def test_fields_and_partitions_are_as_in_the_table(job: LoadedTarget) -> None:
    """Dead letters are in neither part; directories make null of an empty text."""
    job.decoding = {"json_schema": FIELDS, "dead_letters": True, "drop_value": True}
    more: dict[str, Any] = {}
    if job.in_files:
        more["layout"] = LayoutChoice(period=Period.HOUR, event_time="at", columns=("kind",))
    events = [
        json.dumps({**EVENT, **own}) for own in ({}, {"kind": ""}, {"kind": None, "at": None})
    ]
    job.produce(*events, "bad")
    job.load(**more)
    job.produce("worse", *events)
    found = job.union()
    told = rows(found, "offset", "kind")
    empty = None if job.in_files else ""
    assert told == [(0, "007"), (1, empty), (2, None), (5, "007"), (6, empty), (7, None)]
    job.load()
    # Spark takes the names of directories for numbers where nobody says what they are.
    table = job.table() if not job.in_files else job.union()
    assert_alike(found, table)
    if job.in_files:
        names = [name for name in job.table().columns if name != "kind"]
        assert_alike(job.union(columns=names), job.table().drop("kind"))
    assert rows(job.union(columns=["a.b `c", "offset", "partition"]))[-1] == ("w", 7, 0)


@pytest.mark.parametrize("job", kinds("iceberg"), indirect=True)
def test_a_topic_with_a_schema_needs_nothing(job: LoadedTarget) -> None:
    job.topic = topic_of(job.logbus, "columns")
    publish(job.logbus, job.topic, flights(0, 30))
    assert len(rows(job.union())) == 30
    job.load()
    publish(job.logbus, job.topic, flights(30, 20))
    found = job.union()
    carriers = [row[0] for row in rows(found, "carrier")]
    assert carriers == [each["carrier"] for each in flights(0, 50)]
    job.load()
    assert_alike(found, job.table())


@LONG
@pytest.mark.parametrize("job", kinds("delta"), indirect=True)
def test_avro_values_are_decoded_as_by_the_load(job: LoadedTarget) -> None:
    job.decoding = {"avro_schema": json.dumps(FARE), "dead_letters": True, "drop_value": True}
    job.produce_bytes([datum("JFK-LAX", 9900, 86_400_000), b"\x02", None])
    job.load()
    job.produce_bytes([b"\x02", datum("EWR-SFO", None)])
    found = job.union()
    assert rows(found, "offset", "route", "cents") == [
        (0, "JFK-LAX", 9900),
        (2, None, None),
        (4, "EWR-SFO", None),
    ]
    history, stream = job.stream()
    assert rows(history, "offset") == [(0,), (2,)]
    assert columns_of(stream) == columns_of(found)
    job.load()
    assert_alike(found, job.table())


def test_before_a_first_load_all_is_read_of_the_log(job: LoadedTarget) -> None:
    assert rows(job.union()) == []
    job.decoding = {"json_schema": "n int"}
    job.produce_numbers(2)
    found = job.union()
    job.check_whole(found, least={0: 2, 1: 2})
    history, stream = job.stream()
    assert rows(history) == []
    assert columns_of(history) == columns_of(stream) == columns_of(found)
    assert job.union(columns=["n", "offset", "partition"]).columns == ["n", "offset", "partition"]
    job.load()
    assert_alike(found, job.table())


@pytest.mark.parametrize("job", kinds("table"), indirect=True)
def test_options_that_the_tables_columns_need_are_named(job: LoadedTarget) -> None:
    job.decoding = {"json_schema": "n int, s string"}
    job.produce('{"n": 1, "s": "a"}')
    job.load()
    job.decoding = {}
    with pytest.raises(
        ConfigError, match=r"read here: n, s, malformed_value\. Give json_schema or"
    ):
        job.union()
    assert rows(job.union(columns=["offset", "partition"])) == [(0, 0)]
    with pytest.raises(ConfigError, match=r"read here: s\. Name them in json_schema too"):
        job.union(json_schema="n int")
    with pytest.raises(ConfigError, match=r"read here: value\. Leave drop_value out"):
        job.union(json_schema="n int, s string", drop_value=True)
    with pytest.raises(ConfigError, match=r"'N', which .* does not have; did you mean n\?"):
        job.union(columns=["N"])
    with pytest.raises(ConfigError, match=r"columns names n twice"):
        job.union(columns=["n", "n"])
    with pytest.raises(ConfigError, match=r"columns is 'n', expected a list"):
        job.union(columns="n")
    with pytest.raises(IncompatibleColumnsError, match=r"n of .* (int|integer)[, ]"):
        job.union(json_schema="n string, s string")
    with pytest.raises(ConfigError, match="--dead-letters is for values that are decoded"):
        job.union(dead_letters=True, columns=["offset"])
    assert rows(job.union(json_schema="n int, s string, more int"), "n", "s") == [(1, "a")]


def test_a_table_without_malformed_values_asks_for_dead_letters(files: LoadedTarget) -> None:
    files.produce('{"n": 1}')
    files.load(json_schema="n int", dead_letters=True)
    with pytest.raises(ConfigError, match=r"no column malformed_value.* Give dead_letters=True"):
        files.union(json_schema="n int")


@pytest.mark.parametrize("job", kinds("iceberg"), indirect=True)
def test_a_topic_created_again_is_refused(job: LoadedTarget) -> None:
    job.produce("a")
    job.load()
    job.logbus.admin.delete_topic(job.topic)
    job.logbus.topic(partitions=2, name=job.topic)
    for read in (job.union, job.stream):
        with pytest.raises(DataLossError, match=r"created again since load 1"):
            read()


@LONG
def test_short_retention_and_a_table_are_a_full_history(job: LoadedTarget) -> None:
    """The log keeps the newest records alone; what no load has brought in before is missed."""
    job.topic = job.logbus.topic(partitions=2, segment_bytes="2048")
    first = TopicPartition(job.topic, 0)
    for _ in range(10):
        job.produce_numbers(50)
    job.load()
    job.produce_numbers(1)
    retain(job, first, above=200)
    job.check_whole(job.union(), least={0: 501, 1: 501})
    history, stream = job.stream()
    job.check_whole(history, least={0: 500, 1: 500})
    assert stream.columns == history.columns
    for _ in range(10):
        job.produce_numbers(50)
    retain(job, first, above=600)
    for read in (job.union, job.stream):
        with pytest.raises(DataLossError, match=r"load 1 ended at offset 500, but the log now sta"):
            read()


def retain(job: LoadedTarget, topic_partition: TopicPartition, *, above: int) -> None:
    """Waits until retention has deleted the records up to ``above``."""
    job.logbus.admin.alter_topic(job.topic, put={"retention.bytes": "4096"})
    wait_until(
        lambda: job.logbus.spans(job.topic)[topic_partition][0] > above,
        deadline_s=90,
        message="retention",
    )


@pytest.mark.parametrize("job", kinds("delta"), indirect=True)
def test_a_partition_that_was_added_since_is_read_from_its_beginning(job: LoadedTarget) -> None:
    job.produce("a")
    job.load()
    job.logbus.admin.alter_topic(job.topic, partitions=3)
    wait_until(lambda: len(job.logbus.spans(job.topic)) == 3)
    job.produce("b", partition=2)
    assert rows(job.union(), "partition", "offset", "value") == [(0, 0, b"a"), (2, 0, b"b")]


def test_a_table_of_another_kind_is_refused(files: LoadedTarget) -> None:
    files.target = Path(str(files.target))  # type: ignore[assignment]
    with pytest.raises(
        ConfigError, match=r"table is PosixPath.*, expected the directory of a ware"
    ):
        files.union()


def test_commit_files_that_are_lost_do_not_hide_the_history(files: LoadedTarget) -> None:
    files.produce("a")
    files.load()
    shutil.rmtree(Path(str(files.target)) / files.topic / "_logbus" / "loads")
    with pytest.raises(WarehouseError, match=r"files of load 1 are in .*knows no load as the last"):
        files.union()


# -- loads meanwhile ------------------------------------------------------------------------


def test_a_load_between_table_and_log_brings_no_record_twice(
    job: LoadedTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.produce_numbers(2)
    job.load()
    job.produce_numbers(2)
    look_up = seam._rest_of_log

    def after_a_load(*given: Any) -> Any:
        job.load()
        return look_up(*given)

    monkeypatch.setattr(seam, "_rest_of_log", after_a_load)
    found = job.union()
    job.check_whole(found, least={0: 4, 1: 4})
    job.reprocess({"0": 1, "1": 1})
    if not job.in_files:
        job.check_whole(found, least={0: 4, 1: 4})


@LONG
def test_what_retention_deletes_once_it_is_loaded_is_taken_from_the_table(
    job: LoadedTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.topic = job.logbus.topic(partitions=2, segment_bytes="2048")
    job.produce_numbers(50)
    job.load()
    look_up = seam._rest_of_log
    loaded: list[Any] = []

    def after_retention(*given: Any) -> Any:
        if not loaded:
            for _ in range(10):
                job.produce_numbers(50)
            loaded.append(job.load())
            for partition in (0, 1):
                retain(job, TopicPartition(job.topic, partition), above=100)
        return look_up(*given)

    monkeypatch.setattr(seam, "_rest_of_log", after_retention)
    job.check_whole(job.union(), least={0: 550, 1: 550})


class Reads:
    """Reads the union before each step of a load that moves and deletes files."""

    def __init__(self, job: LoadedTarget, patch: pytest.MonkeyPatch) -> None:
        self.whole = self.refused = 0
        self._job = job
        for name in ("rename", "delete", "claim", "write"):
            patch.setattr(HadoopDirectory, name, self._before(getattr(HadoopDirectory, name)))
        patch.setattr(history, "WAIT_MS", 0)

    def _before(self, step: Any) -> Any:
        def read_then(*given: Any) -> Any:
            self.read()
            return step(*given)

        return read_then

    def read(self) -> None:
        try:
            self._job.check_whole(self._job.union(), least=self._job.counts)
        except WarehouseError as error:
            if "Wait for that load; if it was killed, run a load" not in error.message:
                raise
            self.refused += 1
        else:
            self.whole += 1


def test_files_are_whole_at_each_step_of_loads_that_move_them(
    files: LoadedTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Holds for a first load, and for one that brings files into directories that are there."""
    files.decoding = {"json_schema": "n int"}
    files.produce_numbers(2)
    with monkeypatch.context() as patch:
        reads = Reads(files, patch)
        files.load(layout=LayoutChoice(period=Period.NONE, columns=("partition", "n")))
        files.produce('{"n": 0}', '{"n": 1}')
        files.produced[0] += ['{"n": 0}', '{"n": 1}']
        files.load()
        assert reads.whole > 12
        assert reads.refused == 0


@LONG
def test_files_are_whole_or_waited_for_at_each_step_of_a_rewrite(
    files: LoadedTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.decoding = {"json_schema": "n int"}
    files.produce_numbers(2)
    files.load()
    files.produce_numbers(1)
    with monkeypatch.context() as patch:
        reads = Reads(files, patch)
        assert files.load(compact=2).files_replaced
        compaction = reads.refused
        assert compaction > 2
        files.produce_numbers(1)
        files.reprocess({"0": 1, "1": 1})
        assert reads.refused > compaction + 2
        assert reads.whole > 8
    files.check_whole(files.union(), least=files.counts)


@LONG
def test_records_of_a_killed_load_that_retention_has_deleted_are_not_called_lost(
    files: LoadedTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Holds for what the next load will find staged, and brings in."""
    files.topic = files.logbus.topic(partitions=2, segment_bytes="2048")
    for _ in range(10):
        files.produce_numbers(50)

    def killed(*_: Any) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(FileTarget, "publish", killed)
        with pytest.raises(KilledError):
            files.load()
    files.check_whole(files.union(), least={0: 500, 1: 500})
    for partition in (0, 1):
        retain(files, TopicPartition(files.topic, partition), above=100)
    with pytest.raises(WarehouseError, match=r"Load 1 of .* is committed .* Nothing is lost\."):
        files.union()
    files.load()
    files.check_whole(files.union(), least={0: 500, 1: 500})


@LONG
def test_a_rewrite_under_way_is_waited_for(
    files: LoadedTarget, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files.produce_numbers(2)
    files.load()
    files.produce_numbers(1)
    waited_for, rename = threading.Event(), HadoopDirectory.rename

    def when_waited_for(directory: HadoopDirectory, source: str, target: str) -> None:
        if "rewrite" in threading.current_thread().name and "/staging/" in source:
            assert waited_for.wait(60)
        rename(directory, source, target)

    files.load()
    monkeypatch.setattr(HadoopDirectory, "rename", when_waited_for)
    with ThreadPoolExecutor(2, thread_name_prefix="rewrite") as executor:
        rewrite = executor.submit(files.load, compact=2)
        loads = Path(str(files.target)) / files.topic / "_logbus" / "loads"
        wait_until(lambda: len([*loads.glob("*.json")]) == 3)
        union = executor.submit(files.union)
        wait_until(lambda: "waiting for it up to" in caplog.text)
        waited_for.set()
        files.check_whole(union.result(60), least={0: 3, 1: 3})
        assert rewrite.result(60).files_replaced


@pytest.mark.parametrize("then", ["add", pytest.param("rewrite", marks=LONG)])
def test_files_that_come_while_they_are_listed_do_no_harm(
    files: LoadedTarget, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    files.produce_numbers(2)
    files.load()
    files.produce_numbers(2)
    list_files = FileTarget._list_files
    listed: list[Any] = []

    def then_load(*given: Any) -> Any:
        found = list_files(*given)
        if not listed:
            files.load(compact=2 if then == "rewrite" else None)
        listed.append(found)
        return found

    monkeypatch.setattr(FileTarget, "_list_files", then_load)
    found = files.union()
    files.check_whole(found, least={0: 4, 1: 4})
    assert len(listed) == (2 if then == "rewrite" else 1)


def test_what_is_cached_of_an_earlier_read_is_not_taken_for_the_newest(
    files: LoadedTarget,
) -> None:
    files.produce_numbers(2)
    files.load()
    cached = files.stream().history.cache()
    assert cached.count() == 4
    files.produce_numbers(1)
    files.load()
    files.check_whole(files.union(), least={0: 3, 1: 3})
    cached.unpersist()


@LONG
@pytest.mark.parametrize("job", kinds("iceberg"), indirect=True)
def test_loads_go_on_while_the_union_is_read_again_and_again(job: LoadedTarget) -> None:
    """Loads add, compact and reprocess; each read has what was produced before it began."""
    job.decoding = {"json_schema": "n int"}
    job.produce_numbers(20)
    job.load()

    def load_on() -> None:
        for number in range(1, 9):
            job.produce_numbers(5)
            job.load(**({"compact": 2} if job.has_files and number % 3 == 0 else {}))
            if number % 4 == 0:
                job.reprocess({"0": number, "1": number})

    with ThreadPoolExecutor(1) as executor:
        loads = executor.submit(load_on)
        reads = 0
        while not loads.done():
            reads += read_whole(job)
        loads.result()
    assert reads >= 3
    job.check_whole(job.union(), least={0: 60, 1: 60})


def read_whole(job: LoadedTarget) -> bool:
    """Reads the union and checks it; False where a rewrite has deleted files since the read was
    planned, which is to be read again then."""
    least = job.counts_in_log()
    try:
        job.check_whole(job.union(), least=least)
    except (PySparkException, Py4JJavaError) as error:
        if not job.in_files or not is_of_a_file_that_is_gone(error):
            raise
        return False
    return True

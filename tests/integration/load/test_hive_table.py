"""Tables of a real Hive metastore (Derby's, in a directory of the test) over warehouses."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_logbus.errors import ConfigError
from spark_logbus.load import LoadConfig, run_load
from tests.integration.load import hive_program
from tests.servers.cluster import Logbus
from tests.servers.spark import PROJECT

pytestmark = pytest.mark.timeout(600)  # JVMs, one after the other

EVENTS = "at timestamp, Kind string, n int"


@dataclass(frozen=True)
class Hive:
    """A process of ``hive_program``, asked for one thing after the other."""

    process: subprocess.Popen[str]

    def _ask(self, **what: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(what), file=self.process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self.process.stdout.readline() or "null") or {}
        return answer

    def sql(self, statement: str) -> list[list[Any]]:
        said = self._ask(sql=statement)
        assert "error" not in said, said
        rows: list[list[Any]] = said["answer"]
        return rows

    def load(self, **fields: Any) -> dict[str, Any]:
        """The report."""
        said = self._ask(load=fields)
        assert "error" not in said, said
        report: dict[str, Any] = said["answer"]
        return report

    def reprocess(self, **fields: Any) -> dict[str, Any]:
        """The report."""
        said = self._ask(reprocess=fields)
        assert "error" not in said, said
        report: dict[str, Any] = said["answer"]
        return report

    def refusal(self, **fields: Any) -> tuple[str, str]:
        """The class and the message of the error that the load ends with."""
        kind, message = self._ask(load=fields)["error"]
        return kind, message

    def die(self, statement: str, **fields: Any) -> None:
        """Load, and be killed before that statement."""
        self._ask(die=statement)
        assert self._ask(load=fields) == {}
        assert self.process.wait(120) == -signal.SIGKILL


@contextmanager
def hive_in(directory: Path, *settings: str) -> Iterator[Hive]:
    """``directory`` has the metastore, and what Derby leaves."""
    directory.mkdir(exist_ok=True)
    with subprocess.Popen(
        [sys.executable, hive_program.__file__, *settings],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Hive(process)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def hive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hive]:
    with hive_in(tmp_path_factory.mktemp("hive")) as process:
        yield process


class Events:
    """A topic of events, and what a load of it is asked for."""

    def __init__(self, logbus: Logbus, root: Path) -> None:
        self._logbus = logbus
        self._made = 0
        self.topic = logbus.topic(partitions=2)
        self.table = f"default.{self.topic.replace('-', '_')}"
        self.root = root
        self.directory = root / self.topic

    def produce(self, *moments: str | None, kind: str | None = "a", **more: Any) -> None:
        values = []
        for moment in moments:
            values.append(json.dumps({"at": moment, "Kind": kind, "n": self._made, **more}))
            self._made += 1
        self._logbus.produce(self.topic, values, timestamp_us=0)

    def fields(self, **more: Any) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "warehouse": str(self.root),
            "zookeeper": self._logbus.zookeeper,
            "json_schema": EVENTS,
            "hive_table": self.table,
            **more,
        }


@pytest.fixture
def events(logbus: Logbus, tmp_path: Path) -> Events:
    return Events(logbus, tmp_path)


BY_HOUR = {"period": "hour", "event_time": "at"}


@pytest.mark.long
def test_sql_sees_what_loads_have_published_by_hour(hive: Hive, events: Events) -> None:
    """Partitions and columns are added as they appear, dead letters are not to be seen, and a
    table that was dropped is made anew with all partitions."""
    events.produce("2013-01-01T05:00:00Z", "2013-01-01T06:00:00Z", None)
    events.produce("not a moment")
    fields = events.fields(layout=BY_HOUR, dead_letters=True)
    report = hive.load(**fields)
    assert (report["dead_letters"], report["hive_table"]) == (1, events.table)
    everything = f"SELECT n, CAST(date AS string), hour FROM {events.table} ORDER BY n"
    first = [[0, "2013-01-01", 5], [1, "2013-01-01", 6], [2, None, None]]
    assert hive.sql(everything) == first
    letters = f"{events.directory}/_logbus/dead_letters"
    assert hive.sql(f"SELECT offset FROM parquet.`{letters}`") == [[3]]

    events.produce("2013-01-01T05:30:00Z", "2013-01-02T00:00:00Z", more="x")
    hive.load(**events.fields(json_schema=f"{EVENTS}, more string"))
    assert hive.sql(f"SELECT n, more FROM {events.table} WHERE date = '2013-01-01' ORDER BY n") == [
        [0, None], [1, None], [4, "x"],
    ]  # fmt: skip
    assert hive.sql(f"SELECT n FROM {events.table} WHERE hour = 0") == [[5]]
    assert hive.sql(f"SELECT n FROM {events.table} WHERE date IS NULL") == [[2]]
    hive.sql(f"DROP TABLE {events.table}")
    assert hive.load(**events.fields())["nothing_new"]
    assert len(hive.sql(everything)) == 5
    assert len(hive.sql(f"SHOW PARTITIONS {events.table}")) == 4


@pytest.mark.long
def test_sql_sees_at_once_what_was_reprocessed(hive: Hive, events: Events) -> None:
    """Its new columns; and it tells what a load had left untold, also where nothing is done
    again."""
    events.produce("2013-01-01T05:00:00Z", "2013-01-02T06:00:00Z", None, more="x")
    layout = {"period": "day", "event_time": "at"}
    hive.load(**events.fields(layout=layout))
    window = events.fields(start=json.dumps({events.topic: {"0": 1, "1": 0}}))
    window["json_schema"] = f"{EVENTS}, more string"
    plan = hive.reprocess(**window, dry_run=True)
    assert (plan["hive_table"], plan["columns_added"]) == (events.table, ["more"])
    assert "more" not in [row[0] for row in hive.sql(f"DESCRIBE {events.table}")]
    assert hive.reprocess(**window)["records"] == 2
    shown = f"SELECT n, more, CAST(date AS string) FROM {events.table} ORDER BY n"
    assert hive.sql(shown) == [
        [0, None, "2013-01-01"], [1, "x", "2013-01-02"], [2, "x", None],
    ]  # fmt: skip

    events.produce("2013-01-04T00:00:00Z")
    hive.load(**events.fields(hive_table=None))
    nothing = {**window, "start": json.dumps({events.topic: {"0": -1, "1": -1}})}
    assert hive.reprocess(**nothing)["nothing_loaded"]
    assert hive.sql(shown)[-1] == [3, None, "2013-01-04"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("layout", "partitions"),
    [
        ({"period": "none", "format": "orc"}, None),
        ({"period": "month", "event_time": "at", "format": "orc"}, ["month=2013-01"]),
        (
            {"period": "day", "event_time": "at", "columns": ["Kind"]},
            [
                "date=2013-01-01/Kind=O%27Hara%2F%25%5C $%7Buser.dir} ü",
                "date=2013-01-01/Kind=__HIVE_DEFAULT_PARTITION__",
            ],
        ),
    ],
    ids=["none", "month", "column"],
)
def test_a_table_has_the_layout_of_its_warehouse(
    hive: Hive, events: Events, layout: dict[str, Any], partitions: list[str] | None
) -> None:
    """Uses a directory whose name has to be quoted too."""
    kind = "O'Hara/%\\ ${user.dir} ü"
    fields = events.fields(warehouse=f"{events.root}/it's a directory", layout=layout)
    for _ in range(2):
        events.produce("2013-01-01T05:00:00Z", kind=kind)
        events.produce("2013-01-01T06:00:00Z", kind=None)
        hive.load(**fields)
    found = hive.sql(f"SELECT n, Kind FROM {events.table} ORDER BY n")
    assert found == [[0, kind], [1, None], [2, kind], [3, None]]
    if partitions is not None:
        shown = [row[0] for row in hive.sql(f"SHOW PARTITIONS {events.table}")]
        assert sorted(shown) == partitions
    described = {row[0]: row[1] for row in hive.sql(f"DESCRIBE EXTENDED {events.table}")}
    form = layout.get("format", "parquet")
    assert described["Type"] == "EXTERNAL"
    # So it can be read by others than Spark.
    assert form in described["Serde Library"].lower()


@pytest.mark.long
def test_a_table_that_is_not_ours_is_refused(hive: Hive, events: Events) -> None:
    """Refuses it before anything is written, whatever does not fit, and uses it when it fits."""
    events.produce("2013-01-01T05:00:00Z")
    at = f"USING parquet PARTITIONED BY (date) LOCATION '{events.directory}'"
    columns = "key binary, date date"
    for made, complaint in (
        (f"TABLE {{0}} ({columns}) USING parquet PARTITIONED BY (date)", "is a managed table"),
        ("VIEW {0} AS SELECT 1 n", "is a view"),
        (f"TABLE {{0}} ({columns}) {at[:-1]}s'", f"is at file:{events.directory}s, and the wareh"),
        (f"TABLE {{0}} ({columns}) {at}".replace("parquet", "orc"), "has the format orc, and the"),
        (f"TABLE {{0}} ({columns}) {at}".replace("(date)", "(key)"), "is partitioned by key, and"),
        (f"TABLE {{0}} (n string, {columns}) {at}", "has the column n as string, and the wareh"),
        (f"TABLE {{0}} (n int, date string) {at}", "has the column date as string, and the war"),
    ):
        name = events.table
        hive.sql(f"CREATE {made.format(name)}")
        kind, message = hive.refusal(**events.fields())
        assert (kind, complaint in message) == ("HiveTableError", True), message
        remedy = f"DROP {made.split()[0]} {name}"
        assert "Nothing was written" in message
        assert remedy in message
        hive.sql(remedy)
        assert not list(events.root.rglob("*.parquet"))
    kind, message = hive.refusal(**events.fields(hive_table="nobody.events"))
    assert (kind, "no database nobody" in message) == ("HiveTableError", True)
    hive.sql(f"CREATE TABLE {name} (N int, more int, {columns}) {at}")
    hive.load(**events.fields())
    assert hive.sql(f"SELECT n, more FROM {name}") == [[0, None]]


@pytest.mark.long
def test_a_struct_that_grows_is_refused_until_the_table_is_dropped(
    hive: Hive, events: Events
) -> None:
    """A metastore does not change a struct, so the load says so before it writes."""
    events.produce("2013-01-01T05:00:00Z", s={"a": 1, "b": 2})
    hive.load(**events.fields(json_schema="n int, s struct<a int>"))
    events.produce("2013-01-01T06:00:00Z", s={"a": 3, "b": 4})
    grown = events.fields(json_schema="n int, s struct<a int, b int>")
    kind, message = hive.refusal(**grown)
    assert kind == "HiveTableError"
    assert "has the column s as struct<a:int>, and the warehouse as struct<a:int,b:int>" in message
    hive.sql(f"DROP TABLE {events.table}")
    hive.load(**grown)
    assert hive.sql(f"SELECT s.a, s.b FROM {events.table} ORDER BY n") == [[1, None], [3, 4]]
    # As after a kill between the last partition and the property.
    hive.sql(f"ALTER TABLE {events.table} UNSET TBLPROPERTIES ('logbus.load')")
    assert hive.load(**grown)["nothing_new"]
    assert hive.sql(f"SELECT count(*) FROM {events.table}") == [[2]]


@pytest.mark.long
def test_what_a_killed_load_left_untold_the_next_job_tells(events: Events, tmp_path: Path) -> None:
    """Killed when its files are in place; and the next one, the job itself, finds nothing new."""
    home = tmp_path / "hive"
    events.produce("2013-01-01T05:00:00Z", "2013-01-02T06:00:00Z")
    with hive_in(home) as hive:
        hive.die("CREATE TABLE", **events.fields(layout=BY_HOUR))
    assert len(list(events.directory.glob("date=*/hour=*/part-*"))) == 2

    submit = Path(sys.executable).with_name("spark-submit")
    done = subprocess.run(
        [submit, "--master", "local[1]", "--conf", "spark.ui.enabled=false",
         PROJECT / "jobs" / "load_warehouse.py", "--topic", events.topic, "--warehouse",
         events.root, "--zookeeper", events.fields()["zookeeper"], "--json-schema", EVENTS,
         "--hive-table", events.table],
        cwd=home, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing new" in done.stdout
    with hive_in(home) as hive:
        assert hive.sql(f"SELECT n, hour FROM {events.table} ORDER BY n") == [[0, 5], [1, 6]]


@pytest.mark.long
def test_a_metastore_that_is_away_fails_the_load_before_it_writes(
    events: Events, tmp_path: Path
) -> None:
    events.produce("2013-01-01T05:00:00Z")
    with socket.socket() as nobody:  # it does not listen
        nobody.bind(("127.0.0.1", 0))
        uri = f"thrift://127.0.0.1:{nobody.getsockname()[1]}"
        away = (f"spark.hadoop.hive.metastore.uris={uri}",
                "spark.hadoop.hive.metastore.connect.retries=1")  # fmt: skip
        with hive_in(tmp_path / "hive", *away) as hive:
            kind, message = hive.refusal(**events.fields())
    assert kind == "MetastoreError"
    assert "Nothing was written" in message
    assert "hive.metastore.uris" in message
    assert not list(events.root.rglob("*.parquet"))


def test_a_session_without_hive_is_told_what_it_lacks(spark: SparkSession, events: Events) -> None:
    events.produce("2013-01-01T05:00:00Z")
    with pytest.raises(ConfigError, match=r"catalog in-memory; make it with enableHiveSupport\(\)"):
        run_load(spark, LoadConfig(**events.fields()))
    assert not events.directory.exists()

"""Loads into a table of a real PostgreSQL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_logbus.coordination.locks import Lock
from spark_logbus.errors import DataLossError, LockHeldError
from spark_logbus.load import (
    IncompatibleColumnsError,
    JdbcTable,
    SupersededError,
    WarehouseError,
)
from spark_logbus.load.jdbc.connection import (
    DatabaseError,
    DatabaseUnavailableError,
    DriverMissingError,
    JdbcTransaction,
)
from spark_logbus.load.jdbc.staging import StagingTables
from spark_logbus.load.jdbc.target import TableTarget
from spark_logbus.zookeeper import Session
from tests.builders.typed import flights
from tests.integration.load import table_load_driver_program
from tests.integration.load.loaded_directory import KilledError
from tests.integration.load.loaded_table import LoadedTable, NoLock
from tests.integration.spark.test_typed import publish, topic_of
from tests.servers.ports import refusing_address
from tests.servers.postgresql import PASSWORD, USER
from tests.servers.spark import PROJECT


@pytest.fixture
def job(loaded_table: LoadedTable) -> LoadedTable:
    return loaded_table


def test_each_load_brings_what_is_new_with_its_offsets(job: LoadedTable) -> None:
    headers = [("trace", b"\x00\xff"), ("empty", None)]
    job.produce("a", None, key="k", headers=headers, timestamp_us=1_383_456_789_123_456)
    job.produce("c", partition=1, timestamp_us=-1)
    first = job.load(group=f"group-{job.name}").commit
    assert first is not None
    assert (first.number, first.records) == (1, 3)
    rows = job.query(
        'SELECT partition, "offset", key, value, timestamp, headers FROM {} '
        'ORDER BY partition, "offset"'
    )
    told = '[{"key":"trace","value":"AP8="},{"key":"empty","value":null}]'
    assert rows == [
        ("0", "0", r"\x6b", r"\x61", "2013-11-03 05:33:09.123456+00", told),
        ("0", "1", r"\x6b", "NULL", "2013-11-03 05:33:09.123456+00", told),
        ("1", "0", "NULL", r"\x63", "1969-12-31 23:59:59.999999+00", "NULL"),
    ]
    assert job.load().nothing_new
    job.produce("d")
    assert job.load().to_json()["records"] == 1
    assert job.loads() == [("1", '{"0": 2, "1": 1}', "3", "0"), ("2", '{"0": 3, "1": 1}', "1", "0")]
    assert job.staged() == []
    committed = job.logbus.committed(f"group-{job.name}")
    assert sorted(committed.values()) == [1, 2]


@pytest.mark.long
def test_fields_keep_every_value_in_its_type(job: LoadedTable) -> None:
    """Runs in a session and a database whose time zones are others than UTC."""
    job.produce(
        '{"text": "O\'Neil \\"x\\" \\\\ é", "n": -1, "big": 9007199254740993, "x": 0.1, "ok": true,'
        ' "money": 12.34, "day": "2013-03-10", "at": "2013-11-03T01:30:00.123456-04:00",'
        ' "wall": "2013-03-10T02:30:00.000001", "many": [1, null], "in": {"a": null,'
        ' "t": "2013-01-01T00:00:00.000001Z"}, "we`ird \\"name": "w"}'
    )
    job.load(
        json_schema="text string, n int, big bigint, x double, ok boolean, money decimal(10,2), "
        "day date, at timestamp, wall timestamp_ntz, many array<int>, "
        'in struct<a: int, t: timestamp>, `we``ird "name` string',
        dead_letters=True,
    )
    (row,) = job.query(
        'SELECT text, n, big, x, ok, money, day, at, wall, many, "in", "we`ird ""name" FROM {}'
    )
    assert row == (
        "O'Neil \"x\" \\ é", "-1", "9007199254740993", "0.1", "t", "12.34", "2013-03-10",
        "2013-11-03 05:30:00.123456+00", "2013-03-10 02:30:00.000001", "[1,null]",
        '{"a":null,"t":"2013-01-01T00:00:00.000001Z"}', "w",
    )  # fmt: skip
    kinds: dict[str, str] = dict(
        job.query(  # type: ignore[arg-type]
            "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = '{}'"
        )
    )
    assert kinds["many"] == kinds["headers"] == "json"
    assert kinds["money"] == "numeric"
    assert kinds["wall"] == "timestamp without time zone"


@pytest.mark.long
def test_dead_letters_come_with_the_records_in_one_transaction(job: LoadedTable) -> None:
    job.produce('{"n": 1}', "{", '{"n": "one"}', None)
    loaded = job.load(json_schema="n int", dead_letters=True, drop_value=True)
    assert loaded.commit is not None
    assert (loaded.commit.records, loaded.commit.dead_letters) == (2, 2)
    assert loaded.dead_letters_path == f"public.{job.name}_dead_letters"
    assert job.query('SELECT "offset", n FROM {} ORDER BY 1') == [("0", "1"), ("3", "NULL")]
    assert job.query(
        "SELECT topic, \"offset\", convert_from(value, 'UTF8'), reason FROM {}_dead_letters "
        "ORDER BY 2"
    ) == [
        (job.topic, "1", "{", "the value is not JSON"),
        (job.topic, "2", '{"n": "one"}', "n is not int"),
    ]
    assert job.loads() == [("1", '{"0": 4, "1": 0}', "2", "2")]


@pytest.mark.long
def test_fields_of_a_topic_with_a_schema_are_columns(job: LoadedTable) -> None:
    job.topic = topic_of(job.logbus, "columns")
    publish(job.logbus, job.topic, flights(0, 30))
    job.load()
    rows = job.query('SELECT carrier, number, tail, delay FROM {} ORDER BY "offset"')
    told = [(*row[:3], None if row[3] == "NULL" else float(row[3])) for row in rows]
    assert told == [
        (each["carrier"], str(each["number"]), each["tail"] or "NULL", each["delay"])
        for each in flights(0, 30)
    ]


COLUMNS = (
    'key bytea, value bytea, partition int, "offset" bigint, timestamp timestamptz, headers json'
)


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        (COLUMNS.replace(", headers json", ""), 'no column headers.* ADD COLUMN "headers" json'),
        (COLUMNS.replace("timestamptz", "timestamp(3)"), r"timestamp of .* is timestamp\(3\) with"),
        (COLUMNS + ", more int NOT NULL", "Column more of .* has no default"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_before_writing(
    job: LoadedTable, columns: str, named: str
) -> None:
    job.query(f"CREATE TABLE {{}} ({columns})")
    job.produce("a")
    with pytest.raises(IncompatibleColumnsError, match=named):
        job.load()
    assert job.staged() == []
    assert job.loads() == []


@pytest.mark.long
def test_what_is_not_a_table_or_leaves_rows_out_is_refused(job: LoadedTable) -> None:
    job.query(
        f"CREATE TABLE {{0}} ({COLUMNS}); CREATE FUNCTION {{0}}_none() RETURNS trigger AS "
        "'BEGIN RETURN NULL; END' LANGUAGE plpgsql; CREATE TRIGGER none BEFORE INSERT ON {0} "
        "FOR EACH ROW EXECUTE FUNCTION {0}_none()"
    )
    job.produce("a")
    with pytest.raises(DataLossError, match=r"Expected 1 record, .* took 0; nothing was"):
        job.load()
    assert job.loads() == []
    job.query("DROP TABLE {0}; CREATE VIEW {0} AS SELECT 1 AS one")
    with pytest.raises(WarehouseError, match=r"is no table but a view"):
        job.load()


@pytest.mark.long
def test_another_topic_a_new_one_and_a_lost_table_are_refused(job: LoadedTable) -> None:
    job.produce("a")
    job.load()
    mine, job.topic = job.topic, job.logbus.topic()
    with pytest.raises(WarehouseError, match=rf"holds the topic {mine} since load 1, not"):
        job.load()
    job.topic = mine
    job.query("ALTER TABLE {0} RENAME TO {0}_away")
    with pytest.raises(WarehouseError, match=r"is missing, and .* load 1 was committed there"):
        job.load()
    job.query("ALTER TABLE {0}_away RENAME TO {0}")
    job.logbus.admin.delete_topic(mine)
    job.logbus.topic(partitions=2, name=mine)
    with pytest.raises(DataLossError, match=r"created again .* into another table\."):
        job.load()
    assert job.values() == ["a"]


@pytest.mark.long
def test_a_text_that_the_database_cannot_hold_is_named(job: LoadedTable) -> None:
    job.produce('{"s": "a\\u0000b"}')
    with pytest.raises(WarehouseError, match=r"invalid byte sequence") as told:
        job.load(json_schema="s string")
    assert len(told.value.message) < 400
    assert job.load(json_schema="s binary").commit is not None


def test_a_database_that_cannot_be_used_says_what_to_do(
    job: LoadedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.produce("a")
    with refusing_address() as address:
        job.table = JdbcTable(f"jdbc:postgresql://{address}/postgres", "t")
        with pytest.raises(DatabaseUnavailableError, match=rf"{address}.* refused.* Check that it"):
            job.load()
    job.table = JdbcTable(job.database.url, "t", {"user": USER, "password": "wrong"})
    with pytest.raises(DatabaseError, match=r"authentication failed.*--jdbc-properties"):
        job.load()
    job.table = job.database.table("nowhere.t")
    with pytest.raises(DatabaseError, match=r"nowhere.* Create the schema, or correct"):
        job.load()
    job.table = JdbcTable(
        job.database.url.replace("/postgres", "/none"), "t", {"user": USER, "password": PASSWORD}
    )
    with pytest.raises(DatabaseError, match="Create the database, or correct --jdbc-url"):
        job.load()
    job.table = job.database.table("t")
    monkeypatch.setattr("spark_logbus.load.jdbc.connection.DRIVER", "org.example.Missing")
    with pytest.raises(DriverMissingError, match=r"--packages org.postgresql:postgresql:.*--jars"):
        job.load()


# -- loads side by side ---------------------------------------------------------------------


def test_a_load_under_way_keeps_others_out_by_name(job: LoadedTable) -> None:
    job.produce("a")
    with (
        Session(job.logbus.zookeeper, client_name="test") as session,
        Lock(session, f"load {job.table}", holder="the first load"),
        pytest.raises(LockHeldError, match="the first load"),
    ):
        job.load()
    assert not job.is_there()


@pytest.mark.parametrize("where", [pytest.param("stage", marks=pytest.mark.long), "commit"])
def test_of_two_loads_that_no_lock_keeps_apart_one_commits(
    job: LoadedTable, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second begins and ends while the first is at that step."""
    job.produce("a", "b")
    monkeypatch.setattr("spark_logbus.load.run.Lock", NoLock)
    method: Callable[..., Any] = getattr(TableTarget, where)

    def overtaken(self: TableTarget, *given: Any) -> Any:
        with monkeypatch.context() as inner:
            inner.setattr(TableTarget, where, method)
            assert job.load().to_json()["records"] == 2
        return method(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(TableTarget, where, overtaken)
        with pytest.raises(SupersededError, match=r"a load of .* has committed at"):
            job.load()
    assert job.values() == ["a", "b"]
    assert [row[0] for row in job.loads()] == ["1"]
    assert job.staged() == []
    job.produce("c")
    job.load()
    assert job.values() == ["a", "b", "c"]


@pytest.mark.long
def test_a_load_waits_for_a_transaction_and_then_names_it(
    job: LoadedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first stands still in its transaction, with the row of its load."""
    job.produce("a")
    monkeypatch.setattr("spark_logbus.load.run.Lock", NoLock)
    monkeypatch.setattr("spark_logbus.load.jdbc.connection.LOCK_S", 1)
    move = StagingTables.move

    def while_open(self: StagingTables, *given: Any) -> None:
        move(self, *given)
        with monkeypatch.context() as inner:
            inner.setattr(StagingTables, "move", move)
            with pytest.raises(LockHeldError, match=r"locked by logbus: a load of .*server proc"):
                job.load()

    with monkeypatch.context() as patch:
        patch.setattr(StagingTables, "move", while_open)
        job.load()
    assert job.values() == ["a"]


# -- kills ----------------------------------------------------------------------------------


@pytest.mark.long
def test_killed_at_each_statement_every_record_is_there_once(
    job: LoadedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills it before the first statement, before the second and so on, before the commit, until a
    load comes through."""
    job.produce("a", '{"n": 1}')
    job.load(json_schema="n int")
    job.query("ALTER TABLE {} DROP COLUMN malformed_value")
    run, commit = JdbcTransaction.run, JdbcTransaction.commit
    left, ran = 0, ""

    def counted(self: JdbcTransaction, sql: str, *parameters: object) -> int:
        nonlocal ran
        ran = sql
        if not sql.startswith("SET LOCAL"):
            step()
        return run(self, sql, *parameters)

    def committed(self: JdbcTransaction) -> None:
        if ran.startswith("DROP TABLE"):  # else nothing of the load hangs on it
            step()
        commit(self)

    def step() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KilledError

    monkeypatch.setattr(JdbcTransaction, "run", counted)
    monkeypatch.setattr(JdbcTransaction, "commit", committed)
    kills = 0
    job.produce("b", '{"n": 2}', partition=1)
    while True:
        left = kills
        try:
            job.load(json_schema="n int", dead_letters=True)
        except KilledError:
            kills += 1
            assert len(job.loads()) == 1
            continue
        break
    # Two staging tables, the row, two times a table, its records and the drop of the staging.
    assert kills >= 6
    rows = job.query('SELECT partition, "offset", n FROM {} ORDER BY 1, 2')
    assert rows == [("0", "0", "NULL"), ("0", "1", "1"), ("1", "1", "2")]
    assert job.query('SELECT partition, "offset" FROM {}_dead_letters') == [("1", "0")]
    assert len(job.loads()) == 2
    assert job.staged() == []


@pytest.mark.slow
@pytest.mark.parametrize("step", ["staged", "locked", "moved", "committed"])
def test_a_driver_killed_at_a_step_leaves_every_record_once(job: LoadedTable, step: str) -> None:
    job.produce("a", "b")
    job.load()
    job.produce("c", partition=1)
    given = [job.logbus.zookeeper, job.topic, job.database.url, job.name, step]
    killed = subprocess.run(
        [sys.executable, table_load_driver_program.__file__, *given,
         os.pathsep.join(map(str, job.database.jars))],
        env={**os.environ, "PYTHONPATH": str(PROJECT), "LOGBUS_JDBC_USER": USER,
             "LOGBUS_JDBC_PASSWORD": PASSWORD},
        capture_output=True, timeout=240, check=False,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert len(job.loads()) == (2 if step == "committed" else 1)
    assert bool(job.staged()) == (step != "committed")
    job.produce("d")
    assert job.load().to_json()["load"] == (3 if step == "committed" else 2)
    assert job.values() == ["a", "b", "c", "d"]
    assert job.staged() == []


@pytest.mark.slow
def test_the_job_loads_into_a_table_by_itself(job: LoadedTable, tmp_path: Path) -> None:
    """Runs it as spark-submit does: the driver comes with --jars, the password with a file."""
    job.produce("a", "b")
    properties = tmp_path / "jdbc.properties"
    properties.write_text(f"user={USER}\npassword={PASSWORD}\n")

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        submit = Path(sys.executable).with_name("spark-submit")
        return subprocess.run(
            [submit, "--master", "local[1]", "--conf", "spark.ui.enabled=false", *options,
             PROJECT / "jobs" / "load_warehouse.py", "--topic", job.topic, "--zookeeper",
             job.logbus.zookeeper, "--jdbc-url", job.database.url, "--jdbc-table", job.name,
             "--jdbc-properties", properties],
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip

    missing = run()
    assert missing.returncode == 1
    assert "There is no org.postgresql.Driver on Spark's class path" in missing.stdout
    assert "Traceback" not in missing.stdout + missing.stderr
    done = run("--jars", ",".join(map(str, job.database.jars)))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"2 records in {job.table}" in done.stdout
    assert PASSWORD not in missing.stdout + missing.stderr + done.stdout + done.stderr
    assert job.values() == ["a", "b"]


@pytest.mark.parametrize("committed", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_connection_that_is_lost_in_the_commit_is_asked_about(
    job: LoadedTable, committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends the connection before, or after, it has done what it was asked."""
    job.produce("a")
    job.load()
    job.produce("b")
    commit = JdbcTransaction.commit

    def cut(self: JdbcTransaction) -> None:
        ((is_commit,),) = self.rows(
            "SELECT count(*) FROM logbus_loads WHERE target = ? AND load = 2", job.name
        )
        if is_commit and committed:
            commit(self)
        if is_commit:
            monkeypatch.setattr(JdbcTransaction, "commit", commit)
            with pytest.raises(DatabaseUnavailableError):
                self.rows("SELECT pg_terminate_backend(pg_backend_pid())")
        commit(self)

    monkeypatch.setattr(JdbcTransaction, "commit", cut)
    if committed:
        assert job.load().to_json()["load"] == 2
    else:
        with pytest.raises(DatabaseUnavailableError, match="run the load again"):
            job.load()
        assert len(job.loads()) == 1
        assert job.load().to_json()["load"] == 2
    assert job.values() == ["a", "b"]
    assert job.staged() == []

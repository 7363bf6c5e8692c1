"""Windows of a topic that was loaded into a table of a real PostgreSQL, read again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spark_logbus.errors import DataLossError
from spark_logbus.load import (
    IncompatibleColumnsError,
    NotInLogError,
    SupersededError,
    UnknownRowsError,
    WarehouseError,
)
from spark_logbus.load.jdbc.connection import JdbcTransaction
from spark_logbus.load.jdbc.staging import StagingTables
from spark_logbus.load.jdbc.target import TableTarget
from spark_logbus.model import TopicPartition
from tests.helpers import wait_until
from tests.integration.load import table_load_driver_program
from tests.integration.load.loaded_directory import KilledError, read_only
from tests.integration.load.loaded_table import LoadedTable, NoLock
from tests.servers.cluster import Logbus
from tests.servers.postgresql import PASSWORD, USER
from tests.servers.spark import PROJECT

LONG = pytest.mark.long
SLOW = pytest.mark.slow

ROWS = 'SELECT partition, "offset", n, note FROM {} ORDER BY 1, 2'
LETTERS = 'SELECT "offset", reason FROM {}_dead_letters ORDER BY 1'
BEFORE: dict[str, Any] = {"json_schema": "n int", "dead_letters": True}
NOW: dict[str, Any] = {"json_schema": "note string", "dead_letters": True}


@pytest.fixture
def job(loaded_table: LoadedTable) -> LoadedTable:
    return loaded_table


def load_notes(job: LoadedTable) -> None:
    """Two loads, of which each has dead letters; the table has got a column since."""
    job.produce(
        '{"n": 0, "note": "a"}', '{"n": 1, "note": "b"}', '{"n": "two", "note": "c"}', "bad"
    )
    job.produce('{"n": 10, "note": "d"}', partition=1)
    job.load(**BEFORE)
    job.produce('{"n": 4, "note": "e"}', '{"n": "five"}')
    job.load(**BEFORE)
    job.query("ALTER TABLE {} ADD COLUMN note text")


def ranges_of(job: LoadedTable) -> list[tuple[str, ...]]:
    return job.query("SELECT load, ranges FROM logbus_loads WHERE target = '{}' ORDER BY load")


OLD_ROWS = [
    ("0", "0", "0", "NULL"), ("0", "1", "1", "NULL"), ("0", "4", "4", "NULL"),
    ("1", "0", "10", "NULL"),
]  # fmt: skip
OLD_LETTERS = [("2", "n is not int"), ("3", "the value is not JSON"), ("5", "n is not int")]
#: With offsets 1 to 3 of partition 0 read again.
NEW_ROWS = [
    OLD_ROWS[0], ("0", "1", "NULL", "b"), ("0", "2", "NULL", "c"), *OLD_ROWS[2:]
]  # fmt: skip
NEW_LETTERS = OLD_LETTERS[1:]


def window(job: LoadedTable) -> dict[str, Any]:
    until = f'{{"{job.topic}": {{"0": 4, "1": -1}}}}'
    return {"start": {"0": 1, "1": -1}, "until": until, **NOW}


def test_a_window_of_rows_is_decoded_anew_and_all_others_stay(job: LoadedTable) -> None:
    """Rows get the new column, dead letters become rows, and the ledger tells it."""
    with pytest.raises(WarehouseError, match=r"is no warehouse of .* as --jdbc-table"):
        job.reprocess("earliest")
    load_notes(job)
    plan = job.reprocess(**window(job), dry_run=True)
    assert (plan.before.records, plan.before.dead_letters, plan.before.kept) == (1, 2, 0)
    assert plan.columns_left_out == ("n",)
    assert job.query(ROWS) == OLD_ROWS
    done = job.reprocess(**window(job))
    assert (done.records, done.dead_letters, done.to_json()["replaces"]) == (2, 1, [])
    assert job.query(ROWS) == NEW_ROWS
    assert job.query(LETTERS) == NEW_LETTERS
    assert job.loads()[2] == ("3", '{"0": 6, "1": 1}', "2", "1")
    assert ranges_of(job)[2] == ("3", '[{"partition": 0, "start": 1, "end": 4, "again": true}]')
    assert job.staged() == []

    job.produce('{"n": 6}', partition=1)
    assert job.load(**BEFORE).to_json()["records"] == 1
    again = job.reprocess("earliest", json_schema="n int, note string", dead_letters=True)
    assert [(each.start, each.end) for each in again.ranges] == [(0, 6), (0, 2)]
    assert (again.records, again.dead_letters) == (5, 3)


@pytest.mark.parametrize(
    ("kind", "where"), [pytest.param(StagingTables, "stage", marks=LONG), (TableTarget, "commit")]
)
def test_a_window_that_a_load_overtakes_is_left_as_it_was(
    job: LoadedTable, kind: type, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No lock keeps them apart: the load begins and ends while the other is at that step."""
    load_notes(job)
    job.produce('{"n": 6}')
    monkeypatch.setattr("spark_logbus.load.run.Lock", NoLock)
    monkeypatch.setattr("spark_logbus.load.reprocess.Lock", NoLock)
    method = getattr(kind, where)

    def overtaken(self: object, *given: Any) -> Any:
        with monkeypatch.context() as inner:
            inner.setattr(kind, where, method)
            assert job.load(**BEFORE).to_json()["load"] == 3
        return method(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(kind, where, overtaken)
        with pytest.raises(SupersededError, match=r"a load of .* has committed at"):
            job.reprocess(**window(job))
    assert job.query(ROWS) == [*OLD_ROWS[:3], ("0", "6", "6", "NULL"), OLD_ROWS[3]]
    assert job.query(LETTERS) == OLD_LETTERS
    assert job.staged() == []


@LONG
def test_rows_that_are_not_known_or_were_changed_are_refused(
    job: LoadedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_notes(job)
    with pytest.raises(IncompatibleColumnsError, match=r"has no column more.*ADD COLUMN"):
        job.reprocess("earliest", json_schema="more string")
    clear = StagingTables.clear

    def changed(self: StagingTables, *given: Any) -> None:
        job.query('DELETE FROM {} WHERE "offset" = 1')
        clear(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(StagingTables, "clear", changed)
        with pytest.raises(DataLossError, match=r"Expected to replace 1 row .* 0 could be del"):
            job.reprocess(**window(job))
    assert len(job.loads()) == 2
    assert job.query(LETTERS) == OLD_LETTERS
    # And the record that is gone comes back.
    done = job.reprocess(**window(job))
    assert (done.before.records, done.records) == (0, 2)
    assert job.query(ROWS) == NEW_ROWS
    job.query('ALTER TABLE {} RENAME COLUMN "offset" TO place')
    with pytest.raises(UnknownRowsError, match=r"its column offset is none of that name, expect"):
        job.reprocess(**window(job))


@LONG
def test_rows_in_a_table_with_wider_numbers_are_known(job: LoadedTable) -> None:
    """Rows that are there twice, because the table has no key, are there once then."""
    job.query(
        'CREATE TABLE {} (key bytea, value bytea, partition numeric, "offset" numeric, '
        "timestamp timestamptz, headers json, note text)"
    )
    job.produce('{"note": "a"}', '{"note": "b"}', '{"note": "c"}')
    job.load()
    job.query('INSERT INTO {0} SELECT * FROM {0} WHERE "offset" = 1')
    done = job.reprocess({"0": 1, "1": 0}, json_schema="note string", dead_letters=True)
    assert (done.before.records, done.records) == (3, 2)
    assert job.query('SELECT "offset", note FROM {} ORDER BY 1') == [
        ("0", "NULL"), ("1", "b"), ("2", "c"),
    ]  # fmt: skip


@LONG
def test_rows_that_the_log_no_longer_has_are_not_given_up(
    job: LoadedTable, logbus: Logbus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asks by offset, by moments that the log does not know any more, and after a compaction."""
    job.topic = logbus.topic(segment_bytes="2048")
    topic_partition = TopicPartition(job.topic, 0)
    for first in range(0, 100, 10):
        job.produce(*["x" * 200] * 10, timestamp_us=first * 1_000_000)
    job.load()
    logbus.admin.alter_topic(job.topic, put={"retention.bytes": "4096"})
    wait_until(
        lambda: logbus.spans(job.topic)[topic_partition][0] >= 50, deadline_s=90, message="retent"
    )
    start = logbus.spans(job.topic)[topic_partition][0]
    for where in ({"0": 30}, "1970-01-01T00:00:30Z"):
        with pytest.raises(NotInLogError, match=rf"offsets 30 to {start - 1} .* offset {start} on"):
            job.reprocess(where)
    with monkeypatch.context() as patch:
        read_only(patch, "offset != 97")
        with pytest.raises(NotInLogError, match=r"offsets 97 to 97 .* possible from offset 98 on"):
            job.reprocess("earliest")
    assert len(job.loads()) == 1
    assert job.reprocess("earliest").records == 100 - start
    assert len(job.values()) == 100


# -- kills ----------------------------------------------------------------------------------


@LONG
def test_killed_at_each_statement_a_window_is_old_or_new(
    job: LoadedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills it before the first statement, before the second and so on, before the commit, until it
    comes through."""
    load_notes(job)
    run, commit = JdbcTransaction.run, JdbcTransaction.commit
    left, ran = 0, ""

    def counted(self: JdbcTransaction, sql: str, *parameters: object) -> int:
        nonlocal ran
        ran = sql
        # Up to the transaction with the deletes, kills are as those of any load.
        if sql.startswith(("DELETE", "INSERT", 'DROP TABLE "public"')):
            step()
        return run(self, sql, *parameters)

    def committed(self: JdbcTransaction) -> None:
        if ran.startswith('DROP TABLE "public"'):
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
    while True:
        left = kills
        try:
            job.reprocess(**window(job))
        except KilledError:
            kills += 1
            assert job.query(ROWS) == OLD_ROWS
            assert job.query(LETTERS) == OLD_LETTERS
            assert len(job.loads()) == 2
            continue
        break
    # The row, two deletes, two times what a table takes and the drop of its staging, the commit.
    assert kills == 8
    assert job.query(ROWS) == NEW_ROWS
    assert job.query(LETTERS) == NEW_LETTERS
    assert job.staged() == []


@SLOW
@pytest.mark.parametrize("step", ["staged", "locked", "cleared", "moved", "committed"])
def test_a_driver_killed_at_a_step_leaves_a_window_old_or_new(job: LoadedTable, step: str) -> None:
    load_notes(job)
    given = [job.logbus.zookeeper, job.topic, job.database.url, job.name, step]
    killed = subprocess.run(
        [sys.executable, table_load_driver_program.__file__, *given,
         os.pathsep.join(map(str, job.database.jars)), f'{{"{job.topic}": {{"0": 1, "1": 0}}}}'],
        env={**os.environ, "PYTHONPATH": str(PROJECT), "LOGBUS_JDBC_USER": USER,
             "LOGBUS_JDBC_PASSWORD": PASSWORD},
        capture_output=True, timeout=240, check=False,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    done = step == "committed"
    assert len(job.loads()) == (3 if done else 2)
    assert bool(job.staged()) != done
    job.produce('{"n": 6}')
    assert job.load(**BEFORE).to_json()["load"] == (4 if done else 3)
    notes = job.query('SELECT partition, "offset", note FROM {} ORDER BY 1, 2')
    if done:
        assert notes == [
            ("0", "0", "NULL"), ("0", "1", "b"), ("0", "2", "c"), ("0", "4", "e"),
            ("0", "5", "NULL"), ("0", "6", "NULL"), ("1", "0", "d"),
        ]  # fmt: skip
    else:
        assert notes == [
            ("0", "0", "NULL"), ("0", "1", "NULL"), ("0", "4", "NULL"), ("0", "6", "NULL"),
            ("1", "0", "NULL"),
        ]  # fmt: skip
    letters = [("3", "the value is not JSON")] if done else OLD_LETTERS
    assert job.query(LETTERS) == letters
    assert job.staged() == []


@SLOW
def test_the_job_reprocesses_a_table_by_itself(job: LoadedTable, tmp_path: Path) -> None:
    """Runs it as spark-submit does, with the table in its file of configuration."""
    load_notes(job)
    (tmp_path / "jdbc.properties").write_text(f"user={USER}\npassword={PASSWORD}\n")
    (tmp_path / "job.toml").write_text(
        f'[reprocess]\ntopic = "{job.topic}"\nzookeeper = "{job.logbus.zookeeper}"\n'
        f'jdbc_url = "{job.database.url}"\njdbc_table = "{job.name}"\n'
        f'jdbc_properties = "{tmp_path / "jdbc.properties"}"\n'
    )
    done = subprocess.run(
        [Path(sys.executable).with_name("spark-submit"), "--master", "local[1]",
         "--conf", "spark.ui.enabled=false", "--jars", ",".join(map(str, job.database.jars)),
         PROJECT / "jobs" / "reprocess.py", "--config", tmp_path / "job.toml", "--from", "earliest",
         "--json-schema", "note string", "--dead-letters"],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"7 rows of {job.table} were replaced by 7" in done.stdout
    assert PASSWORD not in done.stdout + done.stderr
    assert [row[3] for row in job.query(ROWS)] == ["a", "b", "c", "e", "NULL", "d"]

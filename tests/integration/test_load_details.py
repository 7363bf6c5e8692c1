"""Loads: what is stored of a record, under which date, and what is refused or discarded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_logbus.coordination import Lock, Session
from spark_logbus.errors import ConfigError, DataLossError, LockHeldError
from spark_logbus.load import Commit, LoadConfig, Warehouse, WarehouseError, run_load
from spark_logbus.load.hadoop import HadoopDirectory
from tests.integration.spark_fixtures import Logbus

pytestmark = pytest.mark.spark

SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US


class KilledError(BaseException):
    """Stands for SIGKILL: nothing of the load runs after it."""


class Topic:
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

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        table = self._spark.read.parquet(str(self.directory))
        return [tuple(row) for row in table.orderBy("offset").selectExpr(*columns).collect()]

    @property
    def commits(self) -> list[Path]:
        return sorted((self.directory / "_logbus" / "loads").glob("*.json"))

    @property
    def staged(self) -> list[Path]:
        return list((self.directory / "_logbus" / "staging").glob("*"))


@pytest.fixture
def topic(spark: SparkSession, logbus: Logbus, tmp_path: Path) -> Topic:
    return Topic(spark, logbus, tmp_path)


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


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ("n int, Date string", "names date, which the load adds itself"),
        ("offset long, key string", "names key, offset"),
        ("no such thing at all", "--json-schema is 'no such thing at all': "),
        ("int", "which is a single type"),
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


def test_two_commits_of_one_number(topic: Topic, spark: SparkSession) -> None:
    """Were the lock to fail, the second is refused and changes nothing."""
    topic.produce("a")
    first = topic.load()
    assert first is not None
    warehouse = Warehouse(spark, str(topic.directory.parent), topic.name)
    (topic.directory / "_logbus" / "staging" / "other").mkdir(parents=True)
    other = Commit(1, "other", first.topic_id, (), {0: 99}, 0, ())
    with pytest.raises(WarehouseError, match=r"Cannot move .*json"):
        warehouse.commit(other)
    assert warehouse.last_commit() == first


@pytest.mark.parametrize("method", ["flush", "write", "claim"])
def test_killed_within_the_commit(
    topic: Topic, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its one rename nothing has happened; after it, everything."""
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


def test_records_that_are_not_all_there_are_not_committed(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.produce("a", "b")
    from spark_logbus.load import load as module

    look = module._look
    with monkeypatch.context() as patch:
        patch.setattr(module, "_look", lambda *given: (look(*given)[0] - 1, ()))
        with pytest.raises(DataLossError, match=r"Expected 2 .* staged 1; nothing"):
            topic.load()
    assert topic.commits == []
    assert topic.load() is not None


def test_a_published_file_that_is_gone_is_reported(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only as long as the load is not finished: afterwards the files are the user's."""
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

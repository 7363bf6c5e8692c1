"""Layouts of a warehouse: directories by event time and by columns of its own, Parquet and ORC."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_logbus.errors import ConfigError
from spark_logbus.load import (
    FileFormat,
    LayoutChangedError,
    LayoutChoice,
    LoadConfig,
    Loaded,
    Period,
    Warehouse,
    run_load,
)
from spark_logbus.load.files.hadoop import HadoopDirectory
from tests.helpers import spanning
from tests.integration.load.loaded_directory import KilledError, LoadedDirectory
from tests.servers.cluster import Logbus

LONG = pytest.mark.long

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
EVENTS = "at timestamp, kind string, n int"


class Events(LoadedDirectory):
    """A topic of JSON events with a time of their own, and its warehouse."""

    def __init__(self, spark: SparkSession, logbus: Logbus, root: Path) -> None:
        self._spark = spark
        self._logbus = logbus
        self._root = root
        self._made = 0
        self.topic = logbus.topic(partitions=2)
        self.directory = root / self.topic

    def produce(self, *moments: str | None, kind: str | None = "a", partition: int = 0) -> None:
        """An event for each moment; all records have the time 0."""
        values = []
        for moment in moments:
            values.append(json.dumps({"at": moment, "kind": kind, "n": self._made}))
            self._made += 1
        self._logbus.produce(self.topic, values, partition=partition, timestamp_us=0)

    def load(self, layout: LayoutChoice | None = None, **more: Any) -> Loaded:
        choice = layout or LayoutChoice()
        config = LoadConfig(
            self.topic, str(self._root), self._logbus.zookeeper, json_schema=EVENTS, layout=choice,
            **more,
        )  # fmt: skip
        return run_load(self._spark, config)

    def rows(self, *columns: str, form: str = "parquet") -> list[tuple[Any, ...]]:
        table = self._spark.read.format(form).load(str(self.directory))
        return [tuple(row) for row in table.orderBy("n").selectExpr(*columns).collect()]


@pytest.fixture
def events(spark: SparkSession, logbus: Logbus, tmp_path: Path) -> Events:
    return Events(spark, logbus, tmp_path)


BY_DAY = LayoutChoice(event_time="at")
BY_HOUR = LayoutChoice(period=Period.HOUR, event_time="at")
BY_KIND = LayoutChoice(period=Period.NONE, columns=("kind",))
UNDIVIDED = LayoutChoice(period=Period.NONE)


DIRECTORIES: dict[str, tuple[LayoutChoice, set[str]]] = {
    "day": (BY_DAY, {"date=2013-01-01", "date=2013-02-28"}),
    "hour and column": (
        LayoutChoice(period=Period.HOUR, event_time="at", columns=("kind",)),
        {
            "date=2013-01-01/hour=5/kind=a",
            "date=2013-01-01/hour=23/kind=a",
            "date=2013-02-28/hour=0/kind=b%2Fc",
        },
    ),
    "month": (
        LayoutChoice(period=Period.MONTH, event_time="at", prefix="event_"),
        {"event_month=2013-01", "event_month=2013-02"},
    ),
    "columns alone": (BY_KIND, {"kind=a", "kind=b%2Fc"}),
    "none": (UNDIVIDED, {"."}),
    "an expression": (
        LayoutChoice(event_time="date_add(to_date(at), 1)"),
        {"date=2013-01-02", "date=2013-01-03", "date=2013-03-01"},
    ),
}


@pytest.mark.parametrize(("kind", "form"), spanning([*DIRECTORIES], [*FileFormat]))
@pytest.mark.long
def test_records_stand_in_the_directories_of_their_event(
    events: Events, kind: str, form: FileFormat
) -> None:
    """The session is at +05:30, and directories go by UTC, but for an expression that does not."""
    layout, directories = DIRECTORIES[kind]
    events.produce("2013-01-01T05:00:00Z", "2013-01-01T23:59:59Z")
    events.produce("2013-02-28T00:00:00Z", kind="b/c", partition=1)
    loaded = events.load(replace(layout, format=form), compression="zstd")
    assert loaded.commit is not None
    assert set(events.files) == directories
    assert {path.suffix for path in events.directory.rglob("part-*")} == {f".{form.value}"}
    assert loaded.size_bytes == sum(p.stat().st_size for p in events.directory.rglob("part-*"))
    events.produce("2013-02-28T00:00:01Z", kind="b/c")
    events.load()
    assert set(events.files) == directories
    assert events.rows("n", "kind", "unix_seconds(at)", form=form.value) == [
        (0, "a", 1357016400), (1, "a", 1357084799), (2, "b/c", 1362009600), (3, "b/c", 1362009601),
    ]  # fmt: skip


def test_a_backfill_of_four_days_lands_in_four_dates(events: Events) -> None:
    """Loaded at once and published at one moment; what comes late joins the date it belongs to."""
    days = [f"2024-03-{day:02}T12:00:00Z" for day in (1, 2, 3, 4)]
    events.produce(*days)
    loaded = events.load(BY_DAY)
    assert loaded.commit is not None
    assert len(loaded.commit.files) == 4
    events.produce("2024-03-02T23:00:00Z", "2024-03-05T00:00:00Z")
    events.load()
    found = events.rows("cast(date as string)", "n")
    assert found == [
        ("2024-03-01", 0), ("2024-03-02", 1), ("2024-03-03", 2), ("2024-03-04", 3),
        ("2024-03-02", 4), ("2024-03-05", 5),
    ]  # fmt: skip


def test_records_without_event_time_are_kept_apart_and_told(events: Events) -> None:
    events.produce("2013-01-01T05:00:00Z", None, "not a time")
    loaded = events.load(BY_HOUR)
    assert loaded.without_event_time == 2
    nobody = "__HIVE_DEFAULT_PARTITION__"
    assert set(events.files) == {"date=2013-01-01/hour=5", f"date={nobody}/hour={nobody}"}
    assert events.rows("date is null", "hour", "n") == [
        (False, 5, 0),
        (True, None, 1),
        (True, None, 2),
    ]


def test_a_warehouse_keeps_the_layout_of_its_first_load(events: Events) -> None:
    events.produce("2013-01-01T05:00:00Z")
    events.load(BY_HOUR)
    events.produce("2013-01-01T06:00:00Z")
    before = sorted(events.directory.rglob("*"))
    for choice in (LayoutChoice(period=Period.DAY), LayoutChoice(format=FileFormat.ORC)):
        with pytest.raises(LayoutChangedError, match="Nothing was written"):
            events.load(choice)
    assert sorted(events.directory.rglob("*")) == before
    events.load()
    assert set(events.files) == {"date=2013-01-01/hour=5", "date=2013-01-01/hour=6"}


@pytest.mark.parametrize(
    ("choice", "named"),
    [
        (LayoutChoice(event_time="nothing"), "--event-time is 'nothing': .*nothing.*Name a column"),
        (LayoutChoice(event_time="kind"), "--event-time kind is string, expected a timestamp"),
        (LayoutChoice(columns=("knid",)), "names knid, which no record has; did you mean kind"),
    ],
)
def test_layouts_that_are_refused(events: Events, choice: LayoutChoice, named: str) -> None:
    events.produce("2013-01-01T05:00:00Z")
    with pytest.raises(ConfigError, match=named) as refused:
        events.load(choice)
    assert len(refused.value.message.splitlines()) == 1
    assert not events.directory.exists()


KILLED_LAYOUTS = {"hour": BY_HOUR, "columns": BY_KIND, "none": UNDIVIDED}
KILLED_STEPS = ("commit", "publish", "first rename", "second rename", "delete")
SPANNING = {  # each step and each layout once at least; the rest is asked at length
    ("commit", "hour"),
    ("publish", "columns"),
    ("first rename", "none"),
    ("second rename", "hour"),
    ("delete", "columns"),
}


@pytest.mark.parametrize(
    ("step", "layout"),
    [
        pytest.param(
            step,
            KILLED_LAYOUTS[layout],
            id=f"{step}-{layout}",
            marks=LONG if (step, layout) in SPANNING else pytest.mark.slow,
        )
        for step in KILLED_STEPS
        for layout in KILLED_LAYOUTS
    ],
)
def test_killed_at_a_step_nothing_is_lost_or_there_twice(
    events: Events, layout: LayoutChoice, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    events.produce("2013-01-01T05:00:00Z", "2013-01-01T06:00:00Z")
    events.load(layout)
    events.produce("2013-01-01T05:30:00Z", "2013-01-01T07:00:00Z", "2013-01-02T05:00:00Z")
    events.produce("2013-01-02T06:00:00Z", "2013-01-02T07:00:00Z", kind="b", partition=1)
    original = HadoopDirectory.rename
    left = {"first rename": 0, "second rename": 1}.get(step, 0)

    def rename(self: HadoopDirectory, source: str, target: str) -> None:
        nonlocal left
        if not left:
            raise KilledError
        left -= 1
        original(self, source, target)

    def killed(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        if step in ("commit", "publish"):
            patch.setattr(Warehouse, step, killed)
        elif step == "delete":
            patch.setattr(HadoopDirectory, "delete", killed)
        else:
            patch.setattr(HadoopDirectory, "rename", rename)
        try:
            events.load()
        except KilledError:
            pass
        else:
            # One file came, and so one rename was enough.
            assert step == "second rename"
    events.produce("2013-01-02T06:30:00Z")
    events.load()
    assert events.rows("n") == [(n,) for n in range(8)]
    assert events.left_over == []


@pytest.mark.long
def test_hours_are_of_utc_before_1970_too(events: Events) -> None:
    events.produce("1969-12-31T23:30:00Z", "1969-12-31T00:00:00Z")
    events.load(BY_HOUR)
    assert events.rows("date", "hour") == [
        (dt.date(1969, 12, 31), 23),
        (dt.date(1969, 12, 31), 0),
    ]

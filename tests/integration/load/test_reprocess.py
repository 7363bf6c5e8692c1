"""Windows of a loaded topic, read again and put in the place of what loads had made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_logbus.audit.warehouse import local_warehouse
from spark_logbus.errors import ConfigError
from spark_logbus.load import (
    FileFormat,
    IncompatibleColumnsError,
    LayoutChoice,
    LoadConfig,
    NotInLogError,
    Period,
    ReprocessConfig,
    Reprocessed,
    Warehouse,
    WarehouseError,
    run_load,
    run_reprocess,
)
from spark_logbus.load.files.hadoop import HadoopDirectory
from spark_logbus.load.files.staging import Staging
from spark_logbus.load.tally import ObservedTally
from spark_logbus.model import TopicPartition
from tests.helpers import wait_until
from tests.integration.load.loaded_directory import KilledError, LoadedDirectory, read_only
from tests.servers.cluster import Logbus

LONG = pytest.mark.long
SLOW = pytest.mark.slow

SECOND_US = 1_000_000
DEAD = "_logbus/dead_letters"
#: Of the first loads, whose moments are no numbers.
WRONG = "at timestamp, kind string, n int"
RIGHT = "at timestamp, kind string, n int, note string"


class Job(LoadedDirectory):
    """Loads of JSON events into one directory, and reprocessing of them."""

    def __init__(
        self, spark: SparkSession, logbus: Logbus, root: Path, layout: LayoutChoice, topic: str
    ) -> None:
        self._spark = spark
        self._logbus = logbus
        self._root = root
        self._layout = layout
        self.topic = topic
        self.directory = root / topic

    def produce(self, *events: dict[str, Any] | str, partition: int = 0, at_s: int = 0) -> None:
        values = [each if isinstance(each, str) else json.dumps(each) for each in events]
        self._logbus.produce(self.topic, values, partition=partition, timestamp_us=at_s * SECOND_US)

    def load(self, **more: Any) -> None:
        given = {"json_schema": WRONG, "layout": self._layout, **more}
        run_load(
            self._spark, LoadConfig(self.topic, str(self._root), self._logbus.zookeeper, **given)
        )

    def reprocess(self, start: str | dict[str, int], **more: Any) -> Reprocessed:
        place = json.dumps({self.topic: start}) if isinstance(start, dict) else start
        config = ReprocessConfig(
            topic=self.topic, warehouse=str(self._root), zookeeper=self._logbus.zookeeper,
            start=place, **{"json_schema": RIGHT, **more},
        )  # fmt: skip
        return run_reprocess(self._spark, config)

    def until(self, **offsets: int) -> str:
        """Offsets of the partitions ``p0`` and ``p1``."""
        return json.dumps({self.topic: {name[1:]: offset for name, offset in offsets.items()}})

    def rows(self, *columns: str, under: str = "") -> list[tuple[Any, ...]]:
        form = (self._layout.format or FileFormat.PARQUET).value
        reader = self._spark.read.format(form).option("mergeSchema", "true")
        table = reader.load(str(self.directory / under)).orderBy("partition", "offset")
        return [tuple(row) for row in table.selectExpr(*columns).collect()]

    def check_complete(self) -> None:
        """Checks with the audit that each offset that was loaded is there once."""
        place = local_warehouse(self._logbus.cluster, self.topic, self._root)
        assert place(3_600_000_000, 0).notes == ()

    @property
    def names(self) -> set[str]:
        """Names of all files with records, dead letters too."""
        return {str(path.relative_to(self.directory)) for path in self.directory.rglob("part-*")}


BY_DAY = LayoutChoice(event_time="at")
LAYOUTS = {
    "day": BY_DAY,
    "column": LayoutChoice(period=Period.NONE, columns=("kind",), format=FileFormat.ORC),
    "none": LayoutChoice(period=Period.NONE),
    "partition": LayoutChoice(period=Period.NONE, columns=("partition",)),
}


@pytest.fixture(
    params=[
        pytest.param("column", marks=LONG),
        pytest.param("partition", marks=LONG),
        pytest.param("day", marks=SLOW),
        pytest.param("none", marks=SLOW),
    ]
)
def layout(request: pytest.FixtureRequest) -> LayoutChoice:
    return LAYOUTS[request.param]


@pytest.fixture
def job(spark: SparkSession, logbus: Logbus, tmp_path: Path) -> Job:
    return Job(spark, logbus, tmp_path, BY_DAY, logbus.topic(partitions=2))


def event(n: int, day: int = 1, **more: Any) -> dict[str, Any]:
    return {"at": f"2024-03-{day:02}T05:00:00Z", "kind": "b/c", "n": n, **more}


def test_a_window_is_decoded_anew_and_all_others_stay(job: Job) -> None:
    """Records get the new column, dead letters become records, and what is beside the window in
    the same files keeps what it had."""
    job.produce(event(0, note="a"), event(1, note="b"), {**event(2), "n": "two"}, "bad", "worse")
    job.produce(event(10, note="c"), partition=1)
    job.load(dead_letters=True)
    job.produce(event(5, note="d"), {**event(6), "n": "six"})
    job.load(dead_letters=True)
    before = job.names
    done = job.reprocess(
        {"0": 1, "1": -1}, until=job.until(p0=4, p1=-1), dead_letters=True,
        json_schema="at timestamp, kind string, note string",
    )  # fmt: skip
    assert (done.before.records, done.before.dead_letters, done.before.kept) == (1, 2, 3)
    assert (done.records, done.dead_letters) == (2, 1)
    assert (done.columns_added, done.columns_left_out) == (("note",), ("n",))
    assert before - job.names == set(done.before.names)
    assert job.rows("partition", "offset", "n", "note") == [
        (0, 0, 0, None), (0, 1, None, "b"), (0, 2, None, None), (0, 5, 5, None),
        (1, 0, 10, None),
    ]  # fmt: skip
    assert job.rows("offset", "reason", under=DEAD) == [
        (3, "the value is not JSON"),
        (4, "the value is not JSON"),
        (6, "n is not int"),
    ]
    job.check_complete()
    assert job.left_over == []
    job.produce(event(7))
    job.load()
    assert job.rows("offset")[-2:] == [(7,), (0,)]


@LONG
def test_a_wrong_type_is_mended_where_all_is_read_again(
    spark: SparkSession, logbus: Logbus, tmp_path: Path
) -> None:
    """Records move to the directory of the event time that they have now."""
    layout = LayoutChoice(event_time="timestamp_millis(cast(ms as bigint))")
    job = Job(spark, logbus, tmp_path, layout, logbus.topic(partitions=2))
    job.produce(*({"ms": f"{1_709_442_000_000 + n * 86_400_000}", "n": n} for n in range(2)))
    job.load(json_schema="ms bigint, n int")
    job.produce({"ms": "0", "n": 2})
    job.load(json_schema="ms bigint, n int")
    with pytest.raises(IncompatibleColumnsError, match=r"Field ms .* Or reprocess all that is in"):
        job.reprocess({"0": 0, "1": 0}, until=job.until(p0=2, p1=0), json_schema="ms string")
    assert job.rows("cast(date as string)") == [(None,)] * 3
    done = job.reprocess("earliest", json_schema="ms string, n int")
    assert (done.records, done.without_event_time, done.columns_left_out) == (3, 0, ())
    assert job.rows("cast(date as string)", "ms", "n") == [
        ("2024-03-03", "1709442000000", 0),
        ("2024-03-04", "1709528400000", 1),
        ("1970-01-01", "0", 2),
    ]
    job.check_complete()


def test_what_was_not_loaded_is_never_part_of_a_window(job: Job) -> None:
    """Covers what came later, and what a first load began after."""
    with pytest.raises(WarehouseError, match="is no warehouse of"):
        job.reprocess("earliest")
    for n in range(6):
        job.produce(event(n, note="x"), at_s=n)
    job.load(start="1970-01-01T00:00:01Z", until="1970-01-01T00:00:04Z")
    before = job.names
    plan = job.reprocess("earliest", until="latest", dry_run=True)
    assert [(r.start, r.end) for r in plan.ranges] == [(1, 4)]
    assert (plan.before.records, set(plan.before.names), plan.commit) == (3, before, None)
    assert job.names == before
    done = job.reprocess("1970-01-01T00:00:03Z")
    assert (done.records, done.before.kept) == (1, 2)
    assert job.rows("offset", "note") == [(1, None), (2, None), (3, "x")]
    assert job.reprocess("1970-01-01T00:00:04Z").to_json()["nothing_loaded"]
    assert job.reprocess("-10 minutes").ranges == ()
    with pytest.raises(ConfigError, match="--from latest would load nothing"):
        job.reprocess("latest")


def test_a_window_of_a_layout_stays_in_its_directories(
    spark: SparkSession, logbus: Logbus, tmp_path: Path, layout: LayoutChoice
) -> None:
    job = Job(spark, logbus, tmp_path, layout, logbus.topic(partitions=2))
    job.produce(*(event(n, note="x") for n in range(4)))
    job.produce(*(event(n, kind="007", note="x") for n in range(4)), partition=1)
    job.load()
    where = {str(Path(name).parent) for name in job.names}
    done = job.reprocess({"0": 1, "1": 3}, until=job.until(p0=3, p1=-1))
    assert (done.records, done.before.kept) == (3, 5)
    assert {str(Path(name).parent) for name in job.names} == where
    assert job.rows("partition", "offset", "note") == [
        (p, n, "x" if (p, n) in ((0, 1), (0, 2), (1, 3)) else None)
        for p in (0, 1)
        for n in range(4)
    ]
    job.check_complete()


STEPS: dict[str, tuple[type, str, int]] = {
    "before anything is kept": (ObservedTally, "tally", 0),
    "before it is counted": (Staging, "count", 0),
    "before it is prepared": (Warehouse, "prepare", 0),
    "before the commit": (Warehouse, "commit", 0),
    "before the first file is deleted": (HadoopDirectory, "delete", 0),
    "before the last file is deleted": (HadoopDirectory, "delete", 2),
    "before the first rename": (HadoopDirectory, "rename", 0),
    "before the last rename": (HadoopDirectory, "rename", 2),
    "before the staging is deleted": (HadoopDirectory, "delete", 3),
}
COMMITTED = [*STEPS][4:]
MARKS = {
    ("before the last file is deleted", "load"): (),
    ("before it is counted", "again"): (LONG,),
    ("before the commit", "load"): (LONG,),
    ("before the first rename", "again"): (LONG,),
    ("before the last rename", "load"): (LONG,),
}


@pytest.mark.parametrize(
    ("step", "then"),
    [
        pytest.param(step, then, marks=MARKS.get((step, then), (SLOW,)))
        for step in STEPS
        for then in ("load", "again")
    ],
)
def test_reprocessing_killed_at_a_step_is_made_good(
    job: Job, step: str, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.produce(event(0, note="a"), event(1, note="b"), {**event(2, day=2, note="c"), "n": "two"})
    job.load(dead_letters=True)
    job.produce(event(3, note="d"))
    job.load(dead_letters=True)
    again: dict[str, Any] = {
        "start": {"0": 1, "1": 0},
        "json_schema": "at timestamp, kind string, note string",
        "dead_letters": True,
    }
    kind_of, name, left = STEPS[step]
    original = getattr(kind_of, name)

    def killed(self: object, *given: Any, **more: Any) -> Any:
        nonlocal left
        if not left:
            raise KilledError
        left -= 1
        return original(self, *given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(kind_of, name, killed)
        with pytest.raises(KilledError):
            job.reprocess(**again)
    if then == "load":
        job.produce(event(4))
        job.load(dead_letters=True)
    else:
        job.reprocess(**again)
    notes: list[tuple[int, str | None]] = [(0, None), (1, "b"), (2, "c"), (3, "d")]
    if then == "load":
        if step not in COMMITTED:
            notes = [(0, None), (1, None), (3, None)]
        notes.append((4, None))
    shown = "note" if (then, step in COMMITTED) != ("load", False) else "cast(null as string)"
    assert job.rows("offset", shown) == notes
    letters = [name for name in job.names if name.startswith(DEAD)]
    assert len(letters) == (1 if len(notes) == 4 and notes[2] == (3, None) else 0)
    job.check_complete()
    assert job.left_over == []


@LONG
def test_records_that_the_log_no_longer_has_are_refused(
    spark: SparkSession, logbus: Logbus, tmp_path: Path
) -> None:
    """Asks by offset, by number, and by their moments, which the log does not know any more."""
    topic = logbus.topic(segment_bytes="2048")
    topic_partition = TopicPartition(topic, 0)
    job = Job(spark, logbus, tmp_path, BY_DAY, topic)
    for first in range(0, 100, 10):
        job.produce(*(event(n, note="x" * 200) for n in range(first, first + 10)), at_s=first)
    job.load()
    logbus.admin.alter_topic(topic, put={"retention.bytes": "4096"})
    wait_until(
        lambda: logbus.spans(topic)[topic_partition][0] >= 50, deadline_s=90, message="retention"
    )
    start = logbus.spans(topic)[topic_partition][0]
    remedy = rf"from offset {start} on\. .* --from '\{{\"{topic}\": \{{\"0\": {start}"
    for where in ({"0": 30}, "-70", "1970-01-01T00:00:30Z"):
        with pytest.raises(NotInLogError, match=rf"offsets 30 to {start - 1} .*{remedy}"):
            job.reprocess(where)
    with pytest.raises(NotInLogError, match=r"offsets 30 to 39 "):
        job.reprocess("1970-01-01T00:00:30Z", until="1970-01-01T00:00:40Z")
    assert job.reprocess(f"{start * 1_000}").records == 100 - start
    assert job.reprocess("earliest").records == 100 - start
    assert len(job.rows("offset")) == 100
    job.check_complete()


@LONG
def test_what_compaction_has_removed_since_is_not_given_up(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.produce(*(event(n) for n in range(4)))
    job.load()
    before = job.names
    with monkeypatch.context() as patch:
        read_only(patch, "offset != 1")
        with pytest.raises(NotInLogError, match=r"offsets 1 to 1 .* possible from offset 2 on"):
            job.reprocess("earliest")
        assert before <= job.names
        assert job.reprocess({"0": 2, "1": 0}).records == 2
    job.check_complete()


@LONG
def test_a_record_that_was_lost_from_the_warehouse_comes_back(job: Job) -> None:
    job.produce(event(0), event(1))
    job.load()
    job.produce(event(2))
    job.load()
    for path in job.directory.glob("date=*/*"):
        if "00000" in path.name and not path.name.startswith("."):
            path.unlink()
            break
    assert len(job.rows("offset")) < 3
    done = job.reprocess("earliest")
    assert (done.before.records < 3, done.records) == (True, 3)
    assert job.rows("offset") == [(0,), (1,), (2,)]
    job.check_complete()

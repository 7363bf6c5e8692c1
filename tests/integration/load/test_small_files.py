"""Small files of frequent loads, rewritten as one: killed at each step, read as before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_logbus.load import (
    FileFormat,
    LayoutChoice,
    LoadConfig,
    Loaded,
    Period,
    UnsuitableFilesystemError,
    Warehouse,
    run_load,
)
from spark_logbus.load.files.hadoop import HadoopDirectory
from tests.integration.load.loaded_directory import KilledError, LoadedDirectory
from tests.servers.cluster import Logbus

BY_CODE = LayoutChoice(period=Period.NONE, columns=("code",), format=FileFormat.ORC)
BY_PARTITION = LayoutChoice(period=Period.NONE, columns=("partition",))
UNDIVIDED = LayoutChoice(period=Period.NONE)


class Job(LoadedDirectory):
    """Loads of JSON values into one directory, of which each leaves a file."""

    def __init__(
        self, spark: SparkSession, logbus: Logbus, root: Path, layout: LayoutChoice
    ) -> None:
        self._spark = spark
        self._logbus = logbus
        self.topic = logbus.topic()
        self._config = LoadConfig(
            self.topic, str(root), logbus.zookeeper, json_schema="code string, n int", layout=layout
        )
        self.directory = root / self.topic

    def load(self, *numbers: int, code: str = "007", compact: int | None = None) -> Loaded:
        values = [f'{{"code": "{code}", "n": {number}}}' for number in numbers]
        if values:
            self._logbus.produce(self.topic, values, timestamp_us=0)
        return run_load(self._spark, replace(self._config, compact=compact))

    def numbers(self) -> list[int]:
        form = (self._config.layout.format or FileFormat.PARQUET).value
        table = self._spark.read.format(form).load(str(self.directory))
        return sorted(row["n"] for row in table.select("n").collect())


LAYOUTS = {
    "day": LayoutChoice(),
    "column": BY_CODE,
    "partition": BY_PARTITION,
    "none": UNDIVIDED,
}


@pytest.fixture
def job(spark: SparkSession, logbus: Logbus, tmp_path: Path, request: pytest.FixtureRequest) -> Job:
    return Job(spark, logbus, tmp_path, LAYOUTS[request.param])


@pytest.mark.parametrize(
    "job",
    ["day", *(pytest.param(name, marks=pytest.mark.long) for name in list(LAYOUTS)[1:])],
    indirect=True,
)
def test_small_files_become_one(job: Job) -> None:
    """Records stay in their directory, whose name could be read as a number."""
    for number in range(2):
        job.load(number)
    loaded = job.load(2, compact=4)
    assert (loaded.files_replaced, len(job.files)) == (0, 3)
    loaded = job.load(3, compact=4)
    assert (loaded.files_replaced, loaded.files_rewritten) == (4, 1)
    assert job.files == [DIRECTORIES[kind(job)]]
    assert job.numbers() == [0, 1, 2, 3]
    assert job.load(compact=2).nothing_new
    job.load(4)
    assert job.numbers() == [0, 1, 2, 3, 4]
    assert job.left_over == []


DIRECTORIES = {
    "date": "date=1970-01-01",
    "code": "code=007",
    "partition": "partition=0",
    "none": ".",
}


def kind(job: Job) -> str:
    """Kind of layout that the names of the directories show."""
    names = {path.name.partition("=")[0] for path in job.directory.iterdir() if path.is_dir()}
    return next((each for each in DIRECTORIES if each in names), "none")


STEPS = ("prepare", "commit", "publish", "delete", "second", "rename")
MARKS = {  # each step and each layout once at least; the rest is asked at length
    ("second", "day"): (),
    ("prepare", "column"): (pytest.mark.long,),
    ("commit", "partition"): (pytest.mark.long,),
    ("publish", "none"): (pytest.mark.long,),
    ("delete", "column"): (pytest.mark.long,),
    ("rename", "partition"): (pytest.mark.long,),
}


@pytest.mark.parametrize(
    ("step", "job"),
    [
        pytest.param(step, layout, marks=MARKS.get((step, layout), (pytest.mark.slow,)))
        for step in STEPS
        for layout in LAYOUTS
    ],
    indirect=["job"],
)
def test_a_rewrite_killed_at_a_step_is_made_good(
    job: Job, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        job.load(number)
    kind_of: type = Warehouse if step in ("prepare", "commit", "publish") else HadoopDirectory
    name = "delete" if step == "second" else step
    original = getattr(kind_of, name)
    left = 1 if step == "second" else 0

    def killed(self: object, *given: object) -> None:
        nonlocal left
        if not left:
            raise KilledError
        left -= 1
        original(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(kind_of, name, killed)
        with pytest.raises(KilledError):
            job.load(compact=3)
    job.load(3)
    assert job.numbers() == [0, 1, 2, 3]
    assert len(job.files) == (4 if step in ("prepare", "commit") else 2)
    assert job.left_over == []


def test_object_stores_are_refused_before_anything_is_asked(
    spark: SparkSession, logbus: Logbus
) -> None:
    topic = logbus.topic()
    with pytest.raises(UnsuitableFilesystemError, match=f"s3a://bucket/w/{topic} is on Amazon S3"):
        run_load(spark, LoadConfig(topic, "s3a://bucket/w", logbus.zookeeper))

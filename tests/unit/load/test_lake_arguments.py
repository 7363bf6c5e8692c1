"""Tables of a lake by their names, on the command lines of the jobs."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from jobs.audit_completeness import main as audit_job
from jobs.load_warehouse import main as load_job
from jobs.load_warehouse import parse_arguments, report
from jobs.reprocess import main as reprocess_job
from spark_logbus.errors import ConfigError
from spark_logbus.load import (
    Commit,
    DeltaTable,
    IcebergTable,
    JdbcTable,
    LayoutChoice,
    LoadConfig,
    Loaded,
    Period,
)
from spark_logbus.load.config import lake_properties
from spark_logbus.load.lake.opening import open_table
from spark_logbus.model import OffsetRange, TopicPartition

TOPIC = ["--topic", "clicks"]
PROJECT = Path(__file__).parents[3]


def parsed(*options: str) -> LoadConfig:
    return parse_arguments([*TOPIC, *options])[0]


def test_a_delta_table_with_everything(tmp_path: Path) -> None:
    file = tmp_path / "lake.properties"
    file.write_text("# comment\n\nAWS_REGION = here\nAWS_SECRET_ACCESS_KEY=a=b\n")
    config = parsed(
        "--delta", "s3://lake/clicks/", "--lake-properties", str(file), "--evolve",
        "--accept-restore", "--partition-by", "hour", "--partition-columns", "a", "--compact",
        "--compression", "zstd", "--dead-letters",
    )  # fmt: skip
    options = {"AWS_REGION": "here", "AWS_SECRET_ACCESS_KEY": "a=b"}
    assert config.warehouse == DeltaTable("s3://lake/clicks/", options)
    assert (config.evolve, config.accept_restore, config.compact) == (True, True, 8)
    assert config.layout == LayoutChoice(period=Period.HOUR, columns=("a",))
    assert str(config.warehouse) == "s3://lake/clicks"
    assert "a=b" not in repr(config)


def test_an_iceberg_table_is_named_by_its_catalogue() -> None:
    config = parsed("--iceberg", "prod.lake.eu.clicks")
    assert config.warehouse == IcebergTable("prod", "lake.eu.clicks")
    assert isinstance(config.warehouse, IcebergTable)
    assert config.warehouse.identifier == ("lake", "eu", "clicks")
    assert str(config.warehouse.dead_letters) == "prod.lake.eu.clicks_dead_letters"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--delta", "s3://key:secret@lake/t"], "--delta holds credentials.*--lake-properties"),
        (["--warehouse", "s3a://key:sec/ret@lake/t"], "--warehouse holds credentials.*Hadoop"),
        (["--delta", " "], "--delta is ' ', expected the path or URI"),
        (["--iceberg", "lake.t"], "--iceberg is 'lake.t', expected catalogue, namespace and table"),
        (["--iceberg", "t"], "--iceberg is 't', expected catalogue, namespace and table"),
        (["--iceberg", "c.n..t"], "--iceberg is 'c.n..t', expected"),
        (["--delta", "/t", "--iceberg", "c.n.t"], "--delta and --iceberg each name"),
        (
            ["--warehouse", "/d", "--lake-properties", "f"],
            "no table of a lake is named; give --delta",
        ),
        (["--delta", "/t", "--lake-properties", "/no/file"], "--lake-properties /no/file cannot"),
        (["--delta", "/t", "--hive-table", "a.b"], "--hive-table: for loads into files, and this"),
        (["--iceberg", "c.n.t", "--format", "orc"], "--format: for loads into files, and this one"),
        (["--warehouse", "/d", "--evolve"], "--evolve: for loads into tables of a lake, and this"),
        (["--warehouse", "/d", "--accept-restore"], "goes into the warehouse /d; leave that out"),
    ],
)
def test_what_names_no_usable_table_is_refused(options: list[str], named: str) -> None:
    with pytest.raises(ConfigError, match=named) as told:
        parsed(*options)
    assert "secret" not in told.value.message


@pytest.mark.parametrize(
    "other",
    [
        ["--warehouse", "/d"],
        ["--jdbc-url", "jdbc:postgresql://db/w", "--jdbc-table", "t"],
        ["--jdbc-properties", "f"],
    ],
)
def test_a_table_of_a_lake_is_the_only_target(
    other: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parsed("--delta", "/t", *other)
    assert "give one of --warehouse, --delta, --iceberg, or --jdbc-url" in capsys.readouterr().err


@pytest.mark.parametrize("job", [load_job, reprocess_job, audit_job])
@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--delta", "/t", "--iceberg", "c.n.t"], "--delta and --iceberg each name a table"),
        (["--warehouse", "/d", "--lake-properties", "f"], "no table of a lake is named"),
    ],
)
def test_options_that_do_not_go_together_are_wrong_usage(
    job: Callable[[list[str]], int],
    options: list[str],
    named: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    window = ["--from", "earliest"] if job is reprocess_job else []
    assert job([*TOPIC, *window, *options]) == 2
    assert named in capsys.readouterr().out


@pytest.mark.parametrize(
    "other", [["--warehouse", "/d"], ["--jdbc-url", "jdbc:postgresql://db/w", "--jdbc-table", "t"]]
)
def test_a_second_target_of_reprocessing_is_wrong_usage(
    other: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert reprocess_job([*TOPIC, "--from", "earliest", "--iceberg", "c.n.t", *other]) == 2
    assert "No one target is named" in capsys.readouterr().out


def test_a_line_without_a_value_is_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "lake.properties"
    file.write_text("AWS_REGION=here\nonly-a-secret\n")
    with pytest.raises(ConfigError, match=r"Line 2 of .*-properties .* no name=value") as told:
        lake_properties(str(file))
    assert "only-a-secret" not in told.value.message


def test_the_sample_of_properties_is_read() -> None:
    sample = lake_properties(str(PROJECT / "conf" / "lake.properties"))
    assert set(sample) == {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"}


@pytest.mark.parametrize(
    ("table", "library", "extra"),
    [
        (DeltaTable("/lake/t"), "deltalake", "delta"),
        (IcebergTable("c", "n.t"), "pyiceberg", "iceberg"),
    ],
)
def test_a_library_that_is_not_installed_is_named_with_its_extra(
    table: DeltaTable | IcebergTable, library: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] == library or name.startswith(f"spark_logbus.load.lake.{extra}"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigError, match=rf"pip install '\.\[{extra}\]'"):
        open_table(table)


def test_the_jobs_start_without_the_libraries() -> None:
    """The extras are not for everyone: whoever loads into files has none of them."""
    program = (
        "import sys\n"
        "sys.modules |= {'deltalake': None, 'pyiceberg': None}\n"
        "import jobs.load_warehouse, jobs.reprocess, jobs.audit_completeness\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=PROJECT, timeout=60)


COMMIT = Commit(
    2, "2-a", "id", (OffsetRange(TopicPartition("clicks", 0), 5, 9),), {0: 9}, 4, ("a", "b")
)


def told(target: Any, **changed: Any) -> str:
    console = Console(file=io.StringIO(), width=200)
    numbers = {"commit": COMMIT, "records": 4, "size_bytes": 1_234, **changed}
    loaded = Loaded(topic="clicks", path="lake.clicks", **numbers)
    report(console, LoadConfig("clicks", target, "zk"), loaded)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_report_names_the_table_with_files_and_bytes() -> None:
    said = told(IcebergTable("prod", "lake.clicks"), without_event_time=3)
    assert "4 records in 2 files (1,234 bytes) of table lake.clicks" in said
    assert "3 records have no event time; they are in the partition of null." in said
    assert "2 files (1,234 bytes) under lake.clicks" in told("/lake")
    assert "4 records in lake.clicks" in told(JdbcTable("jdbc:postgresql://db/w", "t"))
    assert "Nothing new in clicks; lake.clicks is up to date." in told("/lake", commit=None)
    one = replace(COMMIT, files=("a",))
    said = told(
        DeltaTable("/lake/clicks"), commit=one, records=1, files_replaced=9, files_rewritten=1
    )
    assert "1 record in 1 file (1,234 bytes) of table lake.clicks" in said
    assert "9 small files were rewritten as 1." in said

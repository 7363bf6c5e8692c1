"""Partitions move under load, while brokers are killed or stand still and ZooKeeper restarts.

Rounds: ``LOGBUS_MOVES``; chance: ``LOGBUS_MOVES_SEED``. ``--log-cli-level=INFO`` tells each round.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_logbus.client import Admin
from spark_logbus.model import TopicPartition
from tests.fault.load.compacted import COMPACTED
from tests.fault.load.copying import Copying, check_copy
from tests.fault.load.load import loaded
from tests.fault.load.machines import machines
from tests.fault.load.moves import (
    AT_POINTS,
    FAULTS,
    Fault,
    Rounds,
    at_point,
    cancelled,
    moves_of,
    source_and_zookeeper_killed,
    stopped_sleeps,
    target_killed,
)

TOPIC = "t"
COPY = "copy"
SEED = int(os.environ.get("LOGBUS_MOVES_SEED", random.SystemRandom().randrange(1 << 30)))
ROUNDS = int(os.environ.get("LOGBUS_MOVES", "100"))

logger = logging.getLogger(__name__)


def run(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    faults: Sequence[Fault],
    *,
    seed: int = 1,
    moving: bool = True,
    spark: SparkSession | None = None,
) -> None:
    """Moves a partition with each of the faults, under load; with ``spark``, also partitions of a
    topic that a query copies into."""
    logger.info("%d rounds; LOGBUS_MOVES_SEED=%d", len(faults), seed)
    with (
        machines(directory, monkeypatch) as servers,
        servers.connect() as cluster,
        moves_of(servers, cluster) as moves,
    ):
        Admin(cluster).create_topic(TOPIC, partitions=4)
        Admin(cluster).create_topic(COPY, partitions=2)
        copied = [TopicPartition(COPY, number) for number in range(2)] if spark else []
        compacted = TopicPartition(COMPACTED, 0)
        others = [Copying(spark, servers.zookeeper, TOPIC, COPY, directory)] if spark else []
        with loaded(servers, TOPIC, directory, moving=moving, others=others) as load:
            with load.at_work() as everyone:
                everyone.get_on()
                rounds = Rounds(
                    servers, moves, everyone, [*load.partitions, compacted, *copied], seed
                )
                for number, fault in enumerate(faults):
                    rounds.run(number, fault, moving=moving)
            if spark:
                check_copy(cluster, load.content, copied)
        servers.check_logs()


@pytest.mark.long
def test_clients_notice_neither_moves_nor_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kind of fault is in one of the rounds at least."""
    killed_at, sleeps_at = (
        at_point("handing-over", target_killed), at_point("handed-over", stopped_sleeps),
    )  # fmt: skip
    run(tmp_path, monkeypatch, [source_and_zookeeper_killed, killed_at, sleeps_at, cancelled])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_clients_notice_nothing_of_many_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    chance = random.Random(SEED)
    faults: list[Fault] = []
    while len(faults) < ROUNDS:  # each as often as the others
        some = [*FAULTS, *AT_POINTS]
        chance.shuffle(some)
        faults += some[: ROUNDS - len(faults)]
    run(tmp_path, monkeypatch, faults, seed=SEED, spark=spark)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_clients_notice_no_faults_without_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path, monkeypatch, FAULTS, moving=False)

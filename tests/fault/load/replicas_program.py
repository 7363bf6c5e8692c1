"""A program that runs rounds of faults against brokers on hosts of their own, under load.

``replicas_program.py directory rounds seed replicas [spark | power]``, in a network of its own, see
``tests.servers.hosts``. With ``spark`` a query copies the topic; with ``power`` the brokers' disks
lose it.
"""

from __future__ import annotations

import logging
import os
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from spark_logbus.client import Admin
from spark_logbus.local.java import ensure_java_home
from spark_logbus.model import TopicPartition
from tests.fault.load.cluster_on_hosts import machines_on_hosts
from tests.fault.load.compacted import KEYED
from tests.fault.load.copying import Copying, check_copy
from tests.fault.load.failovers import Prober, told
from tests.fault.load.load import loaded
from tests.fault.load.replica_faults import (
    FAULTS,
    OF_EACH_KIND,
    OF_LEADERS,
    OF_POWER,
    WITH_REPLICAS,
    Fault,
)
from tests.fault.load.replicas import Rounds, states_of
from tests.servers.spark import spark_session

TOPIC: Final = "t"
COPY: Final = "copy"
_PARTITIONS: Final = 4
_FIRST_PROBER: Final = 10

logger = logging.getLogger("tests.fault.load.replicas_program")


def main(
    directory: Path, rounds: int, seed: int, replicas: int, *, with_spark: bool, of_power: bool
) -> None:
    faults = _by_chance(OF_POWER, rounds, seed) if of_power else _faults(rounds, seed, replicas)
    logger.info("%d rounds of seed %d with %d replicas.", rounds, seed, replicas)
    monkeypatch = pytest.MonkeyPatch()
    with ExitStack() as stack:
        machines = stack.enter_context(
            machines_on_hosts(directory, monkeypatch, replicas=replicas, power_fails=of_power)
        )
        spark = stack.enter_context(_spark()) if with_spark else None
        cluster = stack.enter_context(machines.connect())
        states = stack.enter_context(states_of(machines))
        Admin(cluster).create_topic(TOPIC, partitions=_PARTITIONS, replicas=replicas)
        Admin(cluster).create_topic(COPY, partitions=2, replicas=replicas)
        partitions = [TopicPartition(TOPIC, number) for number in range(_PARTITIONS)]
        copied = [TopicPartition(COPY, number) for number in range(2)] if spark else []
        probers = [Prober(_FIRST_PROBER + where.partition, cluster, where) for where in partitions]
        others = [Copying(spark, machines.zookeeper, TOPIC, COPY, directory)] if spark else []
        load = stack.enter_context(
            loaded(
                machines, TOPIC, directory, moving=False, replicas=replicas, writers=probers,
                others=others, compacting=not of_power,
            )
        )  # fmt: skip
        with load.at_work() as everyone:
            everyone.get_on()
            done = Rounds(
                machines, cluster, everyone, [*partitions, KEYED, *copied],
                probers, states=states, replicas=replicas, seed=seed,
            )  # fmt: skip
            try:
                for number, fault in enumerate(faults):
                    done.run(number, fault)
            except BaseException:
                logger.exception("A round has failed; seed %d.", seed)  # all others end first
                raise
            finally:
                logger.info("%s", told(done.pauses, of_leaders={f.__name__ for f in OF_LEADERS}))
        if spark:
            check_copy(cluster, load.content, copied)
        done.check_all()
        machines.check_logs()
        logger.info("All %d rounds of seed %d hold.", rounds, seed)


def _faults(rounds: int, seed: int, replicas: int) -> Sequence[Fault]:
    """Chooses faults, each as often as the others; for a short run one of each kind."""
    if replicas > 1 and rounds <= len(OF_EACH_KIND):
        return OF_EACH_KIND[:rounds]
    return _by_chance([*FAULTS, *WITH_REPLICAS] if replicas > 1 else FAULTS, rounds, seed)


def _by_chance(faults: Sequence[Fault], rounds: int, seed: int) -> Sequence[Fault]:
    """Chooses each as often as the others."""
    known, chance = [*faults], random.Random(seed)
    chosen: list[Fault] = []
    while len(chosen) < rounds:
        chance.shuffle(known)
        chosen += known[: rounds - len(chosen)]
    return chosen


@contextmanager
def _spark() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    ensure_java_home()
    with spark_session() as session:
        yield session


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    logging.getLogger("tests.fault").setLevel(logging.INFO)
    place, *numbers = sys.argv[1:5]
    words = sys.argv[5:]
    main(Path(place), *map(int, numbers), with_spark="spark" in words, of_power="power" in words)

"""A streaming query with a group, while its driver, its executors and the brokers are killed.

Two promises hold at every moment: the group's committed offsets are never ahead of what stands in
the sink, and in the end the sink has each record once. Rounds: ``LOGBUS_KILL_ROUNDS``;
``--log-cli-level=INFO`` tells them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest

from spark_logbus.client import Admin, Cluster, Producer
from spark_logbus.local.cluster import EmbeddedCluster
from spark_logbus.model import TopicPartition
from tests.helpers import paths_below, wait_until
from tests.servers.cluster import Logbus
from tests.servers.spark import MODES, PREFETCHED, TASKS
from tests.servers.spark_processes import EXECUTOR, PLANNER, WORKER, Driver, send

ROUNDS = int(os.environ.get("LOGBUS_KILL_ROUNDS", "5"))
SEED = int(os.environ.get("LOGBUS_KILL_SEED", "20130909"))
TOPIC = "t"
GROUP = f"killed-{TOPIC}"
PARTITIONS = 2
RECORDS_PER_ROUND = 100
READERS = {PREFETCHED: PLANNER, TASKS: WORKER}

logger = logging.getLogger(__name__)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300 + 200 * ROUNDS)]


class Chaos:
    """The cluster, the query's driver process, and what is known of both."""

    def __init__(
        self, embedded: EmbeddedCluster, cluster: Cluster, directory: Path, *, mode: str
    ) -> None:
        self.embedded = embedded
        self.mode = mode
        self.logbus = Logbus(embedded.zookeeper, cluster)
        self.directory = directory
        self.expected: list[str] = []
        self.kills: list[str] = []
        self.driver: Driver | None = None

    # -- the query ------------------------------------------------------------------------

    def start_driver(self) -> None:
        self.driver = Driver(
            "tests.integration.spark.driver_program",
            self.embedded.zookeeper, TOPIC, str(self.directory), self.mode,
            "local-cluster[1,1,640]",
            log=self.directory / "driver.log",
        )  # fmt: skip

    @property
    def running(self) -> Driver:
        assert self.driver is not None
        return self.driver

    # -- the records ----------------------------------------------------------------------

    def produce(self) -> None:
        """Values tell partition and offset: ``1:000042``."""
        first = len(self.expected) // PARTITIONS
        with Producer(self.logbus.cluster) as producer:
            futures = []
            for offset in range(first, first + RECORDS_PER_ROUND // PARTITIONS):
                for partition in range(PARTITIONS):
                    value = f"{partition}:{offset:06d}"
                    self.expected.append(value)
                    futures.append(producer.send(TOPIC, value.encode(), partition=partition))
            producer.flush()
            for future in futures:
                future.result(60)

    def in_sink(self) -> list[str]:
        """Reads what the sink holds as committed: the files that its own log names."""
        while True:
            with contextlib.suppress(FileNotFoundError):  # an old entry, now in a compacted one
                entries = [
                    entry.read_text().splitlines()[1:]
                    for entry in (self.directory / "out" / "_spark_metadata").glob("[0-9]*")
                ]
                break
        paths = {json.loads(line)["path"] for lines in entries for line in lines}
        files = [Path(unquote(urlparse(path).path)) for path in paths]
        return sorted(line for file in files for line in file.read_text().splitlines())

    def check_group(self) -> None:
        """First the group, then the sink: so nothing can pass by in between."""
        committed = self.logbus.committed(GROUP)
        sunk = set(self.in_sink())
        for topic_partition, offset in committed.items():
            lacking = {f"{topic_partition.partition}:{below:06d}" for below in range(offset)} - sunk
            assert not lacking, (
                f"{topic_partition} is committed up to {offset}, but not in the sink: {lacking}"
            )


@pytest.fixture(params=MODES)
def chaos(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Chaos]:
    with (
        EmbeddedCluster(tmp_path / "cluster", brokers=2) as embedded,
        Cluster.from_zookeeper(embedded.zookeeper) as cluster,
    ):
        Admin(cluster).create_topic(TOPIC, partitions=PARTITIONS)
        made = Chaos(embedded, cluster, tmp_path, mode=request.param)
        yield made
        if made.driver is not None:
            made.driver.kill()


def test_chaos_skips_and_repeats_nothing(chaos: Chaos) -> None:
    chance = random.Random(SEED)
    chaos.produce()
    chaos.start_driver()
    wait_until(
        lambda: chaos.running.alive() and chaos.in_sink(),
        deadline_s=300,
        message="the first records",
    )
    # Who reads: without a worker of an executor, the planner has read all that came.
    assert bool(chaos.running.below(WORKER)) == (chaos.mode == TASKS)
    victims = ["driver", EXECUTOR, "broker", READERS[chaos.mode]]
    for number in range(ROUNDS):
        chaos.produce()
        moment = chance.choice(["offsets", "commits", "out"])
        wait_until(
            _after_a_change(chaos, moment, chance.randint(1, 3)),
            deadline_s=180, message=f"a moment to kill in round {number}: {moment}",
        )  # fmt: skip
        kill(chaos, victims[number % 4] if ROUNDS < 8 else chance.choice(victims), chance)
        chaos.check_group()
        logger.info("Round %d of %d: killed the %s.", number + 1, ROUNDS, chaos.kills[-1])
    ends = {TopicPartition(TOPIC, n): len(chaos.expected) // PARTITIONS for n in range(PARTITIONS)}

    def over() -> bool:
        chaos.check_group()
        return chaos.running.alive() and chaos.logbus.committed(GROUP) == ends

    wait_until(over, deadline_s=180, message=f"the last record, after {chaos.kills}")
    assert chaos.in_sink() == sorted(chaos.expected)
    assert chaos.logbus.ends(TOPIC) == ends, "the producer's own retries have repeated records"
    assert len(chaos.kills) == ROUNDS


def kill(chaos: Chaos, victim: str, chance: random.Random) -> None:
    """SIGKILL, and what a supervisor does: start again what nobody else does."""
    chaos.kills.append(victim)
    if victim == "broker":
        broker = chance.choice(chaos.embedded.brokers)
        broker.kill()
        broker.start()
    elif victim == "driver":
        chaos.running.kill()
        chaos.start_driver()
    else:

        def found() -> list[int]:
            assert chaos.running.alive()
            return chaos.running.below(victim)

        pid = chance.choice(wait_until(found, deadline_s=120, message=f"a {victim} to kill"))
        send(pid, signal.SIGKILL)
        if victim == PLANNER:  # no query outlives it
            chaos.running.process.wait(120)
            chaos.start_driver()


def _after_a_change(chaos: Chaos, where: str, count: int) -> Callable[[], bool]:
    """True when the driver has since written so many files in a part of its directory."""
    directory = chaos.directory / (where if where == "out" else f"checkpoint/{where}")

    def files() -> set[Path]:
        return set(paths_below(directory))

    before = files()
    behind = len(chaos.in_sink())

    def changed() -> bool:
        chaos.running.alive()
        # An idle query writes nothing: then this is as good a moment as any.
        idle = behind < len(chaos.expected) == len(chaos.in_sink())
        return len(files() - before) >= count or idle

    return changed

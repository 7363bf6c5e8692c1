"""A query from topic to topic, exactly once, while everything it stands on is killed at random.

At every moment the copy has a prefix of what was sent with each key; in the end it has all of it,
each record once. ``scripts/test --all`` runs three rounds, which kill a driver, an executor and
ZooKeeper; ``--slow`` also ``LOGBUS_KILL_ROUNDS`` (100), of which ``LOGBUS_KILL_SEED`` makes other
ones. ``--log-cli-level=INFO`` tells them.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_logbus.client import Cluster
from spark_logbus.local.cluster import EmbeddedCluster
from tests.helpers import wait_until
from tests.integration.spark.copied_topic import CopiedTopic, CopyingDrivers
from tests.servers.cluster import Logbus
from tests.servers.spark import MODES
from tests.servers.spark_processes import EXECUTOR, PYTHON, send

ROUNDS = int(os.environ.get("LOGBUS_KILL_ROUNDS", "100"))
SEED = int(os.environ.get("LOGBUS_KILL_SEED", "20130910"))
RECORDS_PER_ROUND = 240
MOMENTS = ("offsets", "staged", "seen", "commits")
ALL = "driver and brokers"
VICTIMS = ("driver", EXECUTOR, PYTHON, "broker", "ZooKeeper", ALL)

logger = logging.getLogger(__name__)


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(tmp_path / "cluster", brokers=2) as started:
        yield started


@pytest.fixture
def copy(embedded: EmbeddedCluster, tmp_path: Path) -> Iterator[CopiedTopic]:
    with Cluster.from_zookeeper(embedded.zookeeper) as cluster:
        yield CopiedTopic(Logbus(embedded.zookeeper, cluster), embedded, tmp_path / "copy")


@pytest.fixture
def drivers(copy: CopiedTopic, tmp_path: Path) -> Iterator[CopyingDrivers]:
    made = CopyingDrivers([copy], tmp_path, master="local-cluster[1,2,640]")
    yield made
    made.kill()


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(3, marks=[pytest.mark.long, pytest.mark.timeout(900)], id="some"),
        pytest.param(
            ROUNDS, marks=[pytest.mark.slow, pytest.mark.timeout(300 + 90 * ROUNDS)], id="many"
        ),
    ],
)
def test_each_record_is_copied_once_whatever_is_killed(
    copy: CopiedTopic, drivers: CopyingDrivers, rounds: int
) -> None:
    chance = random.Random(SEED)
    modes = list(MODES)
    copy.produce(RECORDS_PER_ROUND)
    drivers.start(mode=chance.choice(modes))
    copy.wait_for_all(deadline_s=180)
    victims: list[str] = []
    for number in range(rounds):
        if not victims:
            victims = chance.sample(VICTIMS, len(VICTIMS))
        victim, moment = victims.pop(), chance.choice(MOMENTS)
        copy.produce(RECORDS_PER_ROUND)
        wait_until(after_a_change(copy, moment), deadline_s=180, message=f"a change of {moment}")
        # What follows on the change is as good a moment.
        threading.Event().wait(chance.random() * 0.2)
        if kill(victim, copy, drivers, chance):
            wait_until(lambda: copy.running.ended or copy.idle, deadline_s=180)
            if copy.running.ended:
                drivers.start(mode=chance.choice(modes))
        copy.copied()
        logger.info("Round %d of %d: killed %s after %s.", number + 1, rounds, victim, moment)
    copy.wait_for_all(deadline_s=180)
    copy.wait_until_settled()
    copy.running.kill()
    copy.expire_staged()


def kill(victim: str, copy: CopiedTopic, drivers: CopyingDrivers, chance: random.Random) -> bool:
    """SIGKILL, and what a supervisor does; True if the query may end of it."""
    if victim == "broker":
        broker = chance.choice(copy.embedded.brokers)
        broker.kill()
        broker.start()
    elif victim == "ZooKeeper":
        server = copy.embedded.zookeeper_server
        send(server.pid, signal.SIGKILL)
        wait_until(lambda: not server.running)
        server.start()
    elif victim in ("driver", ALL):
        copy.running.kill()
        brokers = copy.embedded.brokers if victim == ALL else []
        for broker in brokers:
            broker.kill()
        for broker in brokers:
            broker.start()
        drivers.start(mode=chance.choice(list(MODES)))
    else:
        assert copy.running.alive()
        found = wait_until(
            lambda: copy.running.below(victim), deadline_s=120, message=f"a {victim} to kill"
        )
        send(chance.choice(found), signal.SIGKILL)
        return victim == PYTHON  # one of those that plan and commit
    return False


def after_a_change(copy: CopiedTopic, moment: str) -> Callable[[], bool]:
    """True when the query has since come to that, or has nothing left to do."""
    looks: dict[str, Callable[[], int]] = {
        "offsets": lambda: copy.planned,
        "commits": lambda: copy.committed,
        "staged": copy.staged_bytes,
        "seen": copy.seen,
    }
    look = looks[moment]
    before = look()

    def changed() -> bool:
        assert copy.running.alive()
        return look() > before or copy.idle

    return changed

"""A query into a topic, of which a part is killed, or stands still, in the middle of a commit.

One query for all: each test goes on from the checkpoint that the one before has left.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from functools import partial

import pytest

from spark_logbus.client import Cluster
from spark_logbus.local.cluster import EmbeddedCluster
from tests.helpers import process_is_stopped, wait_until
from tests.integration.spark.copied_topic import CopiedTopic, CopyingDrivers
from tests.servers.cluster import Logbus
from tests.servers.spark_processes import send

pytestmark = pytest.mark.long

RECORDS = 50  # fewer than a micro-batch takes


@pytest.fixture(scope="module")
def single(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[CopiedTopic, CopyingDrivers]]:
    directory = tmp_path_factory.mktemp("copied")
    with (
        EmbeddedCluster(directory / "cluster", brokers=2) as embedded,
        Cluster.from_zookeeper(embedded.zookeeper) as cluster,
    ):
        made = CopiedTopic(Logbus(embedded.zookeeper, cluster), embedded, directory / "copy")
        made.produce(RECORDS)
        drivers = CopyingDrivers([made], directory, master="local[2]")
        yield made, drivers
        drivers.kill()


@pytest.fixture
def drivers(single: tuple[CopiedTopic, CopyingDrivers]) -> CopyingDrivers:
    return single[1]


@pytest.fixture
def copy(single: tuple[CopiedTopic, CopyingDrivers]) -> CopiedTopic:
    """Goes on from the checkpoint that the test before has left, and has nothing left to do."""
    copied, drivers = single
    if copied.driver is None or copied.driver.ended:
        drivers.start()
    copied.wait_for_all()
    return copied


@pytest.mark.parametrize("point", [pytest.param("staged", marks=pytest.mark.slow), "decided"])
def test_a_broker_is_killed_in_the_middle_of_a_commit(
    copy: CopiedTopic, drivers: CopyingDrivers, point: str
) -> None:
    pid, batch = drivers.stop_at(point, copy, records=RECORDS)
    leader = copy.logbus.admin.describe([copy.target])[copy.target].partitions[0].leader
    assert leader is not None
    broker = next(one for one in copy.embedded.brokers if one.broker_id == leader.broker_id)
    broker.kill()
    send(pid, signal.SIGCONT)
    broker.start()
    copy.wait_for_all()
    assert copy.committed >= batch


def test_the_worker_that_commits_is_killed(copy: CopiedTopic, drivers: CopyingDrivers) -> None:
    pid, batch = drivers.stop_at("decided", copy, records=RECORDS)
    send(pid, signal.SIGKILL)
    copy.running.process.wait(60)  # its query has failed
    copy.wait_until_settled()
    assert copy.copied() == copy.up_to(batch)


def test_a_decision_outlives_driver_and_brokers(copy: CopiedTopic, drivers: CopyingDrivers) -> None:
    _, batch = drivers.stop_at("half-published", copy, records=RECORDS)
    for broker in copy.embedded.brokers:
        broker.kill()
    copy.running.kill()
    for broker in copy.embedded.brokers:
        broker.start()
    copy.wait_until_settled()
    assert copy.copied() == copy.up_to(batch)


def test_a_driver_that_was_succeeded_writes_no_more(
    copy: CopiedTopic, drivers: CopyingDrivers
) -> None:
    _, batch = drivers.stop_at("staged", copy, records=RECORDS)
    zombie = copy.running
    zombie.signal(signal.SIGSTOP)
    wait_until(partial(process_is_stopped, zombie.process.pid))
    drivers.start()
    copy.wait_for_all()
    copy.produce(RECORDS)
    copy.wait_for_all()
    copy.produce(RECORDS)
    zombie.signal(signal.SIGCONT)
    zombie.process.wait(60)
    assert re.search("WriteFencedError|CONCURRENT_STREAM_LOG_UPDATE", zombie.said())
    copy.wait_for_all()
    assert copy.committed > batch

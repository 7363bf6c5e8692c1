"""A query into a topic whose driver, or another part, is killed at each step of its commit.

One query for all: each case goes on from the checkpoint that the one before has left.
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
from tests.integration.copied_topic import CopiedTopic
from tests.integration.spark_processes import send
from tests.servers.spark import Logbus

pytestmark = [pytest.mark.spark, pytest.mark.long]

RECORDS = 50  # fewer than a micro-batch takes


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CopiedTopic]:
    directory = tmp_path_factory.mktemp("copied")
    with (
        EmbeddedCluster(directory / "cluster", brokers=2) as embedded,
        Cluster.from_zookeeper(embedded.zookeeper) as cluster,
    ):
        logbus = Logbus(embedded.zookeeper, cluster)
        copy = CopiedTopic(logbus, embedded, directory, master="local[2]")
        led = logbus.admin.describe([copy.target])[copy.target].partitions
        assert led[0].leader != led[1].leader, "one can have published when the other has not"
        copy.produce(RECORDS)
        yield copy
        if copy.driver is not None:
            copy.driver.kill()


@pytest.fixture
def copy(made: CopiedTopic) -> CopiedTopic:
    """With a driver that has nothing left to do."""
    if made.driver is None or made.driver.ended:
        made.start()
    made.wait_for_all()
    return made


def stop_at(copy: CopiedTopic, point: str) -> tuple[int, int]:
    """Give it something to do; the process that stands still at the point, and its micro-batch."""
    copy.points.arm(point)
    copy.produce(RECORDS)
    pid = copy.points.wait_for(point, copy.running)
    assert copy.planned == copy.committed + 1
    return pid, copy.planned


def go_on(copy: CopiedTopic) -> None:
    """What is said of a restart: every record is there once, and what comes then is, too."""
    copy.start()
    copy.wait_for_all()


@pytest.mark.parametrize("point", ["staged", "prepared"])
def test_nothing_is_seen_of_what_a_killed_driver_has_not_decided(
    copy: CopiedTopic, point: str
) -> None:
    _, batch = stop_at(copy, point)
    assert copy.staged_bytes()
    copy.running.kill()
    copy.wait_until_settled()
    assert copy.copied() == copy.up_to(batch - 1)
    go_on(copy)


@pytest.mark.parametrize("point", ["decided", "half-published", "published"])
def test_what_a_killed_driver_has_decided_is_seen(copy: CopiedTopic, point: str) -> None:
    _, batch = stop_at(copy, point)
    copy.running.kill()
    if point == "half-published":
        assert len(copy.up_to(batch - 1)) < len(copy.copied()) < len(copy.up_to(batch))
    copy.wait_until_settled()  # nobody but the brokers is there to do that
    assert copy.copied() == copy.up_to(batch)
    go_on(copy)


def test_a_micro_batch_that_spark_has_not_noted_is_not_written_again(copy: CopiedTopic) -> None:
    copy.produce(RECORDS)
    copy.wait_for_all()
    copy.running.kill()
    # As if it had been killed before: Spark writes the entry when the sink's commit has returned.
    last = copy.committed
    for path in (copy.checkpoint / "commits").glob(f"*{last}*"):
        if re.fullmatch(rf"\.?{last}(\.crc)?", path.name):
            path.unlink()
    assert copy.committed == last - 1
    go_on(copy)
    assert copy.committed == last


def test_a_decision_outlives_driver_and_brokers(copy: CopiedTopic) -> None:
    _, batch = stop_at(copy, "half-published")
    for broker in copy.embedded.brokers:
        broker.kill()
    copy.running.kill()
    for broker in copy.embedded.brokers:
        broker.start()
    copy.wait_until_settled()
    assert copy.copied() == copy.up_to(batch)
    go_on(copy)


@pytest.mark.parametrize("point", ["staged", "decided"])
def test_a_broker_is_killed_in_the_middle_of_a_commit(copy: CopiedTopic, point: str) -> None:
    pid, batch = stop_at(copy, point)
    leader = copy.logbus.admin.describe([copy.target])[copy.target].partitions[0].leader
    assert leader is not None
    broker = next(one for one in copy.embedded.brokers if one.broker_id == leader.broker_id)
    broker.kill()
    send(pid, signal.SIGCONT)
    broker.start()
    copy.wait_for_all()
    assert copy.committed >= batch


def test_the_worker_that_commits_is_killed(copy: CopiedTopic) -> None:
    pid, batch = stop_at(copy, "decided")
    send(pid, signal.SIGKILL)
    copy.running.process.wait(60)  # its query has failed
    copy.wait_until_settled()
    assert copy.copied() == copy.up_to(batch)
    go_on(copy)


def test_a_driver_that_was_succeeded_writes_no_more(copy: CopiedTopic) -> None:
    _, batch = stop_at(copy, "staged")
    zombie = copy.running
    zombie.signal(signal.SIGSTOP)
    wait_until(partial(process_is_stopped, zombie.process.pid))
    go_on(copy)
    copy.produce(RECORDS)
    copy.wait_for_all()
    copy.produce(RECORDS)
    zombie.signal(signal.SIGCONT)
    zombie.process.wait(60)
    assert re.search("WriteFencedError|CONCURRENT_STREAM_LOG_UPDATE", zombie.said())
    copy.wait_for_all()
    assert copy.committed > batch

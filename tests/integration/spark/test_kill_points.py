"""Queries into topics whose driver is killed at each step of their commits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from spark_logbus.client import Cluster
from spark_logbus.local.cluster import EmbeddedCluster
from tests.integration.spark.copied_topic import CopiedTopic, CopyingDrivers
from tests.servers.cluster import Logbus

pytestmark = pytest.mark.long

RECORDS = 50  # fewer than a micro-batch takes
NOT_NOTED = "not noted"  # by Spark, that the micro-batch is over
UNDECIDED = ("staged", "prepared")
DECIDED = ("decided", "half-published", "published", NOT_NOTED)


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(tmp_path_factory.mktemp("cluster"), brokers=2) as started:
        yield started


@pytest.fixture(scope="module")
def logbus(embedded: EmbeddedCluster) -> Iterator[Logbus]:
    with Cluster.from_zookeeper(embedded.zookeeper) as cluster:
        yield Logbus(embedded.zookeeper, cluster)


@dataclass(frozen=True)
class Killed:
    """A query whose driver was killed in a micro-batch: what could be seen when it had come to the
    point, and when no decided write was left; and what it had to copy up to the micro-batch before,
    and with this one."""

    copy: CopiedTopic
    batch: int
    staged: int
    at_once: list[str]
    settled: list[str]
    before: list[str]
    after: list[str]


@pytest.fixture(scope="module")
def killed(
    embedded: EmbeddedCluster, logbus: Logbus, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Killed]]:
    """A query for each point, all in one driver, killed when each has come to its point. Another
    driver goes on with them."""
    directory = tmp_path_factory.mktemp("copies")
    copies = {
        point: CopiedTopic(logbus, embedded, directory / point) for point in UNDECIDED + DECIDED
    }
    drivers = CopyingDrivers(list(copies.values()), directory, master="local[2]")
    try:
        for copy in copies.values():
            copy.produce(RECORDS)
        drivers.start()
        for copy in copies.values():
            copy.wait_for_all()
        batches: dict[str, int] = {}
        at_once: dict[str, list[str]] = {}
        for point, copy in copies.items():
            if point == NOT_NOTED:
                copy.produce(RECORDS)
                copy.wait_for_all()
                batches[point] = copy.planned
            else:
                _, batches[point] = drivers.stop_at(point, copy, records=RECORDS)
            at_once[point] = copy.copied()
        drivers.kill()
        # Spark writes the entry when the sink's commit has returned; it might not have got to it.
        copies[NOT_NOTED].forget_commit(batches[NOT_NOTED])
        copy.wait_until_settled()  # nobody but the brokers is there to publish anything
        found = {
            point: Killed(
                copy=copy,
                batch=batches[point],
                staged=copy.staged_bytes(),
                at_once=at_once[point],
                settled=copy.copied(),
                before=copy.up_to(batches[point] - 1),
                after=copy.up_to(batches[point]),
            )
            for point, copy in copies.items()
        }
        drivers.start()
        yield found
    finally:
        drivers.kill()


@pytest.mark.parametrize("point", UNDECIDED)
def test_nothing_is_seen_of_what_a_killed_driver_has_not_decided(
    killed: Mapping[str, Killed], point: str
) -> None:
    one = killed[point]
    assert one.staged
    assert one.at_once == one.settled == one.before


@pytest.mark.parametrize("point", DECIDED)
def test_all_is_seen_of_what_a_killed_driver_has_decided(
    killed: Mapping[str, Killed], point: str
) -> None:
    one = killed[point]
    assert one.settled == one.after
    assert not one.staged
    if point in ("published", NOT_NOTED):
        assert one.at_once == one.after
    if point == "half-published":
        led = one.copy.logbus.admin.describe([one.copy.target])[one.copy.target].partitions
        assert led[0].leader != led[1].leader
        assert len(one.before) < len(one.at_once) < len(one.after)


@pytest.mark.parametrize("point", UNDECIDED + DECIDED)
def test_the_next_driver_writes_each_record_once(killed: Mapping[str, Killed], point: str) -> None:
    one = killed[point]
    one.copy.wait_for_all()
    assert one.copy.committed >= one.batch
    one.copy.produce(RECORDS)
    one.copy.wait_for_all()

"""Leaders as a broker's metadata cache knows them, moments after they changed in ZooKeeper."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from spark_logbus.broker import metadata_cache
from spark_logbus.broker.metadata_cache import MetadataCache
from spark_logbus.coordination import paths
from spark_logbus.coordination.cluster.brokers import BrokerRegistry
from spark_logbus.coordination.cluster.partition_states import MAX_CLAIMS, PartitionStates
from spark_logbus.coordination.cluster.topic_records import LeadershipClaim, TopicRecord
from spark_logbus.coordination.cluster.topics import TopicRegistry
from spark_logbus.coordination.payloads import PartitionState, TopicPayload, encode
from spark_logbus.local.zookeeper import EmbeddedZooKeeper
from spark_logbus.model import TopicPartition
from spark_logbus.zookeeper import Session
from spark_logbus.zookeeper.nodes import Nodes
from spark_logbus.zookeeper.transactions import Create, in_parts
from tests.helpers import wait_until
from tests.servers.zookeeper import Proxy, allow, expire, forbid, put, session

T0 = TopicPartition("t", 0)


@pytest.fixture(autouse=True)
def _only_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what is read without a notice, but in tests that are about that."""
    monkeypatch.setattr(metadata_cache, "_ALL_AGAIN_S", 3_600.0)


class Cluster:
    """Changes topics and leaders, in a session of its own."""

    def __init__(self, opened: Session) -> None:
        self.nodes = Nodes(opened)
        self.topics = TopicRegistry(opened)
        self.states = PartitionStates(opened)

    def create(self, name: str = "t", partitions: int = 1) -> TopicRecord:
        return self.topics.create(name, partitions=partitions, brokers=[1], config={})

    def create_many(self, names: list[str]) -> None:
        self.nodes.ensure(paths.TOPICS)
        creations = []
        for name in names:
            payload = TopicPayload(id=f"id-of-{name}", partitions={0: [1]}, config={})
            creations.append(Create(paths.topic(name), encode(payload)))
            creations.append(Create(paths.partitions(name)))
        for part in in_parts(creations):
            self.nodes.transact("create topics", part, deadline=self.nodes.session.deadline())

    def lead_all(self, names: list[str]) -> None:
        """Give partition 0 of each topic its next leader epoch."""
        claims = [LeadershipClaim(TopicPartition(name, 0), None) for name in names]
        for start in range(0, len(claims), MAX_CLAIMS):
            led = self.states.lead_all(claims[start : start + MAX_CLAIMS], broker_id=1)
            assert all(isinstance(state, PartitionState) for state in led.values())


@pytest.fixture
def cluster(chroot: str) -> Iterator[Cluster]:
    with session(chroot) as opened:
        yield Cluster(opened)


@contextmanager
def caching(opened: Session) -> Iterator[MetadataCache]:
    cache = MetadataCache(
        opened,
        brokers=BrokerRegistry(opened),
        topics=TopicRegistry(opened),
        states=PartitionStates(opened),
        topics_changed=lambda image: None,
    )
    cache.start()
    try:
        yield cache
    finally:
        cache.stop()


@pytest.fixture
def watching(chroot: str) -> Iterator[Session]:
    with session(chroot) as opened:
        yield opened


@pytest.fixture
def cache(watching: Session) -> Iterator[MetadataCache]:
    with caching(watching) as started:
        yield started


def epoch_of(cache: MetadataCache, topic: str, partition: int = 0) -> int | None:
    record = cache.topics.get(topic)
    return None if record is None else cache.leader(record, partition)[1]


def count_reads(opened: Session, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The nodes that the session reads from now on; a node is one read."""
    read: list[str] = []

    def counted(original: Callable[..., object]) -> Callable[..., object]:
        def spy(path: str, *arguments: object) -> object:
            read.append(path)
            return original(path, *arguments)

        return spy

    for name in ("get_async", "get_children_async", "exists_async"):
        monkeypatch.setattr(opened._client, name, counted(getattr(opened._client, name)))
    return read


def test_a_new_leader_is_known_without_being_asked_for(
    cluster: Cluster, cache: MetadataCache, watching: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create("t", 3)
    cluster.create("other")
    cluster.lead_all(["t", "other"])
    wait_until(lambda: epoch_of(cache, "t", 0) == epoch_of(cache, "other") == 0)
    for partition in (1, 2):
        cluster.states.lead(TopicPartition("t", partition), broker_id=1)
    wait_until(lambda: epoch_of(cache, "t", 1) == epoch_of(cache, "t", 2) == 0)
    cluster.lead_all(["t", "other"])  # not found by looking for missing leaders
    wait_until(lambda: epoch_of(cache, "t") == epoch_of(cache, "other") == 1)
    read = count_reads(watching, monkeypatch)
    for epoch in range(2, 5):
        cluster.states.lead(T0, broker_id=1)
        wait_until(lambda epoch=epoch: epoch_of(cache, "t") == epoch)  # type: ignore[misc]
    assert not [path for path in read if "/other" in path], "of other topics nothing is read"


def test_a_thousand_topics_that_change_at_once_are_read_once_or_little_more(
    cluster: Cluster, cache: MetadataCache, watching: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"t{number:03d}" for number in range(1_000)]
    cluster.create_many(names)
    cluster.lead_all(names)
    wait_until(lambda: all(epoch_of(cache, name) == 0 for name in names))
    read = count_reads(watching, monkeypatch)
    for _ in range(3):
        cluster.lead_all(names)
    wait_until(lambda: all(epoch_of(cache, name) == 3 for name in names))
    # At the most: the watch anew, then the state, for each of three changes of each topic.
    assert len(read) <= 2 * 3 * len(names)


def test_what_changed_while_the_connection_was_away_is_known_when_it_is_back(
    cluster: Cluster, zookeeper: EmbeddedZooKeeper, chroot: str
) -> None:
    cluster.create()
    cluster.lead_all(["t"])
    with (
        Proxy(zookeeper.address) as proxy,
        session(proxy.connect_string(chroot)) as opened,
        caching(opened) as cache,
    ):
        wait_until(lambda: epoch_of(cache, "t") == 0)
        proxy.refuse.set()
        proxy.cut()
        cluster.lead_all(["t"])
        proxy.refuse.clear()
        wait_until(lambda: epoch_of(cache, "t") == 1)
        cluster.lead_all(["t"])
        wait_until(lambda: epoch_of(cache, "t") == 2)


def test_an_expired_session_is_followed_by_one_that_watches(
    cluster: Cluster, cache: MetadataCache, watching: Session
) -> None:
    cluster.create()
    cluster.lead_all(["t"])
    wait_until(lambda: epoch_of(cache, "t") == 0)
    before = watching.session_id
    expire(watching)
    cluster.lead_all(["t"])
    wait_until(lambda: epoch_of(cache, "t") == 1)
    wait_until(lambda: watching.session_id != before)
    cluster.lead_all(["t"])
    wait_until(lambda: epoch_of(cache, "t") == 2)


def test_a_topic_made_anew_is_watched_anew(cluster: Cluster, cache: MetadataCache) -> None:
    for _ in range(3):
        made = cluster.create()
        cluster.lead_all(["t"])
        wait_until(lambda made=made: epoch_of(cache, "t") == 0 and cache.topics["t"] == made)  # type: ignore[misc]
        cluster.lead_all(["t"])
        wait_until(lambda: epoch_of(cache, "t") == 1)
        cluster.topics.delete("t")


def test_many_writers_of_one_topic_do_not_get_in_each_others_way(
    cluster: Cluster, cache: MetadataCache
) -> None:
    cluster.create("t", 20)
    failures: list[object] = []

    def lead(first: int) -> None:
        for partition in range(first, 20, 4):
            state = cluster.states.lead(TopicPartition("t", partition), broker_id=1)
            if state.leader_epoch != 0:
                failures.append(state)

    threads = [threading.Thread(target=lead, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    wait_until(lambda: all(epoch_of(cache, "t", n) == 0 for n in range(20)))


def test_a_leader_of_whom_no_notice_came_is_found_in_time(
    cluster: Cluster, watching: Session, chroot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create()
    cluster.lead_all(["t"])
    monkeypatch.setattr(metadata_cache, "_ALL_AGAIN_S", 0.1)
    with caching(watching) as cache:
        wait_until(lambda: epoch_of(cache, "t") == 0)
        put(chroot, paths.partition_state(T0), encode(PartitionState(2, 7, [2])))
        wait_until(lambda: cache.leader(cache.topics["t"], 0) == (2, 7))


def test_a_node_that_cannot_be_watched_costs_its_topic_only(
    cluster: Cluster, watching: Session, chroot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_logbus.zookeeper.watches._UNWATCHED_DELAY_MS", 20)
    cluster.create("t")
    cluster.create("other")
    cluster.lead_all(["t", "other"])
    forbid(chroot, paths.partitions("t"))
    with caching(watching) as cache:
        wait_until(lambda: epoch_of(cache, "t") == epoch_of(cache, "other") == 0)
        cluster.lead_all(["t", "other"])
        wait_until(lambda: epoch_of(cache, "t") == epoch_of(cache, "other") == 1)
        allow(chroot, paths.partitions("t"))
        cluster.lead_all(["t", "other"])
        wait_until(lambda: epoch_of(cache, "t") == epoch_of(cache, "other") == 2)

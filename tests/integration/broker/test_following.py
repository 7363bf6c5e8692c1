"""Replicas follow their leaders: three brokers on a real ZooKeeper, while one of them comes and
goes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_logbus.broker import Broker
from spark_logbus.broker.replica import applying
from spark_logbus.client import Admin, Cluster, Producer
from spark_logbus.log import PartitionLog
from spark_logbus.model import TopicPartition
from spark_logbus.protocol import (
    Api,
    FollowedPartition,
    ReplicateRequest,
    ReplicateResponse,
)
from tests.helpers import wait_until
from tests.servers.broker import connect
from tests.servers.brokers_here import BrokersHere, fill, held, stage
from tests.servers.replicas import CONFIG

IDS = (1, 2, 3)


@pytest.fixture
def brokers(tmp_path: Path, chroot: str) -> Iterator[BrokersHere]:
    three = BrokersHere(tmp_path, chroot)
    for broker_id in IDS:
        three.start(broker_id)
    yield three
    three.stop_all()


@pytest.fixture
def cluster(brokers: BrokersHere) -> Iterator[Cluster]:
    with Cluster.from_zookeeper(brokers.zookeeper, CONFIG) as cluster:
        yield cluster


def create(
    brokers: BrokersHere,
    cluster: Cluster,
    *,
    partitions: int = 1,
    config: dict[str, str] | None = None,
) -> int:
    """A topic with three replicas; the leader of its first partition."""
    Admin(cluster).create_topic("t", partitions=partitions, replicas=3, config=config or {})
    where = TopicPartition("t", 0)
    return wait_until(lambda: next((each for each in IDS if brokers.leads(where, each)), 0))


def log_at(brokers: BrokersHere, broker_id: int, partition: int = 0) -> PartitionLog | None:
    return brokers.brokers[broker_id]._logs.get(TopicPartition("t", partition))


def has_all(brokers: BrokersHere, broker_id: int, count: int, partition: int = 0) -> bool:
    log = log_at(brokers, broker_id, partition)
    return log is not None and log.ends().high_watermark == log.flushed_end == count


def wait_until_all_have(brokers: BrokersHere, count: int, partition: int = 0) -> None:
    for broker_id in brokers.brokers:
        wait_until(
            lambda each=broker_id: has_all(brokers, each, count, partition),  # type: ignore[misc]
            message=f"{count} records at broker {broker_id}",
        )


def sessions_of(broker: Broker) -> dict[int, int]:
    """Requests of the sessions of the followers, by broker."""
    sessions = broker._replications._sessions._sessions
    return {broker_id: session.sequence for broker_id, session in sessions.items()}


def test_replicas_have_what_the_leader_has_and_see_as_much(
    brokers: BrokersHere, cluster: Cluster
) -> None:
    leader = create(brokers, cluster, partitions=3)
    for partition in range(3):
        fill(cluster, TopicPartition("t", partition), 2_000)
        wait_until_all_have(brokers, 2_000, partition)
    first = log_at(brokers, leader)
    assert first is not None
    for broker_id in IDS:
        log = log_at(brokers, broker_id)
        assert log is not None
        assert held(log) == held(first)
        assert log.epochs.entries == first.epochs.entries


def test_one_session_goes_on_however_much_is_written(
    brokers: BrokersHere, cluster: Cluster
) -> None:
    leader = create(brokers, cluster)
    where = TopicPartition("t", 0)
    fill(cluster, where, 100)
    wait_until_all_have(brokers, 100)
    before = sessions_of(brokers.brokers[leader])
    for start in range(100, 600, 100):
        fill(cluster, where, 100, start=start)
    wait_until_all_have(brokers, 600)
    after = sessions_of(brokers.brokers[leader])
    assert before.keys() == after.keys() == {*IDS} - {leader}
    assert all(after[each] > before[each] for each in after), "none of them began anew"


def test_a_follower_that_was_away_catches_up(brokers: BrokersHere, cluster: Cluster) -> None:
    leader = create(brokers, cluster, config={"min.insync.replicas": "1"})
    where, away = TopicPartition("t", 0), next(each for each in IDS if each != leader)
    fill(cluster, where, 1_000)
    wait_until_all_have(brokers, 1_000)
    brokers.stop(away)
    fill(cluster, where, 3_000, start=1_000)
    wait_until_all_have(brokers, 4_000)
    brokers.start(away)
    wait_until_all_have(brokers, 4_000)
    log = log_at(brokers, away)
    assert log is not None
    assert held(log) == [b"%08d" % number for number in range(4_000)]


def test_what_is_staged_is_at_all_replicas(brokers: BrokersHere, cluster: Cluster) -> None:
    create(brokers, cluster)
    where = TopicPartition("t", 0)
    fill(cluster, where, 10)
    stage(cluster, where, 77, 1, range(50))

    def staged(broker_id: int) -> bool:
        log = log_at(brokers, broker_id)
        assert log is not None
        found = log.staging.replica_state()
        return [each.write for each in found] == [77] and all(
            each.flushed_bytes == each.size_bytes > 0 for each in found
        )

    for broker_id in IDS:
        wait_until(lambda each=broker_id: staged(each))  # type: ignore[misc]


def test_a_topic_that_leaves_flushing_to_the_system_is_replicated_without(
    brokers: BrokersHere, cluster: Cluster
) -> None:
    leader = create(brokers, cluster, config={"flush.policy": "os"})
    where = TopicPartition("t", 0)
    with Producer(cluster) as producer:
        futures = [producer.send("t", b"%08d" % each, partition=0) for each in range(500)]
        for future in futures:
            future.result(60)
    for broker_id in IDS:
        wait_until(lambda each=broker_id: visible(brokers, each) == 500)  # type: ignore[misc]
    assert brokers.leads(where, leader)


def visible(brokers: BrokersHere, broker_id: int) -> int:
    log = log_at(brokers, broker_id)
    return 0 if log is None else log.ends().high_watermark


def test_a_disk_without_room_holds_up_no_other_replica(
    brokers: BrokersHere,
    cluster: Cluster,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker says so, and goes on when there is room again."""
    monkeypatch.setattr(applying, "_LOOK_FOR_ROOM_EVERY_BYTES", 64 << 10)
    leader = create(brokers, cluster, config={"min.insync.replicas": "1"})
    where, full = TopicPartition("t", 0), next(each for each in IDS if each != leader)
    fill(cluster, where, 100)
    wait_until_all_have(brokers, 100)
    following = brokers.brokers[full]._following
    free_bytes, following._free_bytes = following._free_bytes, lambda: 0
    following._reserve_bytes = 1
    with caplog.at_level(logging.ERROR):
        brokers.stop(other := next(each for each in IDS if each not in (leader, full)))
        fill(cluster, where, 400, start=100, padding=3_000)
        wait_until(lambda: where in following.troubles())
    assert "has no room for t-0" in following.troubles()[where]
    assert "t-0 cannot follow its leader, and tries again" in caplog.text
    following._free_bytes, following._reserve_bytes = free_bytes, 0
    wait_until(lambda: has_all(brokers, full, 500))
    assert not following.troubles()
    brokers.start(other)


def test_a_stranger_cannot_have_more_kept_than_there_is(
    brokers: BrokersHere, cluster: Cluster
) -> None:
    leader = create(brokers, cluster)
    fill(cluster, TopicPartition("t", 0), 10)
    wait_until_all_have(brokers, 10)
    broker = brokers.brokers[leader]
    names = [
        FollowedPartition("t", each, "x" * 32, 0, 1 << 62, "y" * 100, 0, -1, 0, 0, 1)
        for each in range(5_000)
    ]
    before = sessions_of(broker).keys()
    with connect(broker) as wire:
        for stranger in (77, next(each for each in IDS if each != leader)):
            request = ReplicateRequest(stranger, 1, 0, 1, names)
            answer = wire.call(Api.REPLICATE, request, ReplicateResponse)
            assert len(answer.results) == 5_000
            assert all(each.error is not None for each in answer.results)
    assert sessions_of(broker).keys() == before
    assert broker._replications._sessions._followers.keys() == {TopicPartition("t", 0)}
    fill(cluster, TopicPartition("t", 0), 10, start=10)
    wait_until_all_have(brokers, 20)


def test_whoever_takes_a_brokers_id_does_not_end_its_following(
    brokers: BrokersHere, cluster: Cluster
) -> None:
    """Half-open connections of before, or a second process with the same id."""
    leader = create(brokers, cluster)
    where = TopicPartition("t", 0)
    fill(cluster, where, 10)
    wait_until_all_have(brokers, 10)
    broker, follower = brokers.brokers[leader], next(each for each in IDS if each != leader)
    led = broker._replica_manager.leader_of(where)
    for _ in range(3):
        with connect(broker) as wire:
            name = FollowedPartition(
                "t", 0, led.log.topic_id, 0, led.leader_epoch, "", 0, -1, 0, 0, 1 << 20
            )
            request = ReplicateRequest(follower, 1, 0, 1 << 20, [name])
            answer = wire.call(Api.REPLICATE, request, ReplicateResponse)
            assert answer.results[0].error is None
    fill(cluster, where, 90, start=10)
    wait_until_all_have(brokers, 100)

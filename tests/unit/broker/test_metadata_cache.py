"""The view of the cluster, with ZooKeeper played by the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from spark_logbus.broker import metadata_cache as module
from spark_logbus.broker.metadata_cache import UNKNOWN_EPOCH, MetadataCache, TopicsImage
from spark_logbus.coordination.brokers import BrokerRegistry
from spark_logbus.coordination.topic_records import PartitionState, TopicRecord
from spark_logbus.coordination.topics import TopicRegistry
from spark_logbus.errors import CoordinationError
from spark_logbus.model import BrokerAddress
from spark_logbus.retry import Backoff
from spark_logbus.zookeeper import CorruptNodeError, Session, SessionState
from tests.helpers import wait_until

OLD, NEW = "a" * 32, "b" * 32


def record(name: str = "t", topic_id: str = OLD) -> TopicRecord:
    return TopicRecord(name, topic_id, {0: [1], 1: [2]}, {})


class ZooKeeper:
    """In the place of both registries."""

    def __init__(self) -> None:
        self.topics_changed: Callable[[dict[str, TopicRecord]], None] = lambda _: None
        self.brokers_changed: Callable[[list[BrokerAddress]], None] = lambda _: None
        self.leaders: dict[int, PartitionState] = {}
        self.failure: CoordinationError | None = None
        self.reads = 0

    def states(self, name: str) -> dict[int, PartitionState]:
        self.reads += 1
        if self.failure is not None:
            raise self.failure
        return dict(self.leaders)


class Subject:
    def __init__(self) -> None:
        self.zookeeper = zookeeper = ZooKeeper()
        self.session = SimpleNamespace(session_id=1, state=SessionState.CONNECTED)
        self.images: list[TopicsImage] = []

        def watch_brokers(f: Callable[[list[BrokerAddress]], None]) -> None:
            zookeeper.brokers_changed = f

        def watch_topics(f: Callable[[dict[str, TopicRecord]], None]) -> None:
            zookeeper.topics_changed = f

        self.cache = MetadataCache(
            cast(Session, self.session),
            brokers=cast(BrokerRegistry, SimpleNamespace(watch=watch_brokers)),
            topics=cast(
                TopicRegistry, SimpleNamespace(watch=watch_topics, states=zookeeper.states)
            ),
            topics_changed=self.images.append,
        )
        self.cache.start()

    def topics_are(self, *records: TopicRecord) -> None:
        self.zookeeper.topics_changed({each.name: each for each in records})

    def led(self, epoch: int = 0) -> None:
        self.zookeeper.leaders = {
            number: PartitionState(number + 5, epoch, []) for number in range(2)
        }


@pytest.fixture
def subject(monkeypatch: pytest.MonkeyPatch) -> Iterator[Subject]:
    monkeypatch.setattr(module, "_REFRESH_S", 0.01)
    monkeypatch.setattr(module, "_INCOMPLETE", Backoff(first_ms=1, max_ms=10))
    subject = Subject()
    yield subject
    subject.cache.stop()


def test_each_image_is_passed_on_with_its_session(subject: Subject) -> None:
    subject.topics_are(record())
    subject.session.session_id = 2
    subject.topics_are()
    assert subject.images == [TopicsImage({"t": record()}, 1), TopicsImage({}, 2)]
    assert subject.cache.topics == {}


def test_brokers_are_those_that_are_registered(subject: Subject) -> None:
    broker = BrokerAddress(1, "h", 9192)
    subject.zookeeper.brokers_changed([broker])
    assert subject.cache.brokers == [broker]


def test_the_assigned_broker_leads_until_one_has_led(subject: Subject) -> None:
    subject.topics_are(record())
    assert subject.cache.leader(record(), 1) == (2, UNKNOWN_EPOCH)
    subject.led()
    wait_until(lambda: subject.cache.leader(record(), 1) == (6, 0))


def test_leaders_are_read_now_and_then(subject: Subject) -> None:
    subject.led()
    subject.topics_are(record())
    wait_until(lambda: subject.cache.leader(record(), 0) == (5, 0))
    subject.led(epoch=3)
    wait_until(lambda: subject.cache.leader(record(), 0) == (5, 3))


def test_leaders_of_an_earlier_topic_of_that_name_do_not_count(subject: Subject) -> None:
    subject.led()
    subject.topics_are(record())
    wait_until(lambda: subject.cache.leader(record(), 0) == (5, 0))
    assert subject.cache.leader(record(topic_id=NEW), 0) == (1, UNKNOWN_EPOCH)


@pytest.mark.parametrize("failure", [CorruptNodeError("not ours"), CoordinationError("away")])
def test_leaders_that_cannot_be_read_stay_as_they_were(
    subject: Subject, failure: CoordinationError
) -> None:
    subject.led()
    subject.topics_are(record())
    wait_until(lambda: subject.cache.leader(record(), 0) == (5, 0))
    subject.zookeeper.failure = failure
    reads = subject.zookeeper.reads
    wait_until(lambda: subject.zookeeper.reads > reads + 3)
    assert subject.cache.leader(record(), 0) == (5, 0)


def test_nothing_is_read_without_a_connection(subject: Subject) -> None:
    subject.session.state = SessionState.SUSPENDED
    subject.topics_are(record())
    assert subject.zookeeper.reads == 0
    subject.session.state = SessionState.CONNECTED
    wait_until(lambda: subject.zookeeper.reads)


@pytest.mark.parametrize(
    ("now", "removed"),
    [
        ([record("t"), record("u")], []),
        ([record("u")], ["t"]),
        ([record("t", NEW), record("u")], ["t"]),
        ([record("t"), record("u"), record("v")], []),
        ([], ["t", "u"]),
    ],
)
def test_removed_since(now: list[TopicRecord], removed: list[str]) -> None:
    before = TopicsImage({"t": record("t"), "u": record("u")}, 1)
    after = TopicsImage({each.name: each for each in now}, 1)
    gone = after.removed_since(before)
    assert [each.name for each in gone] == removed
    assert all(each.topic_id == OLD for each in gone)

"""Leaders as the metadata cache reads them: all now and then, in between what is missing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, cast

from spark_logbus.broker.metadata_cache import MetadataCache
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.zookeeper import SessionState
from tests.fakes.clock import ManualClock
from tests.helpers import wait_until

PARTITIONS = 4


class Topics:
    """A registry of a topic whose partitions are led one after the other; it can be told when."""

    def __init__(self) -> None:
        self.record = self.with_id("one")
        self.led: dict[int, int] = {}  # epochs, by partition
        self.asked: list[set[int]] = []
        self.tell: Callable[[dict[str, TopicRecord]], None]

    @staticmethod
    def with_id(topic_id: str) -> TopicRecord:
        return TopicRecord("t", topic_id, {n: [1] for n in range(PARTITIONS)}, {})

    def watch(self, tell: Callable[[dict[str, TopicRecord]], None]) -> None:
        self.tell = tell
        tell({"t": self.record})

    def states(self, name: str, *, besides: Collection[int] = ()) -> dict[int, PartitionState]:
        assert name == "t"
        wanted = set(range(PARTITIONS)) - set(besides)
        self.asked.append(wanted)
        return {n: PartitionState(1, epoch, [1]) for n, epoch in self.led.items() if n in wanted}


class Brokers:
    def watch(self, tell: Callable[[list[object]], None]) -> None:
        tell([])


class OpenSession:
    state = SessionState.CONNECTED
    session_id = 1

    def __init__(self) -> None:
        self.clock = ManualClock()


@contextmanager
def started(topics: Topics, session: OpenSession) -> Iterator[MetadataCache]:
    cache = MetadataCache(
        cast(Any, session),
        brokers=cast(Any, Brokers()),
        topics=cast(Any, topics),
        states=cast(Any, topics),
        topics_changed=lambda image: None,
    )
    cache.start()
    try:
        yield cache
    finally:
        cache.stop()


def epochs(cache: MetadataCache, topics: Topics) -> list[int]:
    return [cache.leader(topics.record, n)[1] for n in range(PARTITIONS)]


def test_leaders_that_are_known_are_not_read_again_while_others_are_missing() -> None:
    topics = Topics()
    topics.led = {0: 7}
    with started(topics, OpenSession()) as cache:
        wait_until(lambda: {1, 2, 3} in topics.asked)
        topics.led = {0: 8, 1: 0, 2: 0, 3: 0}  # what is known may be old for some seconds
        wait_until(lambda: epochs(cache, topics) == [7, 0, 0, 0])


def test_all_leaders_are_read_again_when_seconds_have_passed() -> None:
    topics, session = Topics(), OpenSession()
    topics.led = {0: 7}
    with started(topics, session) as cache:
        wait_until(lambda: {1, 2, 3} in topics.asked)
        topics.led = {0: 8}  # one is missing for good, as of a broker that is away
        session.clock.advance(6)
        wait_until(lambda: epochs(cache, topics)[0] == 8)


def test_all_leaders_are_read_again_after_a_change() -> None:
    topics = Topics()
    topics.led = dict.fromkeys(range(PARTITIONS), 7)
    with started(topics, OpenSession()) as cache:
        wait_until(lambda: epochs(cache, topics) == [7] * PARTITIONS)
        topics.led = dict.fromkeys(range(PARTITIONS), 8)
        topics.tell({"t": topics.record})
        wait_until(lambda: epochs(cache, topics) == [8] * PARTITIONS)


def test_leaders_of_a_topic_made_anew_are_not_those_of_the_one_before() -> None:
    topics = Topics()
    topics.led = {0: 7}
    with started(topics, OpenSession()) as cache:
        wait_until(lambda: epochs(cache, topics) == [7, -1, -1, -1])
        topics.record, topics.led = topics.with_id("two"), {1: 0}
        topics.tell({"t": topics.record})
        wait_until(lambda: epochs(cache, topics) == [-1, 0, -1, -1])

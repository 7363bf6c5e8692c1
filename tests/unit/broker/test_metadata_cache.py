"""Leaders as the metadata cache reads them: those that may have changed, those that are missing,
and all of them now and then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from spark_logbus.broker.metadata_cache import MetadataCache
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.errors import CoordinationError
from spark_logbus.model import TopicPartition
from spark_logbus.zookeeper import CorruptNodeError, SessionState
from tests.fakes.clock import ManualClock
from tests.helpers import wait_until

PARTITIONS = 4


class Topics:
    """A registry of topics that can be told of others."""

    def __init__(self, *names: str) -> None:
        self.records = {name: self.with_id(name, "one") for name in names}
        self.tell: Callable[[dict[str, TopicRecord]], None]

    @staticmethod
    def with_id(name: str, topic_id: str) -> TopicRecord:
        return TopicRecord(name, topic_id, {n: [1] for n in range(PARTITIONS)}, {})

    def watch(self, tell: Callable[[dict[str, TopicRecord]], None]) -> None:
        self.tell = tell
        self.change()

    def change(self) -> None:
        self.tell(dict(self.records))


class States:
    """States of partitions: which topics have new ones is told by the test, or not."""

    def __init__(self) -> None:
        self.led: dict[TopicPartition, int] = {}  # epochs
        self.corrupt: set[TopicPartition] = set()
        self.asked: list[set[TopicPartition]] = []
        self.failures = 0
        self.followed: Mapping[str, TopicRecord] = {}
        self.tell: Callable[[set[str]], None]

    def watch(self, changed: Callable[[set[str]], None]) -> States:
        self.tell = changed
        return self

    def follow(self, topics: Mapping[str, TopicRecord]) -> None:
        new = set(topics) - set(self.followed)
        self.followed = topics
        self.tell(new)

    def states_of(
        self, wanted: Iterable[TopicPartition], *, instead: str
    ) -> dict[TopicPartition, PartitionState | CorruptNodeError | None]:
        asked = set(wanted)
        self.asked.append(asked)
        if self.failures:
            self.failures -= 1
            raise CoordinationError("ZooKeeper does not answer.")
        return {each: self._state(each) for each in asked}

    def _state(self, each: TopicPartition) -> PartitionState | CorruptNodeError | None:
        if each in self.corrupt:
            return CorruptNodeError("The node is not in order.")
        epoch = self.led.get(each)
        return None if epoch is None else PartitionState(1, epoch, [1])


class Brokers:
    def watch(self, tell: Callable[[list[object]], None]) -> None:
        tell([])


class OpenSession:
    session_id = 1

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.state = SessionState.CONNECTED


@contextmanager
def started(topics: Topics, states: States, session: OpenSession) -> Iterator[MetadataCache]:
    cache = MetadataCache(
        cast(Any, session),
        brokers=cast(Any, Brokers()),
        topics=cast(Any, topics),
        states=cast(Any, states),
        topics_changed=lambda image: None,
    )
    cache.start()
    try:
        yield cache
    finally:
        cache.stop()


def all_of(name: str) -> set[TopicPartition]:
    return {TopicPartition(name, n) for n in range(PARTITIONS)}


def epochs(cache: MetadataCache, record: TopicRecord) -> list[int]:
    return [cache.leader(record, n)[1] for n in range(PARTITIONS)]


def led(states: States, name: str, epoch: int) -> None:
    states.led |= dict.fromkeys(all_of(name), epoch)


def test_leaders_are_read_of_the_topics_that_a_notice_names() -> None:
    topics, states = Topics("a", "b"), States()
    led(states, "a", 7)
    led(states, "b", 7)
    with started(topics, states, OpenSession()) as cache:
        wait_until(lambda: epochs(cache, topics.records["b"]) == [7] * PARTITIONS)
        states.asked.clear()
        led(states, "a", 8)
        states.tell({"a"})
        wait_until(lambda: epochs(cache, topics.records["a"]) == [8] * PARTITIONS)
        states.tell({"unknown"})
        led(states, "b", 8)
        states.tell({"b"})
        wait_until(lambda: epochs(cache, topics.records["b"]) == [8] * PARTITIONS)
        assert [asked for asked in states.asked if asked] == [all_of("a"), all_of("b")]


def test_notices_that_come_together_cost_one_read() -> None:
    names = [f"t{n}" for n in range(1_000)]
    topics, states = Topics(*names), States()
    for name in names:
        led(states, name, 7)
    with started(topics, states, OpenSession()) as cache:
        wait_until(lambda: epochs(cache, topics.records["t999"]) == [7] * PARTITIONS)
        states.asked.clear()
        for name in names:
            led(states, name, 8)
        for name in names:
            states.tell({name})
        wait_until(lambda: epochs(cache, topics.records["t999"]) == [8] * PARTITIONS)
        assert sum(len(asked) for asked in states.asked) == 1_000 * PARTITIONS, "each once"
        assert len(states.asked) < 100, "many topics in one read"


def test_leaders_that_are_missing_are_looked_for_without_a_notice() -> None:
    topics, states, session = Topics("t"), States(), OpenSession()
    states.led = {TopicPartition("t", 0): 7}
    with started(topics, states, session) as cache:
        wait_until(lambda: epochs(cache, topics.records["t"]) == [7, -1, -1, -1])
        led(states, "t", 8)
        session.clock.advance(1)
        cache._thread.wake()
        wait_until(lambda: epochs(cache, topics.records["t"]) == [7, 8, 8, 8])
        assert states.asked[-1] == all_of("t") - {TopicPartition("t", 0)}


def test_all_leaders_are_read_again_when_a_minute_has_passed() -> None:
    topics, states, session = Topics("t"), States(), OpenSession()
    led(states, "t", 7)
    with started(topics, states, session) as cache:
        wait_until(lambda: epochs(cache, topics.records["t"]) == [7] * PARTITIONS)
        led(states, "t", 8)
        session.clock.advance(59)
        cache._thread.wake()
        wait_until(lambda: not cache._thread._woken.is_set())
        assert epochs(cache, topics.records["t"]) == [7] * PARTITIONS
        session.clock.advance(2)
        cache._thread.wake()
        wait_until(lambda: epochs(cache, topics.records["t"]) == [8] * PARTITIONS)


def test_leaders_of_a_topic_made_anew_are_not_those_of_the_one_before() -> None:
    topics, states = Topics("t"), States()
    states.led = {TopicPartition("t", 0): 7}
    with started(topics, states, OpenSession()) as cache:
        wait_until(lambda: epochs(cache, topics.records["t"]) == [7, -1, -1, -1])
        topics.records = {"t": topics.with_id("t", "two")}
        assert epochs(cache, topics.records["t"]) == [-1] * PARTITIONS
        states.led = {TopicPartition("t", 1): 0}
        topics.change()
        wait_until(lambda: epochs(cache, topics.records["t"]) == [-1, 0, -1, -1])


def test_what_cannot_be_read_stays_as_it_was_and_what_is_gone_does_not() -> None:
    topics, states = Topics("t"), States()
    led(states, "t", 7)
    with started(topics, states, OpenSession()) as cache:
        wait_until(lambda: epochs(cache, topics.records["t"]) == [7] * PARTITIONS)
        led(states, "t", 8)
        states.corrupt = {TopicPartition("t", 0)}
        del states.led[TopicPartition("t", 1)]
        states.tell({"t"})
        wait_until(lambda: epochs(cache, topics.records["t"]) == [7, -1, 8, 8])
        assert cache.state(topics.records["t"], 2) == PartitionState(1, 8, [1])
        assert cache.state(topics.records["t"], 1) is None


def test_a_notice_outlives_a_read_that_fails_and_a_session_that_is_away() -> None:
    topics, states, session = Topics("t"), States(), OpenSession()
    led(states, "t", 7)
    with started(topics, states, session) as cache:
        wait_until(lambda: epochs(cache, topics.records["t"]) == [7] * PARTITIONS)
        led(states, "t", 8)
        states.failures = 1
        states.tell({"t"})
        wait_until(lambda: epochs(cache, topics.records["t"]) == [8] * PARTITIONS)
        session.state = SessionState.SUSPENDED
        led(states, "t", 9)
        states.tell({"t"})
        wait_until(lambda: not cache._thread._woken.is_set())
        session.state = SessionState.CONNECTED
        cache._thread.wake()
        wait_until(lambda: epochs(cache, topics.records["t"]) == [9] * PARTITIONS)

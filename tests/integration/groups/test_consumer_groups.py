"""Consumers that subscribe in a group, against real brokers and a real ZooKeeper."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from spark_logbus.client import Admin, Cluster, Consumer, ConsumerConfig, Producer
from spark_logbus.coordination.groups.offsets import GroupOffsets
from spark_logbus.coordination.groups.rewinds import GroupRewinds
from spark_logbus.coordination.groups.topic_owners import GroupOwnership
from spark_logbus.errors import ClaimLostError, ConfigError, GroupHeldError, InvalidRequestError
from spark_logbus.local.cluster import EmbeddedCluster
from spark_logbus.model import TopicPartition
from spark_logbus.retry import Deadline
from spark_logbus.zookeeper.session import Session
from tests.helpers import wait_until
from tests.servers.cluster import CONFIG
from tests.servers.zookeeper import Proxy, expire, session


@pytest.fixture
def topic(cluster: Cluster) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    Admin(cluster).create_topic(name, partitions=4)
    return name


class Reader:
    """A consumer, and what it has read and was told."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.values: list[str] = []
        self.told: list[tuple[str, list[int]]] = []

    def subscribe(self, topics: str | re.Pattern[str]) -> None:
        def tell(event: str) -> Callable[[list[TopicPartition]], object]:
            return lambda some: self.told.append((event, [at.partition for at in some]))

        self.consumer.subscribe(
            topics, on_assigned=tell("+"), on_revoked=tell("-"), on_lost=tell("lost")
        )

    def poll(self) -> None:
        for batch in self.consumer.poll_arrow(0.05):
            self.values += [v.decode() for v in batch.arrow_batch.column("value").to_pylist()]

    @property
    def reads(self) -> list[int]:
        return [at.partition for at in self.consumer.assignment]


@pytest.fixture
def reader(brokers: EmbeddedCluster) -> Iterator[Callable[..., Reader]]:
    with ExitStack() as stack:

        def make(group: str, **config: object) -> Reader:
            connected = stack.enter_context(Cluster.from_zookeeper(brokers.zookeeper, CONFIG))
            settings = ConsumerConfig(group=group, zookeeper=brokers.zookeeper, **config)  # type: ignore[arg-type]
            return Reader(stack.enter_context(Consumer(connected, settings)))

        yield make


def produce(cluster: Cluster, topic: str, *values: str) -> None:
    with Producer(cluster) as producer:
        for number, value in enumerate(values):
            producer.send(topic, value.encode(), partition=number % 4)


def poll_until(condition: Callable[[], bool], *readers: Reader) -> None:
    def look() -> bool:
        for one in readers:
            one.poll()
        return condition()

    wait_until(look)


def committed(brokers: EmbeddedCluster, group: str) -> dict[int, int]:
    with session(brokers.zookeeper) as opened:
        found = GroupOffsets(opened).committed(group)
    return {at.partition: one.offset for at, one in found.items()}


def test_two_share_a_topic_and_one_takes_over(
    brokers: EmbeddedCluster, cluster: Cluster, topic: str, reader: Callable[..., Reader]
) -> None:
    produce(cluster, topic, *"abcd")
    one, two = (reader(topic, auto_commit_ms=600_000) for _ in range(2))
    one.subscribe(topic)
    poll_until(lambda: sorted(one.values) == [*"abcd"], one)
    two.subscribe(topic)
    poll_until(lambda: len(one.reads) == len(two.reads) == 2, one, two)
    assert sorted(one.reads + two.reads) == [0, 1, 2, 3]
    assert committed(brokers, topic).keys() == set(two.reads), "what was given up, to begin with"
    produce(cluster, topic, *"efgh")
    poll_until(lambda: len(one.values) + len(two.values) == 8, one, two)
    one.consumer.close()
    produce(cluster, topic, *"ijkl")
    poll_until(lambda: len(one.values) + len(two.values) == 12, two)
    assert sorted(one.values + two.values) == [*"abcdefghijkl"]
    assert one.told[0] == ("+", [0, 1, 2, 3])
    assert [event for event, _ in one.told] == ["+", "-", "-"]
    assert [event for event, _ in two.told] == ["+", "+"]
    two.consumer.close()
    assert committed(brokers, topic) == dict.fromkeys(range(4), 3)


def test_groups_read_each_for_itself(
    cluster: Cluster, topic: str, reader: Callable[..., Reader]
) -> None:
    produce(cluster, topic, *"abcd")
    one, two = reader(f"{topic}-1"), reader(f"{topic}-2")
    one.subscribe(topic)
    two.subscribe(topic)
    poll_until(lambda: sorted(one.values) == sorted(two.values) == [*"abcd"], one, two)


@pytest.mark.long
def test_more_members_than_partitions(topic: str, reader: Callable[..., Reader]) -> None:
    readers = [reader(topic) for _ in range(5)]
    for one in readers:
        one.subscribe(topic)
    poll_until(lambda: sorted(len(one.reads) for one in readers) == [0, 1, 1, 1, 1], *readers)
    idle = next(one for one in readers if not one.reads)
    busy = next(one for one in readers if one.reads)
    busy.consumer.close()
    poll_until(lambda: len(idle.reads) == 1, *[one for one in readers if one is not busy])


def test_a_pattern_finds_topics_that_come_later(
    cluster: Cluster, topic: str, reader: Callable[..., Reader]
) -> None:
    one = reader(topic)
    one.subscribe(re.compile(f"{topic}-.*"))
    assert one.consumer.poll_arrow(0.05) == []
    Admin(cluster).create_topic(f"{topic}-later", partitions=1)
    with Producer(cluster) as producer:
        producer.send(f"{topic}-later", b"x")
    poll_until(lambda: one.values == ["x"], one)


def test_iteration_goes_on_over_what_is_shared_anew(
    cluster: Cluster, topic: str, reader: Callable[..., Reader]
) -> None:
    one, two = reader(topic), reader(topic)
    produce(cluster, topic, *map(str, range(400)))
    one.subscribe(topic)
    read: dict[str, list[str]] = {"one": [], "two": []}
    enough = threading.Event()

    def iterate(name: str, consumer: Consumer) -> None:
        for record in consumer:
            assert record.value is not None
            read[name].append(record.value.decode())
            if record.value == b"end":
                return
            if len(read["one"]) > 50 and name == "one" and not enough.is_set():
                enough.set()

    threads = [threading.Thread(target=iterate, args=("one", one.consumer), daemon=True)]
    threads[0].start()
    assert enough.wait(60)
    two.subscribe(topic)
    threads.append(threading.Thread(target=iterate, args=("two", two.consumer), daemon=True))
    threads[1].start()
    wait_until(lambda: len(set(read["one"] + read["two"])) == 400)
    wait_until(lambda: len(one.reads) == len(two.reads) == 2)
    produce(cluster, topic, *["end"] * 4)
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_who_lost_its_session_hands_out_nothing_that_others_have(
    brokers: EmbeddedCluster, cluster: Cluster, topic: str, reader: Callable[..., Reader]
) -> None:
    produce(cluster, topic, *"abcd")
    one, two = reader(topic, auto_commit_ms=None), reader(topic)
    one.subscribe(topic)
    poll_until(lambda: len(one.values) == 4, one)
    two.subscribe(topic)
    poll_until(lambda: len(one.reads) == len(two.reads) == 2, one, two)
    own = one.reads
    assert one.consumer._group is not None
    expire(one.consumer._group._session)
    poll_until(lambda: ("lost", own) in one.told, one)
    poll_until(lambda: len(one.reads) == len(two.reads) == 2, one, two)
    one.consumer.commit()


def test_a_commit_of_what_others_have_is_refused(
    topic: str, cluster: Cluster, reader: Callable[..., Reader]
) -> None:
    produce(cluster, topic, *"abcd")
    one, two = reader(topic, auto_commit_ms=None), reader(topic)
    one.subscribe(topic)
    poll_until(lambda: len(one.values) == 4, one)
    two.subscribe(topic)
    poll_until(lambda: len(two.reads) == 2, one, two)
    lost = two.consumer.assignment[0]
    with pytest.raises(ClaimLostError, match=f"does not own {lost} for the group"):
        one.consumer.commit({lost: 1})
    one.consumer.commit()


def test_who_does_not_ask_for_records_is_left_out_until_it_does(
    topic: str, cluster: Cluster, reader: Callable[..., Reader]
) -> None:
    one, two = reader(topic, max_poll_interval_ms=1_000), reader(topic)
    one.subscribe(topic)
    poll_until(lambda: len(one.reads) == 4, one)
    two.subscribe(topic)
    poll_until(lambda: len(two.reads) == 4, two)  # one is busy with something else
    produce(cluster, topic, *"abcd")
    poll_until(lambda: len(one.reads) == len(two.reads) == 2, one, two)
    assert one.told[1] == ("lost", [0, 1, 2, 3])
    poll_until(lambda: len(one.values) + len(two.values) >= 4, one, two)


def test_a_rewind_is_followed_at_the_next_commit(
    brokers: EmbeddedCluster, cluster: Cluster, topic: str, reader: Callable[..., Reader]
) -> None:
    produce(cluster, topic, *"abcd")
    one = reader(topic, auto_commit_ms=50)
    one.subscribe(topic)
    poll_until(lambda: committed(brokers, topic) == dict.fromkeys(range(4), 1), one)
    with session(brokers.zookeeper) as opened:
        positions = {TopicPartition(topic, number): 0 for number in range(4)}
        GroupRewinds(opened).record(topic, positions, actor="test", reason="again")
    produce(cluster, topic, *"efgh")
    # Some of "efgh" may be read before the first commit after the rewind, and then twice.
    poll_until(lambda: len(one.values) >= 12 and sorted(one.values[-8:]) == [*"abcdefgh"], one)


def test_consumers_and_queries_do_not_share_a_group(
    brokers: EmbeddedCluster, topic: str, reader: Callable[..., Reader]
) -> None:
    with session(brokers.zookeeper) as opened:
        GroupOwnership(opened, topic, pid=7, application="nightly").acquire([topic])
        with pytest.raises(GroupHeldError, match="application nightly"):
            reader(topic).subscribe(topic)


def test_mistakes(
    cluster: Cluster, brokers: EmbeddedCluster, topic: str, reader: Callable[..., Reader]
) -> None:
    with Consumer(cluster) as consumer, pytest.raises(ConfigError, match="has no group"):
        consumer.subscribe(topic)
    one = reader(topic)
    with pytest.raises(InvalidRequestError, match="at least one topic"):
        one.consumer.subscribe([])
    one.subscribe(topic)
    poll_until(lambda: len(one.reads) == 4, one)
    one.consumer.assign([TopicPartition(topic, 0)])  # leaves the group
    assert one.told[-1] == ("-", [0, 1, 2, 3])
    one.consumer.commit({TopicPartition(topic, 0): 0})
    with pytest.raises(ConfigError, match="assignor is 'even'"):
        reader(topic, assignor="even")


def test_a_callback_that_fails_is_heard_of_and_harms_nothing(
    topic: str, reader: Callable[..., Reader]
) -> None:
    one, two = reader(topic), reader(topic)
    failures = [ZeroDivisionError()]

    def fail(_: list[TopicPartition]) -> None:
        if failures:
            raise failures.pop()

    one.consumer.subscribe(topic, on_revoked=fail)
    poll_until(lambda: len(one.reads) == 4, one)
    two.subscribe(topic)

    def heard() -> bool:
        two.poll()
        try:
            one.poll()
        except ZeroDivisionError:
            return True
        return False

    wait_until(heard)
    poll_until(lambda: len(one.reads) == len(two.reads) == 2, one, two)


@pytest.fixture
def waits_for_zookeeper_never_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session waits for an hour instead of some seconds: a test that waits with it hangs."""
    monkeypatch.setattr(Session, "deadline", lambda self: Deadline.after_ms(self.clock, 3_600_000))


@pytest.mark.long
@pytest.mark.usefixtures("waits_for_zookeeper_never_end")
def test_who_shares_a_group_reads_on_while_zookeeper_is_away(tmp_path: Path) -> None:
    with ExitStack() as stack:
        embedded = stack.enter_context(EmbeddedCluster(tmp_path / "cluster"))
        cluster = stack.enter_context(Cluster.from_zookeeper(embedded.zookeeper, CONFIG))
        Admin(cluster).create_topic("t", partitions=4)
        config = ConsumerConfig(
            group="g", zookeeper=embedded.zookeeper, session_timeout_ms=6_000, auto_commit_ms=100
        )
        one = Reader(stack.enter_context(Consumer(cluster, config)))
        one.subscribe("t")
        poll_until(lambda: len(one.reads) == 4, one)
        server = embedded.zookeeper_server
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: not server.running)
        gone_at, sent = time.monotonic(), 0
        while time.monotonic() - gone_at < 13:  # more than two of its sessions
            produce(cluster, "t", *map(str, range(sent, sent + 4)))
            sent += 4
            poll_until(lambda: len(one.values) == sent, one)  # noqa: B023
        server.start()
        ends = dict.fromkeys(range(4), sent // 4)
        poll_until(lambda: committed(embedded, "g") == ends, one)
        assert [event for event, _ in one.told] == ["+"]
        assert sorted(map(int, one.values)) == list(range(sent))


@pytest.mark.usefixtures("waits_for_zookeeper_never_end")
def test_who_alone_cannot_reach_zookeeper_reads_on_and_commits_nothing(
    brokers: EmbeddedCluster, cluster: Cluster, topic: str, reader: Callable[..., Reader]
) -> None:
    with ExitStack() as stack:
        proxy = stack.enter_context(Proxy(brokers.zookeeper.partition("/")[0]))
        through_proxy = ConsumerConfig(
            group=topic,
            zookeeper=proxy.connect_string(brokers.zookeeper),
            session_timeout_ms=6_000,
            auto_commit_ms=100,
        )
        alone = Reader(stack.enter_context(Consumer(cluster, through_proxy)))
        other = reader(topic, auto_commit_ms=None)
        alone.subscribe(topic)
        produce(cluster, topic, *map(str, range(4)))
        poll_until(lambda: committed(brokers, topic) == dict.fromkeys(range(4), 1), alone)
        proxy.refuse.set()
        proxy.cut()
        other.subscribe(topic)
        sent = 4
        while len(other.reads) < 4:  # until the session of the first is over
            produce(cluster, topic, *map(str, range(sent, sent + 4)))
            sent += 4
            poll_until(lambda: len(alone.values) == sent, alone)  # noqa: B023
            other.poll()
        produce(cluster, topic, *map(str, range(sent, sent + 4)))
        sent += 4
        poll_until(lambda: len(alone.values) == sent, alone)
        # What was not committed comes again; nothing is passed over.
        poll_until(lambda: len(other.values) == sent - 4, other)
        assert sorted(map(int, other.values)) == list(range(4, sent))
        assert committed(brokers, topic) == dict.fromkeys(range(4), 1)
        assert [event for event, _ in alone.told] == ["+"]
        other.consumer.commit()
        proxy.refuse.clear()
        with pytest.raises(ClaimLostError):
            alone.consumer.commit()
        poll_until(lambda: len(alone.reads) == len(other.reads) == 2, alone, other)
        assert [event for event, _ in alone.told] == ["+", "lost", "+"]
        produce(cluster, topic, *map(str, range(sent, sent + 4)))
        poll_until(lambda: len(alone.values) + len(other.values) == 2 * sent, alone, other)
        assert sorted(map(int, alone.values[sent:] + other.values[sent - 4 :])) == list(
            range(sent, sent + 4)
        )


def test_a_callback_that_fails_at_the_end_keeps_nobody_out(
    topic: str, reader: Callable[..., Reader]
) -> None:
    one, two = reader(topic), reader(topic)

    def fail(_: list[TopicPartition]) -> None:
        raise ZeroDivisionError

    one.consumer.subscribe(topic, on_revoked=fail)
    poll_until(lambda: len(one.reads) == 4, one)
    with pytest.raises(ZeroDivisionError):
        one.consumer.close()
    two.subscribe(topic)
    poll_until(lambda: len(two.reads) == 4, two)


def test_records_one_by_one_without_a_loop(
    brokers: EmbeddedCluster, cluster: Cluster, topic: str, reader: Callable[..., Reader]
) -> None:
    with Producer(cluster) as producer:
        producer.send_many(topic, [b"a", b"b", b"c"], partition=0)
    one = reader(topic, auto_commit_ms=0)
    one.subscribe(topic)
    for number, value in enumerate([b"a", b"b", b"c"]):
        assert next(one.consumer).value == value
        assert committed(brokers, topic).get(0, 0) == number, "the one in hand is not dealt with"


def test_groups_from_python(
    brokers: EmbeddedCluster, cluster: Cluster, topic: str, reader: Callable[..., Reader]
) -> None:
    admin = Admin(cluster)
    produce(cluster, topic, *"abcdefgh")
    one = reader(topic, auto_commit_ms=None)
    one.subscribe(topic)
    poll_until(lambda: len(one.values) == 8, one)
    one.consumer.commit()
    produce(cluster, topic, *"i")
    assert topic in admin.groups()
    described = admin.describe_group(topic)
    assert [member.name for member in described.members] == [
        position.reader.consumer
        for position in described.positions[:1]
        if position.reader is not None
    ]
    assert [position.lag for position in described.positions] == [1, 0, 0, 0]
    with pytest.raises(InvalidRequestError, match="has 1 live member "):
        admin.delete_group(topic)
    one.consumer.close()
    dry = admin.rewind(topic, "-1 records")
    assert dry.recorded is None
    assert dry.plan.records_to_read_again == 3, "partition 0 has one that was not read"
    assert committed(brokers, topic) == dict.fromkeys(range(4), 2)
    done = admin.rewind(topic, "earliest", topics=[topic], execute=True, why="again", by="me")
    assert done.recorded is not None
    assert committed(brokers, topic) == dict.fromkeys(range(4), 0)
    [rewind] = admin.describe_group(topic).rewinds
    assert (rewind.actor, rewind.reason) == ("me", "again")
    with pytest.raises(InvalidRequestError, match="The place to rewind to is 'soon'"):
        admin.rewind(topic, "soon")
    assert admin.forget_offsets(topic, [topic, "other"]) == [topic]
    admin.delete_group(topic)
    assert topic not in admin.groups()
    for ask in (admin.describe_group, admin.delete_group):
        with pytest.raises(InvalidRequestError, match="has committed no offsets; other groups: "):
            ask(topic)

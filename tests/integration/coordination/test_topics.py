"""Topics and partition leaders in a real ZooKeeper."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import msgspec
import pytest
from msgspec.structs import replace as replace_fields

from spark_logbus.coordination.cluster.partition_states import (
    MAX_CLAIMS,
    LeadResult,
    PartitionStates,
)
from spark_logbus.coordination.cluster.topic_records import (
    LeadershipClaim,
    Reached,
    TopicRecord,
)
from spark_logbus.coordination.cluster.topics import TopicRegistry
from spark_logbus.coordination.payloads import PartitionState, TopicPayload, decode, encode
from spark_logbus.errors import (
    ConfigError,
    InvalidNameError,
    InvalidRequestError,
    LogMissingError,
    NotLeaderError,
    TopicExistsError,
    UnknownTopicError,
)
from spark_logbus.local.zookeeper import EmbeddedZooKeeper
from spark_logbus.log_ids import new_log_id, renewed_log_id
from spark_logbus.model import TopicPartition
from spark_logbus.zookeeper import CorruptNodeError, Session
from spark_logbus.zookeeper.nodes import Nodes
from tests.helpers import wait_until
from tests.servers import zookeeper as servers
from tests.servers.zookeeper import MULTI, Proxy, allow, expire, forbid, put, session


@pytest.fixture
def opened(chroot: str) -> Iterator[Session]:
    with session(chroot) as live:
        yield live


@pytest.fixture
def topics(opened: Session) -> TopicRegistry:
    return TopicRegistry(opened)


@pytest.fixture
def partition_states(opened: Session) -> PartitionStates:
    return PartitionStates(opened)


def create(
    topics: TopicRegistry, name: str, partitions: int = 1, *, brokers: Sequence[int] = (1,)
) -> TopicRecord:
    return topics.create(name, partitions=partitions, brokers=brokers, config={})


def assign(chroot: str, name: str, partition: int, broker_id: int) -> None:
    """Gives a partition to another broker, as the end of a move does."""
    path = f"/brokers/topics/{name}"
    payload = decode(TopicPayload, servers.read(chroot, path), path=path)
    put(
        chroot,
        path,
        encode(replace_fields(payload, partitions={**payload.partitions, partition: [broker_id]})),
    )


class TestTopics:
    def test_a_created_topic_is_read_back_as_it_was_returned(self, topics: TopicRegistry) -> None:
        created = topics.create(
            "orders", partitions=4, brokers=[2, 1], config={"retention.ms": "-1"}
        )
        assert created.partitions == {0: [1], 1: [2], 2: [1], 3: [2]}
        assert created.config == {"retention.ms": "-1"}
        assert topics.get("orders") == created
        assert topics.all() == {"orders": created}

    def test_one_partition_topics_are_spread_over_the_brokers(self, topics: TopicRegistry) -> None:
        leaders = Counter(
            create(topics, f"t{i}", brokers=[1, 2, 3]).partitions[0][0] for i in range(6)
        )
        assert leaders == {1: 2, 2: 2, 3: 2}

    def test_a_second_topic_of_the_same_name_is_refused(self, topics: TopicRegistry) -> None:
        create(topics, "orders")
        with pytest.raises(TopicExistsError, match=r"already, with 1 partition\."):
            create(topics, "orders")

    def test_ten_thousand_partitions_are_the_limit(self, topics: TopicRegistry) -> None:
        assert len(create(topics, "wide", 10_000).partitions) == 10_000
        assert topics.get("wide") is not None
        with pytest.raises(ConfigError, match="10001 partitions; use 1 to 10000"):
            create(topics, "wider", 10_001)
        with pytest.raises(ConfigError, match="0 partitions"):
            create(topics, "none", 0)

    def test_a_topic_needs_a_broker_and_a_proper_name(self, topics: TopicRegistry) -> None:
        with pytest.raises(ConfigError, match="no live broker"):
            topics.create("orders", partitions=1, brokers=[], config={})
        for name in ("", "..", "a/b", "x" * 300):
            with pytest.raises(InvalidNameError):
                create(topics, name)
            with pytest.raises(InvalidNameError):
                topics.get(name)

    def test_an_unknown_topic(
        self, topics: TopicRegistry, partition_states: PartitionStates
    ) -> None:
        assert topics.get("orders") is None
        assert partition_states.states("orders") == {}
        with pytest.raises(UnknownTopicError):
            topics.delete("orders")
        with pytest.raises(UnknownTopicError):
            topics.configure("orders", {})
        with pytest.raises(UnknownTopicError):
            partition_states.lead(TopicPartition("orders", 0), broker_id=1)

    def test_a_deleted_topic_leaves_nothing_and_its_name_is_free(
        self, topics: TopicRegistry, opened: Session, partition_states: PartitionStates
    ) -> None:
        old = create(topics, "orders", 3)
        partition_states.lead(TopicPartition("orders", 2), broker_id=1)
        topics.delete("orders")
        assert topics.get("orders") is None
        assert topics.all() == {}
        assert Nodes(opened).children("/brokers/topics") == []
        assert create(topics, "orders").topic_id != old.topic_id
        assert partition_states.states("orders") == {}

    def test_a_half_deleted_topics_name_is_free(
        self, topics: TopicRegistry, chroot: str, opened: Session, partition_states: PartitionStates
    ) -> None:
        create(topics, "orders", 2)
        partition_states.lead(TopicPartition("orders", 1), broker_id=1)
        node = Nodes(opened).get("/brokers/topics/orders")
        assert node is not None
        put(chroot, "/brokers/topics/orders", node.data[:-1] + b',"deleted":true}')
        assert topics.get("orders") is None
        assert topics.all() == {}
        assert partition_states.states("orders") == {}
        with pytest.raises(UnknownTopicError):
            partition_states.lead(TopicPartition("orders", 1), broker_id=1)
        assert len(create(topics, "orders", 5).partitions) == 5
        assert partition_states.states("orders") == {}

    def test_deleting_a_half_deleted_topic_cleans_up(
        self, topics: TopicRegistry, chroot: str, opened: Session
    ) -> None:
        put(chroot, "/brokers/topics/t", b'{"id":"x","partitions":{},"config":{},"deleted":true}')
        put(chroot, "/brokers/topics/t/partitions/0/state", b"")
        with pytest.raises(UnknownTopicError):
            topics.delete("t")
        assert Nodes(opened).children("/brokers/topics") == []

    def test_of_concurrent_creations_one_wins(self, topics: TopicRegistry) -> None:
        def attempt(_: int) -> str | None:
            try:
                return create(topics, "orders").topic_id
            except TopicExistsError:
                return None

        with ThreadPoolExecutor(8) as pool:
            won = [got for got in pool.map(attempt, range(8)) if got]
        assert [record.topic_id for record in topics.all().values()] == won

    def test_a_topic_whose_creation_lost_its_reply_is_created_once(
        self, zookeeper: EmbeddedZooKeeper, chroot: str
    ) -> None:
        with Proxy(zookeeper.address) as proxy, session(proxy.connect_string(chroot)) as unlucky:
            topics = TopicRegistry(unlucky)
            proxy.lose_reply(MULTI)
            created = create(topics, "orders")
            assert topics.get("orders") == created
            proxy.lose_reply(MULTI)
            topics.delete("orders")
            assert topics.get("orders") is None
            assert proxy.lost == 2

    def test_a_lost_reply_does_not_delete_the_next_topic(
        self, zookeeper: EmbeddedZooKeeper, chroot: str, topics: TopicRegistry
    ) -> None:
        create(topics, "orders")

        def recreate() -> None:
            create(topics, "orders", 7)

        with Proxy(zookeeper.address) as proxy, session(proxy.connect_string(chroot)) as unlucky:
            proxy.lose_reply(MULTI, before_cut=recreate)
            TopicRegistry(unlucky).delete("orders")
            assert proxy.lost == 1
        there = topics.get("orders")
        assert there is not None
        assert len(there.partitions) == 7

    def test_garbage_in_a_node_is_a_typed_error_that_names_it(
        self, topics: TopicRegistry, chroot: str
    ) -> None:
        put(chroot, "/brokers/topics/orders", b"\xff{nonsense")
        for read in (topics.get, lambda name: topics.some([name])):
            with pytest.raises(CorruptNodeError, match="/brokers/topics/orders"):
                read("orders")
        others = create(topics, "others")
        assert topics.all() == {"others": others}
        assert topics.some(["others", "unknown"]) == {"others": others}

    def test_a_state_that_is_garbage_costs_its_partition(
        self,
        topics: TopicRegistry,
        chroot: str,
        caplog: pytest.LogCaptureFixture,
        partition_states: PartitionStates,
    ) -> None:
        create(topics, "orders", 2)
        led = [
            partition_states.lead(TopicPartition("orders", number), broker_id=1)
            for number in (0, 1)
        ]
        path = "/brokers/topics/orders/partitions/1/state"
        put(chroot, path, b"garbage")
        for _ in range(2):
            assert partition_states.states("orders") == {0: led[0]}
        with pytest.raises(CorruptNodeError, match=path):
            partition_states.lead(TopicPartition("orders", 1), broker_id=1)
        assert caplog.text.count(path) == 1
        put(chroot, path, b'{"leader":1,"leader_epoch":4,"in_sync":[1]}')
        assert partition_states.lead(TopicPartition("orders", 1), broker_id=1).leader_epoch == 5
        assert topics._unreadable.messages == {}

    def test_unknown_fields_are_ignored(self, topics: TopicRegistry, chroot: str) -> None:
        data = b'{"id":"a","partitions":{"0":[1]},"config":{},"from_the_future":[1]}'
        put(chroot, "/brokers/topics/orders", data)
        assert topics.get("orders") == TopicRecord("orders", "a", {0: [1]}, {})


class TestLeaders:
    def test_every_take_over_is_a_new_leader_epoch(
        self, topics: TopicRegistry, chroot: str, partition_states: PartitionStates
    ) -> None:
        create(topics, "orders", 2)
        topic_partition = TopicPartition("orders", 1)
        assert partition_states.states("orders") == {}
        first = partition_states.lead(topic_partition, broker_id=1)
        assert first == PartitionState(leader=1, leader_epoch=0, in_sync=[1])
        second = partition_states.lead(topic_partition, broker_id=1)
        assert second == PartitionState(leader=1, leader_epoch=1, in_sync=[1])
        assign(chroot, "orders", 1, 2)
        with pytest.raises(NotLeaderError, match="orders-1: broker 1 leads it in epoch 1"):
            partition_states.lead(topic_partition, broker_id=2)
        with pytest.raises(NotLeaderError, match="orders-1: it was moved to broker 2"):
            partition_states.lead(topic_partition, broker_id=1)
        assert partition_states.states("orders") == {1: second}

    def test_nobody_leads_or_refuses_what_is_assigned_to_another_broker(
        self, topics: TopicRegistry, chroot: str, partition_states: PartitionStates
    ) -> None:
        record = create(topics, "orders", 2)
        moved, kept = TopicPartition("orders", 0), TopicPartition("orders", 1)
        led = partition_states.lead(moved, broker_id=1, end=7)
        assign(chroot, "orders", 0, 2)
        with pytest.raises(NotLeaderError, match="orders-0: it was moved to broker 2"):
            partition_states.lead(moved, broker_id=1, end=9)
        with pytest.raises(NotLeaderError, match="orders-0: it was moved to broker 2"):
            partition_states.refuse(
                moved, broker_id=1, topic_id=record.topic_id, why="away", end=50
            )
        claims = [LeadershipClaim(each, record.topic_id) for each in (moved, kept)]
        found = partition_states.lead_all(claims, broker_id=1)
        assert isinstance(found[moved], NotLeaderError)
        assert found[kept] == PartitionState(1, 0, [1])
        assert partition_states.states("orders")[0] == led

    def test_a_log_of_another_id_is_not_led(
        self, topics: TopicRegistry, partition_states: PartitionStates
    ) -> None:
        create(topics, "orders")
        where, led = TopicPartition("orders", 0), new_log_id()
        claim = LeadershipClaim(where, end=3, log_id=led)
        partition_states.lead_all([claim], broker_id=1)
        before = partition_states.states("orders")
        other = replace(claim, log_id=new_log_id())
        refused = partition_states.lead_all([other], broker_id=1)[where]
        assert isinstance(refused, LogMissingError)
        assert led in str(refused)
        assert other.log_id in str(refused)
        assert partition_states.states("orders") == before
        for log_id in (renewed_log_id(led), renewed_log_id(None), ""):  # "": not known for now
            again = replace(claim, log_id=log_id)
            taken = partition_states.lead_all([again], broker_id=1)[where]
            assert isinstance(taken, PartitionState)
        # What an earlier release wrote says nothing of ids.
        taken = partition_states.lead_all([other], broker_id=1)[where]
        assert isinstance(taken, PartitionState)

    def test_the_id_of_the_log_is_noted_with_the_lead(
        self, topics: TopicRegistry, partition_states: PartitionStates
    ) -> None:
        create(topics, "orders")
        claim = LeadershipClaim(TopicPartition("orders", 0), end=3, log_id="a1")
        partition_states.lead_all([claim], broker_id=1)
        state = partition_states.states("orders")[0]
        assert state == PartitionState(1, 0, [1], 3, replicas={1: "a1"})

    def test_a_partition_that_the_topic_does_not_have(
        self, topics: TopicRegistry, partition_states: PartitionStates
    ) -> None:
        create(topics, "orders", 2)
        with pytest.raises(UnknownTopicError, match="2 partitions and so no partition 2"):
            partition_states.lead(TopicPartition("orders", 2), broker_id=1)

    def test_rivals_never_get_the_same_epoch(self, topics: TopicRegistry, chroot: str) -> None:
        """Runs of one broker, each with a session of its own."""
        create(topics, "orders")
        topic_partition = TopicPartition("orders", 0)
        with ExitStack() as stack, ThreadPoolExecutor(4) as pool:
            runs = [
                PartitionStates(stack.enter_context(session(chroot, name=f"run {n}")))
                for n in range(4)
            ]
            got = list(
                pool.map(lambda i: runs[i % 4].lead(topic_partition, broker_id=1), range(20))
            )
        assert sorted(state.leader_epoch for state in got) == list(range(20))

    def test_a_lost_reply_does_not_skip_an_epoch(
        self, zookeeper: EmbeddedZooKeeper, chroot: str
    ) -> None:
        with Proxy(zookeeper.address) as proxy, session(proxy.connect_string(chroot)) as unlucky:
            topics, partition_states = TopicRegistry(unlucky), PartitionStates(unlucky)
            create(topics, "orders")
            topic_partition = TopicPartition("orders", 0)
            proxy.lose_reply(MULTI)  # of the partition's nodes
            assert partition_states.lead(topic_partition, broker_id=1).leader_epoch == 0
            proxy.lose_reply(MULTI)
            assert partition_states.lead(topic_partition, broker_id=1).leader_epoch == 1
            assert partition_states.states("orders")[0].leader_epoch == 1
            assert proxy.lost == 2

    def test_many_are_led_at_once_and_an_error_costs_only_its_own(
        self, topics: TopicRegistry, chroot: str, partition_states: PartitionStates
    ) -> None:
        record = create(topics, "orders", MAX_CLAIMS)
        other = create(topics, "clicks")
        partition_states.lead(TopicPartition("orders", 1), broker_id=1, end=7)
        partition_states.lead(TopicPartition("orders", 2), broker_id=1)
        put(chroot, "/brokers/topics/orders/partitions/2/state", b"not ours")
        claims = [
            *(
                LeadershipClaim(TopicPartition("orders", number), record.topic_id, 0)
                for number in range(MAX_CLAIMS - 3)
            ),
            LeadershipClaim(TopicPartition("clicks", 0), other.topic_id, 5),
            LeadershipClaim(TopicPartition("orders", MAX_CLAIMS), record.topic_id),
            LeadershipClaim(TopicPartition("gone", 0)),
        ]
        led = partition_states.lead_all(claims, broker_id=1)
        states = {each: state for each, state in led.items() if isinstance(state, PartitionState)}
        assert states[TopicPartition("orders", 0)] == PartitionState(1, 0, [1], 0)
        assert states[TopicPartition("orders", 1)] == PartitionState(1, 1, [1], 7)
        assert states[TopicPartition("clicks", 0)] == PartitionState(1, 0, [1], 5)
        assert len(states) == MAX_CLAIMS - 3
        assert partition_states.states("orders") == {
            each.partition: state for each, state in states.items() if each.topic == "orders"
        }
        assert isinstance(led[TopicPartition("orders", 2)], CorruptNodeError)
        assert isinstance(led[TopicPartition("orders", MAX_CLAIMS)], UnknownTopicError)
        assert isinstance(led[TopicPartition("gone", 0)], UnknownTopicError)

    def test_rivals_for_many_never_get_the_same_epoch(
        self, topics: TopicRegistry, chroot: str
    ) -> None:
        record = create(topics, "orders", 20)
        claims = [LeadershipClaim(TopicPartition("orders", n), record.topic_id) for n in range(20)]

        def lead(run: int) -> dict[TopicPartition, LeadResult]:
            with session(chroot, name=f"run {run}") as own:
                return PartitionStates(own).lead_all(claims, broker_id=1)

        with ThreadPoolExecutor(4) as pool:
            led = list(pool.map(lead, range(4)))
        for claim in claims:
            states = [each[claim.topic_partition] for each in led]
            epochs = [state.leader_epoch for state in states if isinstance(state, PartitionState)]
            assert sorted(epochs) == [0, 1, 2, 3]

    def test_partitions_that_may_not_be_listed_are_led_all_the_same(
        self, topics: TopicRegistry, chroot: str, partition_states: PartitionStates
    ) -> None:
        record = create(topics, "orders", 20)
        partition_states.lead(TopicPartition("orders", 3), broker_id=1)
        claims = [LeadershipClaim(TopicPartition("orders", n), record.topic_id) for n in range(20)]
        forbid(chroot, "/brokers/topics/orders/partitions")
        states = partition_states.states_of(claim.topic_partition for claim in claims)
        assert [each.partition for each, state in states.items() if state is not None] == [3]

    def test_a_lost_reply_skips_no_epoch_of_many(
        self, zookeeper: EmbeddedZooKeeper, chroot: str
    ) -> None:
        with Proxy(zookeeper.address) as proxy, session(proxy.connect_string(chroot)) as unlucky:
            topics, partition_states = TopicRegistry(unlucky), PartitionStates(unlucky)
            create(topics, "orders", 20)
            claims = [LeadershipClaim(TopicPartition("orders", number)) for number in range(20)]
            partition_states.lead(claims[7].topic_partition, broker_id=1)
            proxy.lose_reply(MULTI)
            partition_states.lead_all(claims, broker_id=1)
            assert proxy.lost == 1
            epochs = {
                n: state.leader_epoch for n, state in partition_states.states("orders").items()
            }
            assert epochs == {n: int(n == 7) for n in range(20)}

    def test_the_longest_names_fit_into_one_transaction(
        self, topics: TopicRegistry, partition_states: PartitionStates
    ) -> None:
        name = "n" * 249
        create(topics, name, 10_000)
        claims = [
            LeadershipClaim(TopicPartition(name, 9_999 - number)) for number in range(MAX_CLAIMS)
        ]
        assert len(partition_states.lead_all(claims, broker_id=1)) == MAX_CLAIMS
        assert len(partition_states.states(name)) == MAX_CLAIMS


class Snapshots:
    """Collects what a topic watch delivers."""

    def __init__(self, topics: TopicRegistry) -> None:
        self.all: list[dict[str, TopicRecord]] = []
        topics.watch(self.all.append)

    @property
    def last(self) -> dict[str, TopicRecord]:
        return self.all[-1]


class TestWatch:
    def test_it_is_called_at_once_and_at_each_change(
        self, topics: TopicRegistry, chroot: str
    ) -> None:
        seen = Snapshots(topics)
        assert seen.all == [{}]
        with session(chroot, name="other") as other:
            elsewhere = TopicRegistry(other)
            created = create(elsewhere, "orders")
            wait_until(lambda: seen.last == {"orders": created})
            changed = elsewhere.configure("orders", {"retention.ms": "5"})
            wait_until(lambda: seen.last == {"orders": changed})
            PartitionStates(other).lead(TopicPartition("orders", 0), broker_id=1)
            elsewhere.delete("orders")
            wait_until(lambda: seen.last == {})
            again = create(elsewhere, "orders")
            wait_until(lambda: seen.last == {"orders": again})

    def test_it_misses_none_of_200_fast_changes(self, topics: TopicRegistry, chroot: str) -> None:
        seen = Snapshots(topics)

        def change(name: str) -> None:
            with session(chroot, name=name) as other:
                elsewhere = TopicRegistry(other)
                for i in range(20):
                    create(elsewhere, f"{name}-{i}")
                for i in range(20):
                    elsewhere.configure(f"{name}-{i}", {"round": str(i)})
                for i in range(0, 20, 2):
                    elsewhere.delete(f"{name}-{i}")

        threads = [threading.Thread(target=change, args=(f"w{n}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        expected = topics.all()
        assert len(expected) == 40
        wait_until(lambda: seen.last == expected)

    def test_it_goes_on_after_the_session_was_lost(
        self, topics: TopicRegistry, opened: Session, chroot: str
    ) -> None:
        created = create(topics, "orders")
        seen = Snapshots(topics)
        before = opened.session_id
        expire(opened)
        wait_until(lambda: len(seen.all) >= 2)  # fires though nothing changed
        assert opened.session_id != before
        assert seen.last == {"orders": created}
        with session(chroot, name="other") as other:
            TopicRegistry(other).delete("orders")
        wait_until(lambda: seen.last == {})

    def test_what_changed_while_disconnected_is_seen(
        self, zookeeper: EmbeddedZooKeeper, chroot: str, topics: TopicRegistry
    ) -> None:
        old = create(topics, "old")
        with Proxy(zookeeper.address) as proxy, session(proxy.connect_string(chroot)) as weak:
            seen = Snapshots(TopicRegistry(weak))
            before = weak.session_id
            proxy.refuse.set()
            proxy.cut()
            new = create(topics, "new")
            changed = topics.configure("old", {"a": "b"})
            proxy.refuse.clear()
            wait_until(lambda: seen.last == {"old": changed, "new": new})
            assert weak.session_id == before
            assert seen.all[0] == {"old": old}

    def test_a_node_gone_bad_does_not_look_deleted(
        self, topics: TopicRegistry, chroot: str
    ) -> None:
        orders = create(topics, "orders")
        seen = Snapshots(topics)
        put(chroot, "/brokers/topics/orders", b"garbage")
        put(chroot, "/brokers/topics/bad", b"garbage")
        others = create(topics, "others")
        as_it_was = replace(orders, readable=False)
        wait_until(lambda: seen.last == {"orders": as_it_was, "others": others})
        assert Snapshots(topics).last == {"others": others}
        assert set(topics._unreadable.messages) == {
            f"/brokers/topics/{n}" for n in ("orders", "bad")
        }
        put(chroot, "/brokers/topics/bad", b'{"id":"a","partitions":{"0":[1]},"config":{}}')
        wait_until(lambda: "bad" in seen.last)
        assert set(topics._unreadable.messages) == {"/brokers/topics/orders"}

    def test_a_forbidden_topic_node_costs_that_topic_only(
        self,
        topics: TopicRegistry,
        chroot: str,
        monkeypatch: pytest.MonkeyPatch,
        partition_states: PartitionStates,
    ) -> None:
        monkeypatch.setattr("spark_logbus.zookeeper.watches._UNWATCHED_DELAY_MS", 20)
        others = create(topics, "others")
        create(topics, "secret", 3)
        forbid(chroot, "/brokers/topics/secret")
        seen = Snapshots(topics)
        assert seen.last == topics.all() == {"others": others}
        with pytest.raises(CorruptNodeError, match=r"/brokers/topics/secret \(NoAuth\)"):
            topics.get("secret")
        allow(chroot, "/brokers/topics/secret")
        wait_until(lambda: "secret" in seen.last)
        below = "/brokers/topics/others/partitions"
        forbid(chroot, below)
        with pytest.raises(CorruptNodeError, match=below):
            partition_states.states("others")
        assert set(topics._unreadable.messages) == {below}
        allow(chroot, below)
        assert partition_states.states("others") == {}
        assert topics._unreadable.messages == {}

    def test_a_failing_callback_does_not_end_the_watch(self, topics: TopicRegistry) -> None:
        seen: list[set[str]] = []

        def fail_often(snapshot: dict[str, TopicRecord]) -> None:
            seen.append(set(snapshot))
            if snapshot:
                raise ValueError("a mistake of the application")

        topics.watch(fail_often)
        create(topics, "a")
        wait_until(lambda: seen[-1] == {"a"})
        create(topics, "b")
        wait_until(lambda: seen[-1] == {"a", "b"})

    def test_a_callback_may_make_requests(self, topics: TopicRegistry) -> None:
        seen: list[int] = []
        topics.watch(lambda _: seen.append(len(topics.all())))
        create(topics, "a")
        wait_until(lambda: seen[-1] == 1)

    def test_it_reads_only_what_changed(
        self, topics: TopicRegistry, opened: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("a", "b", "c"):
            create(topics, name)
        seen = Snapshots(topics)
        read: list[str] = []
        original = opened._client.get_async

        def spy(path: str, watch: object = None) -> object:
            if watch is not None:
                read.append(path.rpartition("/")[2])
            return original(path, watch)

        monkeypatch.setattr(opened._client, "get_async", spy)
        topics.configure("b", {"k": "v"})
        wait_until(lambda: seen.last["b"].config == {"k": "v"})
        create(topics, "d")
        wait_until(lambda: "d" in seen.last)
        assert set(read) == {"b", "d"}


class TestNotedEnds:
    TP = TopicPartition("orders", 0)

    def reached(
        self, partition_states: PartitionStates, topic: TopicRecord, end: int, *, epoch: int = 0
    ) -> None:
        partition_states.note_ends({self.TP: Reached(topic.topic_id, epoch, end)})

    def end(self, partition_states: PartitionStates) -> int | None:
        return partition_states.states("orders")[0].end

    def test_an_end_only_rises_and_only_in_its_leader_epoch(
        self, topics: TopicRegistry, partition_states: PartitionStates
    ) -> None:
        topic = create(topics, "orders")
        assert partition_states.lead(self.TP, broker_id=1, end=3).end == 3
        self.reached(partition_states, topic, 7)
        self.reached(partition_states, topic, 5)
        assert self.end(partition_states) == 7
        assert partition_states.lead(self.TP, broker_id=1, end=6).end == 7
        self.reached(partition_states, topic, 99)  # of the epoch before
        partition_states.note_ends({self.TP: Reached("another id", 1, 99)})
        partition_states.note_ends({TopicPartition("gone", 0): Reached(topic.topic_id, 1, 99)})
        assert self.end(partition_states) == 7
        self.reached(partition_states, topic, 8, epoch=1)
        assert self.end(partition_states) == 8

    def test_only_what_is_refused_is_given_up(
        self, topics: TopicRegistry, partition_states: PartitionStates
    ) -> None:
        topic = create(topics, "orders", 2)
        id_ = topic.topic_id
        with pytest.raises(InvalidRequestError, match="not refused"):
            partition_states.give_up(self.TP, topic_id=id_, go_on_at=100)
        partition_states.lead(self.TP, broker_id=1, end=40)
        with pytest.raises(InvalidRequestError, match="not refused"):
            partition_states.give_up(self.TP, topic_id=id_, go_on_at=100)
        with pytest.raises(UnknownTopicError, match="was deleted"):
            partition_states.refuse(self.TP, broker_id=1, topic_id="another", why="away", end=0)
        partition_states.refuse(self.TP, broker_id=1, topic_id=id_, why="away", end=50)
        with pytest.raises(InvalidRequestError, match="its log has reached 50"):
            partition_states.give_up(self.TP, topic_id=id_, go_on_at=49)
        partition_states.give_up(self.TP, topic_id=id_, go_on_at=100)
        state = partition_states.states_of([self.TP, TopicPartition("orders", 1)])
        assert state == {
            self.TP: PartitionState(1, 0, [1], 50, "away", go_on_at=100),
            TopicPartition("orders", 1): None,
        }
        again = PartitionState(1, 1, [1], 100, given_up=0)
        assert partition_states.lead(self.TP, broker_id=1, end=100) == again
        later = msgspec.structs.replace(again, leader_epoch=2)
        assert partition_states.lead(self.TP, broker_id=1, end=100) == later

    def test_a_lost_reply_gives_up_once(self, zookeeper: EmbeddedZooKeeper, chroot: str) -> None:
        with Proxy(zookeeper.address) as proxy, session(proxy.connect_string(chroot)) as unlucky:
            topics, partition_states = TopicRegistry(unlucky), PartitionStates(unlucky)
            id_ = create(topics, "orders").topic_id
            partition_states.refuse(self.TP, broker_id=1, topic_id=id_, why="away", end=50)
            proxy.lose_reply(MULTI)
            partition_states.give_up(self.TP, topic_id=id_, go_on_at=100)
            assert proxy.lost == 1
            assert partition_states.states("orders")[0].go_on_at == 100

    def test_a_state_of_an_older_release_has_no_end(
        self, topics: TopicRegistry, chroot: str, partition_states: PartitionStates
    ) -> None:
        create(topics, "orders")
        partition_states.lead(self.TP, broker_id=1)
        path = "/brokers/topics/orders/partitions/0/state"
        put(chroot, path, b'{"leader":1,"leader_epoch":4,"in_sync":[1]}')
        assert self.end(partition_states) is None
        put(chroot, path, b"not ours")
        assert isinstance(partition_states.states_of([self.TP])[self.TP], CorruptNodeError)

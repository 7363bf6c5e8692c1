"""Moves of partitions in a real ZooKeeper."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import msgspec
import pytest

from spark_logbus.coordination.cluster.moves import (
    MAX_MOVES,
    HandOver,
    MoveEndedError,
    PartitionMoves,
)
from spark_logbus.coordination.cluster.partition_states import PartitionStates
from spark_logbus.coordination.cluster.spreading import enlarge
from spark_logbus.coordination.cluster.topic_records import (
    LeadershipClaim,
    Reached,
    TopicRecord,
    check_size,
)
from spark_logbus.coordination.cluster.topics import TopicRegistry
from spark_logbus.coordination.payloads import (
    MovePayload,
    PartitionState,
    TopicPayload,
    encode,
)
from spark_logbus.errors import (
    BrokerUnavailableError,
    ConfigError,
    CoordinationError,
    InvalidRequestError,
    LogbusError,
    NotLeaderError,
    UnknownTopicError,
)
from spark_logbus.local.zookeeper import EmbeddedZooKeeper
from spark_logbus.model import TopicPartition
from spark_logbus.zookeeper import CorruptNodeError, Session, SessionState
from spark_logbus.zookeeper.nodes import ConflictError, Nodes
from spark_logbus.zookeeper.transactions import Create, Delete, Operation
from tests.helpers import wait_until
from tests.servers.zookeeper import MULTI, Proxy, allow, forbid, put, read, session

NODE = "/brokers/topics/orders"
MOVED = TopicPartition("orders", 0)
TO_2 = MovePayload(to=[2], since_us=1, throttle=50)
TO_3 = MovePayload(to=[3], since_us=2)
ROUNDS = 50


class Cluster:
    """A topic with two partitions on broker 1, which leads both in epoch 0."""

    def __init__(self, session: Session, *, topic_id: str = "") -> None:
        self.topics = TopicRegistry(session)
        self.states = PartitionStates(session)
        self.moves = PartitionMoves(session)
        self.topic_id = topic_id
        if not topic_id:
            nodes = Nodes(session)
            nodes.ensure("/brokers/ids")
            live = [Create(f"/brokers/ids/{each}") for each in (1, 2, 3)]
            nodes.transact("register brokers", live, deadline=session.deadline())
            self.create()

    def create(self) -> None:
        record = self.topics.create("orders", partitions=2, brokers=[1], config={})
        for partition in (0, 1):
            where = TopicPartition("orders", partition)
            self.states.lead_all([LeadershipClaim(where, end=7, log_id="old")], broker_id=1)
        self.topic_id = record.topic_id

    @property
    def record(self) -> TopicRecord:
        record = self.topics.get("orders")
        assert record is not None
        return record

    @property
    def state(self) -> PartitionState:
        return self.states.states("orders")[0]

    def lead(self, *, epoch: int = 0, to: int = 2, end: int = 40, since_us: int = 1) -> HandOver:
        return HandOver(MOVED, self.topic_id, 1, epoch, to, "new", end, since_us)

    def require_nothing_changed(self) -> None:
        assert self.record.partitions == {0: [1], 1: [1]}
        assert self.state == PartitionState(1, 0, [1], 7, replicas={1: "old"})


HANDED_OVER = PartitionState(2, 1, [2], 40, replicas={2: "new"}, handed_over={"old": 1})


@pytest.fixture
def opened(chroot: str) -> Iterator[Session]:
    with session(chroot) as live:
        yield live


@pytest.fixture
def cluster(opened: Session) -> Cluster:
    return Cluster(opened)


class TestBegin:
    def test_a_move_stands_in_the_topic_and_watchers_see_it(self, cluster: Cluster) -> None:
        seen: list[TopicRecord] = []
        cluster.topics.watch(lambda topics: seen.append(topics["orders"]))
        begun = cluster.moves.begin("orders", {0: TO_2}, topic_id=cluster.topic_id)
        assert begun.moves == {0: TO_2}
        assert cluster.record == begun
        wait_until(lambda: seen[-1] == begun)
        cluster.require_nothing_changed()

    def test_begun_again_it_is_the_same_move_with_another_throttle(self, cluster: Cluster) -> None:
        cluster.moves.begin("orders", {0: TO_2})
        again = cluster.moves.begin("orders", {0: MovePayload(to=[2], since_us=9, throttle=70)})
        assert again.moves == {0: MovePayload(to=[2], since_us=1, throttle=70)}

    def test_a_partition_that_is_there_is_left_out(self, cluster: Cluster) -> None:
        there = MovePayload(to=[1], since_us=1)
        assert cluster.moves.begin("orders", {0: there, 1: TO_2}).moves == {1: TO_2}

    @pytest.mark.parametrize("to", [3, 1])
    def test_one_on_its_way_is_not_sent_elsewhere_nor_stay(self, cluster: Cluster, to: int) -> None:
        cluster.moves.begin("orders", {0: TO_2})
        with pytest.raises(InvalidRequestError, match=f"orders-0 .* broker 2; cancel .* {to}"):
            cluster.moves.begin("orders", {1: TO_3, 0: MovePayload(to=[to], since_us=2)})
        assert cluster.record.moves == {0: TO_2}

    def test_one_that_has_failed_begins_anew_or_goes_elsewhere_or_stays(
        self, cluster: Cluster
    ) -> None:
        for wanted, expected in (
            (TO_2, {0: TO_2}),
            (TO_3, {0: TO_3}),
            (MovePayload(to=[1], since_us=3), {}),
        ):
            begun = cluster.moves.begin("orders", {0: TO_2}).moves[0]
            cluster.moves.fail(MOVED, topic_id=cluster.topic_id, move=begun, error="No room.")
            assert cluster.moves.begin("orders", {0: wanted}).moves == expected
            cluster.moves.cancel("orders", [0])

    def test_unknown_topics_and_partitions(self, cluster: Cluster) -> None:
        for topic, partition, topic_id, what in (
            ("clicks", 0, None, "no topic 'clicks'"),
            ("orders", 2, None, "2 partitions and so no partition 2"),
            ("orders", -1, None, "so no partition -1"),
            ("orders", 0, "another", "the id another was deleted"),
        ):
            with pytest.raises(UnknownTopicError, match=what):
                cluster.moves.begin(topic, {0: TO_2, partition: TO_2}, topic_id=topic_id)
            with pytest.raises(UnknownTopicError, match=what):
                cluster.moves.cancel(topic, [0, partition], topic_id=topic_id)
        assert cluster.record.moves == {}

    def test_moves_of_one_topic_are_limited(self, cluster: Cluster) -> None:
        cluster.topics.alter(
            "orders", lambda now: enlarge(now, partitions=MAX_MOVES + 2, brokers=[1], others=[])
        )
        all_but_one = dict.fromkeys(range(MAX_MOVES + 1), TO_2)
        with pytest.raises(InvalidRequestError, match=f"1001 more .* at most {MAX_MOVES}"):
            cluster.moves.begin("orders", all_but_one)
        del all_but_one[0]
        cluster.moves.begin("orders", all_but_one)
        assert len(cluster.moves.begin("orders", all_but_one).moves) == MAX_MOVES
        with pytest.raises(InvalidRequestError, match="1000 partitions are on their way and 1"):
            cluster.moves.begin("orders", {0: TO_2})
        # With an error for each, the node still is one that ZooKeeper takes.
        for each in range(0, MAX_MOVES, 97):
            cluster.moves.fail(
                TopicPartition("orders", each + 1),
                topic_id=cluster.topic_id, move=TO_2, error="\N{SNOWMAN}" * 10_000,
            )  # fmt: skip
        errors = [move.error for move in cluster.record.moves.values() if move.error]
        assert errors == ["\N{SNOWMAN}" * 100] * 11

    def test_a_node_that_is_not_ours_is_named(self, cluster: Cluster, chroot: str) -> None:
        put(chroot, NODE, b'{"id":"a","partitions":{"0":[1]},"config":{},"moves":{"0":{"to":[]}}}')
        with pytest.raises(CorruptNodeError, match=NODE):
            cluster.moves.begin("orders", {0: TO_2})
        put(chroot, NODE, b'{"id":"a","partitions":{"0":[1]},"config":{}}')
        assert cluster.moves.begin("orders", {0: TO_2}).moves == {0: TO_2}


class TestSize:
    """ZooKeeper takes a node of 1 MiB, with all that is in its transaction."""

    def fill(self, chroot: str, size: int) -> None:
        """Makes the topic's node that large."""
        payload = msgspec.json.decode(read(chroot, NODE), type=TopicPayload)
        empty = msgspec.structs.replace(payload, config={"a": ""})
        text = "x" * (size - len(encode(empty)))
        put(chroot, NODE, encode(msgspec.structs.replace(payload, config={"a": text})))

    def test_a_topic_is_never_locked_out_of_its_own_changes(
        self, cluster: Cluster, chroot: str
    ) -> None:
        cluster.moves.begin("orders", {0: TO_2})
        self.fill(chroot, 699_990)
        with pytest.raises(ConfigError, match=r"would take 7000\d\d bytes .* --cancel"):
            cluster.moves.begin("orders", {1: TO_3})
        fail, error = cluster.moves.fail, "It is full. " * 100
        assert fail(MOVED, topic_id=cluster.topic_id, move=TO_2, error=error)
        assert cluster.record.moves[0].error == "See its broker's log."
        assert cluster.moves.cancel("orders", [0]) == {0}
        self.fill(chroot, 799_990)
        payload = msgspec.json.decode(read(chroot, NODE), type=TopicPayload)
        longer = msgspec.structs.replace(payload, config={**payload.config, "b": "x" * 20})
        with pytest.raises(ConfigError, match="up to 800000 are possible"):
            check_size("orders", payload, longer)
        check_size("orders", longer, payload)
        cluster.topics.configure("orders", {"retention.ms": "5"})
        assert cluster.record.config == {"retention.ms": "5"}


class TestEnd:
    def test_a_broker_that_is_gone_does_not_get_the_lead(
        self, cluster: Cluster, opened: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        nodes = Nodes(opened)

        def end_broker_2() -> None:
            gone = [Delete("/brokers/ids/2")]
            nodes.transact("end broker 2", gone, deadline=opened.deadline())

        cluster.moves.begin("orders", {0: TO_2})
        transact = Nodes.transact

        def die_first(own: Nodes, *args: Any, **fields: Any) -> None:
            monkeypatch.undo()  # once
            end_broker_2()
            transact(own, *args, **fields)

        monkeypatch.setattr(Nodes, "transact", die_first)  # after the leader has seen it live
        for _ in range(2):
            with pytest.raises(BrokerUnavailableError, match="broker 2, which is not registered"):
                cluster.moves.hand_over(cluster.lead())
            assert not cluster.moves.settle(cluster.lead())
            cluster.require_nothing_changed()
            assert cluster.record.moves == {0: TO_2}
        nodes.transact("start it", [Create("/brokers/ids/2")], deadline=opened.deadline())
        assert cluster.moves.hand_over(cluster.lead()) == HANDED_OVER

    def test_a_cancelled_move_is_never_handed_over(self, cluster: Cluster) -> None:
        cluster.moves.begin("orders", {0: TO_2, 1: TO_3})
        assert cluster.moves.cancel("orders", [0]) == {0}
        assert cluster.moves.cancel("orders", [0]) == set()
        with pytest.raises(MoveEndedError):
            cluster.moves.hand_over(cluster.lead())
        assert not cluster.moves.handed_over(cluster.lead())
        cluster.require_nothing_changed()
        assert cluster.record.moves == {1: TO_3}

    def test_the_lead_the_assignment_and_the_move_change_together(self, cluster: Cluster) -> None:
        cluster.moves.begin("orders", {0: TO_2, 1: TO_3})
        assert cluster.moves.hand_over(cluster.lead()) == HANDED_OVER
        assert cluster.state == HANDED_OVER
        assert cluster.record.partitions == {0: [2], 1: [1]}
        assert cluster.record.moves == {1: TO_3}
        assert cluster.moves.handed_over(cluster.lead())
        assert cluster.moves.cancel("orders", [0]) == set()
        with pytest.raises(NotLeaderError, match="moved to broker 2"):
            cluster.states.lead(MOVED, broker_id=1, end=41)
        cluster.states.note_ends({MOVED: Reached(cluster.topic_id, 0, 99)})
        assert cluster.states.lead(MOVED, broker_id=2, end=40).leader_epoch == 2

    def test_who_watches_the_leaders_is_told(self, cluster: Cluster, chroot: str) -> None:
        cluster.moves.begin("orders", {0: TO_2})
        told: list[set[str]] = []
        watch = cluster.states.watch(told.append)
        watch.follow({"orders": cluster.record})
        wait_until(lambda: told)
        told.clear()
        with session(chroot) as elsewhere:
            PartitionMoves(elsewhere).hand_over(cluster.lead())
        wait_until(lambda: {"orders"} in told)

    def test_leaders_that_may_not_be_watched_are_handed_over_all_the_same(
        self, cluster: Cluster, chroot: str
    ) -> None:
        cluster.moves.begin("orders", {0: TO_2})
        forbid(chroot, f"{NODE}/partitions")
        assert cluster.moves.hand_over(cluster.lead()) == HANDED_OVER
        allow(chroot, f"{NODE}/partitions")
        assert cluster.state == HANDED_OVER

    def test_only_the_leader_hands_over_and_only_to_whom_it_is_to_go(
        self, cluster: Cluster
    ) -> None:
        cluster.moves.begin("orders", {0: TO_2})
        for wrong in (
            cluster.lead(to=3),
            cluster.lead(epoch=1),
            cluster.lead(since_us=2),  # of an earlier or later move there
            cluster.lead()._replace(leader=3),
            cluster.lead()._replace(topic_partition=TopicPartition("orders", 1)),
        ):
            with pytest.raises(MoveEndedError):
                cluster.moves.hand_over(wrong)
        cluster.require_nothing_changed()
        assert cluster.record.moves == {0: TO_2}

    def test_a_refused_partition_is_not_handed_over(self, cluster: Cluster) -> None:
        cluster.moves.begin("orders", {0: TO_2})
        cluster.states.refuse(
            MOVED, broker_id=1, topic_id=cluster.topic_id, why="It is too short.", end=50
        )
        with pytest.raises(MoveEndedError):
            cluster.moves.hand_over(cluster.lead())
        assert cluster.state.end == 50

    def test_that_its_log_was_given_up_is_known_after_it(self, cluster: Cluster) -> None:
        topic_id = cluster.topic_id
        cluster.states.refuse(MOVED, broker_id=1, topic_id=topic_id, why="It is gone.", end=50)
        cluster.states.give_up(MOVED, topic_id=topic_id, go_on_at=100)
        claim = LeadershipClaim(MOVED, end=100, log_id="anew")
        cluster.states.lead_all([claim], broker_id=1)
        cluster.moves.begin("orders", {0: TO_2})
        assert cluster.moves.hand_over(cluster.lead(epoch=1, end=120)).given_up == 0
        assert cluster.state.given_up == 0

    def test_a_failed_move_is_not_handed_over_and_says_why(self, cluster: Cluster) -> None:
        cluster.moves.begin("orders", {0: TO_2})
        fail = cluster.moves.fail
        assert not fail(MOVED, topic_id="another", move=TO_2, error="Of another topic.")
        assert not fail(MOVED, topic_id=cluster.topic_id, move=TO_3, error="Of another move.")
        assert cluster.record.moves == {0: TO_2}
        # Begun again with another throttle, it is the same move.
        begun = cluster.moves.begin("orders", {0: MovePayload(to=[2], since_us=8)}).moves[0]
        assert fail(MOVED, topic_id=cluster.topic_id, move=TO_2, error="No room in /d/\udcff.")
        failed = MovePayload(to=[2], since_us=1, error="No room in /d/\\udcff.")
        assert begun == MovePayload(to=[2], since_us=1)
        assert cluster.record.moves == {0: failed}
        assert fail(MOVED, topic_id=cluster.topic_id, move=begun, error="Later.")
        assert cluster.record.moves == {0: failed}
        with pytest.raises(MoveEndedError):
            cluster.moves.hand_over(cluster.lead())
        assert cluster.moves.cancel("orders", [0]) == {0}

    def test_a_topic_that_was_deleted_or_made_anew(self, cluster: Cluster) -> None:
        old = cluster.lead()
        cluster.moves.begin("orders", {0: TO_2})
        cluster.topics.delete("orders")
        for call in (cluster.moves.hand_over, cluster.moves.handed_over, cluster.moves.settle):
            with pytest.raises(UnknownTopicError):
                call(old)
        cluster.create()
        assert cluster.record.moves == {}
        cluster.moves.begin("orders", {0: TO_2})
        for call in (cluster.moves.hand_over, cluster.moves.handed_over):
            with pytest.raises(UnknownTopicError, match="was deleted"):
                call(old)
        cluster.moves.fail(MOVED, topic_id=old.topic_id, move=TO_2, error="Of the one before.")
        cluster.require_nothing_changed()
        assert cluster.record.moves == {0: TO_2}

    def test_altering_the_topic_keeps_its_moves(self, cluster: Cluster) -> None:
        cluster.moves.begin("orders", {0: TO_2})
        cluster.topics.configure("orders", {"retention.ms": "5"})
        cluster.topics.alter(
            "orders", lambda now: enlarge(now, partitions=3, brokers=[1], others=[])
        )
        assert cluster.record.moves == {0: TO_2}
        cluster.moves.hand_over(cluster.lead())
        assert cluster.record.partitions == {0: [2], 1: [1], 2: [1]}
        assert cluster.record.config == {"retention.ms": "5"}

    def test_a_release_without_moves_cancels_them(self, cluster: Cluster, chroot: str) -> None:
        cluster.moves.begin("orders", {0: TO_2})
        old = f'{{"id":"{cluster.topic_id}","partitions":{{"0":[1],"1":[1]}},"config":{{}}}}'
        put(chroot, NODE, old.encode())
        assert cluster.record.moves == {}
        with pytest.raises(MoveEndedError):
            cluster.moves.hand_over(cluster.lead())
        cluster.require_nothing_changed()


class TestLostReplies:
    @pytest.fixture
    def proxy(self, zookeeper: EmbeddedZooKeeper) -> Iterator[Proxy]:
        with Proxy(zookeeper.address) as between:
            yield between

    @pytest.fixture
    def unlucky(self, proxy: Proxy, chroot: str, cluster: Cluster) -> Iterator[PartitionMoves]:
        with session(proxy.connect_string(chroot)) as own:
            yield PartitionMoves(own)

    def test_of_each_write(self, proxy: Proxy, unlucky: PartitionMoves, cluster: Cluster) -> None:
        proxy.lose_reply(MULTI)
        assert unlucky.begin("orders", {0: TO_2, 1: TO_3}).moves == {0: TO_2, 1: TO_3}
        proxy.lose_reply(MULTI)
        assert unlucky.cancel("orders", [1]) == {1}
        assert cluster.record.moves == {0: TO_2}
        proxy.lose_reply(MULTI)
        unlucky.fail(MOVED, topic_id=cluster.topic_id, move=TO_2, error="No room.")
        assert cluster.record.moves[0].error == "No room."
        unlucky.begin("orders", {0: TO_2})
        proxy.lose_reply(MULTI)
        assert unlucky.hand_over(cluster.lead()) == HANDED_OVER
        assert cluster.state == HANDED_OVER
        assert proxy.lost == 4

    def test_the_new_broker_leads_before_the_old_one_knows(
        self, proxy: Proxy, unlucky: PartitionMoves, cluster: Cluster
    ) -> None:
        cluster.moves.begin("orders", {0: TO_2})

        def lead() -> None:
            cluster.states.lead(MOVED, broker_id=2, end=40)

        proxy.lose_reply(MULTI, before_cut=lead)
        assert unlucky.hand_over(cluster.lead()).leader_epoch == 2
        assert proxy.lost == 1

    def test_the_outcome_is_asked_for_later(
        self, proxy: Proxy, chroot: str, cluster: Cluster
    ) -> None:
        """ZooKeeper is away from the leader for longer than the hand-over waits."""
        cluster.moves.begin("orders", {0: TO_2})
        with session(proxy.connect_string(chroot), operation_timeout_ms=1_000) as own:
            leader = PartitionMoves(own)
            proxy.lose_reply(MULTI, before_cut=proxy.refuse.set)
            for call in (leader.hand_over, leader.handed_over, leader.settle):
                with pytest.raises(CoordinationError):
                    call(cluster.lead())
            proxy.refuse.clear()
            wait_until(lambda: own.state is SessionState.CONNECTED)
            assert leader.handed_over(cluster.lead())
            assert leader.settle(cluster.lead())

    def test_a_request_that_is_still_on_its_way_comes_too_late(
        self, cluster: Cluster, opened: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cluster.moves.begin("orders", {0: TO_2})
        under_way: list[Sequence[Operation]] = []

        def delayed(_: Nodes, __: str, operations: Sequence[Operation], **___: object) -> None:
            under_way.append(operations)
            raise CoordinationError("No answer came in time.")

        with monkeypatch.context() as patched:
            patched.setattr(Nodes, "transact", delayed)
            with pytest.raises(CoordinationError):
                cluster.moves.hand_over(cluster.lead())
        assert not cluster.moves.settle(cluster.lead())
        before = cluster.state
        with pytest.raises(ConflictError):
            Nodes(opened).transact("come late", under_way[0], deadline=opened.deadline())
        assert cluster.state == before
        assert cluster.moves.hand_over(cluster.lead()) == HANDED_OVER
        assert cluster.moves.settle(cluster.lead())

    def test_cancelling_does_not_end_a_move_that_began_since(
        self, proxy: Proxy, unlucky: PartitionMoves, cluster: Cluster
    ) -> None:
        cluster.moves.begin("orders", {0: TO_2})

        def begin() -> None:
            cluster.moves.begin("orders", {0: TO_3})

        proxy.lose_reply(MULTI, before_cut=begin)
        assert unlucky.cancel("orders", [0]) == {0}
        assert proxy.lost == 1
        assert cluster.record.moves == {0: TO_3}


def at_once(*calls: Callable[[], object]) -> list[object]:
    """Results of calls that begin together; the error of one that raised."""
    together = threading.Barrier(len(calls))

    def run(call: Callable[[], object]) -> object:
        together.wait(60)
        try:
            return call()
        except LogbusError as error:
            return error
        except MoveEndedError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


class TestRivals:
    """Calls at the same moment, each in a session of its own."""

    @pytest.fixture
    def leader(self, chroot: str) -> Iterator[Cluster]:
        with session(chroot, name="leader") as own:
            yield Cluster(own)

    @pytest.fixture
    def cluster(self, leader: Cluster, chroot: str) -> Iterator[Cluster]:
        with session(chroot, name="tool") as own:
            yield Cluster(own, topic_id=leader.topic_id)

    def test_a_cancel(self, cluster: Cluster, leader: Cluster) -> None:
        for number in range(ROUNDS):
            cluster.moves.begin("orders", {0: MovePayload(to=[2], since_us=number)})
            lead = cluster.lead(since_us=number)
            handed, ended = at_once(
                partial(leader.moves.hand_over, lead),
                lambda: cluster.moves.cancel("orders", [0]),
            )
            assert cluster.record.moves == {}
            if handed == HANDED_OVER:
                assert ended == set()
                assert cluster.state == HANDED_OVER
                assert cluster.record.partitions == {0: [2], 1: [1]}
                cluster.topics.delete("orders")
                cluster.create()
            else:
                assert isinstance(handed, MoveEndedError)
                assert ended == {0}
                cluster.require_nothing_changed()

    def test_a_topic_that_is_altered(self, cluster: Cluster, leader: Cluster) -> None:
        for number in range(10):
            cluster.moves.begin("orders", {0: TO_2})
            lead, config = cluster.lead(), {"retention.ms": str(number)}
            handed, _ = at_once(
                partial(leader.moves.hand_over, lead),
                partial(cluster.topics.configure, "orders", config),
            )
            assert handed == HANDED_OVER
            assert cluster.record.partitions == {0: [2], 1: [1]}
            assert cluster.record.config == config
            cluster.topics.delete("orders")
            cluster.create()

    def test_a_topic_that_is_deleted_and_made_anew(self, cluster: Cluster, leader: Cluster) -> None:
        for _ in range(10):
            cluster.moves.begin("orders", {0: TO_2})
            lead = cluster.lead()

            def recreate() -> None:
                cluster.topics.delete("orders")
                cluster.create()

            handed, made = at_once(partial(leader.moves.hand_over, lead), recreate)
            assert made is None
            assert handed == HANDED_OVER or isinstance(handed, UnknownTopicError)
            assert cluster.record.moves == {}
            cluster.require_nothing_changed()

    def test_an_old_leader_that_takes_the_lead_anew(
        self, cluster: Cluster, leader: Cluster
    ) -> None:
        """Its hand-over in the epoch before is void, or its lead is refused."""
        for _ in range(10):
            cluster.moves.begin("orders", {0: TO_2})
            lead = cluster.lead()
            handed, led = at_once(
                partial(leader.moves.hand_over, lead),
                lambda: cluster.states.lead(MOVED, broker_id=1, end=7),
            )
            if handed == HANDED_OVER:
                assert isinstance(led, NotLeaderError)
                assert cluster.state == HANDED_OVER
            else:
                assert isinstance(handed, MoveEndedError)
                assert led == cluster.state == PartitionState(1, 1, [1], 7)
                assert cluster.record.partitions[0] == [1]
                assert cluster.record.moves == {0: TO_2}
            cluster.topics.delete("orders")
            cluster.create()

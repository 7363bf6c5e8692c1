"""Elections and in-sync sets, by a real ZooKeeper."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import msgspec
import pytest

from spark_logbus.coordination import paths
from spark_logbus.coordination.cluster.brokers import BrokerRegistry
from spark_logbus.coordination.cluster.gone_brokers import forget_broker
from spark_logbus.coordination.cluster.moves import HandOver, MoveEndedError, PartitionMoves
from spark_logbus.coordination.cluster.partition_states import (
    MAX_CLAIMS,
    LeadResult,
    PartitionStates,
)
from spark_logbus.coordination.cluster.topic_records import LeadershipClaim, Reached
from spark_logbus.coordination.cluster.topics import TopicRegistry
from spark_logbus.coordination.payloads import (
    MovePayload,
    PartitionState,
    TopicPayload,
    decode,
    encode,
)
from spark_logbus.errors import (
    BrokerUnavailableError,
    CoordinationError,
    InvalidRequestError,
    LogbusError,
    LogMissingError,
    NotLeaderError,
    UnknownTopicError,
)
from spark_logbus.local.zookeeper import EmbeddedZooKeeper
from spark_logbus.log_ids import new_log_id, renewed_log_id
from spark_logbus.lost_ends import go_on_at
from spark_logbus.model import BrokerAddress, TopicPartition
from spark_logbus.zookeeper import CorruptNodeError, Session
from spark_logbus.zookeeper.nodes import ConflictError, Nodes
from spark_logbus.zookeeper.session import ReplyLostError
from spark_logbus.zookeeper.transactions import Operation
from tests.helpers import wait_until
from tests.servers import zookeeper as servers
from tests.servers.zookeeper import MULTI, Proxy, put, session

T0 = TopicPartition("orders", 0)
NODE = paths.topic("orders")
STATE = paths.partition_state(T0)
ROUNDS = 30
Result = TypeVar("Result")

#: Broker 1 leads with 2 and 3 in sync; all before 7 was acknowledged.
LED = PartitionState(1, 4, [1, 2, 3], 9, replicas={1: "log-1", 2: "log-2", 3: "log-3"}, committed=7)

#: Broker 4 is in sync as well, to which it moves.
MOVING = msgspec.structs.replace(
    LED, in_sync=[*LED.in_sync, 4], replicas={**LED.replicas, 4: "log-4"}
)


class Cluster:
    """A topic whose partitions are assigned to brokers 1, 2 and 3."""

    def __init__(self, live: Session, chroot: str) -> None:
        self.chroot = chroot
        self.topics = TopicRegistry(live)
        self.states = PartitionStates(live)
        self.moves = PartitionMoves(live)
        self.topic_id = ""

    def create(self, *, partitions: int = 1, state: PartitionState | None = LED) -> None:
        record = self.topics.create("orders", partitions=partitions, brokers=[1], config={})
        self.topic_id = record.topic_id
        self.assign({each: [1, 2, 3] for each in range(partitions)})
        if state is not None:
            for each in range(partitions):
                self.put_state(state, each)

    def put_state(self, state: PartitionState, partition: int = 0) -> None:
        where = TopicPartition("orders", partition)
        put(self.chroot, paths.partition_state(where), encode(state))

    def assign(
        self, partitions: dict[int, list[int]], moves: dict[int, MovePayload] | None = None
    ) -> None:
        after = msgspec.structs.replace(self.topic(), partitions=partitions, moves=moves or {})
        put(self.chroot, NODE, encode(after))

    def topic(self) -> TopicPayload:
        return decode(TopicPayload, servers.read(self.chroot, NODE), path=NODE)

    @property
    def state(self) -> PartitionState:
        return self.states.states("orders")[0]

    def claim(
        self,
        broker_id: int,
        *,
        partition: int = 0,
        end: int | None = 8,
        log_id: str | None = None,
        after_epoch: int = 0,
    ) -> LeadershipClaim:
        return LeadershipClaim(
            TopicPartition("orders", partition),
            self.topic_id,
            end=end,
            log_id=f"log-{broker_id}" if log_id is None else log_id,
            after_epoch=after_epoch,
        )

    def lead(self, claim: LeadershipClaim, broker_id: int) -> PartitionState:
        return _state(self.states.lead_all([claim], broker_id=broker_id)[T0])

    def elect(
        self, claim: LeadershipClaim, broker_id: int, live: Sequence[int] = (2, 3)
    ) -> PartitionState:
        return _state(self.states.elect_all([claim], broker_id=broker_id, live=live)[T0])

    def change(
        self,
        *,
        add: dict[int, str] | None = None,
        remove: Sequence[int] = (),
        leader: int = 1,
        leader_epoch: int = 4,
    ) -> PartitionState:
        return self.states.change_in_sync(
            T0,
            topic_id=self.topic_id,
            leader=leader,
            leader_epoch=leader_epoch,
            add=add or {},
            remove=remove,
            since_us=self.moves_since() if add else 0,
        )

    def moves_since(self) -> int:
        """The time of the move that stands, 0 if there is none."""
        moves = decode(TopicPayload, servers.read(self.chroot, NODE), path=NODE).moves
        return max((each.since_us for each in moves.values()), default=0)

    def hand_over(self, *, to: int = 2, log_id: str = "log-2", epoch: int = 4) -> HandOver:
        return HandOver(T0, self.topic_id, 1, epoch, to, log_id, 12, None)


def _state(result: LeadResult) -> PartitionState:
    if isinstance(result, LogbusError):
        raise result
    return result


@pytest.fixture
def opened(chroot: str) -> Iterator[Session]:
    with session(chroot) as live:
        yield live


@pytest.fixture
def cluster(opened: Session, chroot: str) -> Cluster:
    return Cluster(opened, chroot)


@pytest.fixture
def replicated(cluster: Cluster) -> Cluster:
    cluster.create()
    return cluster


def unchanged(**changes: object) -> PartitionState:
    return msgspec.structs.replace(LED, **changes)


class TestLeadingOn:
    def test_members_stay_in_sync_when_their_leader_takes_a_new_epoch(
        self, replicated: Cluster
    ) -> None:
        led = replicated.lead(replicated.claim(1, end=11), 1)
        assert led == replicated.state == unchanged(leader_epoch=5, end=11)
        assert replicated.lead(replicated.claim(1, after_epoch=90), 1).leader_epoch == 91

    def test_any_assigned_broker_is_the_first_leader_and_only_one(self, cluster: Cluster) -> None:
        cluster.create(state=None)
        first = cluster.lead(cluster.claim(2, end=0, after_epoch=-1), 2)
        assert first == PartitionState(2, 0, [2], 0, replicas={2: "log-2"})
        for other in (1, 3):
            with pytest.raises(NotLeaderError, match="broker 2 leads it in epoch 0"):
                cluster.lead(cluster.claim(other, end=0), other)
        with pytest.raises(NotLeaderError, match="it was moved to brokers 1, 2, 3"):
            cluster.lead(cluster.claim(4), 4)
        assert cluster.state == first

    def test_nobody_else_leads_though_it_is_in_sync(self, replicated: Cluster) -> None:
        for broker_id in (2, 3):
            with pytest.raises(NotLeaderError, match="broker 1 leads it in epoch 4"):
                replicated.lead(replicated.claim(broker_id, end=99), broker_id)
        assert replicated.state == LED

    @pytest.mark.parametrize(
        ("log_id", "end", "why"),
        [
            ("emptied", 0, "has the id emptied, and the one that is in sync has the id log-1"),
            ("emptied", 99, "has the id emptied"),
            ("log-1", 6, "its log ends at 6, and records up to 7 were acknowledged"),
            ("log-1", None, "its log ends at 0"),
        ],
    )
    def test_a_leader_whose_log_is_not_in_sync_makes_room_for_the_others(
        self, replicated: Cluster, log_id: str, end: int | None, why: str
    ) -> None:
        with pytest.raises(NotLeaderError, match=why):
            replicated.lead(replicated.claim(1, log_id=log_id, end=end), 1)
        left = unchanged(in_sync=[2, 3], replicas={2: "log-2", 3: "log-3"})
        assert replicated.state == left
        with pytest.raises(NotLeaderError, match=r"not in sync\. Brokers 2, 3 are"):
            replicated.lead(replicated.claim(1), 1)
        assert replicated.state == left
        elected = replicated.elect(replicated.claim(3), 3, live=[1, 2, 3])
        assert (elected.leader, elected.in_sync) == (3, [2, 3])

    def test_a_leader_that_does_not_know_the_id_of_its_log_is_refused_only(
        self, replicated: Cluster
    ) -> None:
        with pytest.raises(NotLeaderError, match=r"the id \(none\)"):
            replicated.lead(replicated.claim(1, log_id=""), 1)
        assert replicated.state == LED

    def test_a_log_that_was_in_sync_alone_leads_with_another_id(self, cluster: Cluster) -> None:
        before = new_log_id()
        anew = renewed_log_id(before)
        cluster.create(state=unchanged(in_sync=[1], replicas={1: before}))
        led = cluster.lead(cluster.claim(1, log_id=anew, end=5), 1)
        assert led == PartitionState(1, 5, [1], 9, replicas={1: anew}, committed=5)

    def test_states_of_earlier_releases(self, cluster: Cluster) -> None:
        cluster.create(state=None)
        put(cluster.chroot, STATE, b'{"leader":1,"leader_epoch":4,"in_sync":[1]}')
        assert cluster.lead(cluster.claim(1), 1) == PartitionState(
            1, 5, [1], 8, replicas={1: "log-1"}
        )
        # Nobody knows whose logs these are: no member is believed to be what it was.
        put(cluster.chroot, STATE, b'{"leader":1,"leader_epoch":4,"in_sync":[1,2]}')
        with pytest.raises(NotLeaderError, match=r"in sync has the id \(none\)"):
            cluster.elect(cluster.claim(2), 2)
        # Somebody has put nobody in sync: the leader has what there is.
        put(cluster.chroot, STATE, b'{"leader":1,"leader_epoch":4,"in_sync":[]}')
        assert cluster.lead(cluster.claim(1), 1).in_sync == [1]


class TestRefused:
    def refuse(self, cluster: Cluster, broker_id: int = 1) -> None:
        cluster.states.refuse(
            T0, broker_id=broker_id, topic_id=cluster.topic_id, why="It is torn.", end=9
        )

    def test_a_leader_that_cannot_serve_leaves_it_to_the_others(self, replicated: Cluster) -> None:
        for _ in range(2):
            with pytest.raises(NotLeaderError, match=r"\(It is torn\.\), and brokers 2, 3 are"):
                self.refuse(replicated)
            left = unchanged(in_sync=[2, 3], replicas={2: "log-2", 3: "log-3"})
            assert replicated.state == left
        assert replicated.elect(replicated.claim(2), 2, live=[1, 2]).in_sync == [2]

    def test_one_that_is_in_sync_alone_is_refused(self, cluster: Cluster) -> None:
        cluster.create(state=unchanged(in_sync=[1], replicas={1: "log-1"}))
        self.refuse(cluster)
        assert cluster.state.refused == "It is torn."
        assert cluster.state.in_sync == [1]

    def test_the_only_one_in_sync_refuses_as_the_leader(self, cluster: Cluster) -> None:
        """Broker 1 has left the lead. Another can be elected then, or the log be given up."""
        left = unchanged(in_sync=[2], replicas={2: "log-2"}, committed=12)
        cluster.create(state=left)
        for _ in range(2):
            self.refuse(cluster, 2)
            assert cluster.state == msgspec.structs.replace(
                left, leader=2, leader_epoch=5, end=12, refused="It is torn."
            )
        for other in (1, 3):
            with pytest.raises(NotLeaderError, match="broker 2 does"):
                self.refuse(cluster, other)
        cluster.states.give_up(T0, topic_id=cluster.topic_id, go_on_at=90)
        assert cluster.state.go_on_at == 90
        led = cluster.lead(cluster.claim(2, log_id="log-2", end=12), 2)
        assert (led.leader_epoch, led.refused) == (6, None)

    def test_a_follower_refuses_nothing(self, replicated: Cluster) -> None:
        with pytest.raises(NotLeaderError, match="broker 1 does"):
            self.refuse(replicated, 2)
        assert replicated.state == LED


class TestElections:
    def test_a_member_that_lives_takes_the_lead_with_those_that_live(
        self, replicated: Cluster
    ) -> None:
        elected = replicated.elect(replicated.claim(2), 2, live=[2])
        assert elected == replicated.state
        assert elected == PartitionState(2, 5, [2], 8, replicas={2: "log-2"}, committed=7)

    def test_its_epoch_comes_after_those_in_its_log(self, replicated: Cluster) -> None:
        assert replicated.elect(replicated.claim(3, after_epoch=40), 3).leader_epoch == 41

    def test_only_a_member_with_its_log_and_while_no_leader_lives(
        self, replicated: Cluster
    ) -> None:
        for claim, broker_id, live, why in (
            (replicated.claim(2), 2, [1, 2, 3], "broker 1 leads it in epoch 4"),
            (replicated.claim(1), 1, [2, 3], "broker 1 leads it in epoch 4"),
            (replicated.claim(4), 4, [4], "it was moved to brokers 1, 2, 3"),
            (replicated.claim(2, log_id=""), 2, [2, 3], r"the id \(none\)"),
        ):
            with pytest.raises(NotLeaderError, match=why):
                replicated.elect(claim, broker_id, live)
        replicated.put_state(unchanged(in_sync=[1, 3], replicas={1: "log-1", 3: "log-3"}))
        with pytest.raises(NotLeaderError, match=r"it is not in sync\. Brokers 1, 3 are"):
            replicated.elect(replicated.claim(2, end=99), 2)
        assert replicated.state.in_sync == [1, 3]

    @pytest.mark.parametrize(("log_id", "end"), [("emptied", 8), ("log-2", 6), ("log-2", None)])
    def test_a_member_that_lacks_what_was_acknowledged_is_one_no_more(
        self, replicated: Cluster, log_id: str, end: int | None
    ) -> None:
        with pytest.raises(NotLeaderError, match="Broker 2 cannot lead orders-0"):
            replicated.elect(replicated.claim(2, log_id=log_id, end=end), 2)
        assert replicated.state == unchanged(in_sync=[1, 3], replicas={1: "log-1", 3: "log-3"})
        assert replicated.elect(replicated.claim(3), 3).in_sync == [3]

    def test_the_last_member_stays_whatever_its_log_is(self, replicated: Cluster) -> None:
        alone = unchanged(in_sync=[2], replicas={2: "log-2"})
        replicated.put_state(alone)
        with pytest.raises(LogMissingError, match="never was the one with the id log-2"):
            replicated.elect(replicated.claim(2, log_id="emptied"), 2)
        assert replicated.state == alone

    def test_a_member_that_was_in_sync_alone_is_elected_with_another_id_of_its_log(
        self, replicated: Cluster
    ) -> None:
        before = new_log_id()
        after = renewed_log_id(before)
        replicated.put_state(unchanged(in_sync=[2], replicas={2: before}))
        elected = replicated.elect(replicated.claim(2, log_id=after, end=5), 2)
        assert elected == PartitionState(2, 5, [2], 5, replicas={2: after}, committed=5)

    def test_a_broker_to_which_a_partition_moves_is_one_of_its_brokers_once_it_is_elected(
        self, replicated: Cluster
    ) -> None:
        """Broker 4 leads on when the move is cancelled, and after a restart."""
        moves = {0: MovePayload(to=[1, 2, 3, 4], since_us=1)}
        replicated.assign({0: [1, 2, 3]}, moves)
        with pytest.raises(NotLeaderError, match=r"it is not in sync\. Brokers 1, 2, 3 are"):
            replicated.elect(replicated.claim(4), 4, live=[4])
        replicated.put_state(MOVING)
        elected = replicated.elect(replicated.claim(4), 4, live=[4])
        assert elected == replicated.state
        assert elected == PartitionState(4, 5, [4], 8, replicas={4: "log-4"}, committed=7)
        topic = replicated.topic()
        assert (topic.partitions, topic.moves) == ({0: [1, 2, 3, 4]}, moves)
        assert replicated.moves.cancel("orders", [0]) == set(), "it is where it was to go"
        assert replicated.topic().partitions == {0: [1, 2, 3, 4]}
        assert replicated.lead(replicated.claim(4), 4).leader_epoch == 6

    def test_nobody_is_elected_for_a_move_that_does_not_stand(self, replicated: Cluster) -> None:
        replicated.put_state(MOVING)
        for moves in ({}, {0: MovePayload(to=[1, 4], since_us=1, error="It is full.")}):
            replicated.assign({0: [1, 2, 3]}, moves)
            with pytest.raises(NotLeaderError, match="it was moved to brokers 1, 2, 3"):
                replicated.elect(replicated.claim(4), 4, live=[4])
        replicated.assign({0: [1, 2, 3]}, {0: MovePayload(to=[1, 4], since_us=1)})
        with pytest.raises(NotLeaderError, match="it was moved to brokers 1, 2, 3"):
            replicated.lead(replicated.claim(4), 4)
        assert replicated.state == MOVING

    def test_nobody_is_elected_where_nobody_is_in_sync(self, replicated: Cluster) -> None:
        replicated.put_state(unchanged(in_sync=[], replicas={}))
        with pytest.raises(NotLeaderError, match=r"it is not in sync\. Brokers \(none\) are"):
            replicated.elect(replicated.claim(2), 2)

    def test_what_was_never_led_or_is_gone(self, cluster: Cluster) -> None:
        cluster.create(state=None)
        with pytest.raises(NotLeaderError, match="orders-0 was never led"):
            cluster.elect(cluster.claim(2), 2)
        old = cluster.claim(2)
        cluster.topics.delete("orders")
        with pytest.raises(UnknownTopicError):
            cluster.elect(old, 2)
        cluster.create()
        with pytest.raises(UnknownTopicError, match="was deleted"):
            cluster.elect(old, 2)
        put(cluster.chroot, STATE, b"not ours")
        with pytest.raises(CorruptNodeError, match=STATE):
            cluster.elect(cluster.claim(2), 2)

    def test_many_at_once_and_each_error_costs_its_own(self, cluster: Cluster) -> None:
        cluster.create(partitions=MAX_CLAIMS)
        cluster.put_state(unchanged(in_sync=[1, 3]), 7)
        put(cluster.chroot, paths.partition_state(TopicPartition("orders", 8)), b"not ours")
        claims = [cluster.claim(2, partition=each) for each in range(MAX_CLAIMS)]
        found = cluster.states.elect_all(claims, broker_id=2, live=[2, 3])
        assert isinstance(found[TopicPartition("orders", 7)], NotLeaderError)
        assert isinstance(found[TopicPartition("orders", 8)], CorruptNodeError)
        elected = [each for each in found.values() if isinstance(each, PartitionState)]
        assert len(elected) == MAX_CLAIMS - 2
        assert {each.leader_epoch for each in elected} == {5}

    def test_one_that_others_write_all_the_time_does_not_hold_up_the_others(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cluster.create(partitions=64)
        hot, transact = paths.partition_state(TopicPartition("orders", 40)), Nodes.transact
        sent: list[int] = []

        def contended(
            nodes: Nodes, what: str, operations: Sequence[Operation], **named: object
        ) -> None:
            touched = [each.path for each in operations]
            sent.append(sum(path.endswith("/state") for path in touched))
            if hot in touched and len(sent) < 20:
                raise ConflictError("Somebody writes it all the time.")
            transact(nodes, what, operations, **named)  # type: ignore[arg-type]

        monkeypatch.setattr(Nodes, "transact", contended)
        claims = [cluster.claim(2, partition=each) for each in range(64)]
        found = cluster.states.elect_all(claims, broker_id=2, live=[2])
        assert all(isinstance(each, PartitionState) for each in found.values())
        assert list(found) == [each.topic_partition for each in claims]
        assert [sent.count(size) for size in (64, 32, 16, 8, 4, 2)] == [1, 2, 2, 2, 2, 2]
        assert sent.count(1) > 2


def test_leaders_that_leave_many_partitions_have_others_elected(cluster: Cluster) -> None:
    """A disk under many partitions dies; one of them has no other replica in sync."""
    cluster.create(partitions=MAX_CLAIMS)
    cluster.put_state(unchanged(in_sync=[1]), 7)
    claims = [cluster.claim(1, partition=each, log_id="") for each in range(MAX_CLAIMS)]
    found = cluster.states.leave_all(claims, broker_id=1, live=[1, 2, 3])
    stays = found.pop(TopicPartition("orders", 7))
    assert isinstance(stays, NotLeaderError)
    assert {each.in_sync == [2, 3] for each in found.values() if isinstance(each, PartitionState)}
    assert len(found) == MAX_CLAIMS - 1
    with pytest.raises(NotLeaderError, match="it is not in sync"):
        cluster.lead(cluster.claim(1), 1)
    with pytest.raises(NotLeaderError, match="it has left those in sync"):
        cluster.change(remove=[2, 3])
    elected = cluster.elect(cluster.claim(2), 2, live=[1, 2, 3])
    assert (elected.leader_epoch, elected.in_sync, elected.committed) == (5, [2, 3], 7)


def test_a_broker_that_is_to_keep_replicas_is_not_forgotten(
    replicated: Cluster, opened: Session
) -> None:
    replicated.topics.create("alone", partitions=1, brokers=[3], config={})
    with pytest.raises(InvalidRequestError, match="3 leads alone-0, which nobody serves without"):
        forget_broker(opened, 3, execute=True)
    replicated.topics.delete("alone")
    with pytest.raises(InvalidRequestError, match="3 is to keep replicas of orders-0, which"):
        forget_broker(opened, 3, execute=True)
    assert not forget_broker(opened, 4, execute=False).leftover


class TestUncleanElections:
    def elect(
        self,
        cluster: Cluster,
        broker_id: int = 3,
        *,
        live: Sequence[int] = (3,),
        end: int = 5,
        leader_epoch: int = 4,
    ) -> PartitionState:
        claim = cluster.claim(broker_id, end=end)
        return cluster.states.elect_unclean(
            claim, broker_id=broker_id, leader_epoch=leader_epoch, live=lambda: live
        )

    def test_a_broker_that_is_not_in_sync_leads_alone_when_no_other_lives(
        self, replicated: Cluster
    ) -> None:
        replicated.put_state(unchanged(in_sync=[1, 2]))
        behind = go_on_at(9)
        elected = self.elect(replicated)
        assert elected == replicated.state
        assert elected == PartitionState(
            3,
            5,
            [3],
            behind,
            replicas={3: "log-3"},
            given_up=4,
            committed=5,
            go_on_at=behind,
            keep=True,
        )
        # It leads on behind what is lost, also after it was killed just now.
        led = replicated.lead(replicated.claim(3, end=behind), 3)
        assert led == PartitionState(
            3, 6, [3], behind, replicas={3: "log-3"}, given_up=5, committed=5
        )
        with pytest.raises(NotLeaderError, match="it is in sync"):
            self.elect(replicated)
        # Whoever was in sync before is nobody now.
        with pytest.raises(NotLeaderError, match="broker 3 leads it in epoch 6"):
            replicated.lead(replicated.claim(1), 1)
        with pytest.raises(NotLeaderError, match=r"not in sync\. Brokers 3 are"):
            replicated.elect(replicated.claim(2), 2, live=[2])

    def test_not_where_it_is_not_needed_or_nothing_of_the_broker(self, replicated: Cluster) -> None:
        with pytest.raises(NotLeaderError, match=r"needs no unclean election .* it is in sync"):
            self.elect(replicated)
        for live in ([2, 3], [1, 2, 3]):
            replicated.put_state(unchanged(in_sync=[1, 2]))
            with pytest.raises(NotLeaderError, match="2, which are in sync, run"):
                self.elect(replicated, live=live)
        with pytest.raises(NotLeaderError, match="it was moved to brokers 1, 2, 3"):
            self.elect(replicated, 4, live=[4])
        assert replicated.state == unchanged(in_sync=[1, 2])

    def test_not_when_another_has_led_since_it_was_asked_for(self, replicated: Cluster) -> None:
        """A member came back, led, and is gone again: it may have taken more."""
        replicated.put_state(unchanged(in_sync=[1], leader_epoch=6))
        with pytest.raises(NotLeaderError, match="broker 1 leads it in epoch 6"):
            self.elect(replicated, leader_epoch=4)
        elected = self.elect(replicated, leader_epoch=6)
        assert (elected.leader_epoch, elected.given_up) == (7, 6)

    def test_a_member_that_comes_back_meanwhile_is_not_passed_over(
        self, replicated: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Brokers that are registered are asked for anew when the state was written by another."""
        replicated.put_state(unchanged(in_sync=[1, 2]))
        asked: list[Sequence[int]] = [[2, 3], [3]]
        claim = replicated.claim(3)

        def live() -> Sequence[int]:
            found = asked.pop()
            if found == [3]:
                replicated.put_state(unchanged(in_sync=[1, 2], end=10))  # a late note, say
            return found

        with pytest.raises(NotLeaderError, match="2, which are in sync, run"):
            replicated.states.elect_unclean(claim, broker_id=3, leader_epoch=4, live=live)
        assert asked == []
        assert replicated.state.leader == 1

    def test_where_the_only_member_refuses_though_it_lives(self, replicated: Cluster) -> None:
        replicated.put_state(unchanged(in_sync=[1], replicas={1: "log-1"}))
        replicated.states.refuse(
            T0, broker_id=1, topic_id=replicated.topic_id, why="It is gone.", end=9
        )
        elected = self.elect(replicated, live=[1, 2, 3])
        assert (elected.leader, elected.in_sync, elected.refused) == (3, [3], None)

    def test_the_only_one_in_sync_that_refuses_is_passed_over(self, cluster: Cluster) -> None:
        cluster.create(state=unchanged(in_sync=[2], replicas={2: "log-2"}))
        with pytest.raises(NotLeaderError, match="brokers 2, which are in sync, run"):
            self.elect(cluster, live=[1, 2, 3])
        cluster.states.refuse(T0, broker_id=2, topic_id=cluster.topic_id, why="It is gone.", end=9)
        elected = self.elect(cluster, leader_epoch=5, live=[1, 2, 3])
        assert (elected.leader, elected.in_sync, elected.refused) == (3, [3], None)

    def test_what_nobody_has_led(self, cluster: Cluster) -> None:
        cluster.create(state=None)
        with pytest.raises(NotLeaderError, match="nobody has led it yet"):
            self.elect(cluster)
        cluster.topics.delete("orders")
        with pytest.raises(UnknownTopicError):
            self.elect(cluster)


class TestInSync:
    def test_members_are_taken_in_and_dropped(self, replicated: Cluster) -> None:
        dropped = replicated.change(remove=[2, 9])
        assert dropped == replicated.state
        assert dropped == unchanged(in_sync=[1, 3], replicas={1: "log-1", 3: "log-3"})
        back = replicated.change(add={2: "anew"})
        assert back == unchanged(in_sync=[1, 3, 2], replicas={1: "log-1", 2: "anew", 3: "log-3"})
        assert replicated.change(add={2: "other", 3: "log-3"}, remove=[]).replicas[2] == "other"

    def test_only_by_the_leader_in_its_epoch(self, replicated: Cluster) -> None:
        for leader, epoch in ((2, 4), (1, 3), (1, 5)):
            with pytest.raises(NotLeaderError, match="broker 1 in epoch 4 does"):
                replicated.change(remove=[3], leader=leader, leader_epoch=epoch)
        assert replicated.state == LED

    def test_what_no_leader_asks_for(self, replicated: Cluster) -> None:
        for add, remove, why in (
            ({}, [1], "Broker 1 leads orders-0 and so is in sync"),
            ({2: "a"}, [2], "Brokers 2 are to be both added"),
            ({4: "a"}, [], "Brokers 4 cannot be in sync of orders-0: it is neither assigned"),
            ({-1: "a"}, [], "Brokers -1 cannot"),
            ({2: ""}, [], "Brokers 2 cannot .* without the ids"),
        ):
            with pytest.raises(InvalidRequestError, match=why):
                replicated.change(add=add, remove=remove)
        assert replicated.state == LED

    def test_a_target_is_a_member_only_as_long_as_its_move_stands(
        self, replicated: Cluster
    ) -> None:
        move = MovePayload(to=[2, 4], since_us=1)
        replicated.assign({0: [1, 2, 3]}, {0: move})
        assert replicated.change(add={4: "log-4"}).in_sync == [1, 2, 3, 4]
        for moves in ({0: msgspec.structs.replace(move, error="No room.")}, {}):
            replicated.assign({0: [1, 2, 3]}, moves)
            with pytest.raises(InvalidRequestError, match="assigned to 1, 2, 3"):
                replicated.change(add={4: "another log"})
            # Asked for again after a lost reply: the leader hears of it, to drop it.
            assert replicated.change(add={4: "log-4"}).in_sync == [1, 2, 3, 4]
        assert replicated.change(remove=[4]) == LED
        with pytest.raises(InvalidRequestError, match="assigned to 1, 2, 3"):
            replicated.change(add={4: "log-4"})
        assert replicated.change(remove=[4]) == LED

    def test_a_change_that_is_still_on_its_way_is_settled_by_the_next(
        self, replicated: Cluster, opened: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        under_way: list[Sequence[Operation]] = []

        def delayed(_: Nodes, __: str, operations: Sequence[Operation], **___: object) -> None:
            under_way.append(operations)
            raise CoordinationError("No answer came in time.")

        replicated.change(remove=[2])
        before = replicated.state
        with monkeypatch.context() as patched:
            patched.setattr(Nodes, "transact", delayed)
            with pytest.raises(CoordinationError):
                replicated.change(add={2: "log-2"})
        assert replicated.change(remove=[2]) == before  # nothing changes, and it is settled
        with pytest.raises(ConflictError):
            Nodes(opened).transact("come late", under_way[0], deadline=opened.deadline())
        assert replicated.state == before

    def test_unknown_topics_and_states(self, cluster: Cluster) -> None:
        cluster.create(state=None)
        with pytest.raises(NotLeaderError, match="nobody does"):
            cluster.change(remove=[2])
        put(cluster.chroot, STATE, b"not ours")
        with pytest.raises(CorruptNodeError, match=STATE):
            cluster.change(remove=[2])
        cluster.topics.delete("orders")
        with pytest.raises(UnknownTopicError):
            cluster.change(remove=[2])

    def test_who_watches_is_told_of_elections_and_members(self, replicated: Cluster) -> None:
        told: list[set[str]] = []
        record = replicated.topics.get("orders")
        assert record is not None
        watch = replicated.states.watch(told.append)
        watch.follow({"orders": record})
        wait_until(lambda: told)
        acts: list[Callable[[], PartitionState]] = [
            partial(replicated.change, remove=[3]),
            partial(replicated.elect, replicated.claim(2), 2),
        ]
        for act in acts:
            told.clear()
            act()
            wait_until(lambda: {"orders"} in told)


class TestCommitted:
    def test_it_is_noted_with_the_end_and_only_rises(self, cluster: Cluster) -> None:
        cluster.create(state=unchanged(committed=None))
        for end, committed, expected in (
            (10, None, (10, None)),
            (10, 8, (10, 8)),
            (9, 9, (10, 9)),
            (12, 5, (12, 9)),
            (12, None, (12, 9)),
        ):
            cluster.states.note_ends({T0: Reached(cluster.topic_id, 4, end, committed)})
            assert (cluster.state.end, cluster.state.committed) == expected
        cluster.states.note_ends({T0: Reached(cluster.topic_id, 3, 99, 99)})
        assert cluster.state.committed == 9
        assert cluster.elect(cluster.claim(2, end=9), 2).committed == 9


class TestHandOver:
    @pytest.fixture(autouse=True)
    def live(self, opened: Session, cluster: Cluster) -> Iterator[None]:
        registry = BrokerRegistry(opened)
        registry.register(BrokerAddress(2, "127.0.0.1", 9), version="1")
        cluster.create()
        yield
        registry.deregister()

    def test_the_lead_goes_to_a_member_and_all_stay_members(self, cluster: Cluster) -> None:
        handed = cluster.moves.hand_over(cluster.hand_over())
        assert handed == cluster.state == unchanged(leader=2, leader_epoch=5, end=12)
        assert cluster.moves.handed_over(cluster.hand_over())
        record = cluster.topics.get("orders")
        assert record is not None
        assert record.partitions == {0: [1, 2, 3]}
        with pytest.raises(NotLeaderError, match="broker 2 leads"):
            cluster.lead(cluster.claim(1), 1)

    def test_only_to_a_live_member_with_that_log(self, cluster: Cluster) -> None:
        lead = cluster.hand_over()
        with pytest.raises(BrokerUnavailableError, match="broker 3, which is not registered"):
            cluster.moves.hand_over(cluster.hand_over(to=3, log_id="log-3"))
        for wrong in (
            cluster.hand_over(log_id="emptied"),
            cluster.hand_over(log_id=""),
            cluster.hand_over(epoch=3),
            lead._replace(leader=3),
        ):
            with pytest.raises(MoveEndedError):
                cluster.moves.hand_over(wrong)
        with pytest.raises(InvalidRequestError, match="leads orders-0 already"):
            cluster.moves.hand_over(lead._replace(to=1))
        cluster.change(remove=[2])
        with pytest.raises(MoveEndedError, match="not in sync"):
            cluster.moves.hand_over(lead)
        cluster.assign({0: [1, 3]}, {0: MovePayload(to=[1, 2], since_us=1)})
        cluster.change(add={2: "log-2"})
        with pytest.raises(MoveEndedError):  # a member, and not assigned
            cluster.moves.hand_over(lead)

    def test_a_lost_reply_and_a_request_that_comes_late(
        self,
        cluster: Cluster,
        zookeeper: EmbeddedZooKeeper,
        chroot: str,
        opened: Session,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        under_way: list[Sequence[Operation]] = []

        def delayed(_: Nodes, __: str, operations: Sequence[Operation], **___: object) -> None:
            under_way.append(operations)
            raise CoordinationError("No answer came in time.")

        with monkeypatch.context() as patched:
            patched.setattr(Nodes, "transact", delayed)
            with pytest.raises(CoordinationError):
                cluster.moves.hand_over(cluster.hand_over())
        assert not cluster.moves.settle(cluster.hand_over())
        with pytest.raises(ConflictError):
            Nodes(opened).transact("come late", under_way[0], deadline=opened.deadline())
        with Proxy(zookeeper.address) as proxy, session(proxy.connect_string(chroot)) as unlucky:
            proxy.lose_reply(MULTI)
            handed = PartitionMoves(unlucky).hand_over(cluster.hand_over())
            assert proxy.lost == 1
        assert handed == cluster.state == unchanged(leader=2, leader_epoch=5, end=12)


class TestArrived:
    """Moves whose brokers are several."""

    MOVE = MovePayload(to=[4, 2], since_us=5)

    @pytest.fixture(autouse=True)
    def moving(self, opened: Session, cluster: Cluster) -> Iterator[None]:
        registry = BrokerRegistry(opened)
        registry.register(BrokerAddress(4, "127.0.0.1", 9), version="1")
        cluster.create()
        cluster.assign({0: [1, 2, 3]}, {0: self.MOVE})
        yield
        registry.deregister()

    def lead(self, cluster: Cluster, *, to: int = 4, log_id: str = "log-4") -> HandOver:
        return HandOver(T0, cluster.topic_id, 1, 4, to, log_id, 12, 5)

    def finish(self, cluster: Cluster, since_us: int = 5) -> PartitionState:
        return cluster.moves.finish(
            T0, topic_id=cluster.topic_id, leader=1, leader_epoch=4, since_us=since_us
        )

    def test_the_lead_goes_to_one_of_them_when_all_have_everything(self, cluster: Cluster) -> None:
        for told in ("log-4", "log-4a"):
            cluster.change(remove=[2])
            with pytest.raises(MoveEndedError, match="4, 2, to which it moves, only 1, 3"):
                cluster.moves.hand_over(self.lead(cluster, log_id=told))
            cluster.change(add={2: "log-2"})
        handed = cluster.moves.hand_over(self.lead(cluster))
        assert handed == cluster.state
        assert handed == PartitionState(
            4, 5, [4, 2], 12,
            replicas={4: "log-4", 2: "log-2"}, committed=7, handed_over={"log-1": 5, "log-3": 5},
        )  # fmt: skip
        record = cluster.topics.get("orders")
        assert record is not None
        assert (record.partitions, record.moves) == ({0: [4, 2]}, {})

    def test_a_member_that_tells_another_log_than_the_one_in_sync_gets_no_lead(
        self, cluster: Cluster
    ) -> None:
        cluster.change(add={4: "log-4"})
        with pytest.raises(MoveEndedError):
            cluster.moves.hand_over(self.lead(cluster, log_id="emptied"))
        with pytest.raises(MoveEndedError):
            cluster.moves.hand_over(self.lead(cluster, to=3, log_id="log-3"))
        assert cluster.state.leader == 1
        assert cluster.moves.hand_over(self.lead(cluster)).leader == 4

    def test_a_leader_that_stays_finishes_when_all_are_in_sync(self, cluster: Cluster) -> None:
        with pytest.raises(MoveEndedError):  # it is to go
            self.finish(cluster)
        cluster.assign({0: [1, 2, 3]}, {0: MovePayload(to=[4, 1], since_us=6)})
        for since_us, why in ((5, "was ended"), (6, "4, 1, to which it moves, only 1, 2, 3")):
            with pytest.raises(MoveEndedError, match=why):
                self.finish(cluster, since_us)
        cluster.change(add={4: "log-4"})
        done = self.finish(cluster, 6)
        assert done == cluster.state
        assert done == unchanged(
            in_sync=[4, 1],
            replicas={1: "log-1", 4: "log-4"},
            handed_over={"log-2": 5, "log-3": 5},
        )
        record = cluster.topics.get("orders")
        assert record is not None
        assert (record.partitions, record.moves) == ({0: [4, 1]}, {})
        with pytest.raises(MoveEndedError, match="was ended"):
            self.finish(cluster, 6)

    def test_a_lost_reply_finishes_once(
        self, cluster: Cluster, zookeeper: EmbeddedZooKeeper, chroot: str
    ) -> None:
        cluster.assign({0: [1, 2, 3]}, {0: MovePayload(to=[1, 2], since_us=5)})
        with Proxy(zookeeper.address) as proxy, session(proxy.connect_string(chroot)) as unlucky:
            proxy.lose_reply(MULTI)
            done = PartitionMoves(unlucky).finish(
                T0, topic_id=cluster.topic_id, leader=1, leader_epoch=4, since_us=5
            )
            assert proxy.lost == 1
        assert done.in_sync == [1, 2]

    def test_a_request_that_was_lost_is_not_taken_for_done_where_the_members_stay(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The state is the same before and after: only the topic tells."""
        move = MovePayload(to=[3, 1, 2], since_us=5)
        cluster.put_state(unchanged(in_sync=[3, 1, 2]))
        cluster.assign({0: [1, 2, 3]}, {0: move})
        transact, lost = Nodes.transact, ["the first"]

        def unlucky(nodes: Nodes, what: str, wanted: Sequence[Operation], **named: Any) -> None:
            if lost:
                lost.clear()
                raise ReplyLostError("The connection ended before the request was sent.")
            transact(nodes, what, wanted, **named)

        monkeypatch.setattr(Nodes, "transact", unlucky)
        assert self.finish(cluster).in_sync == [3, 1, 2]
        record = cluster.topics.get("orders")
        assert record is not None
        assert (record.partitions, record.moves) == ({0: [3, 1, 2]}, {})

    def test_a_cancel_leaves_members_that_the_leader_drops(self, cluster: Cluster) -> None:
        cluster.change(add={4: "log-4"})
        assert cluster.moves.cancel("orders", [0]) == {0}
        acts: list[Callable[[], PartitionState]] = [
            partial(cluster.moves.hand_over, self.lead(cluster)),
            partial(self.finish, cluster),
        ]
        for act in acts:
            with pytest.raises(MoveEndedError):
                act()
        assert cluster.change(remove=[4]) == LED


class TestLostReplies:
    @pytest.fixture
    def proxy(self, zookeeper: EmbeddedZooKeeper) -> Iterator[Proxy]:
        with Proxy(zookeeper.address) as between:
            yield between

    @pytest.fixture
    def unlucky(self, proxy: Proxy, chroot: str, replicated: Cluster) -> Iterator[PartitionStates]:
        with session(proxy.connect_string(chroot)) as own:
            yield PartitionStates(own)

    def test_of_each_write(
        self, proxy: Proxy, unlucky: PartitionStates, replicated: Cluster
    ) -> None:
        proxy.lose_reply(MULTI)
        changed = unlucky.change_in_sync(
            T0, topic_id=replicated.topic_id, leader=1, leader_epoch=4, remove=[3]
        )
        assert changed == replicated.state
        proxy.lose_reply(MULTI)
        elected = unlucky.elect_all([replicated.claim(2)], broker_id=2, live=[2])
        assert elected[T0] == replicated.state
        assert replicated.state.leader_epoch == 5
        proxy.lose_reply(MULTI)
        led = unlucky.lead_all([replicated.claim(2)], broker_id=2)
        assert led[T0] == replicated.state
        assert replicated.state.leader_epoch == 6
        assert proxy.lost == 3

    def test_of_an_election_in_a_move(
        self, proxy: Proxy, unlucky: PartitionStates, replicated: Cluster
    ) -> None:
        replicated.put_state(MOVING)
        replicated.assign({0: [1, 2]}, {0: MovePayload(to=[1, 4], since_us=1)})
        proxy.lose_reply(MULTI)
        elected = unlucky.elect_all([replicated.claim(4)], broker_id=4, live=[4])
        assert proxy.lost == 1
        assert elected[T0] == replicated.state
        assert (replicated.state.leader, replicated.state.leader_epoch) == (4, 5)
        assert replicated.topic().partitions == {0: [1, 2, 4]}, "2 is in sync, and has all"

    def test_of_a_refusal_of_the_only_one_in_sync(
        self, proxy: Proxy, unlucky: PartitionStates, replicated: Cluster
    ) -> None:
        replicated.put_state(unchanged(in_sync=[2], replicas={2: "log-2"}))
        proxy.lose_reply(MULTI)
        unlucky.refuse(T0, broker_id=2, topic_id=replicated.topic_id, why="It is torn.", end=9)
        assert proxy.lost == 1
        assert (replicated.state.leader, replicated.state.leader_epoch) == (2, 5)

    def test_one_that_has_left_says_so_though_its_reply_was_lost(
        self, proxy: Proxy, unlucky: PartitionStates, replicated: Cluster
    ) -> None:
        proxy.lose_reply(MULTI)
        found = unlucky.lead_all([replicated.claim(1, log_id="emptied")], broker_id=1)
        assert proxy.lost == 1
        with pytest.raises(NotLeaderError, match="has the id emptied"):
            _state(found[T0])
        assert replicated.state.in_sync == [2, 3]

    def test_another_that_was_elected_since_has_the_lead(
        self, proxy: Proxy, unlucky: PartitionStates, replicated: Cluster
    ) -> None:
        def elect() -> None:
            replicated.elect(replicated.claim(3), 3, live=[3])

        proxy.lose_reply(MULTI, before_cut=elect)
        with pytest.raises(NotLeaderError, match="broker 3 leads it in epoch 6"):
            _state(unlucky.elect_all([replicated.claim(2)], broker_id=2, live=[2, 3])[T0])
        assert proxy.lost == 1


def at_once(*calls: Callable[[], Result]) -> list[Result | LogbusError]:
    """Results of calls that begin together; the error of one that raised."""
    together = threading.Barrier(len(calls))

    def run(call: Callable[[], Result]) -> Result | LogbusError:
        together.wait(60)
        try:
            return call()
        except LogbusError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


class TestRivals:
    """Calls at the same moment, each in a session of its own."""

    @pytest.fixture
    def rival(self, replicated: Cluster, chroot: str) -> Iterator[Cluster]:
        with session(chroot, name="rival") as own:
            other = Cluster(own, chroot)
            other.topic_id = replicated.topic_id
            yield other

    def test_of_two_members_one_is_elected(self, replicated: Cluster, rival: Cluster) -> None:
        for _ in range(ROUNDS):
            replicated.put_state(LED)
            both = at_once(
                partial(replicated.elect, replicated.claim(2), 2),
                partial(rival.elect, rival.claim(3), 3),
            )
            (elected,) = (each for each in both if isinstance(each, PartitionState))
            (refused,) = (each for each in both if isinstance(each, LogbusError))
            assert isinstance(refused, NotLeaderError)
            assert elected == replicated.state
            assert (elected.leader_epoch, elected.in_sync) == (5, [2, 3])

    def test_a_leader_that_drops_whoever_is_elected(
        self, replicated: Cluster, rival: Cluster
    ) -> None:
        for _ in range(ROUNDS):
            replicated.put_state(LED)
            dropped, elected = at_once(
                partial(replicated.change, remove=[2]),
                partial(rival.elect, rival.claim(2), 2),
            )
            if isinstance(elected, PartitionState):
                assert isinstance(dropped, NotLeaderError)
                assert replicated.state == elected
            else:
                assert dropped == replicated.state
                assert replicated.state.in_sync == [1, 3]

    def test_a_cancel_and_the_election_of_a_broker_to_which_it_was_moving(
        self, replicated: Cluster, rival: Cluster
    ) -> None:
        """The broker that leads has the partition assigned, whichever of the two came first."""
        for number in range(ROUNDS):
            replicated.put_state(MOVING)
            replicated.assign({0: [1, 2, 3]}, {0: MovePayload(to=[4], since_us=number)})
            elected, ended = at_once(
                partial(replicated.elect, replicated.claim(4), 4, live=[4]),
                partial(rival.moves.cancel, "orders", [0]),
            )
            assert ended == {0}
            topic = replicated.topic()
            assert topic.moves == {}
            if isinstance(elected, PartitionState):
                assert topic.partitions == {0: [1, 2, 3, 4]}
                assert replicated.state == elected
            else:
                assert isinstance(elected, NotLeaderError)
                assert topic.partitions == {0: [1, 2, 3]}
                assert replicated.state == MOVING

    def test_a_cancel_and_a_member_that_is_taken_in(
        self, replicated: Cluster, rival: Cluster
    ) -> None:
        for number in range(ROUNDS):
            replicated.put_state(LED)
            replicated.assign({0: [1, 2, 3]}, {0: MovePayload(to=[4], since_us=number)})
            taken, ended = at_once(
                partial(replicated.change, add={4: "log-4"}),
                partial(rival.moves.cancel, "orders", [0]),
            )
            assert ended == {0}
            if isinstance(taken, PartitionState):
                assert replicated.state.in_sync == [1, 2, 3, 4]
            else:
                assert isinstance(taken, InvalidRequestError)
                assert replicated.state == LED

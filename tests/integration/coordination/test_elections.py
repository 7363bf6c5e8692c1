"""Elections, and leaders that lead on, by a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from spark_logbus.coordination import paths
from spark_logbus.coordination.cluster.gone_brokers import forget_broker
from spark_logbus.coordination.cluster.partition_states import (
    MAX_CLAIMS,
)
from spark_logbus.coordination.payloads import (
    MovePayload,
    PartitionState,
)
from spark_logbus.errors import (
    InvalidRequestError,
    LogMissingError,
    NotLeaderError,
    UnknownTopicError,
)
from spark_logbus.log_ids import new_log_id, renewed_log_id
from spark_logbus.lost_ends import go_on_at
from spark_logbus.model import TopicPartition
from spark_logbus.zookeeper import CorruptNodeError, Session
from spark_logbus.zookeeper.nodes import ConflictError, Nodes
from spark_logbus.zookeeper.transactions import Operation
from tests.integration.coordination.replicated_topic import (
    LED,
    MOVING,
    STATE,
    T0,
    Cluster,
    unchanged,
)
from tests.servers.zookeeper import put


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

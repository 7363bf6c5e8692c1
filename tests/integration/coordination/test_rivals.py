"""Changes of one partition that meet, or whose replies are lost, in a real ZooKeeper."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from spark_logbus.coordination.cluster.partition_states import (
    PartitionStates,
)
from spark_logbus.coordination.payloads import (
    MovePayload,
    PartitionState,
)
from spark_logbus.errors import (
    InvalidRequestError,
    LogbusError,
    NotLeaderError,
)
from spark_logbus.local.zookeeper import EmbeddedZooKeeper
from tests.integration.coordination.replicated_topic import (
    LED,
    MOVING,
    ROUNDS,
    T0,
    Cluster,
    Result,
    state_of,
    unchanged,
)
from tests.servers.zookeeper import MULTI, Proxy, session


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
            state_of(found[T0])
        assert replicated.state.in_sync == [2, 3]

    def test_another_that_was_elected_since_has_the_lead(
        self, proxy: Proxy, unlucky: PartitionStates, replicated: Cluster
    ) -> None:
        def elect() -> None:
            replicated.elect(replicated.claim(3), 3, live=[3])

        proxy.lose_reply(MULTI, before_cut=elect)
        with pytest.raises(NotLeaderError, match="broker 3 leads it in epoch 6"):
            state_of(unlucky.elect_all([replicated.claim(2)], broker_id=2, live=[2, 3])[T0])
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

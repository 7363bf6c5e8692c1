"""Leads that are handed over, and moves that end so, by a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from spark_logbus.coordination.cluster.brokers import BrokerRegistry
from spark_logbus.coordination.cluster.moves import HandOver, MoveEndedError, PartitionMoves
from spark_logbus.coordination.payloads import (
    MovePayload,
    PartitionState,
)
from spark_logbus.errors import (
    BrokerUnavailableError,
    CoordinationError,
    InvalidRequestError,
    NotLeaderError,
)
from spark_logbus.local.zookeeper import EmbeddedZooKeeper
from spark_logbus.model import BrokerAddress
from spark_logbus.zookeeper import Session
from spark_logbus.zookeeper.nodes import ConflictError, Nodes
from spark_logbus.zookeeper.session import ReplyLostError
from spark_logbus.zookeeper.transactions import Operation
from tests.integration.coordination.replicated_topic import (
    LED,
    T0,
    Cluster,
    unchanged,
)
from tests.servers.zookeeper import MULTI, Proxy, session


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

"""Sets of replicas in sync, and what is committed, in a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import pytest

from spark_logbus.coordination.cluster.topic_records import Reached
from spark_logbus.coordination.payloads import (
    MovePayload,
    PartitionState,
)
from spark_logbus.errors import (
    CoordinationError,
    InvalidRequestError,
    NotLeaderError,
    UnknownTopicError,
)
from spark_logbus.zookeeper import CorruptNodeError, Session
from spark_logbus.zookeeper.nodes import ConflictError, Nodes
from spark_logbus.zookeeper.transactions import Operation
from tests.helpers import wait_until
from tests.integration.coordination.replicated_topic import (
    LED,
    STATE,
    T0,
    Cluster,
    unchanged,
)
from tests.servers.zookeeper import put


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

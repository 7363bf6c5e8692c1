"""Changes of who is in sync of many partitions at a time, on a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pytest

from spark_logbus.coordination import paths
from spark_logbus.coordination.cluster.leader_rules import MembersChange
from spark_logbus.coordination.cluster.partition_states import PartitionStates
from spark_logbus.coordination.cluster.topics import TopicRegistry
from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.errors import CoordinationError, InvalidRequestError, LogbusError, NotLeaderError
from spark_logbus.model import TopicPartition
from spark_logbus.zookeeper.nodes import ConflictError, Nodes
from spark_logbus.zookeeper.transactions import Operation
from tests.servers.zookeeper import session

PARTITIONS = 40


class Led:
    """A topic of many partitions, which broker 1 leads in epoch 0, alone in sync."""

    def __init__(self, states: PartitionStates, topics: TopicRegistry) -> None:
        self.states = states
        record = topics.create("t", partitions=PARTITIONS, brokers=[1], config={})
        self.topic_id = record.topic_id
        for partition in range(PARTITIONS):
            states.lead(self.where(partition), broker_id=1)

    @staticmethod
    def where(partition: int) -> TopicPartition:
        return TopicPartition("t", partition)

    def change(
        self,
        partition: int,
        *,
        add: Mapping[int, str] | None = None,
        remove: Sequence[int] = (),
        epoch: int = 0,
        topic_id: str = "",
    ) -> MembersChange:
        where = self.where(partition)
        return MembersChange(where, topic_id or self.topic_id, epoch, add or {}, remove)


@pytest.fixture
def led(chroot: str) -> Iterator[Led]:
    with session(chroot) as live:
        yield Led(PartitionStates(live), TopicRegistry(live))


def test_one_transaction_changes_many_partitions(led: Led, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    transact = Nodes.transact

    def counted(nodes: Nodes, what: str, operations: Sequence[Operation], **named: object) -> None:
        sent.append(sum(each.path.endswith("/state") for each in operations))
        transact(nodes, what, operations, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Nodes, "transact", counted)
    changes = [led.change(each, add={1: f"log-{each}"}) for each in range(PARTITIONS)]
    found = led.states.change_in_sync_all(changes, leader=1)
    assert sent == [PARTITIONS]
    stand = led.states.states("t")
    for partition in range(PARTITIONS):
        assert found[led.where(partition)] == stand[partition]
        assert stand[partition].replicas == {1: f"log-{partition}"}


def test_what_is_wrong_with_one_is_its_own(led: Led) -> None:
    changes = [
        led.change(0, add={1: "log"}),
        led.change(1, add={1: "log"}, epoch=7),
        led.change(2, add={9: "log"}),
        led.change(3, remove=[1]),
        led.change(4, add={1: "log"}, topic_id="another"),
        led.change(5, add={1: "log"}),
    ]
    found = led.states.change_in_sync_all(changes, leader=1)
    kinds = [type(found[each.topic_partition]) for each in changes]
    assert kinds[:4] == [PartitionState, NotLeaderError, InvalidRequestError, InvalidRequestError]
    assert issubclass(kinds[4], LogbusError)
    assert kinds[5] is PartitionState
    stand = led.states.states("t")
    assert [stand[each].replicas for each in range(6)] == [
        {1: "log"}, {}, {}, {}, {}, {1: "log"},
    ]  # fmt: skip


@pytest.mark.parametrize("is_away", [False, True])
def test_one_that_others_write_all_the_time_holds_up_none(
    led: Led, monkeypatch: pytest.MonkeyPatch, is_away: bool
) -> None:
    hot, transact = paths.partition_state(led.where(7)), Nodes.transact
    met: list[int] = []

    def contended(
        nodes: Nodes, what: str, operations: Sequence[Operation], **named: object
    ) -> None:
        if hot in [each.path for each in operations]:
            met.append(1)
            if is_away and len(operations) < 8:
                raise CoordinationError("ZooKeeper does not answer.")
            if len(met) < 10:
                raise ConflictError("Somebody writes it all the time.")
        transact(nodes, what, operations, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Nodes, "transact", contended)
    changes = [led.change(each, add={1: "log"}) for each in range(PARTITIONS)]
    found = led.states.change_in_sync_all(changes, leader=1)
    unknown = {
        where.partition for where, state in found.items() if isinstance(state, CoordinationError)
    }
    assert len(found) == PARTITIONS
    assert (7 in unknown) == is_away
    assert len(unknown) <= 5
    stand = led.states.states("t")
    assert all(stand[each].replicas == {1: "log"} for each in {*range(PARTITIONS)} - unknown)

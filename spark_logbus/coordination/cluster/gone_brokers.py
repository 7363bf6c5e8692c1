"""Brokers that are gone for good: what still stands for them in ZooKeeper, and its removal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spark_logbus.coordination import paths
from spark_logbus.coordination.cluster.brokers import BrokerRegistry
from spark_logbus.coordination.cluster.drained import DrainedBrokers
from spark_logbus.coordination.cluster.topics import TopicRegistry
from spark_logbus.errors import InvalidRequestError
from spark_logbus.model import TopicPartition
from spark_logbus.zookeeper import Session
from spark_logbus.zookeeper.nodes import Nodes
from spark_logbus.zookeeper.transactions import Delete

_SHOWN = 10


@dataclass(frozen=True, slots=True)
class GoneBroker:
    """``leftover`` is true if a registration stands in ZooKeeper that no session holds, ``drained``
    if the broker is marked as one that is being drained."""

    broker_id: int
    leftover: bool
    drained: bool


def forget_broker(session: Session, broker_id: int, *, execute: bool) -> GoneBroker:
    """Remove what stands for a broker; only said, not done, unless ``execute``.

    Raises InvalidRequestError for one that lives, that partitions are assigned to, or to which some
    are to move, with what to do; CoordinationError.
    """
    live = {each.broker_id: each for each in BrokerRegistry(session).live()}
    path = f"{paths.BROKERS}/{broker_id}"
    nodes = Nodes(session)
    node = nodes.get(path)
    if node is not None and node.owner:
        where = live.get(broker_id)
        raise InvalidRequestError(
            f"Broker {broker_id} lives{f', at {where.host}:{where.port}' if where else ''}: its "
            "ZooKeeper session is there. Move away what it leads (logbus cluster drain "
            f"{broker_id}), and stop it; one that was killed counts until its session has "
            "expired, after zookeeper_session_ms."
        )
    topics = TopicRegistry(session).all().values()
    assigned = {
        TopicPartition(record.name, partition): brokers
        for record in topics
        for partition, brokers in record.partitions.items()
        if broker_id in brokers
    }
    led = [where for where, brokers in assigned.items() if brokers == [broker_id]]
    coming = [
        TopicPartition(record.name, partition)
        for record in topics
        for partition, move in record.moves.items()
        if broker_id in move.to
    ]
    if led:
        raise InvalidRequestError(
            f"Broker {broker_id} leads {_some(led)}, which nobody "
            "serves without it. Start a broker with its id, with its data, a backup of it or an "
            "empty directory, and give up what is lost (logbus topics give-up); while that runs, "
            f"all it has can be moved away (logbus cluster drain {broker_id}), or some of it "
            "(logbus topics move). Or delete these topics (logbus topics delete)."
        )
    if assigned:
        raise InvalidRequestError(
            f"Broker {broker_id} is to keep replicas of {_some(assigned)}, which others have too. "
            "Start a broker with its id: in an empty directory it copies them. Or give these "
            "partitions to other brokers first (logbus topics move)."
        )
    if coming:
        raise InvalidRequestError(
            f"Broker {broker_id} is to get {_some(coming)}. End these moves first, or send them to "
            "another broker (logbus topics move TOPIC --cancel)."
        )
    drained = DrainedBrokers(session)
    marked = broker_id in drained.ids()
    if marked and execute:
        drained.clear(broker_id)
    if node is not None and execute:

        def remove(deadline: object) -> None:
            del deadline
            nodes.transact(
                f"forget broker {broker_id}",
                [Delete(path, node.version)],
                deadline=session.deadline(),
            )

        nodes.repeat(f"forget broker {broker_id}", remove)
    return GoneBroker(broker_id, leftover=node is not None, drained=marked)


def _some(partitions: Iterable[TopicPartition]) -> str:
    named = sorted(partitions)
    more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    return f"{', '.join(map(str, named[:_SHOWN]))}{more}"

"""Brokers that are gone for good: what still stands for them in ZooKeeper, and its removal."""

from __future__ import annotations

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

    Raises InvalidRequestError for one that lives, or that partitions are assigned to, with what to
    do; CoordinationError.
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
    led = sorted(
        TopicPartition(record.name, partition)
        for record in TopicRegistry(session).all().values()
        for partition, brokers in record.partitions.items()
        if broker_id in brokers
    )
    if led:
        more = f" and {len(led) - _SHOWN} more" if len(led) > _SHOWN else ""
        raise InvalidRequestError(
            f"Broker {broker_id} leads {', '.join(map(str, led[:_SHOWN]))}{more}, which nobody "
            "serves without it. Start a broker with its id, with its data, a backup of it or an "
            "empty directory, and give up what is lost (logbus topics give-up); while that runs, "
            f"all it has can be moved away (logbus cluster drain {broker_id}), or some of it "
            "(logbus topics move). Or delete these topics (logbus topics delete)."
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

"""Places of partitions, now and after their moves, and drained brokers, as ZooKeeper has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from spark_logbus.client.admin.move_plans import (
    MovePlan,
    PlacedPartition,
    Placement,
    plan_drain,
)
from spark_logbus.client.cluster.cluster import Cluster
from spark_logbus.coordination.cluster.brokers import MOVES, BrokerRegistry
from spark_logbus.coordination.cluster.drained import DrainedBrokers
from spark_logbus.coordination.cluster.moves import MAX_MOVES
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.cluster.topics import TopicRegistry
from spark_logbus.coordination.payloads import MovePayload
from spark_logbus.model import TopicPartition
from spark_logbus.offsets.descriptions import LogQueries, TopicDescription
from spark_logbus.zookeeper import Session, default_connect


@contextmanager
def _opened(cluster: Cluster) -> Iterator[Session]:
    connect = cluster.zookeeper or default_connect()
    with Session(connect, client_name="logbus-moves", expects_cluster=True) as session:
        yield session


def read_placement(admin: LogQueries, cluster: Cluster) -> Placement:
    """Raises CoordinationError."""
    described = admin.describe()
    with _opened(cluster) as session:
        return _placement(session, described)


def _placement(session: Session, described: Mapping[str, TopicDescription]) -> Placement:
    registrations = BrokerRegistry(session).registrations()
    return Placement(
        partitions=[
            _placed(record, partition, described.get(record.name))
            for record in TopicRegistry(session).all().values()
            for partition in sorted(record.partitions)
        ],
        running=[each.address.broker_id for each in registrations],
        moving=[each.address.broker_id for each in registrations if each.features & MOVES],
        drained=DrainedBrokers(session).ids(),
        most=MAX_MOVES,
        racks={each.address.broker_id: each.address.rack for each in registrations},
    )


def _placed(
    record: TopicRecord, partition: int, described: TopicDescription | None
) -> PlacedPartition:
    part = None if described is None else described.partitions.get(partition)
    move = record.moves.get(partition)
    return PlacedPartition(
        topic_partition=TopicPartition(record.name, partition),
        replicas=tuple(record.partitions[partition]),
        # One that has failed is where it was, and may be begun anew.
        to=None if move is None or move.error else tuple(move.to),
        size_bytes=None if part is None or part.ends is None else part.ends.size_bytes,
    )


def drain(admin: LogQueries, cluster: Cluster, broker_id: int) -> MovePlan:
    """Marks a broker, and plans to give away what it has after that: nothing new comes between."""
    plan_drain(read_placement(admin, cluster), broker_id)  # refused before anything is changed
    mark_drained(cluster, broker_id)
    return plan_drain(read_placement(admin, cluster), broker_id)


def mark_drained(cluster: Cluster, broker_id: int) -> None:
    """Places nothing new on a broker. Raises CoordinationError."""
    with _opened(cluster) as session:
        DrainedBrokers(session).mark(broker_id, since_us=cluster.clock.now_us())


def undo_drain(cluster: Cluster, broker_id: int) -> bool:
    """See ``Admin.undo_drain``."""
    with _opened(cluster) as session:
        return DrainedBrokers(session).clear(broker_id)


def read_moves(
    cluster: Cluster, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, tuple[list[int] | None, MovePayload | None]]:
    """Reads in ZooKeeper what has become of moves: the brokers of each partition, None if there is
    no such partition any more, and the move that stands. Raises CoordinationError."""
    wanted = list(partitions)
    with _opened(cluster) as session:
        records = TopicRegistry(session).some({each.topic for each in wanted})
    found: dict[TopicPartition, tuple[list[int] | None, MovePayload | None]] = {}
    for each in wanted:
        record = records.get(each.topic)
        assigned = None if record is None else record.partitions.get(each.partition)
        move = None if record is None else record.moves.get(each.partition)
        found[each] = (assigned, move)
    return found

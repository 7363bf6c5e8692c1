"""Handlers over a test's logs, without a network."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from spark_logbus.broker.config import BrokerConfig
from spark_logbus.broker.handlers.append import AppendHandler
from spark_logbus.broker.handlers.dispatch import RequestDispatcher
from spark_logbus.broker.handlers.elections import ElectHandler
from spark_logbus.broker.handlers.fetch import FetchHandler
from spark_logbus.broker.handlers.handler import RequestContext
from spark_logbus.broker.handlers.handshake import HandshakeHandler
from spark_logbus.broker.handlers.long_poll import DelayedFetches
from spark_logbus.broker.handlers.metadata import MetadataHandler
from spark_logbus.broker.handlers.moves import MoveHandler
from spark_logbus.broker.handlers.offsets import OffsetHandler
from spark_logbus.broker.handlers.replica_sessions import ReplicaSessions
from spark_logbus.broker.handlers.replicate import AssignedTo, ReplicateHandler
from spark_logbus.broker.handlers.request_metrics import RequestMetrics
from spark_logbus.broker.handlers.tokens import TokenHandler
from spark_logbus.broker.handlers.topics import TopicHandler
from spark_logbus.broker.handlers.unclean_elections import UncleanElectHandler
from spark_logbus.broker.handlers.work_executor import WorkExecutor
from spark_logbus.broker.handlers.writes import WriteHandler
from spark_logbus.broker.metadata_cache import MetadataCache
from spark_logbus.broker.publisher import Publisher
from spark_logbus.broker.replica.follower_reads import FollowerReads
from spark_logbus.broker.replica.followers import Followers
from spark_logbus.broker.replica.following import Following
from spark_logbus.broker.replica.hand_over import HandOvers, StandingMove
from spark_logbus.broker.replica.holds import Holds
from spark_logbus.broker.replica.preferred_leaders import PreferredLeaders
from spark_logbus.broker.replica.states import Replicas
from spark_logbus.broker.replica.unclean import UncleanElections
from spark_logbus.broker.schema_ids import KnownSchemaIds
from spark_logbus.broker.security.known import SecurityState
from spark_logbus.broker.security.owners import WriteOwners
from spark_logbus.clock import Clock
from spark_logbus.coordination.cluster.brokers import BrokerRegistry
from spark_logbus.coordination.cluster.drained import DrainedBrokers
from spark_logbus.coordination.cluster.moves import PartitionMoves
from spark_logbus.coordination.cluster.partition_states import PartitionStates
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.cluster.topics import TopicRegistry
from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.coordination.subjects import SubjectIds, SubjectReader
from spark_logbus.coordination.writes.writers import WriterRegistry
from spark_logbus.model import TopicPartition
from spark_logbus.network import Connection
from spark_logbus.security.identity import NOBODY, Identity
from spark_logbus.security.tokens import Claims, sign
from spark_logbus.zookeeper import CorruptNodeError, Session
from tests.fakes.broker_parts import TOPIC_ID, Logs, held_lease, in_sync_over
from tests.fakes.executor import InlineExecutor
from tests.fakes.writers import promises_of


@dataclass
class Peer:
    """Peer of a request, without a connection."""

    peer: str = "peer"
    handshaken: bool = False
    has_ended: bool = False
    takes_descriptors: bool = True
    identity: Identity = NOBODY
    login: None = None

    def handshake_done(self) -> None:
        self.handshaken = True

    def end_when_answered(self) -> None:
        self.has_ended = True

    def as_connection(self) -> Connection:
        return cast(Connection, self)


class Signing:
    """A stand-in for ``SecurityState``, which only signs tokens."""

    def token(self, claims_of: Callable[[int], Claims]) -> bytes:
        return sign(claims_of(1), b"k" * 32)


@dataclass
class Drained:
    """A stand-in for ``DrainedBrokers``."""

    marked: frozenset[int] = frozenset()

    def ids(self) -> set[int]:
        return {*self.marked}


class NeverLed:
    """A stand-in for ``PartitionStates``, which has no state of any partition."""

    def states_of(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, None]:
        return dict.fromkeys(partitions)


def context(payload: memoryview | None = None) -> RequestContext:
    return RequestContext(Peer().as_connection(), payload or memoryview(b""))


def schema_ids(subjects: Mapping[str, Collection[int]], clock: Clock) -> KnownSchemaIds:
    """Builds the ids of these subjects, which are looked up at once."""

    def read(names: Iterable[str]) -> dict[str, SubjectIds | CorruptNodeError]:
        return {name: SubjectIds(frozenset(subjects.get(name, ()))) for name in names}

    return KnownSchemaIds(read, connected=lambda: True, executor=InlineExecutor(), clock=clock)


def dispatcher_over(
    logs: Logs,
    executor: WorkExecutor,
    *,
    metadata_cache: object,
    topics: object = None,
    writers: object = None,
    moves: object = None,
    brokers: object = None,
    standing: StandingMove = lambda *_: None,
    assigned: AssignedTo = lambda *_: (),
    max_wait_ms: int = 1,
) -> RequestDispatcher:
    """All handlers, of a broker with the id 5."""
    partitions, clock, metrics = (
        logs.here.as_replica_manager(),
        logs.clock,
        RequestMetrics(logs.clock),
    )
    config = BrokerConfig(id=5, data_dir=Path("d"))
    holds, sessions = Holds(), ReplicaSessions(partitions.find)
    followers = Followers(clock=clock, written=sessions.changed)
    in_sync = in_sync_over(clock, followers=followers)
    for led in logs.here.led.values():
        in_sync.lead(led, PartitionState(config.id, led.leader_epoch, [config.id]))
    publisher = Publisher(
        partitions,
        logs=logs.directory,
        writers=cast(WriterRegistry, writers),
        topics=cast(TopicRegistry, topics),
        lease=held_lease(),
        session=cast(Session, None),  # for what it looks after by itself
        clock=clock,
        retention_ms=1,
        promises=promises_of(5),
        in_sync=in_sync,
    )
    cache = cast(MetadataCache, metadata_cache)
    return RequestDispatcher(
        [
            HandshakeHandler(config, authentication=None),
            MetadataHandler(cache, partitions, executor, followers=followers, in_sync=in_sync),
            AppendHandler(
                partitions,
                schema_ids=schema_ids({}, clock),
                lease=held_lease(),
                holds=holds,
                in_sync=in_sync,
                clock=clock,
                max_wait_ms=max_wait_ms,
                owners=WriteOwners(),
                metrics=metrics,
            ),
            FetchHandler(
                partitions,
                DelayedFetches(),
                clock=clock,
                max_wait_ms=max_wait_ms,
                max_fetch_bytes=1 << 20,
                metrics=metrics,
                followed=FollowerReads(
                    config.id,
                    logs=logs.directory,
                    replicas=Replicas(),
                    metadata_cache=cache,
                    is_current=lambda: True,
                    changed=DelayedFetches().wake,
                ),
                in_sync=in_sync,
            ),
            ReplicateHandler(
                config.id,
                partitions,
                sessions,
                followers=followers,
                holds=holds,
                standing=standing,
                assigned=assigned,
                members=lambda _: [config.id],
                clock=clock,
                max_wait_ms=max_wait_ms,
                max_fetch_bytes=1 << 20,
                metrics=metrics,
            ),
            OffsetHandler(partitions, in_sync=in_sync, metrics=metrics),
            TopicHandler(
                config,
                metadata_cache=cache,
                topics=cast(TopicRegistry, topics),
                drained=cast(DrainedBrokers, Drained()),
                brokers=cast(BrokerRegistry, brokers),
                subjects=cast(SubjectReader, None),  # for topics with schemas
                executor=executor,
            ),
            MoveHandler(
                cast(PartitionMoves, moves),
                topics=cast(TopicRegistry, topics),
                brokers=cast(BrokerRegistry, brokers),
                drained=cast(DrainedBrokers, Drained()),
                clock=clock,
                executor=executor,
            ),
            ElectHandler(
                PreferredLeaders(
                    config.id,
                    replica_manager=partitions,
                    hand_overs=cast(HandOvers, None),  # for what has several replicas
                    members=lambda _: [config.id],
                    topic=lambda _: None,
                    live=lambda: [config.id],
                    is_certain=lambda: True,
                    clock=clock,
                    after_ms=1,
                ),
                clock=clock,
                executor=executor,
            ),
            UncleanElectHandler(
                UncleanElections(
                    config.id,
                    replica_manager=partitions,
                    logs=logs.directory,
                    states=cast(PartitionStates, NeverLed()),
                    following=cast(Following, None),  # for what is led in ZooKeeper
                    topic={"t": TopicRecord("t", TOPIC_ID, {0: [5], 1: [5, 6]}, {})}.get,
                    live=lambda: [config.id],
                    end_promises=lambda _: None,
                ),
                clock=clock,
                executor=executor,
            ),
            TokenHandler(cast(SecurityState, Signing()), now_us=lambda: 0, max_ms=60_000),
            WriteHandler(
                publisher,
                writers=cast(WriterRegistry, writers),
                metadata_cache=cache,
                copying=executor,
                preparing=executor,
                coordinating=executor,
                owners=WriteOwners(),
                metrics=metrics,
            ),
        ],
        max_entries=config.network.max_partitions_per_request,
        metrics=metrics,
    )

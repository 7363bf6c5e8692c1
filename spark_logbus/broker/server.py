"""The composition root of one broker: makes its parts, starts and stops them in order."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from spark_logbus.broker.compaction.scheduler import Compactor
from spark_logbus.broker.config import BrokerConfig
from spark_logbus.broker.data_directory import (
    BROKER_FILES,
    check_identity,
    claim_identity,
    keep_private,
    remember_port,
)
from spark_logbus.broker.flushed_ends import FlushedEndNotes
from spark_logbus.broker.handlers.append import AppendHandler
from spark_logbus.broker.handlers.dispatch import RequestDispatcher
from spark_logbus.broker.handlers.elections import ElectHandler
from spark_logbus.broker.handlers.fetch import FetchHandler
from spark_logbus.broker.handlers.handler import Handler
from spark_logbus.broker.handlers.handshake import HandshakeHandler
from spark_logbus.broker.handlers.long_poll import DelayedFetches
from spark_logbus.broker.handlers.metadata import MetadataHandler
from spark_logbus.broker.handlers.moves import MoveHandler
from spark_logbus.broker.handlers.offsets import OffsetHandler
from spark_logbus.broker.handlers.replica_sessions import ReplicaSessions
from spark_logbus.broker.handlers.replicate import ReplicateHandler
from spark_logbus.broker.handlers.request_metrics import RequestMetrics
from spark_logbus.broker.handlers.tokens import TokenHandler
from spark_logbus.broker.handlers.topics import TopicHandler
from spark_logbus.broker.handlers.unclean_elections import UncleanElectHandler
from spark_logbus.broker.handlers.work_executor import WorkExecutor
from spark_logbus.broker.handlers.writes import WriteHandler
from spark_logbus.broker.identity import BrokerIdentity
from spark_logbus.broker.listening import address_of, listen
from spark_logbus.broker.maintenance import log_maintenance
from spark_logbus.broker.metadata_cache import MetadataCache, TopicsImage
from spark_logbus.broker.monitoring import Monitoring, Phase
from spark_logbus.broker.publisher import Publisher
from spark_logbus.broker.replica.finishing import Finishing, MoveEnds
from spark_logbus.broker.replica.follower_reads import FollowerReads
from spark_logbus.broker.replica.followers import Followers
from spark_logbus.broker.replica.following import Following
from spark_logbus.broker.replica.hand_over import HandOvers
from spark_logbus.broker.replica.holds import Holds
from spark_logbus.broker.replica.in_sync import InSync
from spark_logbus.broker.replica.manager import ReplicaManager
from spark_logbus.broker.replica.old_logs import OldLogs
from spark_logbus.broker.replica.preferred_leaders import PreferredLeaders
from spark_logbus.broker.replica.states import LeaderPartition, Replicas
from spark_logbus.broker.replica.unclean import UncleanElections
from spark_logbus.broker.replica.unclean_topics import UncleanTopics, asking
from spark_logbus.broker.replica.watermark import HighWatermarks
from spark_logbus.broker.schema_ids import KnownSchemaIds
from spark_logbus.broker.security.owners import WriteOwners
from spark_logbus.broker.security.peers import connections_to_brokers
from spark_logbus.broker.security.security import Security
from spark_logbus.clock import Clock, SystemClock
from spark_logbus.coordination.cluster.brokers import BrokerRegistry
from spark_logbus.coordination.cluster.drained import DrainedBrokers
from spark_logbus.coordination.cluster.lease import Lease
from spark_logbus.coordination.cluster.moves import PartitionMoves
from spark_logbus.coordination.cluster.partition_states import PartitionStates
from spark_logbus.coordination.cluster.topics import TopicRegistry
from spark_logbus.coordination.subjects import SubjectReader
from spark_logbus.coordination.writes.promises import PromiseRegistry, Promises
from spark_logbus.coordination.writes.writers import WriterRegistry
from spark_logbus.errors import LogbusError
from spark_logbus.log import OS_FILES, FileSystem, LogDirectory, free_bytes
from spark_logbus.model import BrokerAddress, TopicPartition
from spark_logbus.network import Network, allow_descriptors
from spark_logbus.zookeeper import Session, SessionState
from spark_logbus.zookeeper.guarding import warn_of_open_nodes

logger = logging.getLogger(__name__)

_DRAIN_LOOK_S = 0.02
# Requests that wait for followers at a time, and do little else.
_PREPARING = 8
# To give leads to others when the broker stops; elections see to what is left.
_HAND_OVER_S = 5.0


class Broker:
    """``start`` and ``stop`` are called once each, by one thread.

    Start: logs are recovered, ZooKeeper is waited for, the port is bound, the broker registered,
    then requests are served. ``give_up_start`` ends that early.
    Stop: give leads to others that are in sync, refuse new requests, finish those under way, leave
    ZooKeeper, close the logs with a clean marker; a ZooKeeper that does not answer holds that up by
    no more than seconds.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock | None = None,
        files: FileSystem = OS_FILES,
    ) -> None:
        self.config = config
        self._clock = clock = clock or SystemClock()
        self._session = session = Session(
            config.zookeeper,
            client_name=f"broker-{config.id}",
            session_timeout_ms=config.zookeeper_session_ms,
            connect_timeout_ms=None,
        )
        #: Where a gateway beside this broker listens, for others to know; set before ``start``.
        self.gateway_port: int | None = None
        self.security = self._security = (
            Security(config, session, clock=clock, now_us=lambda: self._logs.clock.time.stamp_us())
            if config.security.authenticate
            else None
        )
        self._owners = WriteOwners(self._security)
        brokers = BrokerRegistry(session)
        topics, states = TopicRegistry(session), PartitionStates(session)
        self._lease = Lease(timeout_ms=config.zookeeper_session_ms, ask=brokers.holds)
        session.set_state_hook(self._lease.session_is)

        self._logs = LogDirectory(
            config.data_dir,
            defaults=config.log,
            clock=clock,
            files=files,
            known_files=BROKER_FILES,
            watermark=(watermarks := HighWatermarks()),
        )
        writers = WriterRegistry(session, stamp_us=self._logs.clock.time.stamp_us)
        delayed_fetches = DelayedFetches()
        sessions = ReplicaSessions(lambda topic_partition: replicas.leader(topic_partition))
        self._followers = Followers(clock=clock, written=sessions.changed)
        self._holds = Holds()
        self._in_sync = InSync(
            config.id,
            states=states,
            followers=self._followers,
            watermarks=watermarks,
            topic=lambda name: self._metadata_cache.topics.get(name),
            live=lambda: [each.broker_id for each in self._metadata_cache.brokers],
            is_certain=self._reaches_zookeeper,
            lag_max_ms=config.replication.lag_max_ms,
            clock=clock,
        )

        def partition_changed(topic_partition: TopicPartition) -> None:
            delayed_fetches.wake(topic_partition)
            sessions.partition_changed(topic_partition)

        replicas = Replicas(ended=self._in_sync.end)
        connections = connections_to_brokers(config, self._security, clock)
        self._following = Following(
            config.id,
            logs=self._logs,
            states=states,
            moves=PartitionMoves(session),
            replicas=replicas,
            watermarks=watermarks,
            address=self._address_of,
            free_bytes=lambda: free_bytes(config.data_dir),
            reserve_bytes=config.moves.reserve_bytes,
            connections=connections,
            clock=clock,
        )
        self._old_logs = OldLogs(
            config.id,
            logs=self._logs,
            topics=topics,
            states=states,
            brokers=brokers,
            session=session,
            clock=clock,
            retention_ms=config.moves.retention_ms,
        )
        self._replica_manager = ReplicaManager(
            config.id,
            logs=self._logs,
            states=states,
            writers=writers,
            replicas=replicas,
            following=self._following,
            old_logs=self._old_logs,
            leads=self._in_sync,
            end_promises=(end_promises := partial(_end_promises, session)),
            clock=clock,
            partition_changed=partition_changed,
        )

        def topics_changed(image: TopicsImage) -> None:
            self._in_sync.topics_changed()
            self._replica_manager.update(image)

        def brokers_changed(live: Collection[int]) -> None:
            self._in_sync.brokers_changed()
            self._replica_manager.brokers_changed(live)

        promises = Promises(PromiseRegistry(session, config.id))
        self._publisher = Publisher(
            self._replica_manager,
            logs=self._logs,
            writers=writers,
            topics=topics,
            lease=self._lease,
            session=session,
            clock=clock,
            retention_ms=config.writer_retention_ms,
            promises=promises,
            in_sync=self._in_sync,
            secured=self._owners.may_be_known,
        )
        self._metadata_cache = MetadataCache(
            session,
            brokers=brokers,
            topics=topics,
            states=states,
            topics_changed=topics_changed,
            states_changed=self._replica_manager.states_changed,
            brokers_changed=brokers_changed,
        )
        ends = MoveEnds(
            config.id,
            followers=self._followers,
            in_sync=self._in_sync,
            topic=lambda name: self._metadata_cache.topics.get(name),
        )
        self._hand_overs = HandOvers(
            self._replica_manager,
            broker_id=config.id,
            followers=self._followers,
            holds=self._holds,
            moves=PartitionMoves(session),
            ends=ends,
            promises=promises,
            lease=self._lease,
            session=session,
            clock=clock,
            changed=sessions.changed,
        )
        self._finishing = Finishing(
            config.id,
            ends,
            moves=PartitionMoves(session),
            topics=lambda: self._metadata_cache.topics,
            find=self._replica_manager.find,
            hand_over=self._hand_overs.ask,
            is_certain=lambda: session.state is SessionState.CONNECTED and self._lease.current(),
            clock=clock,
        )
        self._preferred_leaders = PreferredLeaders(
            config.id,
            replica_manager=self._replica_manager,
            hand_overs=self._hand_overs,
            members=self._members_of,
            topic=lambda name: self._metadata_cache.topics.get(name),
            live=lambda: [each.broker_id for each in self._metadata_cache.brokers],
            is_certain=self._reaches_zookeeper,
            clock=clock,
            after_ms=config.replication.preferred_after_ms,
        )
        self._unclean = UncleanElections(
            config.id,
            replica_manager=self._replica_manager,
            logs=self._logs,
            states=states,
            following=self._following,
            topic=lambda name: self._metadata_cache.topics.get(name),
            live=lambda: [each.broker_id for each in brokers.live()],
            end_promises=end_promises,
        )
        self._unclean_topics = UncleanTopics(
            config.id,
            elections=self._unclean,
            replica_manager=self._replica_manager,
            topics=lambda: self._metadata_cache.topics,
            live=lambda: [each.broker_id for each in self._metadata_cache.brokers],
            is_certain=self._reaches_zookeeper,
            ask=asking(connections, self._address_of, clock),
            clock=clock,
        )
        self._flushed_ends = FlushedEndNotes(
            self._replica_manager, states, session, in_sync=self._in_sync, clock=clock
        )
        self._maintenance = log_maintenance(self._logs)
        self._compactor = Compactor(self._logs, config.data_dir, config.compaction, clock=clock)

        request_metrics = RequestMetrics(clock)
        max_wait_ms = config.network.max_wait_ms
        self._zookeeper_executor = WorkExecutor("ZooKeeper", clock=clock, max_wait_ms=max_wait_ms)
        self._replica_executor = WorkExecutor(
            "other replicas", clock=clock, max_wait_ms=max_wait_ms, threads=_PREPARING
        )
        self._copy_executor = WorkExecutor("the disk", clock=clock, max_wait_ms=max_wait_ms)
        self._schema_executor = ThreadPoolExecutor(1, thread_name_prefix="schema-ids")
        self._fetches = FetchHandler(
            self._replica_manager,
            delayed_fetches,
            clock=clock,
            max_wait_ms=config.network.max_wait_ms,
            max_fetch_bytes=config.network.max_fetch_bytes,
            metrics=request_metrics,
            followed=FollowerReads(
                config.id,
                logs=self._logs,
                replicas=replicas,
                metadata_cache=self._metadata_cache,
                is_current=self._lease.current,
                changed=delayed_fetches.wake,
            ),
            in_sync=self._in_sync,
        )
        self._replications = ReplicateHandler(
            config.id,
            self._replica_manager,
            sessions,
            followers=self._followers,
            holds=self._holds,
            standing=self._metadata_cache.standing_move,
            assigned=self._metadata_cache.assigned_to,
            members=self._members_of,
            clock=clock,
            max_wait_ms=config.network.max_wait_ms,
            max_fetch_bytes=config.network.max_fetch_bytes,
            metrics=request_metrics,
        )
        self._requests = self._make_dispatcher(topics, writers, brokers, request_metrics)
        self._identity = BrokerIdentity(
            config.id,
            registry=brokers,
            lease=self._lease,
            replica_manager=self._replica_manager,
            requests=self._requests,
        )
        self._network: Network | None = None
        self._monitoring = Monitoring(
            config,
            clock=clock,
            session=session,
            logs=self._logs,
            replica_manager=self._replica_manager,
            metadata_cache=self._metadata_cache,
            followers=self._followers,
            following=self._following,
            hand_overs=self._hand_overs.stats,
            in_sync=self._in_sync,
            publisher=self._publisher,
            requests=self._requests,
            request_metrics=request_metrics,
            compaction=self._compactor.stats,
            security=self._security,
        )

    def _make_dispatcher(
        self,
        topics: TopicRegistry,
        writers: WriterRegistry,
        brokers: BrokerRegistry,
        metrics: RequestMetrics,
    ) -> RequestDispatcher:
        config, network, security = self.config, self.config.network, self._security
        authorization = None if security is None else security.authorization
        subjects = SubjectReader(self._session)
        drained = DrainedBrokers(self._session)
        schema_ids = KnownSchemaIds(
            subjects.read,
            connected=lambda: self._session.state is SessionState.CONNECTED,
            executor=self._schema_executor,
            clock=self._clock,
        )
        appends = AppendHandler(
            self._replica_manager,
            schema_ids=schema_ids,
            lease=self._lease,
            holds=self._holds,
            in_sync=self._in_sync,
            clock=self._clock,
            max_wait_ms=network.max_wait_ms,
            owners=self._owners,
            metrics=metrics,
        )
        topic_changes = TopicHandler(
            config,
            metadata_cache=self._metadata_cache,
            topics=topics,
            drained=drained,
            brokers=brokers,
            subjects=subjects,
            executor=self._zookeeper_executor,
        )
        handlers: list[Handler] = [
            HandshakeHandler(config, None if security is None else security.authentication),
            MetadataHandler(
                self._metadata_cache,
                self._replica_manager,
                self._zookeeper_executor,
                followers=self._followers,
                in_sync=self._in_sync,
                authorization=authorization,
            ),
            appends,
            self._fetches,
            self._replications,
            OffsetHandler(self._replica_manager, in_sync=self._in_sync, metrics=metrics),
            topic_changes,
            MoveHandler(
                PartitionMoves(self._session),
                topics=topics,
                brokers=brokers,
                drained=drained,
                clock=self._clock,
                executor=self._zookeeper_executor,
            ),
            ElectHandler(
                self._preferred_leaders, clock=self._clock, executor=self._zookeeper_executor
            ),
            UncleanElectHandler(
                self._unclean, clock=self._clock, executor=self._zookeeper_executor
            ),
            TokenHandler(
                None if security is None else security.state,
                now_us=self._logs.clock.time.stamp_us,
                max_ms=config.security.token_max_ms,
            ),
            WriteHandler(
                self._publisher,
                writers=writers,
                metadata_cache=self._metadata_cache,
                copying=self._copy_executor,
                preparing=self._replica_executor,
                coordinating=self._zookeeper_executor,
                owners=self._owners,
                metrics=metrics,
            ),
        ]
        return RequestDispatcher(
            handlers,
            max_entries=network.max_partitions_per_request,
            metrics=metrics,
            authorization=authorization,
        )

    def _reaches_zookeeper(self) -> bool:
        """Tells if this broker has its id for certain, and knows what ZooKeeper knows."""
        return self._session.state is SessionState.CONNECTED and self._lease.current()

    def _members_of(self, led: LeaderPartition) -> list[int]:
        """The brokers that are in sync of a partition that is led here."""
        members = self._in_sync.members(led)
        return [self.config.id] if members is None else members.in_sync

    def _address_of(self, broker_id: int) -> BrokerAddress | None:
        """The address of a broker as ZooKeeper has it; None while it is not registered."""
        brokers = {each.broker_id: each for each in self._metadata_cache.brokers}
        return brokers.get(broker_id)

    @property
    def address(self) -> BrokerAddress:
        """The address for clients; known after ``start``."""
        assert self._network is not None, "the broker has not been started"
        return address_of(self.config, self._network, self.gateway_port)

    def start(self) -> None:
        config = self.config
        check_identity(config.data_dir, config.id)
        self._monitoring.start()  # first, so that one can watch a long recovery
        try:
            self._monitoring.health.phase = Phase.RECOVERING
            self._logs.open(self._claim)
        except BaseException:
            self._monitoring.stop()
            raise
        try:
            self._monitoring.health.phase = Phase.JOINING
            self._monitoring.remember_port()
            allow_descriptors(config.network.max_connections)
            self._session.start()
            warn_of_open_nodes(self._session)
            if self._security is not None:
                self._security.state.start()
            self._network = self._monitoring.sources.network = listen(config, self._clock)
            if self._security is not None:
                self._security.state.follow(self._network.look_again)
                self._security.thread.start()
            if self._network.port is not None:
                remember_port(config.data_dir, self._network.port)
            self._identity.register(self.address)
            self._replica_manager.thread.start()
            self._following.thread.start()
            self._old_logs.thread.start()
            self._metadata_cache.start()
            self._lease.start()
            self._flushed_ends.thread.start()
            self._in_sync.thread.start()
            self._publisher.thread.start()
            self._hand_overs.thread.start()
            self._finishing.thread.start()
            self._preferred_leaders.thread.start()
            self._unclean_topics.thread.start()
            self._network.start(self._requests.dispatch)
            self._maintenance.start()
            self._compactor.thread.start()
            self._monitoring.health.phase = Phase.SERVING
        except BaseException:
            self.stop()
            raise
        logger.info("Broker %d is ready at %s:%d, data in %s.", config.id, self.address.host,
                 self.address.port, config.data_dir)  # fmt: skip

    def _claim(self) -> None:
        """Makes the data directory this broker's, with its lock held."""
        claim_identity(self.config.data_dir, self.config.id)
        if self._security is not None:
            keep_private(self.config.data_dir)

    def give_up_start(self) -> None:
        """Have a ``start`` that runs on another thread, and waits for ZooKeeper, end with
        CoordinationError; one that recovers logs does when it is through. Not to be called after
        ``start`` has returned."""
        self._session.close()

    def stop(self) -> None:
        """Ordered shutdown; every step is tried even when an earlier one failed."""
        self._monitoring.health.phase = Phase.STOPPING
        steps = [
            self._give_leads_away, self._identity.give_up, self._hand_overs.end_waiting,
            self._fetches.end_waiting, self._replications.end_waiting, self._lease.stop,
        ]  # fmt: skip
        if self._network is not None:
            steps += [self._network.stop_accepting, self._drain, self._network.stop]
        # The session goes before the threads that may be waiting for an answer of ZooKeeper's.
        steps += [
            self._flushed_ends.thread.stop, self._session.close, self._lease.join,
            *([] if self._security is None else [self._security.thread.stop]),
            self._in_sync.thread.stop, self._publisher.thread.stop,
            self._finishing.thread.stop, self._preferred_leaders.thread.stop,
            self._unclean_topics.thread.stop,
            self._hand_overs.thread.stop,
            self._replica_manager.thread.stop, self._following.stop, self._old_logs.thread.stop,
            self._metadata_cache.stop, self._zookeeper_executor.stop, self._copy_executor.stop,
            self._replica_executor.stop, self._stop_schema_executor, self._compactor.thread.stop,
            self._maintenance.stop, self._logs.close, self._monitoring.stop,
        ]  # fmt: skip
        for step in steps:
            try:
                step()
            except (LogbusError, OSError) as error:
                logger.error("While stopping: %s", error)
            except Exception:  # else no log would be closed
                logger.exception("A step of stopping has failed in a way that was not foreseen.")
        logger.info("Broker %d has stopped.", self.config.id)

    def _give_leads_away(self) -> None:
        """Gives leads to others while requests are served still: so followers get what they lack,
        and clients are told who leads."""
        self._preferred_leaders.thread.end()
        if self._session.state is SessionState.CONNECTED:
            self._preferred_leaders.hand_over_all(_HAND_OVER_S)

    def _stop_schema_executor(self) -> None:
        self._schema_executor.shutdown(wait=False, cancel_futures=True)

    def _drain(self) -> None:
        assert self._network is not None
        deadline = self._clock.monotonic() + self.config.network.drain_timeout_ms / 1000
        pause = threading.Event()
        while self._network.waiting() and self._clock.monotonic() < deadline:
            pause.wait(_DRAIN_LOOK_S)


def _end_promises(session: Session, broker_id: int) -> None:
    """Has what a broker has prepared of atomic writes prepared anew."""
    PromiseRegistry(session, broker_id).end()

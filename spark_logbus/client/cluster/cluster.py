"""The client's view of a cluster: brokers, leaders, and when to ask for them again."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import TracebackType
from typing import Final, NoReturn, TypeVar

from spark_logbus.client.cluster.access import Access, ShownToken, TokenSource, tls_of_tasks
from spark_logbus.client.cluster.bootstrap import Bootstrap
from spark_logbus.client.cluster.calls import BrokerCalls
from spark_logbus.client.cluster.metadata import KnownTopic, LedPartition, Metadata
from spark_logbus.client.cluster.nearest import NearestReplicas
from spark_logbus.client.config import RACK_VARIABLE, ClientConfig
from spark_logbus.client.memory import arrow_memory
from spark_logbus.client.shortened import shortened
from spark_logbus.clock import Clock, SystemClock
from spark_logbus.errors import (
    BrokerUnavailableError,
    LogbusError,
    RequestTimeoutError,
    UnknownTopicError,
)
from spark_logbus.forks import follow_forks
from spark_logbus.model import BrokerAddress, TopicPartition
from spark_logbus.protocol import (
    Api,
    IssueTokenRequest,
    IssueTokenResponse,
    Message,
    MetadataRequest,
    MetadataResponse,
    PartitionInfo,
    TopicInfo,
)
from spark_logbus.retry import Backoff, Deadline, gave_up
from spark_logbus.security.tokens import Grant, grants_on_topics
from spark_logbus.wire.pool import ConnectionPool

# Answered from memory: a broker that takes longer is stopped or cut off, and another one is asked.
_METADATA_MS: Final = 1_500
M = TypeVar("M", bound=Message)
T = TypeVar("T")


class Cluster:
    """Bootstrap, metadata cache and connection pool. Thread-safe; share one per process. A forked
    process can go on with the one of its parent: it connects anew.

    Not picklable: it holds sockets. Send its ``Bootstrap`` and connect again.
    """

    def __init__(
        self,
        bootstrap: Bootstrap,
        config: ClientConfig,
        *,
        rebootstrap: Callable[[], Bootstrap] | None = None,
        clock: Clock,
    ) -> None:
        self._shown = ShownToken(bootstrap.access)
        config = self._with_access(config, bootstrap.access)
        self.config = config
        self.clock = clock
        self.pool = ConnectionPool(config.connections, allocate=arrow_memory)
        self.backoff = Backoff(first_ms=config.retry_backoff_ms, max_ms=config.retry_backoff_max_ms)
        self._callers = BrokerCalls(self.pool, config, bootstrap, rebootstrap)
        self._nearest = NearestReplicas(
            rack=config.rack or os.environ.get(RACK_VARIABLE) or None,
            local_sockets=config.uses_local_sockets,
            clock=clock,
        )
        self._metadata = Metadata()  # replaced as a whole, under _lock; read without it
        # Epochs whose leaders said that they do not lead, until a newer one is known; under _lock.
        self._refused: dict[LedPartition, int] = {}
        self._closing = threading.Event()
        self._tokens = TokenSource(self._issue_token, clock)
        self._make_locks()
        follow_forks(self)
        #: Where it was found, if that was in ZooKeeper.
        self.zookeeper: str | None = None

    def _make_locks(self) -> None:
        self._lock = threading.Lock()
        self._asking = threading.Lock()  # one thread asks for metadata, the others wait for it

    def after_fork(self) -> None:
        self._make_locks()
        self._tokens.after_fork()
        self._shown.after_fork()
        was_closing, self._closing = self._closing.is_set(), threading.Event()
        if was_closing:
            self._closing.set()

    @classmethod
    def connect(
        cls,
        bootstrap: Bootstrap,
        config: ClientConfig | None = None,
        *,
        rebootstrap: Callable[[], Bootstrap] | None = None,
        clock: Clock | None = None,
    ) -> Cluster:
        """A cluster client that has met at least one broker.

        ``rebootstrap`` is asked for new addresses when none of the known ones answers. Raises
        BrokerUnavailableError when no broker answers within the connect timeout.
        """
        cluster = cls(
            bootstrap,
            config or ClientConfig(),
            rebootstrap=rebootstrap,
            clock=clock or SystemClock(),
        )
        try:
            cluster.ask_metadata(
                [], deadline=cluster.deadline_ms(cluster.config.connect_timeout_ms)
            )
        except BaseException:
            cluster.close()
            raise
        return cluster

    @classmethod
    def from_zookeeper(
        cls,
        connect: str | None = None,
        config: ClientConfig | None = None,
        *,
        found: Bootstrap | None = None,
    ) -> Cluster:
        """Connect to the registered brokers, and look there again when all have moved.

        ``connect`` is ``host:port,.../chroot``; None stands for the environment's
        ``LOGBUS_ZOOKEEPER``, else ``localhost:2181/logbus``; ``profile:prod`` stands for the
        profile ``prod``. ``found`` are the brokers if somebody
        has looked them up just now. Raises CoordinationError when ZooKeeper cannot be reached,
        BrokerUnavailableError when no broker is registered.
        """
        # Imported here: Spark tasks use this module and never talk to ZooKeeper.
        from spark_logbus.zookeeper.connect_string import ConnectString, default_connect

        connect = default_connect() if connect is None else connect
        profile = ConnectString.parse(connect).profile
        if profile is not None:
            config = (config or ClientConfig()).with_profile(profile)
        bootstrap = found or Bootstrap.from_zookeeper(connect)
        cluster = cls.connect(
            bootstrap, config, rebootstrap=lambda: Bootstrap.from_zookeeper(connect)
        )
        cluster.zookeeper = connect
        return cluster

    def close(self) -> None:
        """Close idle connections and wake up whoever pauses before a retry."""
        self._closing.set()
        self.pool.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "A Cluster holds sockets and cannot be pickled; pickle cluster.bootstrap and call "
            "Cluster.connect with it on the other side."
        )

    def __repr__(self) -> str:
        return f"<Cluster at {self.address}{', closed' * self._closing.is_set()}>"

    @property
    def address(self) -> str:
        """Address of the cluster: ZooKeeper's connect string, or else the brokers."""
        if self.zookeeper is not None:
            return self.zookeeper
        brokers = self._callers.bootstrap.brokers
        return shortened([f"{each.host}:{each.port}" for each in brokers], separator=",")

    @property
    def bootstrap(self) -> Bootstrap:
        """Addresses that are good now, for a client elsewhere."""
        brokers = self._metadata.brokers
        return Bootstrap(tuple(sorted(brokers.values()))) if brokers else self._callers.bootstrap

    def for_tasks(self, topics: Iterable[str], *operations: str) -> Bootstrap:
        """Addresses for tasks elsewhere, with what lets them in: a token that is good for these
        operations on the topics, and for describing them, where this client has logged in."""
        if self.config.tls is None and self.config.login is None:
            return self.bootstrap
        token = None
        if self.config.login is not None or self.config.shows_certificate:
            token = self._tokens.get(grants_on_topics(topics, operations))
        return replace(self.bootstrap, access=Access(tls_of_tasks(self.config), token))

    def take_access(self, bootstrap: Bootstrap) -> None:
        """Shows the token that ``bootstrap`` has on new connections from now on, if that is of the
        same scope and lasts longer."""
        self._shown.take(bootstrap.access)

    def _with_access(self, config: ClientConfig, access: Access | None) -> ClientConfig:
        if access is None:
            return config
        from spark_logbus.security.logins import TokenLogin

        login = config.login
        if login is None and access.token is not None:
            login = TokenLogin(get=self._shown.get)
        return replace(config, tls=config.tls or access.tls, login=login)

    def _issue_token(self, grants: tuple[Grant, ...], lifetime_ms: int) -> IssueTokenResponse:
        request = IssueTokenRequest(grants=list(grants), lifetime_ms=lifetime_ms)

        def attempt(deadline: Deadline) -> IssueTokenResponse:
            return self._callers.ask_any(
                self.brokers, Api.ISSUE_TOKEN, request, IssueTokenResponse,
                deadline=deadline, good=lambda _: True,
            )  # fmt: skip

        return self.retrying("Asking for a token for tasks", attempt)

    @property
    def brokers(self) -> list[BrokerAddress]:
        """The live brokers as of the last metadata response, by id."""
        return sorted(self._metadata.brokers.values())

    # -- deadlines and retries ------------------------------------------------------------

    def deadline_ms(self, milliseconds: float) -> Deadline:
        return Deadline.after_ms(self.clock, milliseconds)

    def retry_deadline(self) -> Deadline:
        return self.deadline_ms(self.config.retry_deadline_ms)

    def pause(self, seconds: float) -> None:
        """Wait before a retry; raises at once when the cluster is closed."""
        if self._closing.wait(seconds):
            raise BrokerUnavailableError("This cluster client was closed during a retry.")

    def retrying(
        self,
        what: str,
        attempt: Callable[[Deadline], T],
        *,
        topics: Iterable[str] = (),
        deadline: Deadline | None = None,
        backoff: Backoff | None = None,
    ) -> T:
        """``attempt`` until it succeeds, fails for good, or the deadline is near.

        After a failure the leaders of ``topics`` are asked for again. ``what`` names the
        operation, capitalised, in the final error, which is of the last failure's kind.
        ``backoff`` is the configured one by default.
        """
        backoff = backoff or self.backoff
        started = self.clock.monotonic()
        deadline = deadline or self.retry_deadline()
        names = list(topics)
        failures: Counter[str] = Counter()
        last: LogbusError | None = None
        while True:
            try:
                return attempt(deadline)
            except LogbusError as error:
                if not error.retriable:
                    raise
                # A try that the deadline cut short says less than the one before it.
                if last is None or not deadline.expired:
                    last = error.again()
                failures[str(error)] += 1
                pause_s = backoff.pause_s(failures.total())
                if pause_s >= deadline.remaining_s:
                    [(usual, _)] = failures.most_common(1)
                    seconds = self.clock.monotonic() - started
                    raise gave_up(what, seconds, last, usual=usual) from error
            self.pause(pause_s)
            for name in names:
                self.invalidate(name)

    # -- metadata -------------------------------------------------------------------------

    def topic(self, name: str, deadline: Deadline) -> KnownTopic:
        """The topic from the cache, or asked for. UnknownTopicError if no broker has it."""
        known = self._fresh(name)
        if known is not None:
            return known
        asked_at = self.clock.monotonic()
        if not self._asking.acquire(timeout=deadline.remaining_s):
            raise RequestTimeoutError(f"Waited in vain for the metadata of topic {name}.")
        try:
            known = self._metadata.topics.get(name)
            if known is not None and known.learned_at >= asked_at:
                return known
            return self._learn(name, deadline)
        finally:
            self._asking.release()

    def _fresh(self, name: str) -> KnownTopic | None:
        known = self._metadata.topics.get(name)
        oldest = self.clock.monotonic() - self.config.metadata_max_age_ms / 1000
        return known if known is not None and known.learned_at >= oldest else None

    def _learn(self, name: str, deadline: Deadline, *, partition: int = 0) -> KnownTopic:
        # A broker hears of a new topic or partition a moment after the one that made it, so only
        # the word of all that answer is final.
        heard_of: list[int] = []  # partitions, by each broker that has the topic

        def has_it(response: MetadataResponse) -> bool:
            heard_of.extend(len(info.partitions) for info in response.topics if info.name == name)
            return max(heard_of, default=0) > partition

        self.ask_metadata([name], deadline=deadline, good=has_it)
        known = self._metadata.topics.get(name)
        if heard_of and known is not None:
            return known
        with self._lock:
            self._metadata = self._metadata.without(name)
        raise UnknownTopicError(
            f"The cluster has no topic {name!r}; create it, or check the name.{self.what_hides}"
        )

    @property
    def what_hides(self) -> str:
        """Sentence for messages about topics that brokers do not show: what else that may mean."""
        if self.config.login is None and not self.config.shows_certificate:
            return ""
        return " A topic is hidden from who has no right on it (logbus acls)."

    def invalidate(self, topic: str) -> None:
        """Ask for the topic's leaders anew before they are next relied on."""
        with self._lock:
            self._metadata = self._metadata.invalidated(topic)

    def invalidate_leader(self, address: BrokerAddress) -> None:
        """Invalidates all topics in which the broker leads a partition."""
        with self._lock:
            self._metadata = self._metadata.invalidated_leader(address.broker_id)

    def leader_refused(self, topic_partition: TopicPartition, address: BrokerAddress) -> None:
        """Look for a newer leader of the partition than the broker, which does not lead it (any
        more, or not yet); nothing changes where another one is known to lead by now."""
        with self._lock:
            topic = self._metadata.topics.get(topic_partition.topic)
            partition = topic_partition.partition
            if topic is not None and topic.leaders.get(partition) == address.broker_id:
                # Of a partition that is new the broker is assigned, and nobody has led yet.
                if topic.epochs[partition] >= 0:
                    self._refused[topic.topic_id, partition] = topic.epochs[partition]
                self._metadata = self._metadata.invalidated(topic.name)

    def has_refused(self, topic_partition: TopicPartition) -> bool:
        """True if the leader that is known said that it does not lead."""
        topic = self._metadata.topics.get(topic_partition.topic)
        if topic is None:
            return False
        return (topic.topic_id, topic_partition.partition) in self._refused

    def led_elsewhere(
        self, topic_partitions: Iterable[TopicPartition], silent: BrokerAddress
    ) -> list[TopicPartition]:
        """Returns those that another broker leads than the one that is ``silent``, as the others
        say now, which are asked for a moment."""
        wanted = list(topic_partitions)
        self.note_silence(silent)
        if len(self._metadata.brokers) > 1:
            topics = sorted({topic_partition.topic for topic_partition in wanted})
            try:
                self.ask_metadata(topics, deadline=self.deadline_ms(_METADATA_MS))
            except LogbusError as error:
                if not error.retriable:
                    raise
        return [each for each in wanted if self.has_another_leader(each, silent)]

    def note_silence(self, silent: BrokerAddress) -> None:
        """Has other brokers asked for metadata before one that does not answer."""
        self._callers.note_silence(silent)

    def has_another_leader(self, topic_partition: TopicPartition, address: BrokerAddress) -> bool:
        """True if another broker is known to lead the partition."""
        return self._metadata.leader_id(topic_partition) not in (None, address.broker_id)

    def is_replaced(self, topic_partition: TopicPartition, leader: BrokerAddress) -> bool:
        """Asks all brokers who leads a partition with several replicas; true if it is another one
        than the ``leader``, which may not have heard of that."""
        known = self._metadata.topics.get(topic_partition.topic)
        if known is None or topic_partition.partition not in known.replicas:
            return False
        self.hear_all([topic_partition.topic])
        return not self.leads(topic_partition, leader)

    def is_older(self, topic: TopicInfo, partition: PartitionInfo) -> bool:
        """True if a broker says that of a leader epoch before the one that is known."""
        return self._metadata.is_older(topic, partition)

    def hear_all(self, topics: Iterable[str]) -> None:
        """Asks all brokers about the topics, so that the newest leader epoch that any of them knows
        counts; for a moment, as some may be away."""
        deadline = self.deadline_ms(self.config.connect_timeout_ms)
        try:
            self.ask_metadata(sorted(topics), deadline=deadline, good=lambda _: False)
        except LogbusError as error:
            if not error.retriable:
                raise

    def is_stale(self, topic: str) -> bool:
        """True if ``topic`` would ask brokers for that topic."""
        return self._fresh(topic) is None

    def cached_leader(self, topic_partition: TopicPartition) -> BrokerAddress | None:
        """The leader if it is known, without asking anyone; it may be stale."""
        return self._metadata.leader(topic_partition)

    def cached_partition_count(self, topic: str) -> int:
        """Returns the number of partitions as last known, without asking anyone; 0 if unknown."""
        known = self._metadata.topics.get(topic)
        return 0 if known is None else len(known.leaders)

    def is_replicated(self, topic: str) -> bool:
        """True if a partition of the topic is known to have more than one replica."""
        known = self._metadata.topics.get(topic)
        return known is not None and bool(known.replicas)

    def knows(self, topic_partition: TopicPartition) -> bool:
        """True if the partition is in the last metadata."""
        topic = self._metadata.topics.get(topic_partition.topic)
        return topic is not None and topic_partition.partition in topic.leaders

    def leader_name(self, topic_partition: TopicPartition) -> str:
        """The leader for people, as last known: "broker 2 at host:port"."""
        return self._metadata.leader_name(topic_partition)

    def leader(self, topic_partition: TopicPartition, deadline: Deadline) -> BrokerAddress:
        """The leader, asked for if unknown.

        Raises UnknownTopicError for a partition that the topic does not have, and
        BrokerUnavailableError while no live broker leads it.
        """
        self.topic_with(topic_partition, deadline)
        address = self._metadata.leader(topic_partition)
        if address is None:
            raise self.not_running(topic_partition)
        return address

    def replica_to_read(self, topic_partition: TopicPartition, deadline: Deadline) -> BrokerAddress:
        """The nearest replica in sync, which is the leader where no other is nearer. Raises what
        ``leader`` does."""
        self.topic_with(topic_partition, deadline)
        address = self.cached_replica_to_read(topic_partition)
        if address is None:
            raise self.not_running(topic_partition)
        return address

    def cached_replica_to_read(self, topic_partition: TopicPartition) -> BrokerAddress | None:
        """The replica to read from if it is known, without asking anyone; it may be stale."""
        metadata = self._metadata
        leader = metadata.leader(topic_partition)
        in_sync = metadata.in_sync(topic_partition)
        return self._nearest.choose(topic_partition, leader, in_sync) if in_sync else leader

    def leads(self, topic_partition: TopicPartition, address: BrokerAddress) -> bool:
        """True if that broker leads the partition, as far as is known."""
        return self._metadata.leader_id(topic_partition) == address.broker_id

    def avoid_followers(self, topic_partition: TopicPartition) -> None:
        """Have the partition read from its leader for a while."""
        self._nearest.avoid(topic_partition)

    def topic_with(self, topic_partition: TopicPartition, deadline: Deadline) -> KnownTopic:
        """The topic as it is known to have that partition, which is asked for if it is not known.

        Raises UnknownTopicError for a partition that the topic does not have.
        """
        name, partition = topic_partition.topic, topic_partition.partition
        topic = self.topic(name, deadline)
        if partition not in topic.leaders and partition >= 0:
            topic = self._learn(name, deadline, partition=partition)  # it may be new
        if partition not in topic.leaders:
            raise UnknownTopicError(
                f"Topic {name} has the partitions 0 to {len(topic.leaders) - 1}, not {partition}."
            )
        return topic

    def not_running(self, topic_partition: TopicPartition) -> BrokerUnavailableError:
        """The error for a leader that is not among the live brokers."""
        return BrokerUnavailableError(
            f"The leader of {topic_partition}, {self.leader_name(topic_partition)}, is not "
            "running; start it again, its "
            "records are on its disk."
        )

    def ask_metadata(
        self,
        topics: list[str] | None,
        *,
        deadline: Deadline,
        good: Callable[[MetadataResponse], bool] = lambda _: True,
    ) -> MetadataResponse:
        """Ask one broker after the other until a response is ``good``; cache what it says.

        When none is good, the last response counts. None asks for all topics. When a broker is
        behind and names leaders of old, the others are asked too, once, for a moment.
        """

        def learned(response: MetadataResponse, good: Callable[[MetadataResponse], bool]) -> bool:
            self.learn(response)
            return good(response)

        def asked(deadline: Deadline, good: Callable[[MetadataResponse], bool]) -> MetadataResponse:
            return self.ask_any(
                Api.METADATA,
                MetadataRequest(topics=topics),
                MetadataResponse,
                deadline=deadline,
                good=lambda response: learned(response, good),
                most_ms=_METADATA_MS,
            )

        def newer(response: MetadataResponse) -> bool:
            return good(response) and not self._is_behind(response)

        response = asked(deadline, good)
        if len(self._metadata.brokers) < 2 or not self._is_behind(response):
            return response
        try:
            another = asked(deadline.sooner_ms(_METADATA_MS), newer)
        except LogbusError as error:
            if not error.retriable:
                raise
            return response
        return another if newer(another) else response

    def learn(self, response: MetadataResponse) -> None:
        """Cache what a broker has said, but for leaders of older epochs than are known."""
        with self._lock:
            learned_at = self.clock.monotonic()
            self._metadata = self._metadata.updated(response, learned_at=learned_at)
            if self._refused:
                for info in response.topics:
                    for part in info.partitions:
                        led = (info.topic_id, part.partition)
                        if self._refused.get(led, part.leader_epoch) < part.leader_epoch:
                            del self._refused[led]

    def _is_behind(self, response: MetadataResponse) -> bool:
        with self._lock:
            return self._metadata.is_behind(response, self._refused)

    # -- calls ----------------------------------------------------------------------------

    def call(
        self,
        address: BrokerAddress,
        api: Api,
        message: Message,
        kind: type[M],
        *,
        deadline: Deadline,
    ) -> M:
        """One request to one broker, without retry."""
        return self._callers.call(address, api, message, kind, deadline=deadline)

    def ask_any(
        self,
        api: Api,
        message: Message,
        kind: type[M],
        *,
        deadline: Deadline,
        good: Callable[[M], bool] = lambda _: True,
        most_ms: float | None = None,
        silent: list[LogbusError] | None = None,
    ) -> M:
        """The first good response of any broker, else the last response, else an error. While
        there are others left to ask, a broker has ``most_ms`` to answer. ``silent`` gets the errors
        of those that were asked and gave no answer, whatever they have done."""
        brokers = list(self._metadata.brokers.values())
        return self._callers.ask_any(
            brokers, api, message, kind, deadline=deadline, good=good, most_ms=most_ms,
            silent=silent,
        )  # fmt: skip

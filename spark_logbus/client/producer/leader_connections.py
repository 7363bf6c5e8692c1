"""The sender's connections to leaders, opened and looked up without holding the sender up.

Connecting and asking for metadata may take seconds when a broker is gone; a helper thread does
both, so that partitions whose leaders are well go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from spark_logbus.client.cluster.cluster import Cluster
from spark_logbus.client.cluster.metadata import KnownTopic
from spark_logbus.client.cluster.silence import ASK_EVERY_S
from spark_logbus.client.helper_threads import HelperThreads
from spark_logbus.client.producer.batches import QueuedBatch
from spark_logbus.client.producer.topic_queues import PartitionQueue
from spark_logbus.errors import BrokerUnavailableError, LogbusError, UnknownTopicError
from spark_logbus.model import BrokerAddress, TopicPartition
from spark_logbus.retry import Deadline
from spark_logbus.wire.connection import BrokerConnection, PendingResponse

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class InFlight:
    """One append request that is not answered yet, and its record batches. From ``ask_at`` on its
    leader counts as silent, and others are asked who leads by now."""

    pending: PendingResponse
    parts: list[tuple[PartitionQueue, list[QueuedBatch]]]
    deadline: Deadline
    ask_at: float


@dataclass(slots=True)
class Link:
    """The way to one leader."""

    address: BrokerAddress
    connection: BrokerConnection | None = None
    dialing: Future[BrokerConnection] | None = None
    in_flight: deque[InFlight] = field(default_factory=deque)
    failures: int = 0
    not_before: float = 0.0
    last_error: LogbusError | None = None


@dataclass(slots=True)
class _Lookup:
    asking: Future[KnownTopic] | None = None
    failures: int = 0
    not_before: float = 0.0


class LeaderConnections:
    """All links of one producer. Used by its sender thread only."""

    def __init__(self, cluster: Cluster, *, wake: Callable[[], None]) -> None:
        self._cluster = cluster
        self._wake = wake
        self._links: dict[BrokerAddress, Link] = {}
        self._lookups: dict[str, _Lookup] = {}
        self._helpers = HelperThreads(2, name="logbus-producer-connect")
        self.last_error: LogbusError | None = None

    def __iter__(self) -> Iterator[Link]:
        return iter(list(self._links.values()))

    def link_to_leader(self, topic_partition: TopicPartition, now: float) -> Link | None:
        """The connected link to the partition's leader; None while there is none."""
        address = self._cluster.cached_leader(topic_partition)
        stale = self._cluster.is_stale(topic_partition.topic)
        if address is None or stale:
            self._look_up(topic_partition.topic, now)
        if address is None:
            return None
        if (stale or self._looks_up(topic_partition.topic)) and self._cluster.has_refused(
            topic_partition
        ):
            return None  # the first broker that was asked may have been behind, too
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = Link(address)
        if link.connection is None and link.dialing is None and link.not_before <= now:
            deadline = self._cluster.deadline_ms(self._cluster.config.connect_timeout_ms)
            link.dialing = self._begun(self._cluster.pool.take, address, deadline)
        return link if link.connection is not None else None

    def refused(self, topic_partition: TopicPartition, link: Link, now: float) -> None:
        """Looks for the partition's leader, which is not at the end of ``link``: at once, so that
        it is known when what was refused is due again."""
        self._cluster.leader_refused(topic_partition, link.address)
        if self._cluster.is_stale(topic_partition.topic):
            lookup = self._lookups.get(topic_partition.topic)
            if lookup is not None:
                lookup.not_before = now  # another partition's leader, which is away, has time
            self._look_up(topic_partition.topic, now)

    def is_replaced(self, link: Link, now: float) -> bool:
        """True if the leader at the end of ``link`` is silent, and another one is known to lead
        what it has not answered for. Who leads is asked without waiting."""
        if not link.in_flight or now < link.in_flight[0].ask_at:
            return False
        head = link.in_flight[0]
        partitions = [queue.topic_partition for queue, _ in head.parts]
        if any(self._cluster.has_another_leader(each, link.address) for each in partitions):
            return True
        head.ask_at = now + ASK_EVERY_S
        self._cluster.note_silence(link.address)
        for topic in {each.topic for each in partitions}:
            self._look_up(topic, now)
        return False

    def unreachable_reason(self, topic_partition: TopicPartition) -> LogbusError | None:
        """The reason if the partition's leader cannot be reached; None if it can, or is unknown."""
        address = self._cluster.cached_leader(topic_partition)
        if address is None:
            known = self._cluster.knows(topic_partition)
            return self._cluster.not_running(topic_partition) if known else None
        link = self._links.get(address)
        if link is None or link.connection is not None or not link.failures:
            return None
        return link.last_error

    def _looks_up(self, topic: str) -> bool:
        lookup = self._lookups.get(topic)
        return lookup is not None and lookup.asking is not None

    def _look_up(self, topic: str, now: float) -> None:
        lookup = self._lookups.setdefault(topic, _Lookup())
        if lookup.asking is None and lookup.not_before <= now:
            self._cluster.invalidate(topic)
            deadline = self._cluster.deadline_ms(self._cluster.config.request_timeout_ms)
            lookup.asking = self._begun(self._cluster.topic, topic, deadline)

    def _begun(self, call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> Future[T]:
        """The future of a call in a helper thread, which wakes the sender when it is done."""
        try:
            future = self._helpers.submit(call, *arguments, **options)
        except RuntimeError as error:  # no more threads: the system's limit, or the program ends
            future = Future()
            future.set_exception(BrokerUnavailableError(f"No thread can be started: {error}."))
        future.add_done_callback(lambda _: self._wake())
        return future

    def adopt_connections(self, now: float) -> list[Link]:
        """Take in finished dials; the links that have just come up."""
        up = []
        for link in self._links.values():
            if link.dialing is None or not link.dialing.done():
                continue
            dialing, link.dialing = link.dialing, None
            try:
                link.connection = dialing.result()
            except LogbusError as error:
                self.take_down(link, error, now)
            else:
                link.failures = 0
                up.append(link)
        return up

    def adopt_lookups(self, now: float) -> list[tuple[str, UnknownTopicError]]:
        """Take in finished lookups; the topics that turned out not to exist."""
        unknown = []
        for topic, lookup in list(self._lookups.items()):
            if lookup.asking is None or not lookup.asking.done():
                continue
            asking, lookup.asking = lookup.asking, None
            try:
                known = asking.result()
            except UnknownTopicError as error:
                unknown.append((topic, error))
                del self._lookups[topic]
                continue
            except LogbusError as error:
                self.last_error = error
            else:
                topic_partitions = [TopicPartition(topic, number) for number in known.leaders]
                if all(
                    self._cluster.cached_leader(topic_partition) is not None
                    for topic_partition in topic_partitions
                ):
                    del self._lookups[topic]
                    continue
            # No answer, or a partition without a live leader: ask again, but not in a hurry.
            lookup.failures += 1
            lookup.not_before = now + self._cluster.backoff.pause_s(lookup.failures)
        return unknown

    def take_down(self, link: Link, error: LogbusError, now: float) -> list[InFlight]:
        """Close a link, to be dialed again after a pause; returns its unanswered requests."""
        self.last_error = link.last_error = error
        if link.connection is not None:
            link.connection.close(error)
            link.connection = None
        link.failures += 1
        link.not_before = now + self._cluster.backoff.pause_s(link.failures)
        lost = list(link.in_flight)
        link.in_flight.clear()
        self._cluster.invalidate_leader(link.address)
        return lost

    def events(self) -> Iterator[float]:
        """Times at which something becomes due by itself."""
        for link in self._links.values():
            if link.in_flight:
                yield min(link.in_flight[0].deadline.at, link.in_flight[0].ask_at)
            elif link.connection is None and link.dialing is None:
                yield link.not_before
        for lookup in self._lookups.values():
            if lookup.asking is None:
                yield lookup.not_before

    def close(self) -> None:
        self._helpers.shutdown(cancel_futures=True)
        for link in self._links.values():
            if link.dialing is not None and not link.dialing.cancelled():
                self._adopt_late(link)
            if link.connection is not None:
                self._cluster.pool.give_back(link.connection)
                link.connection = None

    def _adopt_late(self, link: Link) -> None:
        assert link.dialing is not None
        if link.dialing.exception() is None:
            link.connection = link.dialing.result()
        link.dialing = None

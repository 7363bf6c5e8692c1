"""Keeps one long-polling fetch per broker under way, over all partitions that a consumer wants.

A broker that is stopped or cut off keeps its connections, and answers nothing. While it is silent
the others are asked who leads by now, and what others lead is not waited for any longer.
"""

from __future__ import annotations

import select
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from spark_logbus.client.cluster.cluster import Cluster
from spark_logbus.client.cluster.leaders import fetch_error
from spark_logbus.client.cluster.silence import ANSWER_S, ASK_EVERY_S, ASK_SHARE
from spark_logbus.client.cluster.topic_identity import require_topic
from spark_logbus.client.config import ConsumerConfig
from spark_logbus.client.consumer.failures import PartitionFailures
from spark_logbus.errors import (
    LogbusError,
    NotLeaderError,
    OffsetOutOfRangeError,
    ProtocolError,
    RequestTimeoutError,
    TopicRecreatedError,
)
from spark_logbus.model import BrokerAddress, LostOffsets, TopicPartition
from spark_logbus.offsets.snapshot import Span
from spark_logbus.protocol import Api, FetchPartition, FetchRequest, FetchResponse
from spark_logbus.retry import Deadline
from spark_logbus.wire.connection import BrokerConnection, PendingResponse

_NOTHING: Final = memoryview(b"")


class Position(NamedTuple):
    """The next record to read, in one topic: in a later one of its name it means nothing."""

    offset: int
    topic_id: str


@dataclass(frozen=True, slots=True)
class PartitionData:
    """The data of one partition from ``position`` on, or the error that says it is no longer
    there: the log begins after it or ends before it, or its topic is gone."""

    topic_partition: TopicPartition
    position: Position
    data: memoryview
    lost: OffsetOutOfRangeError | TopicRecreatedError | None = None


@dataclass(slots=True)
class _PendingFetch:
    """One request under way to one broker, which follows ``followed`` and leads the others.
    ``given_up`` are those whose answer is not waited for. ``ask_at`` is when its silence is worth
    a question."""

    connection: BrokerConnection
    pending: PendingResponse
    positions: dict[TopicPartition, Position]
    followed: frozenset[TopicPartition]
    silent_from: float
    ask_at: float
    deadline: Deadline
    given_up: set[TopicPartition] = field(default_factory=set)

    @property
    def awaited(self) -> list[TopicPartition]:
        return [each for each in self.positions if each not in self.given_up]


class Fetcher:
    """Fetches of one consumer, at most one per broker. Not thread-safe. ``failures`` are shared
    with the consumer."""

    def __init__(
        self, cluster: Cluster, config: ConsumerConfig, failures: PartitionFailures
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._failures = failures
        self._waiting: dict[BrokerAddress, _PendingFetch] = {}
        self._lost: dict[TopicPartition, PartitionData] = {}  # not collected yet
        #: Of the partitions that were asked for, as the last answers told them: the offsets that
        #: are there, and what is lost between them.
        self.spans: dict[TopicPartition, Span] = {}
        #: The number of answers that brought records.
        self.answers = 0

    def send_fetches(self, wanted: Mapping[TopicPartition, Position]) -> None:
        """Send fetches for the partitions that none is under way for, where a broker is free."""
        under_way = {
            topic_partition for one in self._waiting.values() for topic_partition in one.awaited
        }
        by_broker: dict[BrokerAddress, dict[TopicPartition, Position]] = {}
        # For all partitions together: there may be many, and no broker that answers.
        began = self._cluster.clock.monotonic()
        patience = self._cluster.deadline_ms(self._cluster.config.connect_timeout_ms)
        for topic_partition, position in wanted.items():
            if (
                topic_partition in under_way
                or topic_partition in self._lost
                or not self._failures.may_try(topic_partition)
            ):
                continue
            try:
                # A leader refuses another topic's id as if it did not lead it; this finds out.
                require_topic(self._cluster, topic_partition.topic, position.topic_id, patience)
                address = self._cluster.replica_to_read(topic_partition, patience)
            except TopicRecreatedError as error:
                self._lost[topic_partition] = PartitionData(
                    topic_partition, position, _NOTHING, error
                )
                continue
            except LogbusError as error:
                self._failures.record_failure([topic_partition], error, began=began)
                continue
            if address not in self._waiting:
                by_broker.setdefault(address, {})[topic_partition] = position
        for address, positions in by_broker.items():
            self._send(address, positions)

    def _send(self, address: BrokerAddress, positions: dict[TopicPartition, Position]) -> None:
        config = self._config
        followed = frozenset(each for each in positions if not self._cluster.leads(each, address))
        request = FetchRequest(
            max_wait_ms=config.max_wait_ms,
            min_bytes=config.min_bytes,
            max_bytes=config.fetch_bytes,
            partitions=[
                FetchPartition(
                    topic_partition.topic,
                    topic_partition.partition,
                    position.offset,
                    config.partition_fetch_bytes,
                    topic_id=position.topic_id,
                )
                for topic_partition, position in positions.items()
            ],
            replica=bool(followed),
        )
        patience_ms = self._cluster.config.request_timeout_ms
        began = self._cluster.clock.monotonic()
        try:
            connection = self._cluster.pool.take(address, self._cluster.deadline_ms(patience_ms))
            pending = connection.send(Api.FETCH, request)
        except LogbusError as error:
            self._failed(address, positions, followed, error, began=began)
            return
        due = self._cluster.clock.monotonic() + config.max_wait_ms / 1000 + ANSWER_S
        deadline = self._cluster.deadline_ms(patience_ms + config.max_wait_ms)
        self._waiting[address] = _PendingFetch(
            connection, pending, positions, followed, silent_from=due, ask_at=due, deadline=deadline
        )

    def _failed(
        self,
        address: BrokerAddress,
        topic_partitions: Iterable[TopicPartition],
        followed: Collection[TopicPartition],
        error: LogbusError,
        *,
        began: float | None = None,
    ) -> None:
        """Record a failure. Whatever a follower meets, the leader may not."""
        wanted = list(topic_partitions)
        led = [each for each in wanted if each not in followed]
        if led:
            self._failures.record_failure(led, error, began=began)
        for topic_partition in wanted:
            if topic_partition in followed:
                self._cluster.avoid_followers(topic_partition)
                if not error.retriable:
                    error = NotLeaderError(
                        f"{address}, which follows {topic_partition}, cannot be read from: {error}"
                    )
                self._failures.record_failure([topic_partition], error, began=began)

    @property
    def waits(self) -> bool:
        """A broker is to answer."""
        return bool(self._waiting)

    def collect_fetches(self, deadline: Deadline) -> list[PartitionData]:
        """The data received by ``deadline``; returns as soon as any broker has answered.

        Raises errors that no retry can mend.
        """
        if not self._lost:
            self._wait(deadline)
        fetched = list(self._lost.values())
        self._lost.clear()
        for address, waiting in list(self._waiting.items()):
            if not waiting.pending.done and waiting.deadline.expired:
                waiting.connection.close(
                    RequestTimeoutError(f"{address} did not answer a fetch in time.")
                )
            if waiting.pending.done:
                del self._waiting[address]
                self._cluster.pool.give_back(waiting.connection)
                fetched += self._parse_response(address, waiting)
            else:
                self._note_silence(address, waiting)
        return fetched

    def _note_silence(self, address: BrokerAddress, waiting: _PendingFetch) -> None:
        """Give up what others lead by now, and what a silent broker only follows."""
        now = self._cluster.clock.monotonic()
        if waiting.connection.receives or now < waiting.silent_from:
            return
        silent = RequestTimeoutError(f"{address} has not answered a fetch that was due.")
        self._failures.record_silence(waiting.awaited, silent, since=waiting.silent_from)
        if now < waiting.ask_at:
            return
        elsewhere = self._cluster.led_elsewhere(waiting.awaited, address)
        took_s = self._cluster.clock.monotonic() - now
        waiting.ask_at = now + took_s + max(ASK_EVERY_S, ASK_SHARE * took_s)
        waiting.given_up.update(elsewhere)
        self._failed(address, elsewhere, waiting.followed, silent)
        if not waiting.awaited:
            waiting.connection.close(silent)
            del self._waiting[address]

    def _wait(self, deadline: Deadline) -> None:
        poll = select.poll()
        sockets = {}
        soonest = self._failures.next_event(deadline.at)
        now = self._cluster.clock.monotonic()
        for waiting in self._waiting.values():
            waiting.connection.progress(until=waiting.pending)
            if waiting.pending.done:
                return
            events = select.POLLIN | (select.POLLOUT if waiting.connection.wants_to_write else 0)
            poll.register(waiting.connection, events)
            sockets[waiting.connection.fileno()] = waiting
            soonest = min(soonest, waiting.deadline.at, *[waiting.ask_at] * (waiting.ask_at > now))
        left_s = max(0.0, soonest - self._cluster.clock.monotonic())
        if not sockets:
            self._cluster.pause(left_s)
            return
        for descriptor, _ in poll.poll(max(1.0, left_s * 1000)):
            sockets[descriptor].connection.progress(until=sockets[descriptor].pending)

    def _parse_response(
        self, address: BrokerAddress, waiting: _PendingFetch
    ) -> list[PartitionData]:
        try:
            response = waiting.pending.result(FetchResponse, waiting.deadline)
            results = response.results
            got = [TopicPartition(result.topic, result.partition) for result in results]
            total = sum(result.length for result in results)
            payload = waiting.pending.payload
            if got != list(waiting.positions) or total != len(payload):
                raise ProtocolError(
                    f"{address} answered a fetch of {len(waiting.positions)} partitions with "
                    f"{len(got)} results and {len(payload)} bytes, of which {total} are theirs."
                )
        except LogbusError as error:
            self._failed(address, waiting.awaited, waiting.followed, error)
            return []
        fetched = []
        at = 0
        self.answers += total > 0
        for topic_partition, result in zip(got, results, strict=True):
            position = waiting.positions[topic_partition]
            data = payload[at : at + result.length]
            at += result.length
            if topic_partition in waiting.given_up:
                continue
            follows = topic_partition in waiting.followed
            refused = (
                fetch_error(self._cluster, result.error, topic_partition, address)
                if result.error
                else None
            )
            if isinstance(refused, OffsetOutOfRangeError) and not follows:
                fetched.append(PartitionData(topic_partition, position, data, refused))
            elif refused is not None:
                self._failed(address, [topic_partition], waiting.followed, refused)
            elif follows and result.high_watermark < position.offset:
                self._cluster.avoid_followers(topic_partition)  # it lags, and was waited for
            else:
                self._failures.record_success(topic_partition)
                lost = tuple(LostOffsets(*each) for each in result.lost)
                self.spans[topic_partition] = Span(
                    result.log_start_offset, result.high_watermark, lost
                )
                if result.length:
                    fetched.append(PartitionData(topic_partition, position, data))
        return fetched

    def forget_partition(self, topic_partition: TopicPartition) -> None:
        """The partition is no longer of interest; an answer under way is dropped."""
        self._failures.forget_partition(topic_partition)
        self._lost.pop(topic_partition, None)

    def close(self) -> None:
        for waiting in self._waiting.values():
            waiting.connection.close()
        self._waiting.clear()
        self._lost.clear()

"""Keeps one long-polling fetch per leader under way, over all partitions that a consumer wants."""

from __future__ import annotations

import select
from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_logbus.client.cluster import Cluster
from spark_logbus.client.config import ConsumerConfig
from spark_logbus.client.connection import Connection, PendingResponse
from spark_logbus.client.leaders import partition_error
from spark_logbus.client.retry import Deadline, gave_up
from spark_logbus.errors import (
    LogbusError,
    OffsetOutOfRangeError,
    ProtocolError,
    RequestTimeoutError,
)
from spark_logbus.model import BrokerAddress, TopicPartition
from spark_logbus.protocol import Api, FetchPartition, FetchRequest, FetchResponse


@dataclass(frozen=True, slots=True)
class Fetched:
    """What came for one partition: data from ``offset`` on, or word that it is out of range."""

    tp: TopicPartition
    offset: int
    data: memoryview
    out_of_range: OffsetOutOfRangeError | None = None


@dataclass(slots=True)
class _Waiting:
    """One request under way to one leader."""

    connection: Connection
    pending: PendingResponse
    offsets: dict[TopicPartition, int]
    deadline: Deadline


@dataclass(slots=True)
class _Trouble:
    """A partition that cannot be fetched at the moment."""

    since: float
    failures: int = 0
    not_before: float = 0.0
    last: LogbusError | None = None


@dataclass(slots=True)
class _State:
    waiting: dict[BrokerAddress, _Waiting] = field(default_factory=dict)
    trouble: dict[TopicPartition, _Trouble] = field(default_factory=dict)


class Fetcher:
    """Not thread-safe. At most one response per leader is under way."""

    def __init__(self, cluster: Cluster, config: ConsumerConfig) -> None:
        self._cluster = cluster
        self._config = config
        self._state = _State()

    def request(self, wanted: Mapping[TopicPartition, int]) -> None:
        """Send fetches for the partitions that none is under way for, where a leader is free."""
        now = self._cluster.clock.monotonic()
        under_way = {tp for one in self._state.waiting.values() for tp in one.offsets}
        by_leader: dict[BrokerAddress, dict[TopicPartition, int]] = {}
        for tp, offset in wanted.items():
            trouble = self._state.trouble.get(tp)
            if tp in under_way or (trouble is not None and trouble.not_before > now):
                continue
            try:
                patience = self._cluster.deadline_ms(self._cluster.config.connect_timeout_ms)
                leader = self._cluster.leader(tp, patience)
            except LogbusError as error:
                self._failed({tp: offset}, error)
                continue
            if leader not in self._state.waiting:
                by_leader.setdefault(leader, {})[tp] = offset
        for leader, offsets in by_leader.items():
            self._send(leader, offsets)

    def _send(self, leader: BrokerAddress, offsets: dict[TopicPartition, int]) -> None:
        config = self._config
        request = FetchRequest(
            max_wait_ms=config.max_wait_ms,
            min_bytes=config.min_bytes,
            max_bytes=config.fetch_bytes,
            partitions=[
                FetchPartition(tp.topic, tp.partition, offset, config.partition_fetch_bytes)
                for tp, offset in offsets.items()
            ],
        )
        patience_ms = self._cluster.config.request_timeout_ms
        try:
            connection = self._cluster.pool.take(leader, self._cluster.deadline_ms(patience_ms))
            pending = connection.send(Api.FETCH, request)
        except LogbusError as error:
            self._failed(offsets, error)
            return
        deadline = self._cluster.deadline_ms(patience_ms + config.max_wait_ms)
        self._state.waiting[leader] = _Waiting(connection, pending, offsets, deadline)

    def poll(self, deadline: Deadline) -> list[Fetched]:
        """What has come by ``deadline``; returns as soon as any leader has answered.

        Raises errors that no retry can mend, and the others once a partition has been failing
        for longer than the retry deadline.
        """
        self._wait(deadline)
        fetched: list[Fetched] = []
        for leader, waiting in list(self._state.waiting.items()):
            if not waiting.pending.done and waiting.deadline.expired:
                waiting.connection.close(
                    RequestTimeoutError(f"{leader} did not answer a fetch in time.")
                )
            if waiting.pending.done:
                del self._state.waiting[leader]
                self._cluster.pool.give_back(waiting.connection)
                fetched += self._taken_apart(leader, waiting)
        return fetched

    def _wait(self, deadline: Deadline) -> None:
        poll = select.poll()
        sockets = {}
        soonest = deadline.at
        for waiting in self._state.waiting.values():
            waiting.connection.progress(until=waiting.pending)
            if waiting.pending.done:
                return
            events = select.POLLIN | (select.POLLOUT if waiting.connection.wants_to_write else 0)
            poll.register(waiting.connection, events)
            sockets[waiting.connection.fileno()] = waiting
            soonest = min(soonest, waiting.deadline.at)
        now = self._cluster.clock.monotonic()
        for trouble in self._state.trouble.values():
            if trouble.not_before > now:
                soonest = min(soonest, trouble.not_before)
        patience = Deadline(deadline.clock, soonest)
        if not sockets:
            self._cluster.pause(patience.remaining_s)
            return
        for descriptor, _ in poll.poll(max(1.0, patience.remaining_s * 1000)):
            sockets[descriptor].connection.progress(until=sockets[descriptor].pending)

    def _taken_apart(self, leader: BrokerAddress, waiting: _Waiting) -> list[Fetched]:
        try:
            response = waiting.pending.result(FetchResponse, waiting.deadline)
            results = response.results
            got = [TopicPartition(result.topic, result.partition) for result in results]
            total = sum(result.length for result in results)
            payload = waiting.pending.payload
            if got != list(waiting.offsets) or total != len(payload):
                raise ProtocolError(
                    f"{leader} answered a fetch of {len(waiting.offsets)} partitions with "
                    f"{len(got)} results and {len(payload)} bytes, of which {total} are theirs."
                )
        except LogbusError as error:
            self._failed(waiting.offsets, error)
            return []
        fetched = []
        at = 0
        for tp, result in zip(got, results, strict=True):
            offset = waiting.offsets[tp]
            data = payload[at : at + result.length]
            at += result.length
            refused = partition_error(result.error, tp, leader) if result.error else None
            if isinstance(refused, OffsetOutOfRangeError):
                fetched.append(Fetched(tp, offset, data, refused))
            elif refused is not None:
                self._failed({tp: offset}, refused)
            else:
                self._state.trouble.pop(tp, None)
                if result.length:
                    fetched.append(Fetched(tp, offset, data))
        return fetched

    def _failed(self, offsets: Mapping[TopicPartition, int], error: LogbusError) -> None:
        if not error.retriable:
            raise error
        now = self._cluster.clock.monotonic()
        for tp in offsets:
            self._cluster.doubt(tp.topic)
            trouble = self._state.trouble.setdefault(tp, _Trouble(since=now))
            trouble.failures += 1
            trouble.not_before = now + self._cluster.backoff.pause_s(trouble.failures)
            if now - trouble.since > self._cluster.config.retry_deadline_ms / 1000:
                raise gave_up(f"Fetching {tp}", now - trouble.since, error) from error

    def forget(self, tp: TopicPartition) -> None:
        """The partition is no longer of interest; an answer under way is for nobody."""
        self._state.trouble.pop(tp, None)

    def close(self) -> None:
        for waiting in self._state.waiting.values():
            waiting.connection.close()
        self._state = _State()

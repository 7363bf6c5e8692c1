"""Append requests as a producer sends them, timed one by one."""

from __future__ import annotations

import os
import time
from collections import deque
from typing import Self

from spark_logbus.client import Cluster
from spark_logbus.model import TopicPartition
from spark_logbus.protocol import Api, AppendPartition, AppendRequest, AppendResponse
from spark_logbus.record.rows.arrow import encode
from spark_logbus.record.rows.builder import ArrowBatchBuilder
from spark_logbus.wire.connection import BrokerConnection, PendingResponse

_TIMEOUT_MS = 60_000


def record_batch(*, records: int, value_bytes: int) -> memoryview:
    builder = ArrowBatchBuilder()
    now_us = time.time_ns() // 1000
    for _ in range(records):
        builder.add(value=os.urandom(value_bytes), key=None, timestamp_us=now_us, headers=None)
    return encode(builder.build())


class Appender:
    """One connection to the leader of partition 0 of a topic. Not thread-safe."""

    def __init__(self, cluster: Cluster, topic: str, data: memoryview, *, acks: str) -> None:
        self._cluster = cluster
        self._data = data
        self._request = AppendRequest(acks, _TIMEOUT_MS, [AppendPartition(topic, 0, len(data))])
        deadline = cluster.deadline_ms(_TIMEOUT_MS)
        leader = cluster.leader(TopicPartition(topic, 0), deadline)
        self._connection: BrokerConnection = cluster.pool.take(leader, deadline)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def _send(self) -> PendingResponse:
        return self._connection.send(Api.APPEND, self._request, [self._data])

    def _finish(self, pending: PendingResponse) -> None:
        answer = pending.result(AppendResponse, self._cluster.deadline_ms(_TIMEOUT_MS))
        error = answer.results[0].error
        if error is not None:
            raise error.to_exception()

    def at_rate(self, per_second: float, *, seconds: float) -> list[float]:
        """Milliseconds from the time at which each request was due to its answer, so that one
        that is late because of the one before it counts as late."""
        times = []
        started = time.perf_counter()
        for number in range(int(per_second * seconds)):
            due = started + number / per_second
            time.sleep(max(0.0, due - time.perf_counter()))
            self._finish(self._send())
            times.append(1000 * (time.perf_counter() - due))
        return times

    def requests(self, count: int, *, in_flight: int) -> None:
        """Sends so many requests, and returns when all are answered."""
        under_way: deque[PendingResponse] = deque()
        for _ in range(count):
            if len(under_way) == in_flight:
                self._finish(under_way.popleft())
            under_way.append(self._send())
        while under_way:
            self._finish(under_way.popleft())

    def saturating(self, *, in_flight: int, seconds: float) -> int:
        """Requests answered when so many are always under way."""
        under_way: deque[PendingResponse] = deque()
        count = 0
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            while len(under_way) < in_flight:
                under_way.append(self._send())
            self._finish(under_way.popleft())
            count += 1
        while under_way:
            self._finish(under_way.popleft())
            count += 1
        return count

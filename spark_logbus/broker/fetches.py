"""The fetch request: slices of segments, at once or when enough has come (long poll)."""

from __future__ import annotations

import threading
import weakref

from spark_logbus.broker.partitions import Partitions
from spark_logbus.broker.replies import Answer, Deferred, Reply
from spark_logbus.clock import Clock
from spark_logbus.errors import InvalidRequestError, LogbusError
from spark_logbus.log import LogSlice
from spark_logbus.model import TopicPartition
from spark_logbus.protocol import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResult,
    encode_response,
    error_info,
)


class WaitingFetches:
    """Which fetches wait for records of which partition. Thread-safe.

    A waiting fetch is forgotten when it is woken (it comes back if that was not enough) and when
    its connection drops it: only weak references are held.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[TopicPartition, weakref.WeakSet[Deferred]] = {}

    def add(self, topic_partition: TopicPartition, fetch: Deferred) -> None:
        with self._lock:
            self._waiting.setdefault(topic_partition, weakref.WeakSet()).add(fetch)

    def wake(self, topic_partition: TopicPartition) -> None:
        """The high watermark moved, or the partition is no longer led here."""
        with self._lock:
            waiting = list(self._waiting.pop(topic_partition, ()))
        for fetch in waiting:
            fetch.wake()


class FetchHandler:
    """Thread-safe; keeps nothing between requests but who waits."""

    def __init__(
        self,
        partitions: Partitions,
        waiting: WaitingFetches,
        *,
        clock: Clock,
        max_wait_ms: int,
        max_fetch_bytes: int,
    ) -> None:
        self._partitions = partitions
        self._waiting = waiting
        self._clock = clock
        self._max_wait_ms = max_wait_ms
        self._max_fetch_bytes = max_fetch_bytes

    def handle(self, request: FetchRequest) -> Answer:
        if not request.partitions:
            raise InvalidRequestError("A fetch names no partition.")
        final = request.max_wait_ms <= 0
        reply = self._attempt(request, final=final)
        return reply if reply is not None else self._long_poll(request)

    def _long_poll(self, request: FetchRequest) -> Deferred:
        wait_ms = min(request.max_wait_ms, self._max_wait_ms)
        deadline = self._clock.monotonic() + wait_ms / 1000

        def poll() -> Reply | None:
            # Registered before looking, so that no record can come unnoticed in between.
            for wanted in request.partitions:
                self._waiting.add(TopicPartition(wanted.topic, wanted.partition), deferred)
            return self._attempt(request, final=self._clock.monotonic() >= deadline)

        deferred = Deferred(poll, deadline=deadline)
        return deferred

    def _attempt(self, request: FetchRequest, *, final: bool) -> Reply | None:
        """The response if there is enough to send, an error to report, or no more time."""
        results: list[FetchResult] = []
        slices: list[LogSlice] = []
        room = min(request.max_bytes, self._max_fetch_bytes)
        for wanted in request.partitions:
            result, piece = self._read(wanted, room, first=not slices)
            results.append(result)
            if piece is not None:
                slices.append(piece)
                room -= piece.length
        found = sum(piece.length for piece in slices)
        failed = any(result.error is not None for result in results)
        if not final and not failed and found < max(1, request.min_bytes):
            return None
        return Reply(encode_response(FetchResponse(results)), slices)

    def _read(
        self, wanted: FetchPartition, room: int, *, first: bool
    ) -> tuple[FetchResult, LogSlice | None]:
        topic_partition = TopicPartition(wanted.topic, wanted.partition)
        try:
            log = self._partitions.leader_of(topic_partition).log
            piece = None
            if room > 0 or first:
                max_bytes = max(1, min(wanted.max_bytes, room))
                piece = log.read(wanted.offset, max_bytes=max_bytes, end=wanted.end)
            if piece is not None and piece.length > room and not first:
                piece = None  # does not fit behind what others got; its turn comes next time
            ends = log.ends()
        except LogbusError as error:
            return FetchResult(wanted.topic, wanted.partition, error=error_info(error)), None
        result = FetchResult(
            wanted.topic,
            wanted.partition,
            length=piece.length if piece is not None else 0,
            log_start_offset=ends.log_start_offset,
            high_watermark=ends.high_watermark,
        )
        return result, piece

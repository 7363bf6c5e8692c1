"""The append request: write, and answer when the durability that was asked for is reached."""

from __future__ import annotations

import threading

from spark_logbus.broker.partitions import Partitions
from spark_logbus.broker.replies import Answer, Deferred, Reply
from spark_logbus.clock import Clock
from spark_logbus.errors import InvalidRequestError, LogbusError, RequestTimeoutError
from spark_logbus.log import Appended, PartitionLog
from spark_logbus.model import Acks, TopicPartition
from spark_logbus.protocol import (
    AppendPartition,
    AppendRequest,
    AppendResponse,
    AppendResult,
    encode_response,
    error_info,
)


class AppendHandler:
    """Thread-safe; keeps nothing between requests."""

    def __init__(self, partitions: Partitions, *, clock: Clock, max_wait_ms: int) -> None:
        self._partitions = partitions
        self._clock = clock
        self._max_wait_ms = max_wait_ms

    def handle(self, request: AppendRequest, payload: memoryview) -> Answer:
        try:
            acks = Acks(request.acks)
        except ValueError as error:
            raise InvalidRequestError(
                f"acks is {request.acks!r}; use one of none, written, flushed."
            ) from error
        announced = sum(partition.length for partition in request.partitions)
        if announced != len(payload):
            raise InvalidRequestError(
                f"The append announces {announced} bytes of record batches, got {len(payload)}."
            )
        pending = _PendingAppend(request, clock=self._clock, max_wait_ms=self._max_wait_ms)
        position = 0
        for number, partition in enumerate(request.partitions):
            data = payload[position : position + partition.length]
            position += partition.length
            self._append(pending, number, partition, data, acks)
        return None if acks is Acks.NONE else pending.answer()

    def _append(
        self,
        pending: _PendingAppend,
        number: int,
        partition: AppendPartition,
        data: memoryview,
        acks: Acks,
    ) -> None:
        try:
            led = self._partitions.leader_of(TopicPartition(partition.topic, partition.partition))
            appended = led.log.append(data, leader_epoch=led.leader_epoch)
        except LogbusError as error:
            pending.failed(number, error)
            return
        if acks is Acks.FLUSHED:
            pending.wait_for_flush(number, led.log, appended)
        else:
            pending.succeeded(number, appended)


class _PendingAppend:
    """The results of one append request, until all of them are known."""

    def __init__(self, request: AppendRequest, *, clock: Clock, max_wait_ms: int) -> None:
        self._request = request
        self._results: list[AppendResult | None] = [None] * len(request.partitions)
        self._missing = len(request.partitions)
        self._lock = threading.Lock()
        self._clock = clock
        wait_ms = max(0, min(request.timeout_ms, max_wait_ms))
        self._deferred = Deferred(self._poll, deadline=clock.monotonic() + wait_ms / 1000)

    def answer(self) -> Answer:
        return self._poll() or self._deferred

    def wait_for_flush(self, number: int, log: PartitionLog, appended: Appended) -> None:
        def flushed(error: LogbusError | None) -> None:
            if error is None:
                self.succeeded(number, appended)
            else:
                self.failed(number, error)

        log.when_flushed(appended.end_offset, flushed)

    def succeeded(self, number: int, appended: Appended) -> None:
        partition = self._request.partitions[number]
        self._set(
            number,
            AppendResult(
                partition.topic,
                partition.partition,
                base_offset=appended.base_offset,
                append_time_us=appended.append_time_us,
            ),
        )

    def failed(self, number: int, error: LogbusError) -> None:
        partition = self._request.partitions[number]
        self._set(
            number,
            AppendResult(partition.topic, partition.partition, error=error_info(error)),
        )

    def _set(self, number: int, result: AppendResult) -> None:
        with self._lock:
            self._results[number] = result
            self._missing -= 1
            done = self._missing == 0
        if done:
            self._deferred.wake()

    def _poll(self) -> Reply | None:
        if self._missing and self._clock.monotonic() < self._deferred.deadline:
            return None
        late = RequestTimeoutError(
            "The record batch was written but not flushed within the request's timeout; "
            "it may still become visible."
        )
        results = [
            result or AppendResult(partition.topic, partition.partition, error=error_info(late))
            for partition, result in zip(self._request.partitions, self._results, strict=True)
        ]
        return Reply(encode_response(AppendResponse(results)))

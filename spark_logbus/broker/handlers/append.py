"""The append request, which is answered when the durability that it asks for is reached.

A broker writes and answers only while it is certain that it still has its id (see
``coordination.lease``): an append that comes later is not begun, and one that was written meanwhile
is not acknowledged, before ZooKeeper has said so.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from spark_logbus.broker.handlers.handler import Handle, RequestContext
from spark_logbus.broker.handlers.request_metrics import RequestMetrics
from spark_logbus.broker.network import Answer, DelayedResponse, NoResponse, NotYet, Response
from spark_logbus.broker.replica_manager import ReplicaManager
from spark_logbus.clock import Clock
from spark_logbus.coordination.lease import Lease
from spark_logbus.errors import (
    BrokerUnavailableError,
    InvalidRequestError,
    LogbusError,
    RequestTimeoutError,
)
from spark_logbus.log import Appended, PartitionLog
from spark_logbus.model import Acks, TopicPartition
from spark_logbus.protocol import (
    Api,
    AppendPartition,
    AppendRequest,
    AppendResponse,
    AppendResult,
    encode_response,
    error_info,
)

logger = logging.getLogger(__name__)


class AppendHandler:
    """Answers appends. Thread-safe, keeps nothing between requests."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        *,
        lease: Lease,
        clock: Clock,
        max_wait_ms: int,
        metrics: RequestMetrics,
    ) -> None:
        self._replica_manager = replica_manager
        self._lease = lease
        self._metrics = metrics
        self._clock = clock
        self._max_wait_ms = max_wait_ms

    def handlers(self) -> Mapping[Api, Handle]:
        return {Api.APPEND: self.handle}

    def handle(self, request: AppendRequest, context: RequestContext) -> Answer:
        payload = context.payload
        acks = _checked_acks(request, len(payload))
        if not self._lease.current():
            if (refusal := self._lease.refusal) is not None:
                raise refusal
            return NotYet(self._lease.when_decided)
        pending = _PendingAppend(
            request,
            lease=self._lease,
            clock=self._clock,
            max_wait_ms=self._max_wait_ms,
            metrics=self._metrics,
        )
        position = 0
        for number, partition in enumerate(request.partitions):
            data = payload[position : position + partition.length]
            position += partition.length
            self._append(pending, number, partition, data, acks)
        if acks is Acks.NONE:
            return NoResponse.CLOSE_CONNECTION if pending.failures else NoResponse.NOT_WANTED
        return pending.poll() or pending

    def _append(
        self,
        pending: _PendingAppend,
        number: int,
        partition: AppendPartition,
        data: memoryview,
        acks: Acks,
    ) -> None:
        try:
            led = self._replica_manager.leader_of(
                TopicPartition(partition.topic, partition.partition)
            )
            appended = led.log.append_as_leader(data, leader_epoch=led.leader_epoch)
        except LogbusError as error:
            logger.debug("An append was refused: %s", error)
            pending.failed(number, error.again())
            return
        if acks is Acks.FLUSHED:
            pending.wait_for_flush(number, led.log, appended)
        else:
            pending.succeeded(number, appended)


def _checked_acks(request: AppendRequest, payload_bytes: int) -> Acks:
    try:
        acks = Acks(request.acks)
    except ValueError as error:
        raise InvalidRequestError(
            f"acks is {request.acks!r}; use one of none, written, flushed."
        ) from error
    if any(partition.length < 0 for partition in request.partitions):
        raise InvalidRequestError("An append announces less than 0 bytes for a partition.")
    announced = sum(partition.length for partition in request.partitions)
    if announced != payload_bytes:
        raise InvalidRequestError(
            f"The append announces {announced} bytes of record batches, got {payload_bytes}."
        )
    return acks


class _PendingAppend(DelayedResponse):
    """The outcomes of one append request, until all of them are known. Thread-safe."""

    def __init__(
        self,
        request: AppendRequest,
        *,
        lease: Lease,
        clock: Clock,
        max_wait_ms: int,
        metrics: RequestMetrics,
    ) -> None:
        wait_ms = max(0, min(request.timeout_ms, max_wait_ms))
        super().__init__(deadline=clock.monotonic() + wait_ms / 1000)
        self._partitions = request.partitions
        self._outcomes: list[Appended | LogbusError | None] = [None] * len(request.partitions)
        self._missing = len(request.partitions)
        self._lock = threading.Lock()
        self._lease = lease
        self._clock = clock
        self._metrics = metrics

    @property
    def failures(self) -> bool:
        return any(isinstance(outcome, LogbusError) for outcome in self._outcomes)

    def wait_for_flush(self, number: int, partition_log: PartitionLog, appended: Appended) -> None:
        def flushed(error: LogbusError | None) -> None:
            self._set(number, appended if error is None else error)

        partition_log.when_flushed(appended.end_offset, flushed)

    def succeeded(self, number: int, appended: Appended) -> None:
        self._set(number, appended)

    def failed(self, number: int, error: LogbusError) -> None:
        self._set(number, error)

    def _set(self, number: int, outcome: Appended | LogbusError) -> None:
        if isinstance(outcome, LogbusError):
            self._metrics.failed(Api.APPEND, outcome)
        with self._lock:
            self._outcomes[number] = outcome
            self._missing -= 1
            done = self._missing == 0
        if done:
            self.wake()

    def poll(self) -> Response | None:
        late = self._clock.monotonic() >= self.deadline
        if self._missing and not late:
            return None
        if not self._lease.current():
            if self._lease.refusal is None and not late:
                self._lease.when_decided(self.wake)
                return None
            self._doubt()
        results = [
            self._result(partition, outcome)
            for partition, outcome in zip(self._partitions, self._outcomes, strict=True)
        ]
        return Response(encode_response(AppendResponse(results)))

    def _doubt(self) -> None:
        """Acknowledge nothing that was written: another broker may have the id by now."""
        why = self._lease.refusal or "ZooKeeper has not said yet that this broker has its id still."
        doubt = BrokerUnavailableError(f"The record batch was written and may be there. {why}")
        with self._lock:
            for number, outcome in enumerate(self._outcomes):
                if isinstance(outcome, Appended):
                    self._outcomes[number] = doubt
                    self._metrics.failed(Api.APPEND, doubt)

    def _result(
        self, partition: AppendPartition, outcome: Appended | LogbusError | None
    ) -> AppendResult:
        if isinstance(outcome, Appended):
            return AppendResult(
                partition.topic,
                partition.partition,
                base_offset=outcome.base_offset,
                append_time_us=outcome.append_time_us,
                base_offsets=list(outcome.base_offsets),
            )
        if outcome is None:
            outcome = RequestTimeoutError(
                "The record batch was written but not flushed within the request's timeout; "
                "it may still become visible."
            )
            self._metrics.failed(Api.APPEND, outcome)
        return AppendResult(partition.topic, partition.partition, error=error_info(outcome))

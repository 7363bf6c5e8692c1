"""Appends, and what atomic writes stage: answered when the durability that is asked for is reached.

What is to be replicated, and what is staged, is not begun while fewer replicas are in sync than the
topic asks for. What was written by then, and is on fewer disks, is not acknowledged.

A broker writes and answers only while it is certain that it still has its id (see
``coordination.cluster.lease``): an append that comes later is not begun, and one that was written
meanwhile is not acknowledged, before ZooKeeper has said so. Nor is one begun for a partition whose
lead is being handed over: it waits, and is then refused by a broker that leads it no longer.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

from spark_logbus.broker.handlers.handler import Handle, RequestContext
from spark_logbus.broker.handlers.request_metrics import RequestMetrics
from spark_logbus.broker.replica.holds import Holds
from spark_logbus.broker.replica.in_sync import InSync
from spark_logbus.broker.replica.manager import ReplicaManager
from spark_logbus.broker.replica.states import LeaderPartition
from spark_logbus.broker.schema_ids import KnownSchemaIds, SchemaUse
from spark_logbus.broker.security.owners import Caller, WriteOwners
from spark_logbus.clock import Clock
from spark_logbus.coordination import paths
from spark_logbus.coordination.cluster.lease import Lease
from spark_logbus.coordination.writes.decisions import check_id
from spark_logbus.errors import (
    BrokerUnavailableError,
    InvalidRequestError,
    LogbusError,
    NotAuthorizedError,
    NotLeaderError,
    PartitionOfflineError,
    RequestTimeoutError,
)
from spark_logbus.log import LogAppendInfo, StagedBy
from spark_logbus.model import Acks, TopicPartition
from spark_logbus.network import Answer, DelayedResponse, NoResponse, NotYet, Response
from spark_logbus.protocol import (
    Api,
    AppendPartition,
    AppendRequest,
    AppendResponse,
    AppendResult,
    StageRequest,
    encode_response,
    error_info,
)
from spark_logbus.record import format as fmt
from spark_logbus.record.walk import batch_bounds
from spark_logbus.topic_schemas import PLAIN

logger = logging.getLogger(__name__)

# Schema ids of one request. Where there are more, the first that nobody has refuses the rest.
_LOOKED_UP_AT_ONCE = 100
_REPLICATED = Acks.REPLICATED.value


class AppendHandler:
    """Answers appends and stagings. Thread-safe, keeps nothing between requests."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        *,
        schema_ids: KnownSchemaIds,
        lease: Lease,
        holds: Holds,
        in_sync: InSync,
        clock: Clock,
        max_wait_ms: int,
        owners: WriteOwners,
        metrics: RequestMetrics,
    ) -> None:
        self._replica_manager = replica_manager
        self._owners = owners
        self._holds = holds
        self._in_sync = in_sync
        self._schema_ids = schema_ids
        self._lease = lease
        self._metrics = metrics
        self._clock = clock
        self._max_wait_ms = max_wait_ms

    def handlers(self) -> Mapping[Api, Handle]:
        return {Api.APPEND: self.append, Api.STAGE: self.stage}

    def append(self, request: AppendRequest, context: RequestContext) -> Answer:
        acks = _checked_acks(request)
        pending = self._begin(Api.APPEND, request, context, partial(self._append, acks))
        if isinstance(pending, NotYet):
            return pending
        if acks is Acks.NONE:
            return NoResponse.CLOSE_CONNECTION if pending.failures else NoResponse.NOT_WANTED
        return pending.poll() or pending

    def stage(self, request: StageRequest, context: RequestContext) -> Answer:
        if request.writer:
            paths.writer(request.writer)  # refuse what no writer is called
        if request.run:
            check_id("run", request.run)
        caller = self._owners.caller(context.connection)
        by = StagedBy(request.writer, request.run, caller.mark(request.writer))
        pending = self._begin(Api.STAGE, request, context, partial(self._stage, by, caller))
        return pending if isinstance(pending, NotYet) else pending.poll() or pending

    def _begin(
        self,
        api: Api,
        request: AppendRequest | StageRequest,
        context: RequestContext,
        write: Callable[[_PendingAppend, int, LeaderPartition, memoryview], None],
    ) -> NotYet | _PendingAppend:
        payload = context.payload
        _check_lengths(request.partitions, len(payload))
        if not self._lease.current():
            if (refusal := self._lease.refusal) is not None:
                raise refusal
            return NotYet(self._lease.when_decided)
        if self._holds and (hold := self._holds.awaited(_named(request))) is not None:
            return NotYet(hold.when_over)
        parts, to_look_up = self._parts(request.partitions, payload)
        if to_look_up:
            return NotYet(partial(self._schema_ids.look_up, to_look_up))
        pending = _PendingAppend(
            api,
            request,
            lease=self._lease,
            clock=self._clock,
            max_wait_ms=self._max_wait_ms,
            metrics=self._metrics,
        )
        for number, (led, data) in enumerate(parts):
            try:
                if isinstance(led, LogbusError):
                    raise led
                write(pending, number, led, data)
            except LogbusError as error:
                logger.debug("An append was refused: %s", error)
                outcome = error if isinstance(led, LogbusError) else self._for_client(led, error)
                pending.failed(number, outcome.again())
        return pending

    def _for_client(self, led: LeaderPartition, error: LogbusError) -> LogbusError:
        """Returns what a client is told of an error: where the log here is offline and others are
        in sync, one of those takes the lead, and is to be asked."""
        members = self._in_sync.members(led)
        if not isinstance(error, PartitionOfflineError) or members is None or members.is_alone:
            return error
        return NotLeaderError(
            f"What was sent to {led.log.topic_partition} is not acknowledged, and may become "
            "visible: another broker that is in sync is to take the lead. Refresh the metadata and "
            f"ask that one. {error.message}"
        )

    def _wait(
        self,
        pending: _PendingAppend,
        number: int,
        led: LeaderPartition,
        appended: LogAppendInfo,
        when_durable: Callable[[Callable[[LogbusError | None], None]], None],
    ) -> None:
        """Have the outcome wait until what was written is as safe as was asked."""

        def for_client(callback: Callable[[LogbusError | None], None]) -> None:
            when_durable(
                lambda error: callback(None if error is None else self._for_client(led, error))
            )

        pending.wait_for(number, appended, for_client)

    def _parts(
        self, partitions: Sequence[AppendPartition], payload: memoryview
    ) -> tuple[list[tuple[LeaderPartition | LogbusError, memoryview]], list[SchemaUse]]:
        """The partitions that are led here, or why one takes nothing now, each with what is for
        it; and the schema ids that have to be looked up before anything is written."""
        parts: list[tuple[LeaderPartition | LogbusError, memoryview]] = []
        to_look_up: list[SchemaUse] = []
        position = 0
        for partition in partitions:
            end = position + partition.length
            data = payload[position:end]
            position = end
            led: LeaderPartition | LogbusError
            try:
                led = self._replica_manager.leader_of(
                    TopicPartition(partition.topic, partition.partition)
                )
                if led.log.config.schemas is not PLAIN:
                    to_look_up += self._unknown(led, data, _LOOKED_UP_AT_ONCE - len(to_look_up))
            except LogbusError as error:
                led = error.again()
            parts.append((led, data))
        return parts, to_look_up

    def _unknown(self, led: LeaderPartition, data: memoryview, most: int) -> list[SchemaUse]:
        """Returns the schema ids in ``data`` that have to be looked up. Raises
        UnknownSchemaIdError, CoordinationError and LimitExceededError."""
        subject = led.log.config.schemas.value_subject
        if subject is None:
            return []
        topic = led.log.topic_partition.topic
        unknown = (
            use
            for use in _schema_uses(subject, data)
            if not self._schema_ids.accept(use, topic=topic)
        )
        return list(islice(unknown, most))

    def _append(
        self,
        acks: Acks,
        pending: _PendingAppend,
        number: int,
        led: LeaderPartition,
        data: memoryview,
    ) -> None:
        if acks is Acks.REPLICATED:
            self._append_replicated(pending, number, led, data)
            return
        appended = led.log.append_as_leader(data, leader_epoch=led.leader_epoch)
        if acks is Acks.FLUSHED:
            when_flushed = partial(
                led.log.when_flushed, appended.end_offset, truncations=appended.truncations
            )
            self._wait(pending, number, led, appended, when_flushed)
        else:
            pending.succeeded(number, appended)

    def _append_replicated(
        self, pending: _PendingAppend, number: int, led: LeaderPartition, data: memoryview
    ) -> None:
        self._in_sync.require_enough(led)
        appended = led.log.append_as_leader(data, leader_epoch=led.leader_epoch)

        def when_replicated(callback: Callable[[LogbusError | None], None]) -> None:
            def replicated(error: LogbusError | None) -> None:
                if error is None and not self._in_sync.has_enough(led):
                    error = RequestTimeoutError(
                        "The record batch was written, but too few replicas have stayed in sync "
                        "for it to be safe; it may still become visible."
                    )
                callback(error)

            led.log.replication.when_replicated(
                appended.end_offset, replicated, truncations=appended.truncations
            )

        self._wait(pending, number, led, appended, when_replicated)

    def _stage(
        self,
        by: StagedBy,
        caller: Caller,
        pending: _PendingAppend,
        number: int,
        led: LeaderPartition,
        data: memoryview,
    ) -> None:
        self._in_sync.require_enough(led)
        try:
            staged = led.log.staging.stage(data, leader_epoch=led.leader_epoch, by=by)
        except NotAuthorizedError as error:
            caller.note(Api.STAGE, error)
            raise
        first = staged.base_sequence

        def when_staged(callback: Callable[[LogbusError | None], None]) -> None:
            def flushed(error: LogbusError | None) -> None:
                if error is not None:
                    callback(error)
                else:
                    self._in_sync.when_staged(led, staged.write, callback)

            staged.when_flushed(flushed)

        info = LogAppendInfo(first, first, staged.staged_at_us)
        self._wait(pending, number, led, info, when_staged)


def _named(request: AppendRequest | StageRequest) -> Iterator[TopicPartition]:
    return (TopicPartition(each.topic, each.partition) for each in request.partitions)


def _schema_uses(subject: str, data: memoryview) -> Iterator[SchemaUse]:
    """The schema ids of record batches that are not checked yet. Where they are not whole, the log
    refuses them all; what has no schema id it refuses where the topic wants one."""
    seen = fmt.PLAIN_BYTES_SCHEMA
    for position in batch_bounds(data)[:-1]:
        (attributes,) = fmt.ATTRIBUTES.unpack_from(data, position + fmt.ATTRIBUTES_AT)
        (schema_id,) = fmt.SCHEMA_ID.unpack_from(data, position + fmt.SCHEMA_ID_AT)
        if schema_id != seen and schema_id and not attributes & fmt.CONTROL:
            seen = schema_id
            yield SchemaUse(subject, schema_id)


def _checked_acks(request: AppendRequest) -> Acks:
    try:
        return Acks(request.acks)
    except ValueError as error:
        raise InvalidRequestError(
            f"acks is {request.acks!r}; use one of none, written, flushed, replicated."
        ) from error


def _check_lengths(partitions: Sequence[AppendPartition], payload_bytes: int) -> None:
    if any(partition.length < 0 for partition in partitions):
        raise InvalidRequestError("An append announces less than 0 bytes for a partition.")
    announced = sum(partition.length for partition in partitions)
    if announced != payload_bytes:
        raise InvalidRequestError(
            f"The append announces {announced} bytes of record batches, got {payload_bytes}."
        )


class _PendingAppend(DelayedResponse):
    """The outcomes of one append request, until all of them are known. Thread-safe."""

    def __init__(
        self,
        api: Api,
        request: AppendRequest | StageRequest,
        *,
        lease: Lease,
        clock: Clock,
        max_wait_ms: int,
        metrics: RequestMetrics,
    ) -> None:
        wait_ms = max(0, min(request.timeout_ms, max_wait_ms))
        super().__init__(deadline=clock.monotonic() + wait_ms / 1000)
        self._api = api
        self._partitions = request.partitions
        is_replicated = isinstance(request, AppendRequest) and request.acks == _REPLICATED
        self._wanted = "replicated" if is_replicated else "flushed"
        self._outcomes: list[LogAppendInfo | LogbusError | None] = [None] * len(request.partitions)
        self._missing = len(request.partitions)
        self._lock = threading.Lock()
        self._lease = lease
        self._clock = clock
        self._metrics = metrics

    @property
    def failures(self) -> bool:
        return any(isinstance(outcome, LogbusError) for outcome in self._outcomes)

    def wait_for(
        self,
        number: int,
        appended: LogAppendInfo,
        when_durable: Callable[[Callable[[LogbusError | None], None]], None],
    ) -> None:
        def durable(error: LogbusError | None) -> None:
            self._set(number, appended if error is None else error)

        when_durable(durable)

    def succeeded(self, number: int, appended: LogAppendInfo) -> None:
        self._set(number, appended)

    def failed(self, number: int, error: LogbusError) -> None:
        self._set(number, error)

    def _set(self, number: int, outcome: LogAppendInfo | LogbusError) -> None:
        if isinstance(outcome, LogbusError):
            self._metrics.failed(self._api, outcome)
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
                if isinstance(outcome, LogAppendInfo):
                    self._outcomes[number] = doubt
                    self._metrics.failed(self._api, doubt)

    def _result(
        self, partition: AppendPartition, outcome: LogAppendInfo | LogbusError | None
    ) -> AppendResult:
        if isinstance(outcome, LogAppendInfo):
            return AppendResult(
                partition.topic,
                partition.partition,
                base_offset=outcome.base_offset,
                append_time_us=outcome.append_time_us,
                base_offsets=list(outcome.base_offsets),
            )
        if outcome is None:
            outcome = RequestTimeoutError(
                f"The record batch was written but not {self._wanted} within the request's "
                "timeout; it may still become visible."
            )
            self._metrics.failed(self._api, outcome)
        return AppendResult(partition.topic, partition.partition, error=error_info(outcome))

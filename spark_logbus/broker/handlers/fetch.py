"""The fetch request, answered with slices of segments, at once or when enough has come."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from spark_logbus.broker.handlers.chosen_columns import READ_AHEAD, chosen_slices
from spark_logbus.broker.handlers.handler import Handle, RequestContext
from spark_logbus.broker.handlers.long_poll import DelayedFetches, LongPoll
from spark_logbus.broker.handlers.request_metrics import RequestMetrics
from spark_logbus.broker.replica.follower_reads import FollowerReads
from spark_logbus.broker.replica.in_sync import InSync
from spark_logbus.broker.replica.manager import ReplicaManager
from spark_logbus.broker.replica.states import LeaderPartition
from spark_logbus.clock import Clock
from spark_logbus.errors import (
    InvalidRequestError,
    LogbusError,
    NotLeaderError,
    OffsetOutOfRangeError,
    StorageError,
)
from spark_logbus.log import LogSlice, PartitionLog
from spark_logbus.model import TopicPartition
from spark_logbus.network import Answer, FileHandover, Response
from spark_logbus.protocol import (
    Api,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResult,
    encode_response,
    error_info,
)

# Below this, to pass and map a file takes as long as to copy its bytes, or longer.
LEAST_PASSED_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class PartitionRead:
    """One partition's part of a fetch; ``settled``: there is no point in waiting for more."""

    result: FetchResult
    slices: Sequence[LogSlice] = ()
    log: PartitionLog | None = None
    settled: bool = False


class FetchHandler:
    """Answers fetches. Thread-safe, keeps nothing between requests but those that wait."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        waiting: DelayedFetches,
        *,
        clock: Clock,
        max_wait_ms: int,
        max_fetch_bytes: int,
        metrics: RequestMetrics,
        followed: FollowerReads,
        in_sync: InSync,
    ) -> None:
        self._in_sync = in_sync
        self._metrics = metrics
        self._followed = followed
        self._replica_manager = replica_manager
        self._waiting = waiting
        self._clock = clock
        self._max_wait_ms = max_wait_ms
        self._max_fetch_bytes = max_fetch_bytes
        self._ending = False

    def handlers(self) -> Mapping[Api, Handle]:
        return {Api.FETCH: self.handle}

    def handle(self, request: FetchRequest, context: RequestContext) -> Answer:
        if not request.partitions:
            raise InvalidRequestError("A fetch names no partition.")
        by_file = request.max_bytes_by_descriptor if context.connection.takes_descriptors else 0
        attempt = partial(self._attempt, request, min(by_file, self._max_fetch_bytes))
        response = attempt(-math.inf if request.max_wait_ms <= 0 else math.inf)
        if response is not None:
            return response
        wait_ms = min(request.max_wait_ms, self._max_wait_ms)
        deadline = self._clock.monotonic() + wait_ms / 1000
        wanted = {TopicPartition(each.topic, each.partition) for each in request.partitions}
        return LongPoll(wanted, attempt, self._waiting, deadline=deadline)

    def end_waiting(self) -> None:
        """Answer all that wait, now and from now on, with what there is."""
        self._ending = True
        self._waiting.wake_all()

    def _attempt(
        self, request: FetchRequest, max_file_bytes: int, deadline: float
    ) -> Response | None:
        """The response if there is enough to send, an error to report, or no more time."""
        final = self._ending or self._clock.monotonic() >= deadline
        results: list[FetchResult] = []
        slices: list[LogSlice] = []
        room = max(1, min(request.max_bytes, self._max_fetch_bytes))
        enough = min(max(1, request.min_bytes), room)
        length = 0
        for wanted in request.partitions:
            found = self._read(
                wanted, room - length, first=not slices, enough=enough, replica=request.replica
            )
            results.append(found.result)
            slices += found.slices
            length += found.result.length
            final = final or found.settled
        if not final and length < enough:
            return None
        file = None
        if len(request.partitions) == 1:
            file = self._file_instead(request.partitions[0], found, max_file_bytes)
        for result in results:
            if result.length:
                sent = file.slice.length if file is not None else result.length
                self._metrics.sent(result.topic, sent)
        return Response(encode_response(FetchResponse(results)), slices, file)

    def _file_instead(
        self, wanted: FetchPartition, found: PartitionRead, max_bytes: int
    ) -> FileHandover | None:
        """The response with a file in place of its bytes, if it may hold so many that this pays."""
        log = found.log
        if log is None or len(found.slices) != 1 or found.result.chosen:
            return None
        log_slice = found.slices[0]
        if min(max_bytes, log_slice.length + log_slice.bytes_after) < LEAST_PASSED_BYTES:
            return None
        try:
            whole = log.read(wanted.offset, max_bytes=max_bytes, end=wanted.end)
        except LogbusError:
            return None  # it changed at this moment; what was found a moment ago goes out
        if whole is None or whole.length < LEAST_PASSED_BYTES:
            return None
        result = msgspec.structs.replace(found.result, length=whole.length)
        return FileHandover(encode_response(FetchResponse([result], whole.position)), whole)

    def _read(
        self, wanted: FetchPartition, room: int, *, first: bool, enough: int, replica: bool
    ) -> PartitionRead:
        topic_partition = TopicPartition(wanted.topic, wanted.partition)
        follows = replica and self._replica_manager.find(topic_partition) is None
        try:
            if follows:
                log = self._followed.log_of(topic_partition, wanted.topic_id)
            else:
                led = self._replica_manager.leader_of(topic_partition).of_topic(wanted.topic_id)
                log = led.log
                if self._is_hidden(led, wanted.offset):
                    # Not settled: the watermark gets there, and until the time is over it is
                    # waited for.
                    hidden = error_info(self._in_sync.not_available(led))
                    return PartitionRead(FetchResult(wanted.topic, wanted.partition, error=hidden))
            slices: Sequence[LogSlice] = ()
            settled = False
            # A reader that knows the leader's end may be ahead of a follower, which gets there.
            is_ahead = follows and wanted.offset > log.ends().high_watermark
            if (room > 0 or first) and not is_ahead:
                slices, more = _slices(log, wanted, max_bytes=max(1, min(wanted.max_bytes, room)))
                length = sum(each.length for each in slices)
                # Less than the client waits for, because max_bytes keeps out what is there.
                settled = bool(slices) and length < enough and more
                if length > room and not first:
                    slices = ()  # does not fit after the others; its turn comes next time
            ends = log.ends()
        except LogbusError as error:
            if follows and isinstance(error, OffsetOutOfRangeError):
                # The leader may have these records, and has the last word on what is lost.
                error = NotLeaderError(f"{error} This broker follows; ask the leader.")
            self._metrics.failed(Api.FETCH, error)
            failed = FetchResult(wanted.topic, wanted.partition, error=error_info(error))
            return PartitionRead(failed, settled=True)
        result = FetchResult(
            wanted.topic,
            wanted.partition,
            length=sum(each.length for each in slices),
            log_start_offset=ends.log_start_offset,
            high_watermark=ends.high_watermark,
            chosen=wanted.columns is not None,
            lost=[(each.start, each.end) for each in ends.lost],
        )
        return PartitionRead(result, slices, log, settled)

    def _is_hidden(self, led: LeaderPartition, offset: int) -> bool:
        """True if an offset may have been read at the leader before, and cannot be here yet."""
        until = self._in_sync.hidden_until(led)
        return until is not None and led.log.ends().high_watermark <= offset <= until


def _slices(
    log: PartitionLog, wanted: FetchPartition, *, max_bytes: int
) -> tuple[Sequence[LogSlice], bool]:
    """Reads one partition; tells, too, whether a larger ``max_bytes`` would have brought more.

    Raises LogbusError.
    """
    choice = wanted.columns
    ahead = max_bytes if choice is None else READ_AHEAD * max_bytes
    whole = log.read(wanted.offset, max_bytes=ahead, end=wanted.end)
    if whole is None:
        return (), False
    if choice is None:
        return (whole,), whole.bytes_after > 0
    try:
        slices = chosen_slices(whole, choice, max_bytes=max_bytes)
    except OSError as error:
        raise StorageError(
            f"Could not read a segment of {log.topic_partition}: {error.strerror or error}; check "
            "the disk."
        ) from error
    last = slices[-1]
    return slices, whole.bytes_after > 0 or last.position + last.length < whole.position + (
        whole.length
    )

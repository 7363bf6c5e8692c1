"""Requests for offsets of a partition, by position, time or size."""

from __future__ import annotations

from collections.abc import Mapping

from spark_logbus.broker.handlers.handler import Handle, RequestContext
from spark_logbus.broker.handlers.request_metrics import RequestMetrics
from spark_logbus.broker.replica.in_sync import InSync
from spark_logbus.broker.replica.manager import ReplicaManager
from spark_logbus.errors import InvalidRequestError, LogbusError
from spark_logbus.model import ONE_PIECE, TopicPartition
from spark_logbus.network import Answer, Response
from spark_logbus.protocol import (
    Api,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResult,
    SplitRangePartition,
    SplitRangeRequest,
    SplitRangeResponse,
    SplitRangeResult,
    encode_response,
    error_info,
)

# Of one request: a terabyte in pieces of a few bytes would take all memory. Beyond this, pieces
# are larger than was asked for.
_MAX_CUTS = 10_000


class OffsetHandler:
    """Answers requests for offsets and for cuts of ranges. Thread-safe, keeps nothing."""

    def __init__(
        self, replica_manager: ReplicaManager, *, in_sync: InSync, metrics: RequestMetrics
    ) -> None:
        self._replica_manager = replica_manager
        self._in_sync = in_sync
        self._metrics = metrics

    def handlers(self) -> Mapping[Api, Handle]:
        return {Api.LIST_OFFSETS: self.list_offsets, Api.SPLIT_RANGE: self.split_range}

    def list_offsets(self, request: ListOffsetsRequest, _: RequestContext) -> Answer:
        results = [self._offset(wanted) for wanted in request.partitions]
        return Response(encode_response(ListOffsetsResponse(results)))

    def _offset(self, wanted: ListOffsetsPartition) -> ListOffsetsResult:
        try:
            topic_partition = TopicPartition(wanted.topic, wanted.partition)
            led = self._replica_manager.leader_of(topic_partition).of_topic(wanted.topic_id)
            offset: int | None
            lost: list[tuple[int, int]] = []
            if wanted.at == "earliest":
                offset = led.log.ends().log_start_offset
            elif wanted.at == "latest":
                self._in_sync.require_ends(led)
                ends = led.log.ends()
                offset, lost = ends.high_watermark, [(each.start, each.end) for each in ends.lost]
            elif wanted.at == "timestamp":
                offset = led.log.offset_at(wanted.timestamp_us)
                if offset is None:
                    self._in_sync.require_ends(led)
            else:
                raise InvalidRequestError(
                    f"Cannot list offsets at {wanted.at!r}; use earliest, latest or timestamp."
                )
        except LogbusError as error:
            self._metrics.failed(Api.LIST_OFFSETS, error)
            return ListOffsetsResult(wanted.topic, wanted.partition, error=error_info(error))
        return ListOffsetsResult(wanted.topic, wanted.partition, offset, lost=lost)

    def split_range(self, request: SplitRangeRequest, _: RequestContext) -> Answer:
        most_cuts = max(1, _MAX_CUTS // max(1, len(request.partitions)))
        results = [self._split(wanted, most_cuts) for wanted in request.partitions]
        return Response(encode_response(SplitRangeResponse(results)))

    def _split(self, wanted: SplitRangePartition, most_cuts: int) -> SplitRangeResult:
        try:
            led = self._replica_manager.leader_of(TopicPartition(wanted.topic, wanted.partition))
            if wanted.target_bytes < 1:
                raise InvalidRequestError(
                    f"target_bytes must be 1 or more, got {wanted.target_bytes}."
                )
            if wanted.end > led.log.ends().high_watermark:
                self._in_sync.require_ends(led)
            _, size = led.log.split(wanted.start, wanted.end, target_bytes=ONE_PIECE)
            target_bytes = max(wanted.target_bytes, size // most_cuts)
            cuts, size = led.log.split(wanted.start, wanted.end, target_bytes=target_bytes)
        except LogbusError as error:
            self._metrics.failed(Api.SPLIT_RANGE, error)
            return SplitRangeResult(wanted.topic, wanted.partition, error=error_info(error))
        return SplitRangeResult(wanted.topic, wanted.partition, list(cuts), size)

"""From a frame to its handler: handshake first, then one small function per API."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sized
from typing import Any

from spark_logbus import __version__
from spark_logbus.broker.config import BrokerConfig
from spark_logbus.broker.handlers.append import AppendHandler
from spark_logbus.broker.handlers.coordination_executor import CoordinationExecutor
from spark_logbus.broker.handlers.fetch import FetchHandler
from spark_logbus.broker.handlers.metadata import MetadataHandler
from spark_logbus.broker.handlers.request_metrics import RequestMetrics
from spark_logbus.broker.handlers.topics import TopicHandler
from spark_logbus.broker.metadata_cache import MetadataCache
from spark_logbus.broker.network import Answer, Connection, NoResponse, Response
from spark_logbus.broker.replica_manager import ReplicaManager, require_id
from spark_logbus.coordination.topics import TopicRegistry
from spark_logbus.errors import InvalidRequestError, LogbusError
from spark_logbus.model import Acks, TopicPartition
from spark_logbus.protocol import (
    PROTOCOL_VERSION,
    Api,
    AppendRequest,
    FetchRequest,
    Frame,
    HandshakeRequest,
    HandshakeResponse,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResult,
    Message,
    MetadataRequest,
    SplitRangePartition,
    SplitRangeRequest,
    SplitRangeResponse,
    SplitRangeResult,
    check_api,
    decode_request,
    encode_error,
    encode_response,
    error_info,
)

logger = logging.getLogger(__name__)

_ONE_PIECE = 1 << 62
# Of one request: a terabyte in pieces of a few bytes would take all memory. Beyond this, pieces
# are larger than was asked for.
_MAX_CUTS = 10_000
_OF_PARTITIONS = (AppendRequest, FetchRequest, ListOffsetsRequest, SplitRangeRequest)


class RequestHandler:
    """Thread-safe. Errors of a request become its response; only bugs escape as exceptions.

    ``refusal``: set it to have all requests but handshakes answered with that error.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        partitions: ReplicaManager,
        image: MetadataCache,
        topics: TopicRegistry,
        appends: AppendHandler,
        fetches: FetchHandler,
        offload: CoordinationExecutor,
        meters: RequestMetrics | None = None,
    ) -> None:
        self._config = config
        self._partitions = partitions
        self._meters = meters or RequestMetrics()
        self.refusal: LogbusError | None = None
        metadata = MetadataHandler(image, partitions, offload)
        topic_handler = TopicHandler(config, image=image, topics=topics, offload=offload)
        self._appends = appends
        self._handlers: dict[Api, Callable[[Any], Answer]] = {
            Api.METADATA: metadata.handle,
            Api.FETCH: fetches.handle,
            Api.LIST_OFFSETS: self._list_offsets,
            Api.SPLIT_RANGE: self._split_range,
            Api.CREATE_TOPIC: topic_handler.create,
            Api.DELETE_TOPIC: topic_handler.delete,
            Api.ALTER_TOPIC: topic_handler.alter,
        }

    def handle(self, connection: Connection, frame: Frame) -> Answer:
        began = self._meters.now()
        api: Api | None = None
        request: Message | None = None
        try:
            api = check_api(frame.api, frame.version)
            request = decode_request(api, frame.header)
            answer = self._answer(connection, api, request, frame.payload)
        except LogbusError as error:
            logger.debug(
                "A request of %s was refused: %s",
                connection.peer, error, extra={"peer": connection.peer},
            )  # fmt: skip
            self._meters.failed(api, error)
            if isinstance(request, AppendRequest) and request.acks == Acks.NONE.value:
                answer = NoResponse.CLOSE_CONNECTION
            else:
                answer = Response(encode_error(error))
        return self._meters.answered(api, answer, began)

    def _answer(
        self, connection: Connection, api: Api, request: Message, payload: memoryview
    ) -> Answer:
        if isinstance(request, HandshakeRequest):
            return self._handshake(connection, request)
        if not connection.handshaken:
            raise InvalidRequestError("The first request of a connection must be a handshake.")
        if self.refusal is not None:
            raise self.refusal.again()
        self._check_size(request)
        if isinstance(request, AppendRequest):
            return self._appends.handle(request, payload)
        if isinstance(request, FetchRequest) and not connection.takes_descriptors:
            request.max_bytes_by_descriptor = 0
        return self._handlers[api](request)

    def _check_size(self, request: Message) -> None:
        names: Sized | None = None
        if isinstance(request, _OF_PARTITIONS):
            names = request.partitions
        elif isinstance(request, MetadataRequest):
            names = request.topics
        most = self._config.network.max_partitions_per_request
        if names is not None and len(names) > most:
            raise InvalidRequestError(
                f"A request names {len(names)} partitions or topics, the limit is {most} "
                "(max_partitions_per_request); ask in several requests."
            )

    def _handshake(self, connection: Connection, request: HandshakeRequest) -> Answer:
        if request.protocol_version < PROTOCOL_VERSION:
            raise InvalidRequestError(
                f"The client speaks protocol version {request.protocol_version}, this broker "
                f"needs {PROTOCOL_VERSION} or newer; upgrade the client."
            )
        connection.handshake_done()
        return Response(
            encode_response(
                HandshakeResponse(
                    broker_id=self._config.id,
                    protocol_version=PROTOCOL_VERSION,
                    max_frame_bytes=self._config.network.max_frame_bytes,
                    max_record_batch_bytes=self._config.log.max_record_batch_bytes,
                    software=f"logbus {__version__}",
                )
            )
        )

    # -- offsets --------------------------------------------------------------------------

    def _list_offsets(self, request: ListOffsetsRequest) -> Answer:
        results = [self._offset(wanted) for wanted in request.partitions]
        return Response(encode_response(ListOffsetsResponse(results)))

    def _offset(self, wanted: ListOffsetsPartition) -> ListOffsetsResult:
        try:
            led = self._partitions.leader_of(TopicPartition(wanted.topic, wanted.partition))
            require_id(wanted.topic, wanted.topic_id, led)
            offset: int | None
            if wanted.at == "earliest":
                offset = led.log.ends().log_start_offset
            elif wanted.at == "latest":
                offset = led.log.ends().high_watermark
            elif wanted.at == "timestamp":
                offset = led.log.offset_at(wanted.timestamp_us)
            else:
                raise InvalidRequestError(
                    f"Cannot list offsets at {wanted.at!r}; use earliest, latest or timestamp."
                )
        except LogbusError as error:
            self._meters.failed(Api.LIST_OFFSETS, error)
            return ListOffsetsResult(wanted.topic, wanted.partition, error=error_info(error))
        return ListOffsetsResult(wanted.topic, wanted.partition, offset)

    def _split_range(self, request: SplitRangeRequest) -> Answer:
        most_cuts = max(1, _MAX_CUTS // max(1, len(request.partitions)))
        results = [self._split(wanted, most_cuts) for wanted in request.partitions]
        return Response(encode_response(SplitRangeResponse(results)))

    def _split(self, wanted: SplitRangePartition, most_cuts: int) -> SplitRangeResult:
        try:
            led = self._partitions.leader_of(TopicPartition(wanted.topic, wanted.partition))
            if wanted.target_bytes < 1:
                raise InvalidRequestError(
                    f"target_bytes must be 1 or more, got {wanted.target_bytes}."
                )
            _, size = led.log.split(wanted.start, wanted.end, target_bytes=_ONE_PIECE)
            target_bytes = max(wanted.target_bytes, size // most_cuts)
            cuts, size = led.log.split(wanted.start, wanted.end, target_bytes=target_bytes)
        except LogbusError as error:
            self._meters.failed(Api.SPLIT_RANGE, error)
            return SplitRangeResult(wanted.topic, wanted.partition, error=error_info(error))
        return SplitRangeResult(wanted.topic, wanted.partition, list(cuts), size)

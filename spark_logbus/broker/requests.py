"""From a frame to its handler: handshake first, then one small function per API."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from spark_logbus import __version__
from spark_logbus.broker.appends import AppendHandler
from spark_logbus.broker.config import BrokerConfig
from spark_logbus.broker.connection import Connection
from spark_logbus.broker.fetches import FetchHandler
from spark_logbus.broker.metadata import ClusterImage, MetadataHandler
from spark_logbus.broker.offload import Offload
from spark_logbus.broker.partitions import Partitions
from spark_logbus.broker.replies import Answer, NoReply, Reply
from spark_logbus.broker.request_meters import RequestMeters
from spark_logbus.coordination import TopicRegistry
from spark_logbus.errors import (
    BrokerUnavailableError,
    InvalidRequestError,
    LogbusError,
)
from spark_logbus.log import LogConfig
from spark_logbus.model import Acks, TopicPartition
from spark_logbus.protocol import (
    PROTOCOL_VERSION,
    Api,
    AppendRequest,
    CreateTopicRequest,
    CreateTopicResponse,
    DeleteTopicRequest,
    DeleteTopicResponse,
    Frame,
    HandshakeRequest,
    HandshakeResponse,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResult,
    Message,
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

log = logging.getLogger(__name__)

_ONE_PIECE = 1 << 62
# Of one range: a terabyte in pieces of a few bytes would take all memory, and a response header
# holds 1 MiB. Beyond this, pieces are larger than was asked for.
_MAX_CUTS = 10_000


class RequestHandler:
    """Thread-safe. Errors of a request become its response; only bugs escape as exceptions.

    ``refusal``: set it to have all requests but handshakes answered with that error.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        partitions: Partitions,
        image: ClusterImage,
        topics: TopicRegistry,
        appends: AppendHandler,
        fetches: FetchHandler,
        offload: Offload,
        meters: RequestMeters | None = None,
    ) -> None:
        self._config = config
        self._partitions = partitions
        self._image = image
        self._topics = topics
        self._offload = offload
        self._meters = meters or RequestMeters()
        self.refusal: LogbusError | None = None
        metadata = MetadataHandler(image, partitions, offload)
        self._appends = appends
        self._handlers: dict[Api, Callable[[Any], Answer]] = {
            Api.METADATA: metadata.handle,
            Api.FETCH: fetches.handle,
            Api.LIST_OFFSETS: self._list_offsets,
            Api.SPLIT_RANGE: self._split_range,
            Api.CREATE_TOPIC: self._create_topic,
            Api.DELETE_TOPIC: self._delete_topic,
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
            log.debug(
                "A request of %s was refused: %s",
                connection.peer, error, extra={"peer": connection.peer},
            )  # fmt: skip
            self._meters.failed(api, error)
            if isinstance(request, AppendRequest) and request.acks == Acks.NONE.value:
                answer = NoReply.POSSIBLE
            else:
                answer = Reply(encode_error(error))
        return self._meters.answered(api, answer, began)

    def _answer(
        self, connection: Connection, api: Api, request: Message, payload: memoryview
    ) -> Answer:
        if isinstance(request, HandshakeRequest):
            return self._handshake(connection, request)
        if not connection.handshaken:
            raise InvalidRequestError("The first request of a connection must be a handshake.")
        if self.refusal is not None:
            raise self.refusal
        if isinstance(request, AppendRequest):
            return self._appends.handle(request, payload)
        return self._handlers[api](request)

    def _handshake(self, connection: Connection, request: HandshakeRequest) -> Answer:
        if request.protocol_version < PROTOCOL_VERSION:
            raise InvalidRequestError(
                f"The client speaks protocol version {request.protocol_version}, this broker "
                f"needs {PROTOCOL_VERSION} or newer; upgrade the client."
            )
        connection.handshake_done()
        return Reply(
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
        return Reply(encode_response(ListOffsetsResponse(results)))

    def _offset(self, wanted: ListOffsetsPartition) -> ListOffsetsResult:
        try:
            led = self._partitions.leader_of(TopicPartition(wanted.topic, wanted.partition))
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
        results = [self._split(wanted) for wanted in request.partitions]
        return Reply(encode_response(SplitRangeResponse(results)))

    def _split(self, wanted: SplitRangePartition) -> SplitRangeResult:
        try:
            led = self._partitions.leader_of(TopicPartition(wanted.topic, wanted.partition))
            if wanted.target_bytes < 1:
                raise InvalidRequestError(
                    f"target_bytes must be 1 or more, got {wanted.target_bytes}."
                )
            _, size = led.log.split(wanted.start, wanted.end, target_bytes=_ONE_PIECE)
            target_bytes = max(wanted.target_bytes, size // _MAX_CUTS)
            cuts, size = led.log.split(wanted.start, wanted.end, target_bytes=target_bytes)
        except LogbusError as error:
            self._meters.failed(Api.SPLIT_RANGE, error)
            return SplitRangeResult(wanted.topic, wanted.partition, error=error_info(error))
        return SplitRangeResult(wanted.topic, wanted.partition, list(cuts), size)

    # -- topics ---------------------------------------------------------------------------

    def _create_topic(self, request: CreateTopicRequest) -> Answer:
        LogConfig.from_topic_config(request.config, self._config.log)  # refuse before it exists
        live = [broker.broker_id for broker in self._image.brokers]
        if not live:
            raise BrokerUnavailableError(
                "No broker is registered in ZooKeeper at the moment; try again."
            )

        def create() -> Reply:
            record = self._topics.create(
                request.name, partitions=request.partitions, brokers=live, config=request.config
            )
            return Reply(encode_response(CreateTopicResponse(record.topic_id)))

        return self._offload.run(create)

    def _delete_topic(self, request: DeleteTopicRequest) -> Answer:
        def delete() -> Reply:
            self._topics.delete(request.name)
            return Reply(encode_response(DeleteTopicResponse()))

        return self._offload.run(delete)

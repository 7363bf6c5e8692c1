"""What requests and responses say: one struct per message, MessagePack on the wire.

Fields are named, so a newer peer may add one without breaking an older; unknown fields are
ignored and missing ones take their default. Numbers are bounded where they are checked, not
here. Payloads (record batches) follow the header in the order of the ``length`` fields.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from spark_logbus.errors import (
    InvalidRequestError,
    LogbusError,
    ProtocolError,
    UnsupportedVersionError,
    from_code,
)

PROTOCOL_VERSION: Final = 1
# The API of a frame that answers no request: the broker ends the connection, and says why.
ABOUT_CONNECTION: Final = 0
MAX_ERROR_MESSAGE_CHARS: Final = 2000  # some full sentences with a name and a value or two


class Api(enum.IntEnum):
    """The number of each API; they are never reused."""

    HANDSHAKE = 1
    METADATA = 2
    APPEND = 3
    FETCH = 4
    LIST_OFFSETS = 5
    CREATE_TOPIC = 6
    DELETE_TOPIC = 7
    SPLIT_RANGE = 8
    ALTER_TOPIC = 9


class Message(msgspec.Struct, omit_defaults=True):
    """Base of all messages."""


class ErrorInfo(Message):
    code: int
    message: str

    def to_exception(self) -> LogbusError:
        return from_code(self.code, self.message)


def error_info(error: LogbusError) -> ErrorInfo:
    # A message may quote what a user sent or a file name that is not UTF-8: it must neither fail
    # to encode nor outgrow the other end's header limit.
    message = error.message.encode("utf-8", "backslashreplace").decode()
    if len(message) > MAX_ERROR_MESSAGE_CHARS:
        message = message[:MAX_ERROR_MESSAGE_CHARS] + "..."
    return ErrorInfo(error.code, message)


# -- handshake ----------------------------------------------------------------------------


class HandshakeRequest(Message):
    client_id: str = ""
    software: str = ""
    protocol_version: int = PROTOCOL_VERSION


class HandshakeResponse(Message):
    broker_id: int
    protocol_version: int
    max_frame_bytes: int
    max_record_batch_bytes: int
    software: str = ""


# -- metadata -----------------------------------------------------------------------------


class MetadataRequest(Message):
    """``topics`` None asks for all topics; ``ends`` asks for offsets and sizes as well."""

    topics: list[str] | None = None
    ends: bool = False


class BrokerInfo(Message):
    broker_id: int
    host: str
    port: int
    local_socket: str | None = None


class PartitionEnds(Message):
    """Offsets and size of one partition, known to its leader only."""

    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    size_bytes: int


class PartitionInfo(Message):
    partition: int
    leader: int
    leader_epoch: int
    ends: PartitionEnds | None = None


class TopicInfo(Message):
    name: str
    topic_id: str
    partitions: list[PartitionInfo]
    config: dict[str, str] = {}


class MetadataResponse(Message):
    brokers: list[BrokerInfo]
    topics: list[TopicInfo]


# -- append -------------------------------------------------------------------------------


class AppendPartition(Message):
    """``length`` bytes of the payload are whole record batches for this partition."""

    topic: str
    partition: int
    length: int


class AppendRequest(Message):
    acks: str
    timeout_ms: int
    partitions: list[AppendPartition]


class AppendResult(Message):
    """``base_offsets`` of the partition's record batches, one each, if they do not follow one
    another from ``base_offset`` on: when some of them had been appended by an earlier request."""

    topic: str
    partition: int
    base_offset: int = -1
    append_time_us: int = -1
    error: ErrorInfo | None = None
    base_offsets: list[int] = []


class AppendResponse(Message):
    results: list[AppendResult]


# -- fetch --------------------------------------------------------------------------------


class FetchPartition(Message):
    """Records from ``offset`` on; no record batch that starts at or after ``end``, if given.

    ``topic_id``, if given, is of the topic that is meant, and of no later one of its name.
    """

    topic: str
    partition: int
    offset: int
    max_bytes: int
    end: int | None = None
    topic_id: str | None = None


class FetchRequest(Message):
    """Waits up to ``max_wait_ms`` until ``min_bytes`` are there; at most ``max_bytes`` come back,
    except that the first record batch comes whole however large it is.

    ``max_bytes_by_descriptor``: over a UNIX socket and for one partition, the file that holds the
    records may come in place of the payload, for so many bytes of it; 0: it may not.
    """

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partitions: list[FetchPartition]
    max_bytes_by_descriptor: int = 0


class FetchResult(Message):
    """``length`` bytes of the payload: record batches, the first of which holds the offset asked
    for (it may begin before it), the last of which may be cut off."""

    topic: str
    partition: int
    length: int = 0
    log_start_offset: int = -1
    high_watermark: int = -1
    error: ErrorInfo | None = None


class FetchResponse(Message):
    """``position`` -1: the payload follows. Otherwise it does not: it is what the file whose
    descriptor came with this frame (``SCM_RIGHTS``) holds from ``position`` on, as many bytes as
    the only result says."""

    results: list[FetchResult]
    position: int = -1


# -- offsets ------------------------------------------------------------------------------


class ListOffsetsPartition(Message):
    """``at``: "earliest", "latest" or "timestamp" (then ``timestamp_us``).

    ``topic_id``, if given, is of the topic that is meant, and of no later one of its name.
    """

    topic: str
    partition: int
    at: str
    timestamp_us: int = 0
    topic_id: str | None = None


class ListOffsetsRequest(Message):
    partitions: list[ListOffsetsPartition]


class ListOffsetsResult(Message):
    """For "timestamp": the base offset of the first record batch that holds a record at or after
    the time, None if there is none. The client looks inside; the broker decodes nothing."""

    topic: str
    partition: int
    offset: int | None = None
    error: ErrorInfo | None = None


class ListOffsetsResponse(Message):
    results: list[ListOffsetsResult]


class SplitRangePartition(Message):
    """Cut ``[start, end)`` into pieces of about ``target_bytes`` at record batch boundaries."""

    topic: str
    partition: int
    start: int
    end: int
    target_bytes: int


class SplitRangeRequest(Message):
    partitions: list[SplitRangePartition]


class SplitRangeResult(Message):
    """``cuts``: offsets strictly between start and end, rising; ``size_bytes`` of the range."""

    topic: str
    partition: int
    cuts: list[int] = []
    size_bytes: int = 0
    error: ErrorInfo | None = None


class SplitRangeResponse(Message):
    results: list[SplitRangeResult]


# -- topics -------------------------------------------------------------------------------


class CreateTopicRequest(Message):
    name: str
    partitions: int
    config: dict[str, str] = {}


class CreateTopicResponse(Message):
    topic_id: str


class AlterTopicRequest(Message):
    """``set`` and ``unset`` keys of the configuration; ``partitions``: have so many from now on."""

    name: str
    set: dict[str, str] = {}
    unset: list[str] = []
    partitions: int | None = None


class AlterTopicResponse(Message):
    """What the topic sets itself (not the brokers' defaults), and how many partitions it has."""

    config_before: dict[str, str]
    config: dict[str, str]
    partitions_before: int
    partitions: int


class DeleteTopicRequest(Message):
    name: str


class DeleteTopicResponse(Message):
    pass


REQUESTS: Final[dict[Api, type[Message]]] = {
    Api.HANDSHAKE: HandshakeRequest,
    Api.METADATA: MetadataRequest,
    Api.APPEND: AppendRequest,
    Api.FETCH: FetchRequest,
    Api.LIST_OFFSETS: ListOffsetsRequest,
    Api.CREATE_TOPIC: CreateTopicRequest,
    Api.DELETE_TOPIC: DeleteTopicRequest,
    Api.SPLIT_RANGE: SplitRangeRequest,
    Api.ALTER_TOPIC: AlterTopicRequest,
}

RESPONSES: Final[dict[Api, type[Message]]] = {
    Api.HANDSHAKE: HandshakeResponse,
    Api.METADATA: MetadataResponse,
    Api.APPEND: AppendResponse,
    Api.FETCH: FetchResponse,
    Api.LIST_OFFSETS: ListOffsetsResponse,
    Api.CREATE_TOPIC: CreateTopicResponse,
    Api.DELETE_TOPIC: DeleteTopicResponse,
    Api.SPLIT_RANGE: SplitRangeResponse,
    Api.ALTER_TOPIC: AlterTopicResponse,
}

# A response header is one byte, ok or error, and then the message or an ErrorInfo.
_encoder = msgspec.msgpack.Encoder()
_request_decoders = {api: msgspec.msgpack.Decoder(kind) for api, kind in REQUESTS.items()}


_error_decoder = msgspec.msgpack.Decoder(ErrorInfo)
_response_decoders: dict[Api, msgspec.msgpack.Decoder[Message]] = {
    api: msgspec.msgpack.Decoder(kind) for api, kind in RESPONSES.items()
}
# Deep nesting in a field that is skipped ends in a RecursionError of msgspec's.
_INVALID = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_OK: Final = b"\x00"
_ERROR: Final = b"\x01"


def check_api(api: int, version: int) -> Api:
    """The API of a received request, or a typed error for one that this release lacks."""
    try:
        known = Api(api)
    except ValueError as error:
        raise UnsupportedVersionError(f"API {api} is unknown to this broker.") from error
    if version != PROTOCOL_VERSION:
        raise UnsupportedVersionError(
            f"API {known.name.lower()} version {version}: this broker speaks {PROTOCOL_VERSION}."
        )
    return known


def encode_request(message: Message) -> bytes:
    """Raises InvalidRequestError for text or numbers that MessagePack cannot express."""
    try:
        return _encoder.encode(message)
    except (UnicodeEncodeError, OverflowError) as error:
        raise InvalidRequestError(f"The request cannot be sent: {error}.") from error


def decode_request(api: Api, header: bytes) -> Message:
    try:
        return _request_decoders[api].decode(header)
    except _INVALID as error:
        raise InvalidRequestError(
            f"The header of a {api.name.lower()} request is not valid: {error}."
        ) from error


def encode_response(message: Message) -> bytes:
    return _OK + _encoder.encode(message)


def encode_error(error: LogbusError) -> bytes:
    return _ERROR + _encoder.encode(error_info(error))


def decode_response(api: Api, header: bytes) -> Message:
    """The response, or the error it carries, raised."""
    try:
        if header[:1] == _ERROR:
            raise _error_decoder.decode(header[1:]).to_exception()
        if header[:1] != _OK:
            raise ProtocolError(f"A {api.name.lower()} response starts with {header[:1]!r}.")
        return _response_decoders[api].decode(header[1:])
    except _INVALID as error:
        raise ProtocolError(
            f"The header of a {api.name.lower()} response is not valid: {error}."
        ) from error

"""Encodes and decodes the headers of requests and responses."""

from __future__ import annotations

from typing import Final

import msgspec

from spark_logbus.errors import (
    InvalidRequestError,
    LogbusError,
    ProtocolError,
    UnsupportedVersionError,
)
from spark_logbus.protocol.messages import (
    APIS,
    PROTOCOL_VERSION,
    Api,
    ErrorInfo,
    Message,
    error_info,
)

__all__ = [
    "check_api",
    "decode_request",
    "decode_response",
    "encode_error",
    "encode_request",
    "encode_response",
]

# A response header is one byte, ok or error, and then the message or an ErrorInfo.
_encoder = msgspec.msgpack.Encoder()
_request_decoders: dict[Api, msgspec.msgpack.Decoder[Message]] = {
    api: msgspec.msgpack.Decoder(declared.request) for api, declared in APIS.items()
}
_error_decoder = msgspec.msgpack.Decoder(ErrorInfo)
_response_decoders: dict[Api, msgspec.msgpack.Decoder[Message]] = {
    api: msgspec.msgpack.Decoder(declared.response) for api, declared in APIS.items()
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

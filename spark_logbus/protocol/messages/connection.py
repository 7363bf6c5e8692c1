"""The handshake, which begins each connection."""

from __future__ import annotations

from spark_logbus.protocol.messages.api import PROTOCOL_VERSION, Api, Message, declare

__all__ = [
    "HandshakeRequest",
    "HandshakeResponse",
]


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


declare(Api.HANDSHAKE, HandshakeRequest, HandshakeResponse, operation=None, resource=None)

"""The handshake, which begins each connection."""

from __future__ import annotations

from spark_logbus.protocol.messages.api import PROTOCOL_VERSION, Api, Message, declare, nothing

__all__ = [
    "HandshakeRequest",
    "HandshakeResponse",
]


class HandshakeRequest(Message):
    """``mechanism`` and ``data`` prove who the client is; a login takes several rounds, each a
    handshake."""

    client_id: str = ""
    software: str = ""
    protocol_version: int = PROTOCOL_VERSION
    mechanism: str = ""
    data: bytes = b""

    def __repr__(self) -> str:
        return f"HandshakeRequest({self.client_id!r}, mechanism={self.mechanism!r})"


class HandshakeResponse(Message):
    """``goes_on``: the login is not over; the next round answers ``data``."""

    broker_id: int
    protocol_version: int
    max_frame_bytes: int
    max_record_batch_bytes: int
    software: str = ""
    data: bytes = b""
    goes_on: bool = False


declare(Api.HANDSHAKE, HandshakeRequest, HandshakeResponse, needs=nothing)

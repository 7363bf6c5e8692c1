"""The client's end of a connection, as plain as can be: blocking, with a timeout."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Self, TypeVar

from spark_logbus.protocol import (
    PROTOCOL_VERSION,
    Api,
    AppendPartition,
    AppendRequest,
    AppendResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    Frame,
    FrameLimits,
    FrameReader,
    HandshakeRequest,
    HandshakeResponse,
    Message,
    decode_response,
    encode_request,
    frame_head,
)

TIMEOUT_S = 60.0
M = TypeVar("M", bound=Message)


class EndedError(Exception):
    """The broker ended the connection."""


class Wire:
    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(TIMEOUT_S)
        self.sock = sock
        self._reader = FrameReader(FrameLimits(1 << 30))
        self._correlation = 0

    @classmethod
    def to(cls, address: str, *, shake_hands: bool = True) -> Self:
        host, _, port = address.rpartition(":")
        wire = cls(socket.create_connection((host, int(port)), timeout=TIMEOUT_S))
        try:
            if shake_hands:
                wire.shake_hands()
        except BaseException:
            wire.sock.close()
            raise
        return wire

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def shake_hands(self) -> HandshakeResponse:
        return self.call(Api.HANDSHAKE, HandshakeRequest(client_id="wire"), HandshakeResponse)

    def send(self, api: Api, message: Message, payload: bytes | memoryview = b"") -> int:
        """Send a request; its correlation. EndedError when the broker has gone."""
        self._correlation += 1
        try:
            self.sock.sendall(request(api, message, payload, correlation=self._correlation))
        except ConnectionError as error:
            raise EndedError from error
        return self._correlation

    def receive(self) -> Frame:
        while True:
            try:
                count = self.sock.recv_into(self._reader.buffer())
            except ConnectionError as error:
                raise EndedError from error
            if not count:
                raise EndedError
            frame = self._reader.advance(count)
            if frame is not None:
                return frame

    def answer(self, api: Api, kind: type[M], *, correlation: int | None = None) -> M:
        """The next response, which must be of that kind; raises the error that it carries."""
        frame = self.receive()
        if frame.api == 0:  # about the connection, which ends
            decode_response(api, frame.header)
        assert frame.correlation == (self._correlation if correlation is None else correlation)
        self.payload = frame.payload
        message = decode_response(api, frame.header)
        assert isinstance(message, kind)
        return message

    def call(
        self, api: Api, message: Message, kind: type[M], payload: bytes | memoryview = b""
    ) -> M:
        self.send(api, message, payload)
        return self.answer(api, kind)

    def append(
        self, topic: str, partition: int, data: memoryview, *, acks: str = "flushed"
    ) -> AppendResponse:
        return self.call(
            Api.APPEND, append_request(topic, partition, data, acks=acks), AppendResponse, data
        )

    def fetch(
        self, topic: str, partition: int, offset: int, *, max_bytes: int = 8 << 20, wait_ms: int = 0
    ) -> FetchResponse:
        return self.call(
            Api.FETCH,
            fetch_request(topic, partition, offset, max_bytes=max_bytes, wait_ms=wait_ms),
            FetchResponse,
        )

    def is_ended(self) -> bool:
        """Waits for the broker to end the connection."""
        try:
            self.receive()
        except EndedError:
            return True
        return False


def request(
    api: Api, message: Message, payload: bytes | memoryview = b"", *, correlation: int = 0
) -> bytes:
    head = frame_head(
        api=api,
        version=PROTOCOL_VERSION,
        correlation=correlation,
        header=encode_request(message),
        payload_length=len(payload),
    )
    return head + payload


def append_request(
    topic: str, partition: int, data: memoryview, *, acks: str = "flushed", timeout_ms: int = 20_000
) -> AppendRequest:
    return AppendRequest(acks, timeout_ms, [AppendPartition(topic, partition, len(data))])


def fetch_request(
    topic: str,
    partition: int,
    offset: int,
    *,
    max_bytes: int = 8 << 20,
    min_bytes: int = 1,
    wait_ms: int = 0,
) -> FetchRequest:
    wanted = FetchPartition(topic, partition, offset, max_bytes)
    return FetchRequest(wait_ms, min_bytes, max_bytes, [wanted])


def frames(data: Iterable[bytes]) -> list[Frame]:
    """The frames in a stream of bytes."""
    reader, found = FrameReader(FrameLimits(1 << 30)), []
    for piece in data:
        view = memoryview(piece)
        while view:
            buffer = reader.buffer()
            count = min(len(buffer), len(view))
            buffer[:count] = view[:count]
            view = view[count:]
            frame = reader.advance(count)
            if frame is not None:
                found.append(frame)
    return found

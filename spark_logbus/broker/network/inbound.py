"""The receiving half of a connection: bytes from the socket, cut into frames, within limits."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final

from spark_logbus.broker.config import DECODED, NetworkConfig
from spark_logbus.broker.network.budget import Budget, Reservation
from spark_logbus.broker.network.buffers import Buffers
from spark_logbus.protocol import Frame, FrameLimits, FrameReader

# A frame up to this size needs no reservation: max_connections of them take 64 MiB by default.
_ALWAYS_PASSES: Final = 16 << 10


class Inbound:
    """Receives one connection's requests. Used by the thread that has the connection's turn;
    ``late`` may be asked by others.

    The prelude of a large frame is received, and no more before memory for the frame is reserved.
    That is kept until the request has been ``handled``, or the connection ends.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        config: NetworkConfig,
        buffers: Buffers,
        budget: Budget,
        call: Callable[[], None],
        now: float,
    ) -> None:
        self._sock = sock
        self._config = config
        self._buffers = buffers
        self._budget = budget
        self._call = call
        limits = FrameLimits(config.max_handshake_bytes, config.max_handshake_bytes)
        self._reader = FrameReader(limits, allocate=buffers.take)
        self._reservation: Reservation | None = None
        self._queued = False  # for memory, as of the last look
        self._frame_began = now
        self.last_progress = now

    def handshake_done(self) -> None:
        config = self._config
        self._reader.limits = FrameLimits(config.max_frame_bytes, config.max_header_bytes)

    @property
    def held_back(self) -> bool:
        """Whether a frame waits for memory; ``call`` is called when it has it."""
        return self._reservation is not None and not self._reservation.granted

    def receive(self, now: float) -> Frame | None:
        """The next frame; None when it is not there yet, or waits for memory.

        Raises OSError when the other end is gone, LogbusError for bytes that are no valid frame.
        """
        if self._queued and not self.held_back:
            self._queued = False
            self._frame_began = self.last_progress = now
        reader, receive = self._reader, self._sock.recv_into
        while not self.held_back:
            if not reader.in_frame:
                self._frame_began = now
            try:
                count = receive(reader.buffer())
            except BlockingIOError:
                return None
            if not count:
                raise ConnectionResetError("the other end has closed the connection")
            self.last_progress = now
            frame = reader.advance(count)
            if frame is not None:
                return frame
            if self._reservation is None and reader.announced is not None:
                self._reserve(*reader.announced)
        return None

    def _reserve(self, length: int, header_length: int) -> None:
        if length > _ALWAYS_PASSES:
            size = length + DECODED * header_length
            self._reservation = self._budget.reserve(size, self._call)
            self._queued = self.held_back

    def handled(self, frame: Frame) -> None:
        """Nobody looks at the frame's payload any more."""
        if frame.payload:
            self._buffers.give(frame.payload)
        self.close()

    def late(self, now: float, *, read_since: float) -> str | None:
        """What takes too long, for a connection that has been read since then."""
        if self._queued or not self._reader.in_frame:
            return None
        stall_s, frame_s = (
            self._config.stall_timeout_ms / 1000,
            self._config.frame_timeout_ms / 1000,
        )
        if now - max(self.last_progress, read_since) > stall_s:
            return f"it sent no further byte of a request for {stall_s:g} s (stall_timeout_ms)"
        if now - max(self._frame_began, read_since) > frame_s:
            return f"a request took longer than {frame_s:g} s to come (frame_timeout_ms)"
        return None

    def close(self) -> None:
        """Give back what was reserved."""
        reservation, self._reservation = self._reservation, None
        if reservation is not None:
            reservation.release()

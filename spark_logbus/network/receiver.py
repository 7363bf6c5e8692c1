"""The receiving half of a connection, which cuts bytes into frames within limits.

A frame's memory is reserved as its bytes come: up to ``_ALWAYS_PASSES`` for nothing, then by
steps that grow with what has come. The buffer of its payload has the announced length from the
start, so nothing is copied when it grows, but the kernel gives it memory only where it is written
to. What the header takes when it is decoded is reserved when the frame is whole; it is then
handled at once. A frame that gets no memory is not received further, and keeps what it has;
``memory`` explains why it gets through in the end.

A sender that holds memory has to go on: the whole frame has a time limit, so has every pause, and
a large frame has a least rate, as otherwise a byte now and then would do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from spark_logbus.network.config import DECODED, NetworkConfig
from spark_logbus.network.memory import BufferPool, Memory, Reservation
from spark_logbus.network.transport import Transport
from spark_logbus.protocol import Frame, FrameLimits, FrameReader

# So much of a frame needs no reservation: max_connections of them take 64 MiB by default.
_ALWAYS_PASSES: Final = 16 << 10
# A step is seven times what was granted before, which makes three for the usual megabyte, and no
# more than this.
_MOST_AT_A_TIME: Final = 4 << 20


class FrameReceiver:
    """Receives one connection's requests. Used by the thread that has the connection's turn; other
    threads may call ``late``.

    It keeps what was reserved until the request has been ``handled``, or the connection ends.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        config: NetworkConfig,
        buffers: BufferPool,
        memory: Memory,
        peer: str,
        call: Callable[[], None],
        now: float,
    ) -> None:
        self._transport = transport
        self._config = config
        self._buffers = buffers
        self._memory = memory
        self._peer = peer
        self._call = call
        limits = FrameLimits(config.max_handshake_bytes, config.max_handshake_bytes)
        self._reader = FrameReader(limits, allocate=buffers.take)
        self._reservation: Reservation | None = None
        self._room = _ALWAYS_PASSES  # bytes of this frame that may be received
        self._whole: Frame | None = None  # which waits for memory to be decoded
        self._queued_at: float | None = None  # for memory, as of the last look
        self._frame_began = now
        self._fast_enough_until = now
        self._window_s = config.stall_timeout_ms / 1000
        self._byte_s = 1 / config.min_receive_bytes_per_s
        self.last_progress = now

    def handshake_done(self) -> None:
        config = self._config
        self._reader.limits = FrameLimits(config.max_frame_bytes, config.max_header_bytes)

    @property
    def held_back(self) -> bool:
        """True if a frame waits for memory; ``call`` is called when it has it."""
        return self._reservation is not None and not self._reservation.granted

    def receive(self, now: float) -> Frame | None:
        """The next frame; None when it is not there yet, or waits for memory.

        Raises OSError when the other end is gone, LogbusError for bytes that are no valid frame.
        """
        if self.held_back:
            return None
        if self._queued_at is not None:
            self._go_on(now)
        whole, self._whole = self._whole, None
        if whole is not None:
            return whole
        reader, receive = self._reader, self._transport.receive_into
        while True:
            if not reader.in_frame:
                self._frame_began = now
                self._fast_enough_until = now + self._window_s
                self._room = _ALWAYS_PASSES
            if reader.received == self._room and not self._reserve(now):
                return None
            room = self._room - reader.received
            buffer = reader.buffer()
            try:
                count = receive(buffer if len(buffer) <= room else buffer[:room])
            except BlockingIOError:
                return None
            if not count:
                raise ConnectionResetError("the other end has closed the connection")
            self._progress(count, now)
            frame = reader.advance(count)
            if frame is not None:
                return frame if self._may_be_decoded(frame, now) else None

    def _progress(self, count: int, now: float) -> None:
        """Account for the least rate: a sender begins with a whole window, gains time with each
        byte, and saves up no more than a window."""
        self.last_progress = now
        earned = self._fast_enough_until + count * self._byte_s
        self._fast_enough_until = min(earned, now + self._window_s)

    # -- memory ---------------------------------------------------------------------------

    def _reserve(self, now: float) -> bool:
        """Reserve memory for the next step of the frame; False when it has to be waited for."""
        announced = self._reader.announced
        assert announced is not None
        length, header_length = announced
        if self._reservation is None:
            pool = self._memory.incoming(length + DECODED * header_length)
            self._reservation = pool.open(self._peer, self._call)
        step = min(7 * self._room, _MOST_AT_A_TIME, length - self._room)
        self._room += step
        return self._grow(step, now)

    def _may_be_decoded(self, frame: Frame, now: float) -> bool:
        if self._reservation is None or self._grow(DECODED * len(frame.header), now):
            return True
        self._whole = frame
        return False

    def _grow(self, size: int, now: float) -> bool:
        assert self._reservation is not None
        if self._reservation.grow(size):
            return True
        self._queued_at = now
        return False

    def _go_on(self, now: float) -> None:
        """Leave out of account the time in which the frame waited for memory."""
        assert self._queued_at is not None
        waited, self._queued_at = now - self._queued_at, None
        self._frame_began += waited
        self._fast_enough_until += waited
        self.last_progress = now

    def handled(self, frame: Frame) -> None:
        """Take back the frame's memory, as nobody looks at its payload any more."""
        if frame.payload:
            self._buffers.give(frame.payload)
        self._release()

    def close(self) -> None:
        """Give back what was reserved; nothing is received any more."""
        self._release()
        frame, self._whole = self._whole, None
        memory = self._reader.abandon() if frame is None else frame.payload
        if memory is not None:
            self._buffers.give(memory)

    def _release(self) -> None:
        reservation, self._reservation = self._reservation, None
        if reservation is not None:
            reservation.release()

    # -- time -----------------------------------------------------------------------------

    def late(self, now: float, *, read_since: float) -> str | None:
        """The reason to end a connection that was read since ``read_since`` and is too slow."""
        if self._queued_at is not None or not self._reader.in_frame:
            return None
        stall_s, frame_s = self._window_s, self._config.frame_timeout_ms / 1000
        if now - max(self.last_progress, read_since) > stall_s:
            return f"it sent no further byte of a request for {stall_s:g} s (stall_timeout_ms)"
        if now - max(self._frame_began, read_since) > frame_s:
            return f"a request took longer than {frame_s:g} s to come (frame_timeout_ms)"
        announced = self._reader.announced
        if announced is None or announced[0] <= _ALWAYS_PASSES:
            return None
        if now > max(self._fast_enough_until, read_since + stall_s):
            return (
                f"{self._reader.received} bytes of a request of {announced[0]} came in "
                f"{now - self._frame_began:.0f} s, which is less than "
                f"{self._config.min_receive_bytes_per_s} bytes a second "
                "(min_receive_bytes_per_s)"
            )
        return None

"""Frames, which requests and responses are in a byte stream. No sockets here.

Every frame, in both directions, little-endian::

    | length u32 | api u16 | version u16 | correlation u32 | header_length u32 | header | payload |

``length`` counts the bytes after itself. The header is MessagePack; the payload, if any, is raw
record batches. A response repeats api, version and correlation of its request.

``FrameReader`` is the receiving end for both sides. It hands out the buffer to receive into, so
that a payload goes from the kernel into its final place in one copy, and it refuses a frame by
its announced lengths before any memory is taken for it. Memory for a header is taken as the
header comes, a piece at a time; that for a payload is taken whole, so ``allocate`` should give
memory that costs nothing before it is written to.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from spark_logbus.errors import FrameTooLargeError, ProtocolError

__all__ = ["Frame", "FrameLimits", "FrameReader", "frame_head"]

PRELUDE: Final = struct.Struct("<IHHII")
PRELUDE_SIZE: Final = PRELUDE.size  # 16
_LENGTH_SIZE: Final = 4
_AFTER_LENGTH: Final = PRELUDE_SIZE - _LENGTH_SIZE
_HEADER_PIECE: Final = 64 << 10

DEFAULT_MAX_HEADER_BYTES: Final = 1 << 20  # a metadata response of about 10,000 partitions


@dataclass(frozen=True, slots=True)
class Frame:
    """One received frame."""

    api: int
    version: int
    correlation: int
    header: bytes
    payload: memoryview


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """Limits of a receiver. ``max_frame_bytes`` counts everything after the length field."""

    max_frame_bytes: int
    max_header_bytes: int = DEFAULT_MAX_HEADER_BYTES


def frame_head(
    *, api: int, version: int, correlation: int, header: bytes, payload_length: int = 0
) -> bytes:
    """The bytes that come before the payload of a frame."""
    length = _AFTER_LENGTH + len(header) + payload_length
    return PRELUDE.pack(length, api, version, correlation, len(header)) + header


def _new_buffer(size: int) -> memoryview:
    return memoryview(bytearray(size))


class FrameReader:
    """Cuts one stream into frames. Not thread-safe; one per connection.

    Use: receive at most ``len(view)`` bytes into ``view = reader.buffer()``, then call
    ``reader.advance(n)``, which returns a frame when one is complete. A buffer never reaches
    past the current frame, so nothing is read ahead. Memory for a header or a payload is taken
    when ``buffer`` is called for it: one that holds back after ``advance`` has taken none yet.
    After ``abandon`` it is used no more.
    """

    def __init__(
        self, limits: FrameLimits, *, allocate: Callable[[int], memoryview] = _new_buffer
    ) -> None:
        self.limits = limits
        self._allocate = allocate
        self._view: memoryview | None = None
        self._pieces = bytearray()  # of a header that is too large to be received at once
        self._reset()

    def _reset(self) -> None:
        self._filled = self._before = 0
        self._enter(0, PRELUDE_SIZE)
        self._prelude = (0, 0, 0, 0, 0)
        self._header = b""

    @property
    def in_frame(self) -> bool:
        """True if some bytes of a frame have come, but not all."""
        return self._part > 0 or self._filled > 0

    @property
    def announced(self) -> tuple[int, int] | None:
        """Bytes of the frame that has begun, of all of it and of its header, once its lengths have
        come and passed the limits."""
        length, _, _, _, header_length = self._prelude
        return (length + _LENGTH_SIZE, header_length) if self._part else None

    @property
    def received(self) -> int:
        """Bytes that have come of the frame that has begun."""
        return self._before + self._filled

    def buffer(self) -> memoryview:
        if self._view is None:
            payload = self._part == 2
            self._view = self._allocate(self._size) if payload else _new_buffer(self._size)
        return self._view[self._filled :]

    def abandon(self) -> memoryview | None:
        """The memory of a payload that has begun to come and now never will, if there is any."""
        view, self._view = self._view, None
        return view if self._part == 2 else None

    def advance(self, received: int) -> Frame | None:
        """Account for ``received`` bytes; raises FrameTooLargeError or ProtocolError."""
        self._filled += received
        if self._filled < self._size or self._view is None:
            return None
        if self._part == 0:
            self._start_frame(self._view)
        elif self._part == 1:
            self._add_to_header(self._view)
        if self._part == 2 and self._filled == self._size:
            return self._finish(self._view)
        return None

    def _start_frame(self, prelude: memoryview) -> None:
        self._prelude = PRELUDE.unpack(prelude)
        length, _, _, _, header_length = self._prelude
        if length > self.limits.max_frame_bytes:
            raise FrameTooLargeError(
                f"A frame announces {length} bytes, the limit is {self.limits.max_frame_bytes}."
            )
        if header_length > self.limits.max_header_bytes:
            raise FrameTooLargeError(
                f"A frame header announces {header_length} bytes, "
                f"the limit is {self.limits.max_header_bytes}."
            )
        if header_length == 0 or _AFTER_LENGTH + header_length > length:
            raise ProtocolError(
                f"A frame of {length} bytes announces a header of {header_length} bytes; "
                "the other end does not speak the logbus protocol."
            )
        self._enter(1, min(header_length, _HEADER_PIECE))

    def _add_to_header(self, piece: memoryview) -> None:
        header_length = self._prelude[4]
        if len(piece) == header_length:
            self._header = bytes(piece)
        else:
            self._pieces += piece
            if rest := header_length - len(self._pieces):
                self._enter(1, min(rest, _HEADER_PIECE))
                return
            self._header, self._pieces = bytes(self._pieces), bytearray()
        self._enter(2, self._payload_length())

    def _payload_length(self) -> int:
        length, _, _, _, header_length = self._prelude
        return length - _AFTER_LENGTH - header_length

    def _enter(self, part: int, size: int) -> None:
        self._before += self._filled
        self._part = part  # 0 prelude, 1 header or a piece of it, 2 payload
        self._size = size
        self._view = None
        self._filled = 0

    def _finish(self, payload: memoryview | None) -> Frame:
        _, api, version, correlation, _ = self._prelude
        frame = Frame(api, version, correlation, self._header, payload or _new_buffer(0))
        self._reset()
        return frame

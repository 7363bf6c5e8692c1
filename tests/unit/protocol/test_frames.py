"""Frames: layout, limits, and what a reader refuses before it takes memory."""

from __future__ import annotations

import struct

import pytest

from spark_logbus.errors import FrameTooLargeError, LogbusError, ProtocolError
from spark_logbus.protocol import Frame, FrameLimits, FrameReader, frame_head
from spark_logbus.protocol.frames import DEFAULT_MAX_HEADER_BYTES, PRELUDE_SIZE

LIMITS = FrameLimits(max_frame_bytes=10_000, max_header_bytes=1_000)


def feed(reader: FrameReader, data: bytes, step: int | None = None) -> list[Frame]:
    """Give ``data`` to ``reader`` as a socket would: at most ``step`` bytes at a time."""
    frames = []
    position = 0
    while position < len(data):
        room = reader.buffer()
        part = data[position : position + min(len(room), step or len(room))]
        room[: len(part)] = part
        position += len(part)
        frame = reader.advance(len(part))
        if frame is not None:
            frames.append(frame)
    return frames


class Counting:
    """An allocator that remembers what was asked of it."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, size: int) -> memoryview:
        self.sizes.append(size)
        return memoryview(bytearray(size))


def test_the_bytes_are_those_of_the_documentation() -> None:
    head = frame_head(api=3, version=1, correlation=0xABCD, header=b"\x80", payload_length=256)
    assert head.hex(" ") == "0d 01 00 00 03 00 01 00 cd ab 00 00 01 00 00 00 80"


def test_a_frame_with_a_payload() -> None:
    head = frame_head(api=4, version=1, correlation=7, header=b"head", payload_length=3)
    [frame] = feed(FrameReader(LIMITS), head + b"abc")
    assert (frame.api, frame.version, frame.correlation) == (4, 1, 7)
    assert (frame.header, bytes(frame.payload)) == (b"head", b"abc")


def test_a_frame_without_payload_is_complete_with_its_header() -> None:
    allocate = Counting()
    [frame] = feed(
        FrameReader(LIMITS, allocate=allocate),
        frame_head(api=1, version=1, correlation=0, header=b"x"),
    )
    assert len(frame.payload) == 0
    assert allocate.sizes == []


@pytest.mark.parametrize("step", [1, 2, 3, 7, 15, 16, 17, None])
def test_frames_in_a_row(step: int | None) -> None:
    payloads = [b"", b"a", b"", bytes(100)]
    stream = b"".join(
        frame_head(api=i, version=1, correlation=i, header=b"h" * (i + 1), payload_length=len(p))
        + p
        for i, p in enumerate(payloads)
    )
    frames = feed(FrameReader(LIMITS), stream, step)
    assert [bytes(frame.payload) for frame in frames] == payloads
    assert [frame.header for frame in frames] == [b"h", b"hh", b"hhh", b"hhhh"]
    assert [frame.correlation for frame in frames] == [0, 1, 2, 3]


def test_payloads_come_from_the_allocator_and_are_writable() -> None:
    allocate = Counting()
    head = frame_head(api=3, version=1, correlation=0, header=b"x", payload_length=64)
    [frame] = feed(FrameReader(LIMITS, allocate=allocate), head + bytes(64))
    assert allocate.sizes == [64]
    frame.payload[0] = 1


def test_earlier_frames_are_not_overwritten_by_later_ones() -> None:
    head = frame_head(api=3, version=1, correlation=0, header=b"x", payload_length=2)
    frames = feed(FrameReader(LIMITS), head + b"aa" + head + b"bb")
    assert [bytes(frame.payload) for frame in frames] == [b"aa", b"bb"]


def test_in_frame_tells_a_clean_end_from_a_cut() -> None:
    data = frame_head(api=3, version=1, correlation=0, header=b"x", payload_length=1) + b"p"
    reader = FrameReader(LIMITS)
    assert not reader.in_frame
    for byte in data[:-1]:
        feed(reader, bytes([byte]))
        assert reader.in_frame
    feed(reader, data[-1:])
    assert not reader.in_frame


def test_a_buffer_never_reaches_past_its_frame() -> None:
    reader = FrameReader(LIMITS)
    assert len(reader.buffer()) == PRELUDE_SIZE
    head = frame_head(api=3, version=1, correlation=0, header=b"abc", payload_length=5)
    feed(reader, head[:PRELUDE_SIZE])
    assert len(reader.buffer()) == 3
    feed(reader, head[PRELUDE_SIZE:])
    assert len(reader.buffer()) == 5
    feed(reader, b"12")
    assert len(reader.buffer()) == 3


def prelude(length: int, header_length: int) -> bytes:
    return struct.pack("<IHHII", length, 1, 1, 1, header_length)


@pytest.mark.parametrize(
    ("length", "header_length", "error"),
    [
        (10_001, 10, FrameTooLargeError),
        (0xFFFFFFFF, 10, FrameTooLargeError),
        (0xFFFFFFFF, 0xFFFFFFFF, FrameTooLargeError),
        (5_000, 1_001, FrameTooLargeError),
        (5_000, 0xFFFFFFFF, FrameTooLargeError),
        (0, 0, ProtocolError),
        (0, 1, ProtocolError),
        (11, 1, ProtocolError),
        (12, 0, ProtocolError),
        (12, 1, ProtocolError),
        (100, 0, ProtocolError),
        (100, 89, ProtocolError),
    ],
)
def test_impossible_lengths_are_refused_before_memory_is_taken(
    length: int, header_length: int, error: type[LogbusError]
) -> None:
    allocate = Counting()
    reader = FrameReader(LIMITS, allocate=allocate)
    with pytest.raises(error):
        feed(reader, prelude(length, header_length))
    assert allocate.sizes == []
    assert len(reader.buffer()) == 0  # the stream is lost; there is nothing more to receive


def test_the_largest_frame_that_is_allowed() -> None:
    reader = FrameReader(LIMITS)
    feed(reader, prelude(10_000, 1_000))
    assert len(reader.buffer()) == 1_000


@pytest.mark.parametrize(
    "greeting",
    [b"GET / HTTP/1.1\r\nHost: x\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 2],
)
def test_other_protocols_are_refused_at_once(greeting: bytes) -> None:
    with pytest.raises((FrameTooLargeError, ProtocolError)):
        feed(FrameReader(FrameLimits(max_frame_bytes=4096)), greeting)  # as before a handshake


def test_default_header_limit() -> None:
    assert FrameLimits(max_frame_bytes=1).max_header_bytes == DEFAULT_MAX_HEADER_BYTES == 1 << 20

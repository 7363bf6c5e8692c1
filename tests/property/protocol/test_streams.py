"""A reader of frames gives the same frames however the stream is cut, and never trusts garbage."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_logbus.errors import FrameTooLargeError, ProtocolError
from spark_logbus.protocol import Frame, FrameLimits, FrameReader, frame_head
from tests.property.examples import examples

DEFAULT = settings(max_examples=examples(80))
LIMITS = FrameLimits(max_frame_bytes=5_000, max_header_bytes=500)
UINT16, UINT32 = st.integers(0, (1 << 16) - 1), st.integers(0, (1 << 32) - 1)
SENT = st.tuples(UINT16, UINT16, UINT32, st.binary(min_size=1, max_size=50), st.binary(max_size=90))
Sent = tuple[int, int, int, bytes, bytes]


def on_the_wire(sent: Sent) -> bytes:
    api, version, correlation, header, payload = sent
    head = frame_head(
        api=api,
        version=version,
        correlation=correlation,
        header=header,
        payload_length=len(payload),
    )
    return head + payload


def received(frames: list[Frame]) -> list[Sent]:
    return [(f.api, f.version, f.correlation, f.header, bytes(f.payload)) for f in frames]


def feed(reader: FrameReader, data: bytes) -> list[Frame]:
    """Feeds a reader like a socket that has all of ``data``: fills what it offers in turn."""
    frames = []
    view = memoryview(data)
    while view:
        room = reader.buffer()
        assert len(room) > 0
        part = view[: len(room)]
        room[: len(part)] = part
        frame = reader.advance(len(part))
        if frame is not None:
            frames.append(frame)
        view = view[len(part) :]
    return frames


@DEFAULT
@given(st.lists(SENT, max_size=5), st.data())
def test_the_cuts_do_not_matter(sent: list[Sent], data: st.DataObject) -> None:
    stream = b"".join(map(on_the_wire, sent))
    whole = received(feed(FrameReader(LIMITS), stream))
    assert whole == sent

    one_by_one = FrameReader(LIMITS)
    assert received([f for b in stream for f in feed(one_by_one, bytes([b]))]) == sent

    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    anywhere = FrameReader(LIMITS)
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert received([f for piece in pieces for f in feed(anywhere, piece)]) == sent


@DEFAULT
@given(st.lists(SENT, min_size=1, max_size=3), SENT, st.data())
def test_a_tail_waits_for_its_rest(sent: list[Sent], last: Sent, data: st.DataObject) -> None:
    tail = on_the_wire(last)
    cut = data.draw(st.integers(0, len(tail) - 1))
    reader = FrameReader(LIMITS)
    assert received(feed(reader, b"".join(map(on_the_wire, sent)) + tail[:cut])) == sent
    assert reader.in_frame == (cut > 0)
    assert received(feed(reader, tail[cut:])) == [last]
    assert not reader.in_frame


class Bounded:
    """An allocator that fails the test when more is asked for than the limit allows."""

    def __call__(self, size: int) -> memoryview:
        assert 0 < size <= LIMITS.max_frame_bytes
        return memoryview(bytearray(size))


@settings(max_examples=examples(400))
@given(st.binary(max_size=2_000))
def test_garbage_ends_in_a_typed_error_or_waits_for_more(garbage: bytes) -> None:
    reader = FrameReader(LIMITS, allocate=Bounded())
    try:
        frames = feed(reader, garbage)
    except (FrameTooLargeError, ProtocolError):
        return
    assert b"".join(map(on_the_wire, received(frames))) == garbage[: _taken(frames)]


def _taken(frames: list[Frame]) -> int:
    return sum(16 + len(frame.header) + len(frame.payload) for frame in frames)


@DEFAULT
@given(UINT32, UINT32)
def test_any_announced_lengths(length: int, header_length: int) -> None:
    prelude = b"".join(
        (length.to_bytes(4, "little"), bytes(8), header_length.to_bytes(4, "little"))
    )
    reader = FrameReader(LIMITS, allocate=Bounded())
    if 0 < header_length <= 500 and header_length + 12 <= length <= 5_000:
        assert feed(reader, prelude) == []
        assert len(reader.buffer()) == header_length
    else:
        with pytest.raises((FrameTooLargeError, ProtocolError)):
            feed(reader, prelude)

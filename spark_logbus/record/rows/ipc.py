"""The envelope of a payload, read before Arrow acts on it.

A payload is one encapsulated Arrow IPC message::

    | ff ff ff ff | metadata_size i32 | metadata (flatbuffer), padded | body |

Arrow itself checks that the metadata is a sound flatbuffer and that buffers lie inside the body.
But it trusts the message on how far it may grow: each compressed buffer begins with its
uncompressed length, and Arrow allocates that much before it looks at the rest. So this module
finds out, without Arrow and without allocating, whether and how a message is compressed and what
its buffers claim to become.

It reads flatbuffers by hand (a table points to its vtable, the vtable holds each field's place),
and need be right only for messages that Arrow then accepts: for others it may answer anything,
as long as it ends. No loop here is longer than the message.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from spark_logbus.model import Compression
from spark_logbus.record.gather import Int64s

_CONTINUATION: Final = 0xFFFFFFFF
_ENVELOPE: Final = struct.Struct("<IiI")  # continuation, metadata_size, place of the root table
_METADATA_AT: Final = 8
_I32: Final = struct.Struct("<i")
_U32: Final = struct.Struct("<I")
_U16: Final = struct.Struct("<H")
_I16: Final = struct.Struct("<h")
_I64: Final = struct.Struct("<q")
_BUFFER: Final = struct.Struct("<qq")  # offset in the body, length
_WORD: Final = 8

# Slots of the tables Message and RecordBatch in Arrow's Message.fbs.
_VERSION, _HEADER_TYPE, _HEADER, _BODY_LENGTH = 0, 1, 2, 3
_LENGTH, _NODES, _BUFFERS, _COMPRESSION = 0, 1, 2, 3
_CODEC = 0

_METADATA_V5: Final = 4
_RECORD_BATCH: Final = 3
#: The buffer of timestamps, behind the one that says which are null; bytes of each of them.
TIMES: Final = 1
TIME_BYTES: Final = 8
_CODECS: Final = {0: Compression.LZ4, 1: Compression.ZSTD}


class EnvelopeError(ValueError):
    """The payload is not one whole Arrow record batch message of the kind that logbus writes."""


@dataclass(frozen=True, slots=True)
class MessageNumbers:
    """Numbers that a record batch message says of its columns; not to be believed yet."""

    record_count: int
    body_length: int
    compression: Compression

    nodes: Int64s
    """Of each column and child of one: its length and its number of nulls."""

    buffers: Int64s
    """Of each buffer: its place in the body, and its length."""


def message_metadata(payload: memoryview) -> memoryview:
    """Returns what stands before the body of a record batch message. Raises EnvelopeError."""
    try:
        size = _METADATA_AT + _ENVELOPE.unpack_from(payload)[1]
    except struct.error as error:
        raise EnvelopeError(f"it is no Arrow message: {error}") from error
    if not _METADATA_AT <= size <= len(payload):
        raise EnvelopeError(f"its Arrow metadata has {size} bytes, it has {len(payload)}")
    return payload[:size]


def read_message(metadata: memoryview) -> MessageNumbers:
    """The numbers of a record batch message, of which all that stands before the body is given.

    Raises EnvelopeError.
    """
    try:
        return _read_message(metadata)
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise EnvelopeError(f"its Arrow metadata points outside the message: {error}") from error


def _read_message(metadata: memoryview) -> MessageNumbers:
    message, body = _message(metadata)
    if body != len(metadata):
        raise EnvelopeError(f"its Arrow metadata has {body} bytes, expected {len(metadata)}")
    batch = _follow(metadata, _field(metadata, message, _HEADER))
    record_count, body_length = (
        _I64.unpack_from(metadata, at)[0] if at else 0
        for at in (_field(metadata, batch, _LENGTH), _field(metadata, message, _BODY_LENGTH))
    )
    nodes, buffers = (_pairs(metadata, batch, slot) for slot in (_NODES, _BUFFERS))
    return MessageNumbers(record_count, body_length, _codec(metadata, batch), nodes, buffers)


def _pairs(metadata: memoryview, table: int, slot: int) -> Int64s:
    """A vector of structs of two numbers each."""
    vector = _follow(metadata, _field(metadata, table, slot))
    count = _U32.unpack_from(metadata, vector)[0]
    return np.frombuffer(metadata, "<i8", 2 * count, vector + 4).reshape(count, 2)


@dataclass(frozen=True, slots=True)
class MessageForm:
    """Places of the numbers of a message, in words of 8 bytes from its beginning.

    Messages of one writer with the same columns have all else in common.
    """

    words: int
    """Of all that stands before the body."""

    body_length: int
    record_count: int
    nodes: range
    buffers: range

    @property
    def constant(self) -> list[int]:
        """The words that are the same in all messages of this form."""
        numbers = {self.body_length, self.record_count, *self.nodes, *self.buffers}
        return [word for word in range(self.words) if word not in numbers]


def message_form(payload: memoryview) -> MessageForm | None:
    """The form of a sound record batch message; None if its numbers are not whole words."""
    _, metadata_size, root = _ENVELOPE.unpack_from(payload)
    message = _METADATA_AT + root
    batch = _follow(payload, _field(payload, message, _HEADER))
    nodes = _follow(payload, _field(payload, batch, _NODES))
    buffers = _follow(payload, _field(payload, batch, _BUFFERS))
    body_length, record_count = (
        _field(payload, message, _BODY_LENGTH),
        _field(payload, batch, _LENGTH),
    )
    places = (_METADATA_AT + metadata_size, body_length, record_count, nodes + 4, buffers + 4)
    if any(place % _WORD for place in places) or not body_length or not record_count:
        return None
    words, body_length, record_count, first_node, first_buffer = (at // _WORD for at in places)
    return MessageForm(
        words,
        body_length,
        record_count,
        range(first_node, first_node + 2 * _U32.unpack_from(payload, nodes)[0]),
        range(first_buffer, first_buffer + 2 * _U32.unpack_from(payload, buffers)[0]),
    )


@dataclass(frozen=True, slots=True)
class KnownMessage:
    """A sound message, by which others of its form are recognised, many at once."""

    form: MessageForm
    words: Int64s
    constant: npt.NDArray[np.intp]

    @classmethod
    def of(cls, payload: memoryview) -> KnownMessage | None:
        """Takes a sound message; None if its numbers are not whole words."""
        form = message_form(payload)
        if form is None:
            return None
        words = np.frombuffer(payload, "<i8", form.words).copy()
        return cls(form, words, np.array(form.constant, np.intp))

    def are_all(self, metadata: Int64s) -> bool:
        """True if each row of ``metadata`` is of such a message, but for its numbers."""
        return bool((metadata[:, self.constant] == self.words[self.constant]).all())


class UsualMessage:
    """The form of one trusted message, to recognise others of that form at a glance."""

    __slots__ = ("_body_length", "_constants_of", "_expected", "_size", "_words_of")

    def __init__(self, payload: memoryview) -> None:
        """``payload`` is uncompressed, of one row or more, and written by Arrow here."""
        form = message_form(payload)
        assert form is not None, "Arrow aligns the numbers of its messages"
        self._words_of = struct.Struct(f"<{form.words}q").unpack_from
        self._constants_of = operator.itemgetter(*form.constant)
        self._expected = self._constants_of(self._words_of(payload))
        self._body_length = form.body_length
        self._size = form.words * _WORD

    def has_form(self, payload: memoryview) -> bool:
        """True if ``check_envelope`` would find nothing wrong; False if it has to look."""
        if len(payload) < self._size:
            return False
        words = self._words_of(payload)
        return bool(
            self._constants_of(words) == self._expected
            and words[self._body_length] + self._size == len(payload)
        )


def check_envelope(payload: memoryview, *, compression: Compression, nodes: int) -> int:
    """Check that ``payload`` is one whole record batch message of ``nodes`` columns and children
    of columns, compressed as the record batch's header says.

    Returns the bytes that its compressed buffers claim to take when decoded; 0 when it is not
    compressed, for then they are views of the payload. Raises EnvelopeError.
    """
    try:
        return _check(payload, compression, nodes)
    except (struct.error, IndexError, OverflowError) as error:
        raise EnvelopeError(f"its Arrow metadata points outside the message: {error}") from error


def claims_of_buffers(data: memoryview, buffers: Iterable[tuple[int, int]]) -> int:
    """Bytes that compressed ``buffers``, places in ``data`` and sizes, claim to take when decoded.

    Each begins with that number, where -1 marks one that was left uncompressed; an empty one has
    none. Raises EnvelopeError.
    """
    claimed, last = 0, len(data) - _WORD
    # One by one: they are few, and numpy takes as long for ten as Python for a hundred.
    for place, size in buffers:
        if size <= 0:
            continue
        if size < _WORD:
            raise EnvelopeError("one of its compressed buffers has no length")
        if not 0 <= place <= last:
            raise EnvelopeError("one of its buffers lies outside of it")
        claimed += max(0, _I64.unpack_from(data, place)[0])
    return claimed


def _message(payload: memoryview) -> tuple[int, int]:
    """Positions of the root table of a record batch message, and of its body."""
    continuation, metadata_size, root = _ENVELOPE.unpack_from(payload)
    if continuation != _CONTINUATION or metadata_size < 0:
        raise EnvelopeError("it does not start as an Arrow message")
    message = _METADATA_AT + root
    version_at = _field(payload, message, _VERSION)
    # Older versions may hide compression in custom metadata, where this check would not see it.
    if not version_at or _I16.unpack_from(payload, version_at)[0] != _METADATA_V5:
        raise EnvelopeError("its Arrow metadata is not of version 5")
    type_at = _field(payload, message, _HEADER_TYPE)
    if not type_at or payload[type_at] != _RECORD_BATCH:
        raise EnvelopeError("its Arrow message is not a record batch")
    return message, _METADATA_AT + metadata_size


def _check(payload: memoryview, compression: Compression, nodes: int) -> int:
    message, body = _message(payload)
    length_at = _field(payload, message, _BODY_LENGTH)
    body_length = _I64.unpack_from(payload, length_at)[0] if length_at else 0
    if body + body_length != len(payload):
        raise EnvelopeError(
            f"its Arrow message has {body + body_length} bytes, expected {len(payload)}"
        )
    batch = _follow(payload, _field(payload, message, _HEADER))
    actual_nodes = _U32.unpack_from(payload, _follow(payload, _field(payload, batch, _NODES)))[0]
    if actual_nodes != nodes:
        raise EnvelopeError(f"it holds {actual_nodes} columns and children, expected {nodes}")
    actual = _codec(payload, batch)
    if actual is not compression:
        raise EnvelopeError(
            f"its buffers have compression {actual.name.lower()}, "
            f"expected {compression.name.lower()}"
        )
    return 0 if actual is Compression.NONE else _decoded_bytes(payload, batch, body)


def _field(view: memoryview, table: int, slot: int) -> int:
    """The position of the field of ``table``; 0 if the table leaves it at its default."""
    vtable = table - _I32.unpack_from(view, table)[0]
    entry = 4 + 2 * slot
    if entry >= _U16.unpack_from(view, vtable)[0]:
        return 0
    place = int(_U16.unpack_from(view, vtable + entry)[0])
    return table + place if place else 0


def _follow(view: memoryview, place: int) -> int:
    """The table or vector that the offset at ``place`` points to."""
    return place + int(_U32.unpack_from(view, place)[0])


def _codec(payload: memoryview, batch: int) -> Compression:
    compression_at = _field(payload, batch, _COMPRESSION)
    if not compression_at:
        return Compression.NONE
    codec_at = _field(payload, _follow(payload, compression_at), _CODEC)
    codec = payload[codec_at] if codec_at else 0
    if codec not in _CODECS:
        raise EnvelopeError(f"its buffers have the unknown codec {codec}")
    return _CODECS[codec]


def _decoded_bytes(payload: memoryview, batch: int, body: int) -> int:
    """Adds up the claims as ``claims_of_buffers`` does, in half the time, which each compressed
    record batch waits for."""
    vector = _follow(payload, _field(payload, batch, _BUFFERS))
    end = vector + 4 + int(_U32.unpack_from(payload, vector)[0]) * _BUFFER.size
    if end > len(payload):
        raise EnvelopeError("its list of buffers is longer than the message")
    total = 0
    for offset, length in _BUFFER.iter_unpack(payload[vector + 4 : end]):
        # Empty buffers have no prefix; -1 marks a buffer that was left uncompressed.
        if length > 0:
            total += max(0, _I64.unpack_from(payload, body + offset)[0])
    return total

"""Columns of many record batches at once, joined.

Record batches with the same columns, as one producer makes them one after the other, have Arrow
metadata that differs in some numbers only: of records, of nulls, of where the buffers are. The
first one's is read (``ipc.MessageForm``), and those numbers are taken from all the others as
arrays, so that what is left to do for each record batch is to take slices of its buffers, which
``decompress`` makes of compressed ones.

Whatever is not as expected, as a payload that lies, is left to ``arrow.decode``, record batch by
record batch: so there is one place that decides what is wrong with a payload.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_logbus.errors import CorruptRecordBatchError
from spark_logbus.model import Compression
from spark_logbus.record import format as fmt
from spark_logbus.record.gather import Int64s, pieces, windows
from spark_logbus.record.rows.arrow import HEADERS, TIMESTAMP, decode
from spark_logbus.record.rows.decompress import claimed_sizes, decompressed
from spark_logbus.record.rows.ipc import KnownMessage
from spark_logbus.record.run import RecordBatchRun

Int32s = npt.NDArray[np.int32]

_WORD: Final = 8
_MAX_COLUMN_BYTES: Final = (1 << 31) - 1  # what the offsets of a binary column can say


class _OtherForm(Exception):
    """Raised for record batches that cannot be joined here."""


def joined(
    run: RecordBatchRun, wanted: Collection[str], *, enough_bytes: int
) -> tuple[int, dict[str, pa.Array]] | None:
    """The ``wanted`` columns of all records of ``run``, and ``offset_delta`` where that is there;
    or, of compressed ones, of as many record batches as make up about ``enough_bytes``; and the
    number of these.

    ``run`` has been verified, and its record batches have the same attributes. Columns that they
    do not have are left out. None if they have to be decoded one by one.
    """
    attributes = int(run.attributes[0])
    try:
        payloads = _payloads(run, attributes)
        if attributes & fmt.COMPRESSION_MASK:
            payloads = _decompressed(payloads, attributes, wanted, enough_bytes)
            run = run.part(0, len(payloads.lengths))
        columns = _columns(payloads, run.record_counts, attributes, wanted)
        if attributes & fmt.HAS_OFFSET_DELTA:
            _require(deltas_rise(run, columns["offset_delta"]))
    except _OtherForm:
        return None
    return len(run), columns


def _require(condition: bool | np.bool_) -> None:
    if not condition:
        raise _OtherForm


@dataclass(frozen=True, slots=True)
class _Payloads:
    """The payloads of a run; arrays with a row a record batch."""

    data: memoryview

    lengths: Int64s
    """Of each node, which is a column or a child of one."""

    null_counts: Int64s

    starts: Int64s
    """Of each buffer, in ``data``."""

    sizes: Int64s


# By attributes: the first payload of the last run, which Arrow has accepted.
_known: dict[int, KnownMessage] = {}


def _payloads(run: RecordBatchRun, attributes: int) -> _Payloads:
    """The payloads, if all have one form."""
    known, found = _known.get(attributes), None
    if known is not None:
        found = _metadata(run, known)
    if known is None or found is None:
        known = _known[attributes] = _first_payload(run)
        found = _metadata(run, known)
    if found is None:
        raise _OtherForm
    message = known.form
    body_starts = run.bounds[:-1] + fmt.HEADER_SIZE + message.words * _WORD
    body_lengths = run.bounds[1:] - body_starts
    nodes = found[:, message.nodes.start : message.nodes.stop]
    buffers = found[:, message.buffers.start : message.buffers.stop]
    lengths, null_counts = nodes[:, 0::2], nodes[:, 1::2]
    places, sizes = buffers[:, 0::2], buffers[:, 1::2]
    room = body_lengths[:, None]
    _require((found[:, message.body_length] == body_lengths).all())
    _require((found[:, message.record_count] == run.record_counts).all())
    _require(((lengths >= 0) & (null_counts >= 0) & (null_counts <= lengths)).all())
    _require((places % fmt.ALIGNMENT == 0).all())
    _require(((places >= 0) & (places <= room) & (sizes >= 0) & (sizes <= room - places)).all())
    return _Payloads(run.data, lengths, null_counts, places + body_starts[:, None], sizes)


def _first_payload(run: RecordBatchRun) -> KnownMessage:
    """The first payload, by which the others are recognised."""
    record_batch = run.record_batch(0)
    try:
        decode(run.header(0), record_batch)
    except CorruptRecordBatchError:
        raise _OtherForm from None
    known = KnownMessage.of(record_batch[fmt.HEADER_SIZE :])
    if known is None:
        raise _OtherForm
    return known


def _metadata(run: RecordBatchRun, known: KnownMessage) -> Int64s | None:
    """The words before each body; None if a payload is not of this form."""
    starts, size = run.bounds[:-1] + fmt.HEADER_SIZE, known.form.words * _WORD
    if (run.bounds[1:] - starts).min() < size:
        return None
    found: Int64s = windows(run.data, starts, size).view("<i8").reshape(len(run), -1)
    return found if known.are_all(found) else None


def _decompressed(
    payloads: _Payloads, attributes: int, wanted: Collection[str], enough_bytes: int
) -> _Payloads:
    """The first payloads, with the buffers of the wanted columns as they were before they were
    compressed. The others are not touched."""
    starts, sizes = payloads.starts, payloads.sizes
    claims = claimed_sizes(payloads.data, starts, sizes)
    _require(
        ((claims >= 0) & (claims <= fmt.MAX_DECODED_BYTES) & ((claims > 0) | (sizes == 0))).all()
    )
    of_each = claims.sum(axis=1)
    _require((of_each <= fmt.MAX_DECODED_BYTES).all())
    count = min(len(claims), int(np.searchsorted(of_each.cumsum(), enough_bytes)) + 1)
    buffers = _buffers_of(attributes, wanted)
    chosen = np.zeros_like(claims[:count], np.bool_)
    chosen[:, buffers] = claims[:count, buffers] > 0
    found = decompressed(
        payloads.data,
        starts[:count][chosen],
        sizes[:count][chosen],
        claims[:count][chosen],
        Compression(attributes & fmt.COMPRESSION_MASK),
    )
    if found is None:
        raise _OtherForm
    data, places = found
    new_starts = np.zeros_like(starts[:count])
    new_starts[chosen] = places
    return _Payloads(
        data, payloads.lengths[:count], payloads.null_counts[:count], new_starts, claims[:count]
    )


# Of the payload's columns, in their order: the nodes and the buffers that each takes.
_COLUMNS: Final = (
    ("timestamp", 0, 1, 2),
    ("key", fmt.HAS_KEY, 1, 3),
    ("value", 0, 1, 3),
    ("headers", fmt.HAS_HEADERS, 4, 9),
    ("offset_delta", fmt.HAS_OFFSET_DELTA, 1, 2),
)


def _buffers_of(attributes: int, wanted: Collection[str]) -> list[int]:
    """The numbers of the buffers that ``_columns`` looks at."""
    found: list[int] = []
    first = 0
    for name, bit, _, buffers in _COLUMNS:
        if bit & ~attributes:
            continue
        if name in wanted or bit == fmt.HAS_OFFSET_DELTA:
            found += range(first, first + buffers)
        first += buffers
    return found


def _columns(
    payloads: _Payloads, counts: Int64s, attributes: int, wanted: Collection[str]
) -> dict[str, pa.Array]:
    columns = {}
    node = buffer = 0
    for name, bit, nodes, buffers in _COLUMNS:
        if bit & ~attributes:
            continue
        _require((payloads.lengths[:, node] == counts).all())
        if name in wanted or bit == fmt.HAS_OFFSET_DELTA:
            columns[name] = _MAKERS[name](payloads, node, buffer)
        node, buffer = node + nodes, buffer + buffers
    _require((node, buffer) == (payloads.lengths.shape[1], payloads.starts.shape[1]))
    return columns


def _timestamps(payloads: _Payloads, node: int, buffer: int) -> pa.Array:
    return _fixed_width(payloads, TIMESTAMP, node, buffer)


def _binary(payloads: _Payloads, node: int, buffer: int) -> pa.Array:
    return _variable_width(payloads, pa.binary(), node, buffer)


def _headers(payloads: _Payloads, node: int, buffer: int) -> pa.Array:
    """The nodes are of lists, structs, names and data."""
    lengths = payloads.lengths
    entries = lengths[:, node + 1]
    offsets, firsts, lasts = _offsets(payloads, node, buffer + 1)
    _require((firsts == 0).all() and (lasts == entries).all())
    _require((lengths[:, node + 2] == entries).all() and (lengths[:, node + 3] == entries).all())
    names = _variable_width(payloads, pa.string(), node + 2, buffer + 3)
    data = _variable_width(payloads, pa.binary(), node + 3, buffer + 6)
    structs = _array(payloads, HEADERS.value_type, node + 1, buffer + 2, [], [names, data])
    headers = _array(payloads, HEADERS, node, buffer, [offsets], [structs])
    try:
        headers.validate(full=True)  # that names are UTF-8
    except pa.ArrowInvalid:
        raise _OtherForm from None
    return headers


def _offset_deltas(payloads: _Payloads, node: int, buffer: int) -> pa.Array:
    return _fixed_width(payloads, pa.int32(), node, buffer)


_MAKERS: Final = {
    "timestamp": _timestamps,
    "key": _binary,
    "value": _binary,
    "headers": _headers,
    "offset_delta": _offset_deltas,
}


def _fixed_width(payloads: _Payloads, kind: pa.DataType, node: int, buffer: int) -> pa.Array:
    """A column of the payload that is never null."""
    _require(not payloads.null_counts[:, node].any())
    sizes = payloads.lengths[:, node] * (kind.bit_width // 8)
    _require((payloads.sizes[:, buffer + 1] >= sizes).all())
    data = pieces(payloads.data, payloads.starts[:, buffer + 1], sizes)
    return _array(payloads, kind, node, buffer, [data])


def _variable_width(payloads: _Payloads, kind: pa.DataType, node: int, buffer: int) -> pa.Array:
    offsets, firsts, lasts = _offsets(payloads, node, buffer + 1)
    _require((payloads.sizes[:, buffer + 2] >= lasts).all())
    data = pieces(payloads.data, payloads.starts[:, buffer + 2] + firsts, lasts - firsts)
    return _array(payloads, kind, node, buffer, [offsets, data])


def _array(
    payloads: _Payloads,
    kind: pa.DataType,
    node: int,
    buffer: int,
    buffers: list[pa.Buffer],
    children: list[pa.Array] | None = None,
) -> pa.Array:
    rows = int(payloads.lengths[:, node].sum())
    null_count = int(payloads.null_counts[:, node].sum())
    validity = _validity(payloads, node, buffer) if null_count else None
    return pa.Array.from_buffers(kind, rows, [validity, *buffers], null_count, children=children)


def _offsets(payloads: _Payloads, node: int, buffer: int) -> tuple[pa.Buffer, Int64s, Int64s]:
    """The offsets of all, as they are after those before; and the first and last offset of each
    record batch as it was."""
    counts = payloads.lengths[:, node]
    sizes = np.where(counts > 0, 4 * (counts + 1), 0)  # without rows there need be no offsets
    _require((payloads.sizes[:, buffer] >= sizes).all())
    old = np.frombuffer(pieces(payloads.data, payloads.starts[:, buffer], sizes), "<i4")
    entries = sizes // 4
    stops = entries.cumsum()
    starts = stops - entries
    some = counts > 0
    firsts, lasts = np.zeros_like(counts), np.zeros_like(counts)
    firsts[some], lasts[some] = old[starts[some]], old[stops[some] - 1]
    begins = np.zeros(len(old), np.bool_)  # an offset that the one before it does not bound
    begins[starts[some]] = True
    _require((firsts >= 0).all() and (begins[1:] | (old[1:] >= old[:-1])).all())
    ends = (lasts - firsts).cumsum()
    _require(ends[-1] <= _MAX_COLUMN_BYTES)
    begins[:1] = False
    shifts = np.repeat(ends - lasts, entries)
    new = (old + shifts)[~begins].astype("<i4")
    return pa.py_buffer(new if len(new) else bytes(4)), firsts, lasts


def _validity(payloads: _Payloads, node: int, buffer: int) -> pa.Buffer:
    """The bits of all, one for each row that is not null."""
    counts, null_counts = payloads.lengths[:, node], payloads.null_counts[:, node]
    sizes = (counts + 7) // 8
    _require(((null_counts == 0) | (payloads.sizes[:, buffer] >= sizes)).all())
    # Without nulls there need be no bits, and none that are there count.
    pieces = [
        payloads.data[start : start + size] if nulls else b"\xff" * size
        for start, size, nulls in zip(
            payloads.starts[:, buffer].tolist(), sizes.tolist(), null_counts.tolist(), strict=True
        )
    ]
    bits = np.unpackbits(np.frombuffer(b"".join(pieces), np.uint8), bitorder="little")
    starts = 8 * (sizes.cumsum() - sizes)
    numbers = np.arange(len(bits)) - np.repeat(starts, 8 * sizes)
    valid = bits[numbers < np.repeat(counts, 8 * sizes)]
    total = np.concatenate([[0], np.cumsum(valid, dtype=np.int64)])
    rows = counts.cumsum()
    _require((total[rows] - total[rows - counts] == counts - null_counts).all())
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def deltas_of(column: pa.Array) -> Int32s:
    """The offset deltas of a column of them, from its beginning on; not copied."""
    return np.frombuffer(column.buffers()[1], "<i4", len(column))


def deltas_rise(run: RecordBatchRun, column: pa.Array) -> bool:
    """True if the offset deltas of each record batch rise from 0 or more, up to the last of its
    header."""
    deltas = deltas_of(column)
    stops = run.record_counts.cumsum()
    starts = stops - run.record_counts
    rising = np.ones(len(deltas), np.bool_)
    rising[1:] = deltas[1:] > deltas[:-1]
    rising[starts] = deltas[starts] >= 0
    return bool(rising.all() and (deltas[stops - 1] <= run.headers["last_offset_delta"]).all())

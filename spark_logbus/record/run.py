"""Record batches that follow each other in one buffer, as one: their headers are columns.

Live producers make record batches of some dozens of records, and a header as a Python object takes
longer than the records behind it. Here one pass over the lengths finds where each record batch
begins, and all else that is known of them are numpy arrays with an element a record batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from spark_logbus.errors import CorruptRecordBatchError
from spark_logbus.model import Compression
from spark_logbus.record import format as fmt
from spark_logbus.record.gather import Int64s, windows
from spark_logbus.record.header import (
    RecordBatchHeader,
    parse_header,
    peek_size,
    verify_against,
)
from spark_logbus.record.walk import batch_bounds

Bools = npt.NDArray[np.bool_]


# The fields of ``format.HEADER``, which come to its 80 bytes.
HEADER_FIELDS: Final = np.dtype([
    ("base_offset", "<i8"), ("batch_length", "<u4"), ("leader_epoch", "<i4"),
    ("append_time", "<i8"), ("checked_prefix", "<u4"), ("crc", "<u4"), ("record_count", "<u4"),
    ("last_offset_delta", "<u4"), ("base_timestamp", "<i8"), ("max_timestamp", "<i8"),
    ("producer_id", "<i8"), ("producer_epoch", "<i2"), ("base_sequence", "<i4"),
    ("schema_id", "<u4"), ("padding", "<u2", 3),
])  # fmt: skip


@dataclass(frozen=True, slots=True)
class RecordBatchRun:
    """Whole record batches in ``data``, at least one, each of which follows the one before, in its
    place and in its offset. Immutable.

    Headers are sound, as ``parse_header`` has it; checksums are not verified yet.
    """

    data: memoryview

    bounds: Int64s
    """Where each record batch begins in ``data``, and where the last one ends."""

    headers: npt.NDArray[np.void]
    """The fields of each header."""

    cut: Bools | None = None
    """True for record batches that came with some of their columns only, see
    ``record.columns.cut_run``; None where there is none."""

    def __len__(self) -> int:
        return len(self.headers)

    def part(self, start: int, stop: int) -> RecordBatchRun:
        """The record batches from number ``start`` up to ``stop``."""
        cut = None if self.cut is None else self.cut[start:stop]
        bounds = self.bounds[start : stop + 1]
        return RecordBatchRun(self.data, bounds, self.headers[start:stop], cut)

    def is_cut(self, number: int) -> bool:
        """True if one of them came with some of its columns only."""
        return self.cut is not None and bool(self.cut[number])

    def header(self, number: int) -> RecordBatchHeader:
        """The header of one of them."""
        return parse_header(self.data, int(self.bounds[number]))

    def record_batch(self, number: int) -> memoryview:
        """The bytes of one of them."""
        return self.data[int(self.bounds[number]) : int(self.bounds[number + 1])]

    @property
    def attributes(self) -> Int64s:
        return self.headers["checked_prefix"].astype(np.int64) >> fmt.ATTRIBUTES_SHIFT

    @property
    def base_offset(self) -> int:
        return int(self.headers["base_offset"][0])

    @property
    def next_offset(self) -> int:
        """The offset that follows all of these."""
        last = self.headers[-1]
        return int(last["base_offset"]) + int(last["last_offset_delta"]) + 1

    @property
    def record_counts(self) -> Int64s:
        return self.headers["record_count"].astype(np.int64)

    @property
    def size(self) -> int:
        """Bytes of all of them."""
        return int(self.bounds[-1] - self.bounds[0])


def find_run(data: memoryview) -> RecordBatchRun | None:
    """The run of whole record batches at the beginning of ``data``; None if not even one is there.

    Ends before a record batch that is cut off, whose header is damaged, or whose offsets do not
    follow. Raises CorruptRecordBatchError and UnsupportedVersionError if that is the first one.
    """
    bounds = batch_bounds(data)
    if len(bounds) == 1:
        size = peek_size(data)
        if size is not None and size <= len(data):
            parse_header(data)  # raises
        return None
    return sound_run(data, bounds)


def sound_run(data: memoryview, bounds: list[int], cut: list[bool] | None = None) -> RecordBatchRun:
    """The record batches that begin at all but the last of ``bounds``, or as many of them as have
    sound headers and follow one another; raises as ``find_run`` does if not even the first has.
    ``cut`` is told by who found the bounds: each lies within the data, behind a whole header."""
    places = np.array(bounds, np.int64)
    cuts = None if cut is None else np.array(cut)
    if len(bounds) == 2:
        parse_header(data)
        return RecordBatchRun(data, places, np.frombuffer(data, HEADER_FIELDS, 1), cuts)
    headers = windows(data, places[:-1], fmt.HEADER_SIZE).view(HEADER_FIELDS)
    run = RecordBatchRun(data, places, headers, cuts)
    if _is_plainly_sound(run):
        return run
    unsound = np.flatnonzero(~_soundness(run)).tolist()
    if unsound and unsound[0] == 0:
        run.header(0)  # raises
    return run.part(0, unsound[0]) if unsound else run


def _is_plainly_sound(run: RecordBatchRun) -> bool:
    """True if all is as in most runs, which takes a third of the time to see."""
    headers = run.headers
    base_offsets, counts = headers["base_offset"], headers["record_count"]
    return bool(
        all(map(_is_plain, set(headers["checked_prefix"].tolist())))
        and base_offsets[0] >= 0
        and base_offsets[-1] <= fmt.MAX_OFFSET
        and counts.all()
        and (headers["last_offset_delta"] == counts - 1).all()
        and (base_offsets[1:] == base_offsets[:-1] + counts[:-1]).all()
        and (headers["base_timestamp"] <= headers["max_timestamp"]).all()
        and _fits_layout(run).all()
    )


@lru_cache(maxsize=1 << 10)  # whatever damage may bring
def _is_plain(prefix: int) -> bool:
    """True of known attributes, and without gaps between offsets."""
    attributes = prefix >> fmt.ATTRIBUTES_SHIFT
    return (
        prefix & 0xFFFF == fmt.MAGIC_V1
        and not attributes & ~(fmt.KNOWN_ATTRIBUTES & ~fmt.HAS_OFFSET_DELTA)
        and attributes & fmt.COMPRESSION_MASK <= Compression.ZSTD
    )


def _soundness(run: RecordBatchRun) -> Bools:
    """Judges each header: true if ``parse_header`` accepts it and its offsets follow."""
    headers = run.headers
    base_offsets, attributes = headers["base_offset"], run.attributes
    least_deltas = run.record_counts - 1
    last_deltas = headers["last_offset_delta"].astype(np.int64)
    has_gaps = attributes & fmt.HAS_OFFSET_DELTA != 0
    sound: Bools = headers["checked_prefix"] & 0xFFFF == fmt.MAGIC_V1  # and reserved is 0
    sound &= attributes & ~fmt.KNOWN_ATTRIBUTES == 0
    sound &= attributes & fmt.COMPRESSION_MASK <= Compression.ZSTD
    sound &= _fits_layout(run)
    sound &= (base_offsets >= 0) & (base_offsets <= fmt.MAX_OFFSET)
    sound &= least_deltas >= 0
    sound &= (last_deltas == least_deltas) | (has_gaps & (last_deltas > least_deltas))
    sound &= headers["base_timestamp"] <= headers["max_timestamp"]
    # The sum may overflow, silently, after a base offset that is not sound anyway.
    sound[1:] &= base_offsets[1:] == base_offsets[:-1] + last_deltas[:-1] + 1
    return sound


def _fits_layout(run: RecordBatchRun) -> Bools:
    """Judges each header: true if it has what its payload's layout asks for."""
    of_layout = run.attributes & (fmt.LAYOUT_MASK | fmt.HAS_TOMBSTONES)
    plain: Bools = of_layout == fmt.LAYOUT_ARROW_BATCH << fmt.LAYOUT_SHIFT
    if plain.all():
        return plain
    typed = of_layout & fmt.LAYOUT_MASK == fmt.LAYOUT_COLUMNS << fmt.LAYOUT_SHIFT
    typed &= run.headers["schema_id"] != fmt.PLAIN_BYTES_SCHEMA
    typed &= np.diff(run.bounds) >= fmt.CHUNKS_AT + fmt.CHUNK.size
    plain |= typed
    return plain


def verified(run: RecordBatchRun) -> int:
    """The number of record batches, from the first on, that ``verify_against`` accepts."""
    data, headers = run.data, run.headers
    prefixes = headers["checked_prefix"]
    if (run.attributes & fmt.LAYOUT_MASK).any():
        return _verified_one_by_one(run)
    seeds = {prefix: crc32c(prefix.tobytes()) for prefix in np.unique(prefixes)}
    starts, stops = (run.bounds[:-1] + fmt.CHECKED_FROM).tolist(), run.bounds[1:].tolist()
    # One step for each, in which no Python runs: there may be thousands, of a record each.
    checksums = map(
        crc32c,
        map(data.__getitem__, map(slice, starts, stops)),
        map(seeds.__getitem__, prefixes.tolist()),
    )
    wrong = np.flatnonzero(np.fromiter(checksums, np.uint32, len(run)) != headers["crc"])
    number = int(wrong[0]) if len(wrong) else len(run)
    padded = np.flatnonzero(headers["padding"].any(axis=1))
    return min(number, int(padded[0])) if len(padded) else number


def _verified_one_by_one(run: RecordBatchRun) -> int:
    for number in range(len(run)):
        try:
            verify_against(run.header(number), run.record_batch(number))
        except CorruptRecordBatchError:
            return number
    return len(run)

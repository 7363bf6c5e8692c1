"""Three statements of when a header is sound agree: ``parse_header``, ``find_run`` for many headers
at once, and the walk of look-ups, which reads a third of each.

They are fed the same record batches, with numbers at the edges in any of the fields.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_logbus.errors import CorruptRecordBatchError, UnsupportedVersionError
from spark_logbus.log import OS_FILES, File
from spark_logbus.log.segment.lookup import BatchPosition, DamageFoundError, walk
from spark_logbus.record import format as fmt
from spark_logbus.record import parse_header, stamp
from spark_logbus.record.run import find_run
from tests.builders.record_batches import record_batch
from tests.property.examples import examples

COUNTS = (1, 3, 2, 1)
START = 100
#: Each field of ``fmt.HEADER`` at its place, with its code.
FIELDS = (
    (0, "<q"), (8, "<I"), (12, "<i"), (16, "<q"), (24, "<B"), (25, "<B"), (26, "<H"), (28, "<I"),
    (32, "<I"), (36, "<I"), (40, "<q"), (48, "<q"), (56, "<q"), (64, "<h"), (66, "<i"), (70, "<I"),
)  # fmt: skip
#: Problems that a look-up does not look for.
NOT_READ = (
    "reserved", "unknown attributes", "unknown compression", "unknown payload layout",
    "columns without a schema", "no records", "base timestamp after",
)  # fmt: skip

REFUSED = (CorruptRecordBatchError, UnsupportedVersionError)


def sound_record_batches() -> bytearray:
    data, offset = bytearray(), START
    for count in COUNTS:
        made = record_batch(count)
        stamp(made, base_offset=offset, leader_epoch=0, append_time_us=0)
        offset += count
        data += made
    return data


SOUND = sound_record_batches()
SIZE = len(SOUND) // len(COUNTS)


@st.composite
def numbers_at_the_edges(draw: st.DrawFn) -> tuple[int, str, int]:
    """Position of a field in the record batches, its code, and a number for it."""
    at, code = draw(st.sampled_from(FIELDS))
    position = at + SIZE * draw(st.integers(0, len(COUNTS) - 1))
    (now,) = struct.unpack_from(code, SOUND, position)
    bits = 8 * struct.calcsize(code)
    least, most = (
        (0, (1 << bits) - 1) if code[1].isupper() else (-1 << bits - 1, (1 << bits - 1) - 1)
    )
    near = [now - 8, now - 1, now + 1, now + 8, 0, 1, 1 << 62, (1 << 62) + 1, least, most]
    bit = draw(st.integers(0, bits - 1))
    near.append(now ^ 1 << bit if code[1].isupper() else now)
    fits = [number for number in near if least <= number <= most]
    return position, code, draw(st.sampled_from(fits))


def accepted(data: bytearray, expected: int | None) -> tuple[list[int], str]:
    """Positions where record batches that ``parse_header`` accepts begin, and where the last one
    ends; and what is wrong with the next."""
    positions = [0]
    while positions[-1] < len(data):
        try:
            header = parse_header(data, positions[-1])
        except REFUSED as error:
            return positions, str(error)
        end = positions[-1] + header.size
        if end > len(data) or expected not in (None, header.base_offset):
            return positions, "it is cut off, or does not follow"
        positions.append(end)
        expected = header.next_offset
    return positions, ""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> File:
    path: Path = tmp_path_factory.mktemp("headers") / "segment"
    return OS_FILES.open(path, create=True)


@given(changes=st.lists(numbers_at_the_edges(), max_size=3))
@settings(max_examples=examples(600))
def test_all_readers_of_headers_accept_the_same(
    file: File, changes: list[tuple[int, str, int]]
) -> None:
    data = bytearray(SOUND)
    for position, code, number in changes:
        struct.pack_into(code, data, position, number)

    positions, _ = accepted(data, None)
    try:
        run = find_run(memoryview(data))
    except REFUSED:
        run = None
    assert (run.bounds.tolist() if run is not None else [0]) == positions

    file.pwrite(data, 0)
    positions, problem = accepted(data, START)
    walked = [0]
    try:
        for info in walk(file, BatchPosition(START, 0), len(data)):
            assert info.position == walked[-1]
            walked.append(info.next_position)
    except DamageFoundError:
        assert walked[-1] < len(data)
    assert walked[: len(positions)] == positions
    if len(walked) > len(positions):
        attributes = fmt.ATTRIBUTES.unpack_from(data, positions[-1] + fmt.ATTRIBUTES_AT)[0]
        gaps = attributes & fmt.HAS_OFFSET_DELTA and "last offset delta" in problem
        columns = attributes & fmt.LAYOUT_MASK and "impossible length" in problem
        assert gaps or columns or any(each in problem for each in NOT_READ), problem

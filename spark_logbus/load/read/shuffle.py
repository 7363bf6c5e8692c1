"""Whether a load gathers its records by directory before it writes them (pure).

Without it each task writes a file in each directory that it has records for: a few large ones where
all are of today, hundreds of tiny ones where each task holds those of a year. Gathering brings the
records of a directory into one task, and so into one file. It is a shuffle, which takes as long as
the writing itself; a load does it where files would be small otherwise. How many directories there
are it learns from a sample, taken at places that are spread over all of its records: records in the
order of their time show one there for each place, and so do those in no order at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from spark_logbus.model import OffsetRange

#: Below so many bytes of the log the shuffle costs less than to know that it could be left out.
WORTH_BYTES: Final = 128 << 20

#: Bytes of the log for a file: enough that what becomes of them is no small one (small_files).
FILE_BYTES: Final = 16 << 20

# More than a task may have directories, which reads 512 MiB at most; records of each place.
_PLACES: Final = 48
_RECORDS: Final = 8


def most_directories(size_bytes: int, *, tasks: int) -> int:
    """The number of directories that a task may have records of, if its files are not to be small
    without gathering; 0 where that would be in any case."""
    return size_bytes // (FILE_BYTES * max(1, tasks)) if size_bytes >= WORTH_BYTES else 0


def sampled(ranges: Sequence[OffsetRange]) -> tuple[OffsetRange, ...]:
    """The places of a sample of ``ranges``, of some records each, in their order; the first and the
    last record are in it."""
    total = sum(each.count for each in ranges)
    last = max(0, total - 1)
    starts = sorted({last * place // (_PLACES - 1) for place in range(_PLACES)})
    found, before = list[OffsetRange](), 0
    for each in ranges:
        inside = [start - before for start in starts if before <= start < before + each.count]
        found += [
            OffsetRange(
                each.topic_partition,
                each.start + start,
                min(each.start + start + _RECORDS, each.end),
            )
            for start in inside
        ]
        before += each.count
    return tuple(found)

"""Digests of what a file of staged record batches holds, by which two replicas see that they agree.

After each record batch stands the digest of all headers up to there, which hold the checksums of
the payloads. So two files with the same digest at the same position are the same up to there,
whatever came between: a write under a number that was used before, or another leader.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import takewhile
from typing import Final

from crc32c import crc32c

from spark_logbus.record import RecordBatchHeader

# Checksum of the payload, time and mark, which it does not cover, producer, sequence, size.
_FIELDS: Final = struct.Struct("<IqiqiI")
# Two replicas differ in the last record batches, as a rule: so many are compared one by one.
_COMPARED_EACH: Final = 200


class StagedDigests:
    """The digests of one file. One thread adds, any number look up without a lock."""

    __slots__ = ("_digests", "_ends", "last")

    def __init__(self) -> None:
        self._ends = array("q", [0])
        self._digests = array("I", [0])
        #: The end of the file, and the digest there.
        self.last = (0, 0)

    def add(self, header: RecordBatchHeader, *, mark: int, staged_at_us: int) -> None:
        """Adds the record batch that now ends the file, with what was stamped on it."""
        end, digest = self.last
        fields = _FIELDS.pack(
            header.crc, staged_at_us, mark, header.producer_id, header.base_sequence, header.size
        )
        end, digest = end + header.size, crc32c(fields, digest)
        self._digests.append(digest)
        self._ends.append(end)
        self.last = (end, digest)

    def at(self, position: int) -> int | None:
        """The digest of all before ``position``; None if no record batch ends there."""
        number = bisect_right(self._ends, position) - 1
        if number < 0 or self._ends[number] != position:
            return None
        return self._digests[number]

    def points(self) -> list[tuple[int, int]]:
        """Ends of record batches with the digests there, the last first: each of the last ones, and
        of those before them ever fewer."""
        count = len(self._ends)
        back = list(range(1, min(_COMPARED_EACH, count - 1) + 1))
        back += takewhile(lambda number: number < count, _doubled(2 * _COMPARED_EACH))
        return [(self._ends[count - number], self._digests[count - number]) for number in back]

    def cut(self, position: int) -> StagedDigests:
        """The digests of what lies before ``position``, where a record batch ends."""
        number = bisect_right(self._ends, position) - 1
        found = StagedDigests()
        found._ends, found._digests = self._ends[: number + 1], self._digests[: number + 1]
        found.last = (found._ends[-1], found._digests[-1])
        return found

    def end_within(self, position: int, max_bytes: int) -> int:
        """End of the last record batch from ``position`` on within ``max_bytes``, or of the first;
        ``position`` if there is none."""
        count = len(self._ends)
        number = bisect_right(self._ends, position + max_bytes, 0, count) - 1
        if self._ends[number] <= position:
            number = min(bisect_right(self._ends, position, 0, count), count - 1)
        return max(self._ends[number], position)


def _doubled(number: int) -> Iterator[int]:
    while True:
        yield number
        number *= 2

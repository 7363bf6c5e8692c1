"""Sizes the arrow batches that a task hands to Spark."""

from __future__ import annotations

from typing import Final

TARGET_ROWS: Final = 10_000
"""Rows of an arrow batch, at least: with 1,000 a full scan takes a tenth longer, with 50,000 as
long, and a record batch as large as this goes through without a copy."""

TARGET_BYTES: Final = 4 << 20
"""Bytes of one, whichever comes first."""

_FIRST_ROWS: Final = 2_000
_FIRST_BYTES: Final = 512 << 10
_OF_THOSE_BEFORE: Final = 4  # the fraction of them that an arrow batch is, until it has full size


class BatchSizer:
    """Says when a task's next arrow batch is large enough. Not thread-safe; one for each task.

    The first ones are small. Spark works on an arrow batch while the task prepares the next one,
    and its worker lets go of the end of each only when it writes the next: with two or three large
    ones, as a micro-batch may have, reading and processing would follow one another.
    """

    def __init__(self) -> None:
        self._rows_before = self._bytes_before = 0
        self._rows = self._bytes = 0

    def add(self, rows: int, size: int) -> None:
        """Counts rows and bytes that were collected for the next arrow batch."""
        self._rows += rows
        self._bytes += size

    @property
    def missing_rows(self) -> int:
        """The rows that the next arrow batch lacks; it is large enough when this is not positive
        or ``missing_bytes`` is not."""
        return _target(_FIRST_ROWS, self._rows_before, TARGET_ROWS) - self._rows

    @property
    def missing_bytes(self) -> int:
        return _target(_FIRST_BYTES, self._bytes_before, TARGET_BYTES) - self._bytes

    @property
    def is_enough(self) -> bool:
        return self.missing_rows <= 0 or self.missing_bytes <= 0

    def handed_over(self) -> None:
        """Starts over: what has been collected went into an arrow batch."""
        self._rows_before += self._rows
        self._bytes_before += self._bytes
        self._rows = self._bytes = 0


def _target(first: int, before: int, most: int) -> int:
    return min(most, max(first, before // _OF_THOSE_BEFORE))

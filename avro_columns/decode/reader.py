"""What every reader of a node of a schema can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

import pyarrow as pa

from avro_columns.decode.cursors import Cursors


class Reader(Protocol):
    """Reads the values of one node. Thread-safe: cursors hold what changes."""

    place: str
    arrow: pa.DataType
    is_varint: ClassVar[bool]
    min_bytes: int
    """What a value takes at least."""
    size: int | None
    """What a value takes, if that is always the same."""

    def read(self, cursors: Cursors) -> pa.Array:
        """The next value of each cursor. Parked cursors have any value."""

    def skip(self, cursors: Cursors) -> None:
        """Goes on behind the next value of each cursor."""

    def scan(self, data: Sequence[int], at: int, end: int) -> int:
        """The end of the value at ``at``. Raises ScanError."""

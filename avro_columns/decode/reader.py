"""What every reader of a node of a schema can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

import pyarrow as pa

from avro_columns.decode.cursors import Lanes


class Reader(Protocol):
    """Reads the values of one node. Thread-safe: lanes hold what changes."""

    place: str
    arrow: pa.DataType
    is_varint: ClassVar[bool]
    min_bytes: int
    """What a value takes at least."""
    size: int | None
    """What a value takes, if that is always the same."""

    def read(self, lanes: Lanes) -> pa.Array:
        """The next value of each lane. Parked lanes have any value."""

    def skip(self, lanes: Lanes) -> None:
        """Goes on behind the next value of each lane."""

    def scan(self, data: Sequence[int], at: int, end: int) -> int:
        """The end of the value at ``at``. Raises ScanError."""

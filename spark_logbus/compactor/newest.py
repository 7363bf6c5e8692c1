"""The newest offset of each key, within bounds of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

# What an entry takes beside the bytes of its key, measured with a million of them: a place in the
# dictionary (also while that grows), the key's and the offset's object.
ENTRY_BYTES: Final = 200


class NewestOffsets:
    """Newest offset of each key. Whole keys are compared, no hashes of them, so no two keys are
    ever taken for one.

    Not thread-safe.
    """

    def __init__(self, *, map_bytes: int) -> None:
        self._limit = map_bytes
        self._newest: dict[bytes | None, int] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._newest)

    @property
    def full(self) -> bool:
        return self._bytes >= self._limit

    @property
    def by_key(self) -> Mapping[bytes | None, int]:
        """Newest offsets; no entry for records without a key."""
        return self._newest

    def add(self, keys: Sequence[bytes | None], offsets: Sequence[int], *, key_bytes: int) -> None:
        """Take in records in the order of the log; their keys take ``key_bytes`` together."""
        before = len(self._newest)
        self._newest.update(zip(keys, offsets, strict=True))
        self._newest.pop(None, None)
        added = len(self._newest) - before
        # Of a part of the keys, the average stands for all.
        self._bytes += added * ENTRY_BYTES + (key_bytes * added // len(keys) if keys else 0)

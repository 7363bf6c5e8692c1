"""Memory into which the payload of a response is received."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

#: Gives memory for a payload of so many bytes.
Allocate: TypeAlias = Callable[[int], memoryview]


def new_buffer(size: int) -> memoryview:
    """Memory of its own for each payload."""
    return memoryview(bytearray(size))


class ReusableBuffer:
    """One piece of memory that each payload of a connection is received into, over the last one.

    It has the size of the largest payload so far, which the connection's ``max_response_bytes``
    bounds. For a user that has done with a payload before it sends the next request: with two
    under way, the second payload would overwrite the first. Not thread-safe.
    """

    def __init__(self) -> None:
        self._memory = memoryview(bytearray())

    def take(self, size: int) -> memoryview:
        """The first ``size`` bytes of the memory, whatever they hold."""
        if len(self._memory) < size:
            self._memory = memoryview(bytearray(size))
        return self._memory[:size]

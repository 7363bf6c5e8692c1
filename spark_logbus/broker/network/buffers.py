"""Memory for request payloads, used again and again."""

from __future__ import annotations

import threading
from collections import defaultdict
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

_SMALLEST = 64 << 10  # below this, the allocator does as well
_KEPT_BYTES = 32 << 20


class Buffers:
    """Buffers that were used lie ready for the next requests of about their size. Thread-safe.

    New memory of a megabyte costs as much time as checksumming it, because the kernel has to clear
    it. It is asked for from the kernel itself and goes back there: from the C library's allocator,
    which keeps a heap for each thread, a broker grew to twice its size.

    New memory is there when it is written to, page by page, so whoever takes much and writes
    little costs little. Memory that was used is there already: it is bounded, and counts as long
    as it lies ready or is in use again, or those who take and do not write would gather it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: defaultdict[int, list[mmap]] = defaultdict(list)
        self._again: set[int] = set()  # buffers that are in use again
        self._kept_bytes = 0  # of both

    def take(self, size: int) -> memoryview:
        """``size`` bytes of any content; ``give`` them back, in any event."""
        if size < _SMALLEST:
            return memoryview(bytearray(size))
        step = 1 << (
            size.bit_length() - 4
        )  # so that 8 capacities lie between a size and its double
        capacity = -(-size // step) * step
        with self._lock:
            idle = self._idle[capacity]
            buffer = idle.pop() if idle else None
            if buffer is not None:
                self._again.add(id(buffer))
        if buffer is None:
            buffer = mmap(-1, capacity, flags=MAP_PRIVATE | MAP_ANONYMOUS)
        return memoryview(buffer)[:size]

    def give(self, view: memoryview) -> None:
        """Take back what ``take`` gave; nobody may look at it any more."""
        buffer = view.obj
        if not isinstance(buffer, mmap):
            return
        with self._lock:
            if id(buffer) in self._again:
                self._again.remove(id(buffer))
            elif self._kept_bytes + len(buffer) <= _KEPT_BYTES:
                self._kept_bytes += len(buffer)
            else:
                return
            self._idle[len(buffer)].append(buffer)

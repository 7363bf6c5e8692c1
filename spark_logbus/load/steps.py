"""The steps of a load as they pass: told to who watches, and timed for the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class StepTimer:
    """Times of steps, in their order. Not thread-safe."""

    def __init__(self, watch: Callable[[str], None] = lambda step: None) -> None:
        """``watch`` is called with the name of each step as it begins."""
        self._watch = watch
        self._started = time.monotonic()
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """One step; one that comes again adds to its time. Steps do not nest."""
        self._watch(name)
        started = time.monotonic()
        try:
            yield
        finally:
            taken = time.monotonic() - started
            self.seconds[name] = self.seconds.get(name, 0.0) + taken

    @property
    def total(self) -> float:
        """Seconds since the first, also those between steps."""
        return time.monotonic() - self._started

"""Timer of a load's steps, which reports each one as it begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spark_logbus.clock import Clock, SystemClock


class StepTimer:
    """Times of steps, in their order. Not thread-safe."""

    def __init__(
        self, watch: Callable[[str], None] = lambda step: None, *, clock: Clock | None = None
    ) -> None:
        """``watch`` is called with the name of each step as it begins."""
        self._watch = watch
        self._clock = clock or SystemClock()
        self._started = self._clock.monotonic()
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Times one step; one that comes again adds to its time. Steps do not nest."""
        self._watch(name)
        started = self._clock.monotonic()
        try:
            yield
        finally:
            taken = self._clock.monotonic() - started
            self.seconds[name] = self.seconds.get(name, 0.0) + taken

    @property
    def total(self) -> float:
        """Seconds since the first, also those between steps."""
        return self._clock.monotonic() - self._started

"""How long an operation may take, and the one way in which its outcome stays unknown."""

from __future__ import annotations

from dataclasses import dataclass

from spark_logbus.clock import Clock
from spark_logbus.errors import CoordinationError


class ReplyLostError(CoordinationError):
    """A write may or may not have been done; inside this package only, where it is checked."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """The bound of one operation, over all its requests."""

    clock: Clock
    at: float
    timeout_ms: int

    @property
    def remaining_s(self) -> float:
        return max(0.0, self.at - self.clock.monotonic())

    @property
    def expired(self) -> bool:
        return self.remaining_s <= 0

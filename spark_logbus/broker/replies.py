"""What a request handler gives back, now or later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spark_logbus.log import LogSlice

Part = bytes | LogSlice
"""One piece of a response payload: bytes, or a stretch of a segment that is sent by sendfile."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A response: its encoded header and the pieces of its payload."""

    header: bytes
    parts: Sequence[Part] = ()

    @property
    def payload_length(self) -> int:
        return sum(len(part) if isinstance(part, bytes) else part.length for part in self.parts)


class Deferred:
    """A response that has to wait: for a flush, for records to come, or for a deadline.

    The network asks ``poll`` for the reply, at once and after each ``wake``; None means "not
    yet". ``wake`` may be called from any thread and does no work itself: what answers a request
    runs on a network thread, never on the flusher's.
    """

    def __init__(self, poll: Callable[[], Reply | None], *, deadline: float) -> None:
        self.poll = poll
        self.deadline = deadline  # monotonic seconds; the network polls once more when it passes
        self._notify: Callable[[], None] | None = None

    def subscribe(self, notify: Callable[[], None]) -> None:
        """Set by the network, once, before its first poll."""
        self._notify = notify

    def wake(self) -> None:
        if self._notify is not None:
            self._notify()


Answer = Reply | Deferred | None
"""None: the request wants no response (acks=none)."""

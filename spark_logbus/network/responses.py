"""Answers of request handlers: responses, now or later, or none."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spark_logbus.log import LogSlice


@dataclass(frozen=True, slots=True)
class FileHandover:
    """A response with a descriptor of the slice's file in place of a payload."""

    header: bytes
    slice: LogSlice


@dataclass(frozen=True, slots=True)
class Response:
    """A response: its encoded header, and the slices of segments that are its payload.

    ``file`` is the response to give instead, as long as there are descriptors to spare; only for a
    connection that takes them.
    """

    header: bytes
    slices: Sequence[LogSlice] = ()
    file: FileHandover | None = None

    @property
    def payload_length(self) -> int:
        return sum(each.length for each in self.slices)


class DelayedResponse(ABC):
    """A response that waits for a flush, for records, or for a deadline.

    The network asks ``poll`` for the response, at once and after each ``wake``; None means "not
    yet". ``wake`` may be called from any thread and does no work itself: what answers a request
    runs on a network thread, never on the flusher's.
    """

    def __init__(self, *, deadline: float) -> None:
        self.deadline = deadline  # monotonic seconds; the network polls once more when it passes
        self._notify: Callable[[], None] | None = None
        #: Asked before each poll: the response with which it ends, where it may not go on.
        self.guard: Callable[[], Response | None] | None = None

    @abstractmethod
    def poll(self) -> Response | None: ...

    def subscribe(self, notify: Callable[[], None]) -> None:
        """Set by the network, once, before its first poll."""
        self._notify = notify

    def wake(self) -> None:
        if self._notify is not None:
            self._notify()


class NoResponse(enum.Enum):
    """The consequence of a request that gets no response."""

    NOT_WANTED = "the request wants none (acks=none)"
    CLOSE_CONNECTION = "it failed and wants none: the connection ends, so that the client notices"


@dataclass(frozen=True, slots=True)
class NotYet:
    """A request that cannot be begun yet, of which nothing is done. ``when`` takes a callback and
    calls it once the request may be tried again; until then the connection keeps it and begins no
    other."""

    when: Callable[[Callable[[], None]], None]


Answer = Response | DelayedResponse | NoResponse | NotYet

"""The sending half of a connection, for response heads and slices of segments in order."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from spark_logbus.log import LogSlice
from spark_logbus.network.memory import Charge
from spark_logbus.network.transport import Transport

_TURN_BYTES: Final = 16 << 20  # what one connection may send before others get the thread
_SENDFILE_BYTES: Final = 4 << 20  # a system call, so that a fast reader cannot outrun _TURN_BYTES


@dataclass(frozen=True, slots=True)
class _Handover:
    """A file to pass over with its ``head``; or else ``instead`` and the slices go out."""

    head: bytes
    slice: LogSlice
    instead: bytes
    slices: Sequence[LogSlice]


class ResponseSender:
    """Sends one connection's responses. Used by the thread that has the connection's turn."""

    def __init__(self, transport: Transport, *, now: float) -> None:
        self._transport = transport
        self._parts: deque[memoryview | LogSlice | _Handover] = deque()
        self._sent_of_head = 0
        self._held: list[Charge] = []
        self.last_progress = now

    def __len__(self) -> int:
        """Parts that are not sent yet."""
        return len(self._parts)

    @property
    def at_slice(self) -> bool:
        """True if a slice of a segment is to be sent next."""
        return bool(self._parts) and isinstance(self._parts[0], LogSlice)

    def append(self, head: bytes, slices: Sequence[LogSlice] = ()) -> None:
        self._parts.append(memoryview(head))
        self._parts.extend(slices)

    def append_file(
        self, head: bytes, log_slice: LogSlice, instead: bytes, slices: Sequence[LogSlice]
    ) -> None:
        """Send ``head`` with a descriptor of the file of ``log_slice``; or, when there is none to
        spare, ``instead`` and ``slices``."""
        self._parts.append(_Handover(head, log_slice, instead, slices))

    def hold(self, charges: Iterable[Charge]) -> None:
        """Release these when all parts that are here now were sent or dropped."""
        self._held.extend(charges)

    def send(self, now: float, *, may_send_slices: bool, budget: int | None = None) -> int:
        """Send what the socket takes, up to ``budget`` bytes (None: a turn's); what is left of it.

        Raises BlockingIOError when the socket takes no more, another OSError when it is broken.
        """
        budget = _TURN_BYTES if budget is None else budget
        while self._parts and budget > 0 and (may_send_slices or not self.at_slice):
            part = self._parts[0]
            if isinstance(part, LogSlice):
                budget -= self._send_slice(part)
            elif isinstance(part, _Handover):
                budget -= self._pass_file(part)
            else:
                budget -= self._send_bytes(part)
            self.last_progress = now
        return budget

    def _send_bytes(self, data: memoryview) -> int:
        rest = data[self._sent_of_head :] if self._sent_of_head else data
        # A response's head is followed by its payload at once, so let them share a packet.
        sent = self._transport.send(rest, more=len(self._parts) > 1)
        self._account(sent, total=len(data))
        return sent

    def _send_slice(self, log_slice: LogSlice) -> int:
        sent = self._transport.send_file(
            log_slice.file.fileno(),
            log_slice.position + self._sent_of_head,
            min(log_slice.length - self._sent_of_head, _SENDFILE_BYTES),
        )
        if sent == 0:
            # The file ends before the slice does: the promised bytes cannot be delivered.
            raise OSError("segment shorter than its slice")
        self._account(sent, total=log_slice.length)
        return sent

    def _pass_file(self, handover: _Handover) -> int:
        try:
            descriptor = handover.slice.file.open_again()
        except OSError:
            return self._send_in_place(handover)
        try:
            sent = self._transport.send_with_descriptor(handover.head, descriptor)
        except OSError as error:
            if error.errno == errno.ETOOMANYREFS:  # clients have not received so many others
                return self._send_in_place(handover)
            raise
        finally:
            os.close(descriptor)
        self._parts[0] = memoryview(handover.head)  # the descriptor went with its first byte
        self._account(sent, total=len(handover.head))
        return sent

    def _send_in_place(self, handover: _Handover) -> int:
        self._parts.popleft()
        self._parts.extendleft([*reversed(handover.slices), memoryview(handover.instead)])
        return 0

    def _account(self, sent: int, *, total: int) -> None:
        self._sent_of_head += sent
        if self._sent_of_head == total:
            self._parts.popleft()
            self._sent_of_head = 0
            if not self._parts:
                self._release()

    def clear(self) -> None:
        self._parts.clear()
        self._sent_of_head = 0
        self._release()

    def _release(self) -> None:
        for charge in self._held:
            charge.release()
        self._held.clear()

"""The sending half of a connection: response heads and slices of segments, in order."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from spark_logbus.broker.network.budget import Reservation
from spark_logbus.log import LogSlice

_TURN_BYTES: Final = 16 << 20  # what one connection may send before others get the thread
_SENDFILE_BYTES: Final = 4 << 20  # a system call, so that a fast reader cannot outrun _TURN_BYTES


class Outbound:
    """Sends one connection's responses. Used by the thread that has the connection's turn."""

    def __init__(self, sock: socket.socket, *, now: float) -> None:
        self._sock = sock
        self._parts: deque[memoryview | LogSlice] = deque()
        self._sent_of_head = 0
        self._held: list[Reservation] = []
        self.last_progress = now

    def __len__(self) -> int:
        """Parts that are not sent yet."""
        return len(self._parts)

    @property
    def at_slice(self) -> bool:
        """Whether a slice of a segment is to be sent next."""
        return bool(self._parts) and isinstance(self._parts[0], LogSlice)

    def append(self, head: bytes, slices: Sequence[LogSlice] = ()) -> None:
        self._parts.append(memoryview(head))
        self._parts.extend(slices)

    def hold(self, reservations: Iterable[Reservation]) -> None:
        """Release these when all that is here now has been sent or dropped."""
        self._held.extend(reservations)

    def send(self, now: float, *, may_send_slices: bool, budget: int | None = None) -> int:
        """Send what the socket takes, up to ``budget`` bytes (None: a turn's); what is left of it.

        Raises BlockingIOError when the socket takes no more, another OSError when it is broken.
        """
        budget = _TURN_BYTES if budget is None else budget
        while self._parts and budget > 0 and (may_send_slices or not self.at_slice):
            head = self._parts[0]
            sent = self._send_slice(head) if isinstance(head, LogSlice) else self._send_bytes(head)
            self.last_progress = now
            budget -= sent
        return budget

    def _send_bytes(self, data: memoryview) -> int:
        # MSG_MORE: a response head is followed by its payload at once, so let them share a
        # packet; the last part of a response is sent without it.
        flags = socket.MSG_MORE if len(self._parts) > 1 else 0
        rest = data[self._sent_of_head :] if self._sent_of_head else data
        sent = self._sock.send(rest, flags)
        self._account(sent, total=len(data))
        return sent

    def _send_slice(self, piece: LogSlice) -> int:
        sent = os.sendfile(
            self._sock.fileno(),
            piece.file.fileno(),
            piece.position + self._sent_of_head,
            min(piece.length - self._sent_of_head, _SENDFILE_BYTES),
        )
        if sent == 0:
            # The file ends before the slice does: the promised bytes cannot be delivered.
            raise OSError("segment shorter than its slice")
        self._account(sent, total=piece.length)
        return sent

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
        for reservation in self._held:
            reservation.release()
        self._held.clear()

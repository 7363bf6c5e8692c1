"""One client's connection: frames in, responses out, in order, without blocking a thread.

A connection is a small state machine on a non-blocking socket. Requests of one connection are
started in order and answered in order; several may wait at once (``max_in_flight``). Whatever
cannot go on (an answer that waits for a flush, a reader that does not read) leaves the thread
and comes back through an event.
"""

from __future__ import annotations

import math
import os
import socket
import threading
from collections import deque
from collections.abc import Callable

from spark_logbus.broker.config import NetworkConfig
from spark_logbus.broker.replies import Answer, Deferred, Reply
from spark_logbus.errors import LogbusError
from spark_logbus.log import LogSlice
from spark_logbus.protocol import Frame, FrameLimits, FrameReader, encode_error, frame_head

_TURN_BYTES = 16 << 20  # what one connection may send before others get the thread
_TURN_FRAMES = 8


class _Slot:
    """The place of one response in the order of a connection's responses."""

    __slots__ = ("deferred", "frame", "reply")

    def __init__(self, frame: Frame) -> None:
        self.frame = Frame(frame.api, frame.version, frame.correlation, b"", memoryview(b""))
        self.reply: Reply | None = None
        self.deferred: Deferred | None = None


class Connection:
    """Thread-safe through ``lock``, which the network holds around every turn."""

    def __init__(
        self,
        sock: socket.socket,
        peer: str,
        *,
        config: NetworkConfig,
        handle: Callable[[Connection, Frame], Answer],
        wake: Callable[[Connection], None],
        now: float,
    ) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.peer = peer
        self.lock = threading.Lock()
        self.closed = False
        self.last_progress = now
        self.scheduled = math.inf  # when the network's timer gives the next turn
        self._config = config
        self._handle = handle
        self._wake = wake
        self._reader = FrameReader(FrameLimits(config.max_handshake_bytes))
        self._slots: deque[_Slot] = deque()
        self._outbound: deque[memoryview | LogSlice] = deque()
        self._sent_of_head = 0
        self._handshaken = False
        self._ends_when_sent = False

    # -- called by the network, holding ``lock`` ------------------------------------------

    def turn(self, now: float) -> None:
        """Do what can be done now: send, then receive and start requests, then send again."""
        if not self._send():
            return
        for _ in range(_TURN_FRAMES):
            if not self._may_receive() or not self._receive(now):
                break
        self._send()

    def interest(self) -> tuple[bool, bool]:
        """(wants to read, wants to write) at the end of a turn."""
        return self._may_receive(), bool(self._outbound)

    def has_answer(self) -> bool:
        """Whether the next response in order can be had now; asked again after re-arming."""
        return bool(self._slots) and self._resolve(self._slots[0])

    def next_deadline(self) -> float | None:
        """When the request that is next in order has to be answered, if it is waiting."""
        deferred = self._slots[0].deferred if self._slots else None
        return deferred.deadline if deferred is not None else None

    @property
    def waiting(self) -> int:
        """Requests that are not answered yet."""
        return len(self._slots) + (1 if self._outbound else 0)

    def stalled(self, now: float) -> bool:
        """In the middle of a frame, or before the handshake, for too long.

        A client that does not read its responses is left alone: it costs no thread and no more
        than a socket buffer, and a Spark task with a slow sink does just that.
        """
        busy = self._reader.in_frame or not self._handshaken
        return busy and now - self.last_progress > self._config.stall_timeout_ms / 1000

    def handshake_done(self) -> None:
        self._handshaken = True
        self._reader.limits = FrameLimits(self._config.max_frame_bytes)

    @property
    def handshaken(self) -> bool:
        return self._handshaken

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._slots.clear()
            self._outbound.clear()
            self.sock.close()

    # -- receiving ------------------------------------------------------------------------

    def _may_receive(self) -> bool:
        return (
            not self.closed
            and not self._ends_when_sent
            and not self._outbound
            and len(self._slots) < self._config.max_in_flight
        )

    def _receive(self, now: float) -> bool:
        """Receive until one frame was started; False when the socket has nothing more."""
        while True:
            try:
                count = self.sock.recv_into(self._reader.buffer())
            except BlockingIOError:
                return False
            except OSError:
                self.close()
                return False
            if count == 0:
                self.close()
                return False
            self.last_progress = now
            try:
                frame = self._reader.advance(count)
            except LogbusError as error:
                self._refuse(error)
                return False
            if frame is not None:
                self._start(frame)
                return not self.closed

    def _start(self, frame: Frame) -> None:
        answer = self._handle(self, frame)
        if answer is None:
            return
        slot = _Slot(frame)
        if isinstance(answer, Reply):
            slot.reply = answer
        else:
            slot.deferred = answer
            answer.subscribe(lambda: self._wake(self))
        self._slots.append(slot)

    def _refuse(self, error: LogbusError) -> None:
        """Answer bytes that are no valid frame with the error, then end the connection."""
        slot = _Slot(Frame(0, 0, 0, b"", memoryview(b"")))
        slot.reply = Reply(encode_error(error))
        self._slots.append(slot)
        self._ends_when_sent = True

    # -- sending --------------------------------------------------------------------------

    @staticmethod
    def _resolve(slot: _Slot) -> bool:
        if slot.reply is None and slot.deferred is not None:
            slot.reply = slot.deferred.poll()
        return slot.reply is not None

    def _queue_answers(self) -> None:
        while self._slots and self._resolve(self._slots[0]):
            slot = self._slots.popleft()
            reply = slot.reply
            assert reply is not None
            head = frame_head(
                api=slot.frame.api,
                version=slot.frame.version,
                correlation=slot.frame.correlation,
                header=reply.header,
                payload_length=reply.payload_length,
            )
            self._outbound.append(memoryview(head))
            for part in reply.parts:
                self._outbound.append(memoryview(part) if isinstance(part, bytes) else part)

    def _send(self) -> bool:
        """Send what the socket takes; False when it takes no more for now (or is gone)."""
        budget = _TURN_BYTES
        while not self.closed:
            if not self._outbound:
                self._queue_answers()
            if not self._outbound:
                if self._ends_when_sent and not self._slots:
                    self.close()
                return not self.closed
            try:
                sent = self._send_head()
            except BlockingIOError:
                return False
            except OSError:
                self.close()
                return False
            budget -= sent
            if budget <= 0:
                return False
        return False

    def _send_head(self) -> int:
        head = self._outbound[0]
        if isinstance(head, LogSlice):
            rest = head.length - self._sent_of_head
            position = head.position + self._sent_of_head
            sent = os.sendfile(self.fd, head.file.fileno(), position, rest)
            if sent == 0:
                # The file ends before the slice does: the promised bytes cannot be delivered.
                raise OSError("segment shorter than its slice")
            total = head.length
        else:
            # MSG_MORE: a response head is followed by its payload at once, so let them share
            # a packet; the last part of a response is sent without it.
            flags = socket.MSG_MORE if len(self._outbound) > 1 else 0
            sent = self.sock.send(head[self._sent_of_head :], flags)
            total = len(head)
        self._sent_of_head += sent
        if self._sent_of_head == total:
            self._outbound.popleft()
            self._sent_of_head = 0
        return sent

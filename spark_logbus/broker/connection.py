"""One client's connection: frames in, responses out, in order, without blocking a thread.

A connection is a small state machine on a non-blocking socket. Requests of one connection are
started in order and answered in order; several may wait at once (``max_in_flight``). Whatever
cannot go on (an answer that waits for a flush, a reader that does not read) leaves the thread
and comes back through an event.
"""

from __future__ import annotations

import os
import select
import socket
from collections import deque
from collections.abc import Callable

from spark_logbus.broker.buffers import Buffers
from spark_logbus.broker.config import NetworkConfig
from spark_logbus.broker.replies import Answer, Deferred, NoReply, Reply
from spark_logbus.broker.turns import Turns
from spark_logbus.errors import LogbusError
from spark_logbus.log import LogSlice
from spark_logbus.protocol import Frame, FrameLimits, FrameReader, encode_error, frame_head

_TURN_BYTES = 16 << 20  # what one connection may send before others get the thread
_TURN_FRAMES = 8
_SENDFILE_BYTES = 4 << 20  # per system call, so that a fast reader cannot outrun _TURN_BYTES


class _Slot:
    """The place of one response in the order of a connection's responses."""

    __slots__ = ("api", "correlation", "deferred", "reply", "version")

    def __init__(self, *, api: int, version: int, correlation: int) -> None:
        self.api = api
        self.version = version
        self.correlation = correlation
        self.reply: Reply | None = None
        self.deferred: Deferred | None = None

    def resolve(self) -> Reply | None:
        if self.reply is None and self.deferred is not None:
            self.reply = self.deferred.poll()
        return self.reply


class Connection:
    """Used by one thread at a time, the one that has the turn (see ``turns``); ``waiting``,
    ``stalled`` and ``handshaken`` may be asked by others, who get a recent answer."""

    def __init__(
        self,
        sock: socket.socket,
        peer: str,
        *,
        config: NetworkConfig,
        handle: Callable[[Connection, Frame], Answer],
        turns: Turns,
        buffers: Buffers,
        now: float,
    ) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.peer = peer
        self.turns = turns
        self.closed = False
        self.handshaken = False
        self._config = config
        self._handle = handle
        self._opened = now
        self._last_progress = now
        self._buffers = buffers
        self._reader = FrameReader(FrameLimits(config.max_handshake_bytes), allocate=buffers.take)
        self._slots: deque[_Slot] = deque()
        self._outbound: deque[memoryview | LogSlice] = deque()
        self._sent_of_head = 0
        self._ends_when_sent = False
        self._deserted = False

    # -- called by the network ------------------------------------------------------------

    def turn(self, now: float, *, may_send_slices: bool) -> None:
        """Do what can be done now: send, then receive and start requests, then send again."""
        if (self._outbound or self._slots) and not self._send(now, may_send_slices):
            return
        for _ in range(_TURN_FRAMES):
            frame = self._receive(now) if self._may_receive() else None
            if frame is None:
                break
            self._start(frame)
        self._send(now, may_send_slices)

    @property
    def at_slice(self) -> bool:
        """Whether a slice of a segment is to be sent next."""
        return bool(self._outbound) and isinstance(self._outbound[0], LogSlice)

    def wants_to_read(self) -> bool:
        return self._may_receive()

    def wants_to_write(self) -> bool:
        return bool(self._outbound)

    def next_deadline(self) -> float | None:
        """When the request that is next in order has to be answered, if it is waiting."""
        deferred = self._slots[0].deferred if self._slots else None
        return deferred.deadline if deferred is not None else None

    @property
    def waiting(self) -> int:
        """Requests that are not answered yet; one that is being worked on counts as one."""
        return len(self._slots) + bool(self._outbound) + self.turns.taken

    def stalled(self, now: float) -> bool:
        """Before its handshake, or in the middle of a frame without a further byte, for too long.

        A client that does not read its responses is left alone: it costs no thread and no more
        than a socket buffer, and a Spark task with a slow sink does just that.
        """
        limit = self._config.stall_timeout_ms / 1000
        if not self.handshaken:
            return now - self._opened > limit
        in_frame = self._reader.in_frame and self._may_receive()
        return in_frame and now - self._last_progress > limit

    def check_peer(self) -> None:
        """See whether the other end is gone for good, after an event that says so.

        The event alone may be about an earlier socket with the same descriptor. What the other
        end sent before it went is still received, but nothing is answered any more.
        """
        poller = select.poll()
        poller.register(self.fd, 0)
        gone = select.POLLHUP | select.POLLERR
        if any(events & gone for _, events in poller.poll(0)):
            self._deserted = True
            self._slots.clear()
            self._outbound.clear()
            self._sent_of_head = 0

    def handshake_done(self) -> None:
        self.handshaken = True
        self._reader.limits = FrameLimits(self._config.max_frame_bytes)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._slots.clear()
            self._outbound.clear()
            self.turns.end()
            self.sock.close()

    # -- receiving ------------------------------------------------------------------------

    def _may_receive(self) -> bool:
        return (
            not self.closed
            and not self._ends_when_sent
            and not self._outbound
            and len(self._slots) < self._config.max_in_flight
        )

    def _receive(self, now: float) -> Frame | None:
        """The next frame, or None when that is not there yet, or never will be."""
        reader, receive = self._reader, self.sock.recv_into
        try:
            while count := receive(reader.buffer()):
                self._last_progress = now
                frame = reader.advance(count)
                if frame is not None:
                    return frame
        except BlockingIOError:
            if not self._deserted:
                return None
        except OSError:
            pass  # the other end is gone, like one that has closed
        except LogbusError as error:
            self._refuse(error)
            return None
        self.close()
        return None

    def _start(self, frame: Frame) -> None:
        answer = self._handle(self, frame)
        if frame.payload:
            self._buffers.give(frame.payload)
        if answer is NoReply.WANTED or self._deserted:
            return
        if answer is NoReply.POSSIBLE:
            self._ends_when_sent = True
            return
        slot = _Slot(api=frame.api, version=frame.version, correlation=frame.correlation)
        if isinstance(answer, Reply):
            slot.reply = answer
        elif isinstance(answer, Deferred):
            slot.deferred = answer
            answer.subscribe(self.turns.call)
        self._slots.append(slot)

    def _refuse(self, error: LogbusError) -> None:
        """Answer bytes that are no valid frame with the error, then end the connection."""
        slot = _Slot(api=0, version=0, correlation=0)
        slot.reply = Reply(encode_error(error))
        self._slots.append(slot)
        self._ends_when_sent = True

    # -- sending --------------------------------------------------------------------------

    def _queue_answers(self) -> None:
        """Move the answers that can be had, in order, to what is to be sent."""
        heads = b""  # of consecutive responses, which leave in one system call
        while self._slots and (reply := self._slots[0].resolve()) is not None:
            slot = self._slots.popleft()
            heads += frame_head(
                api=slot.api,
                version=slot.version,
                correlation=slot.correlation,
                header=reply.header,
                payload_length=reply.payload_length,
            )
            if reply.slices:
                self._outbound.append(memoryview(heads))
                self._outbound.extend(reply.slices)
                heads = b""
        if heads:
            self._outbound.append(memoryview(heads))

    def _send(self, now: float, may_send_slices: bool) -> bool:
        """Send what can be sent; False when something is left over, or the end has come."""
        budget = _TURN_BYTES
        while not self.closed:
            if self._slots and not self._outbound:
                self._queue_answers()
            if not self._outbound:
                if self._ends_when_sent and not self._slots:
                    self.close()
                return not self.closed
            head = self._outbound[0]
            if budget <= 0 or (isinstance(head, LogSlice) and not may_send_slices):
                return False
            try:
                if isinstance(head, LogSlice):
                    budget -= self._send_slice(head)
                else:
                    budget -= self._send_bytes(head)
            except BlockingIOError:
                return False
            except OSError:
                self.close()
                return False
            self._last_progress = now
        return False

    def _send_bytes(self, data: memoryview) -> int:
        # MSG_MORE: a response head is followed by its payload at once, so let them share a
        # packet; the last part of a response is sent without it.
        flags = socket.MSG_MORE if len(self._outbound) > 1 else 0
        rest = data[self._sent_of_head :] if self._sent_of_head else data
        sent = self.sock.send(rest, flags)
        self._account(sent, total=len(data))
        return sent

    def _send_slice(self, piece: LogSlice) -> int:
        sent = os.sendfile(
            self.fd,
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
            self._outbound.popleft()
            self._sent_of_head = 0

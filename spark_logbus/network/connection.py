"""One client's connection: frames in, responses out, in order, without blocking a thread.

A connection is a small state machine on a transport that does not block. Requests of one
connection are started in order and answered in order; several may wait at once
(``max_in_flight``). One that cannot be begun yet is kept, with its memory, and holds up those
behind it. Work that cannot go on (an answer that waits for a flush, a reader that does not read)
leaves the thread and comes back through an event.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from spark_logbus.errors import LogbusError
from spark_logbus.network.config import DECODED, NetworkConfig
from spark_logbus.network.memory import BufferPool, Charge, Memory
from spark_logbus.network.receiver import FrameReceiver
from spark_logbus.network.responses import (
    Answer,
    DelayedResponse,
    NoResponse,
    NotYet,
    Response,
)
from spark_logbus.network.sender import ResponseSender
from spark_logbus.network.strand import Strand
from spark_logbus.network.transport import Transport
from spark_logbus.protocol import ABOUT_CONNECTION, Frame, encode_error, frame_head
from spark_logbus.security.identity import NOBODY

if TYPE_CHECKING:
    from spark_logbus.security.scram import ServerExchange

_TURN_FRAMES = 8
_CROWDED_HANDSHAKE_S = 3.0
_UNCOUNTED_BYTES = 512  # of a header that waits; as usual for one partition


class _Slot:
    """The place of one response among a connection's responses."""

    __slots__ = ("api", "correlation", "delayed", "held", "response", "version")

    def __init__(self, *, api: int, version: int, correlation: int) -> None:
        self.api = api
        self.version = version
        self.correlation = correlation
        self.response: Response | None = None
        self.delayed: DelayedResponse | None = None
        self.held: Charge | None = None  # memory of what waits here

    def head(self, header: bytes, payload_length: int = 0) -> bytes:
        return frame_head(
            api=self.api,
            version=self.version,
            correlation=self.correlation,
            header=header,
            payload_length=payload_length,
        )

    def resolve(self) -> Response | None:
        delayed = self.delayed
        if self.response is None and delayed is not None:
            refused = delayed.guard() if delayed.guard is not None else None
            self.response = delayed.poll() if refused is None else refused
        return self.response


class Connection:
    """One client's connection. Used by one thread at a time, the one that has the turn (see
    ``strand``); others may read ``waiting``, ``overdue`` and ``handshaken``, and get a recent
    answer."""

    def __init__(
        self,
        transport: Transport,
        peer: str,
        *,
        address: str,
        config: NetworkConfig,
        handle: Callable[[Connection, Frame], Answer],
        strand: Strand,
        buffers: BufferPool,
        memory: Memory,
        now: float,
    ) -> None:
        self.transport = transport
        self.fd = transport.fileno()
        self.peer = peer
        self.address = address
        self.local = self.takes_descriptors = transport.local
        #: Whom it belongs to, as its handshake has shown.
        self.identity = NOBODY
        #: A login that is under way.
        self.login: ServerExchange | None = None
        #: The user at the other end of a UNIX socket, by the operating system.
        self.uid = transport.uid
        self.strand = strand
        self.closed = False
        self.handshaken = False
        self._config = config
        self._handle = handle
        self._opened = now
        self._waiting_memory = memory.waiting
        self._receiver = FrameReceiver(
            transport, config=config, buffers=buffers, memory=memory, peer=address,
            call=strand.call, now=now,
        )  # fmt: skip
        self._slots: deque[_Slot] = deque()
        self._sender = ResponseSender(transport, now=now)
        self._kept: Frame | None = None  # of a request that could not be begun yet
        self._ends_when_sent = False
        self._deserted = False

    # -- called by the network ------------------------------------------------------------

    def turn(self, now: float, *, may_send_slices: bool) -> None:
        """Do what can be done now: send, then receive and start requests, then send again."""
        if (self._sender or self._slots) and not self._send(now, may_send_slices):
            return
        for _ in range(_TURN_FRAMES):
            frame, self._kept = self._kept, None
            if frame is None:
                frame = self._receive(now) if self._may_receive() else None
            if frame is None:
                break
            self._start(frame)
            if self._kept is not None:
                break
        self._send(now, may_send_slices)
        if self.transport.has_buffered and self._may_receive():
            self.strand.call()

    @property
    def at_slice(self) -> bool:
        """True if a slice of a segment is to be sent next."""
        return self._sender.at_slice

    def wants_to_read(self) -> bool:
        if self._sender:
            return self.transport.send_waits_for_read
        return self._may_receive() and not self.transport.receive_waits_for_write

    def wants_to_write(self) -> bool:
        if self._sender:
            return not self.transport.send_waits_for_read
        return self._may_receive() and self.transport.receive_waits_for_write

    def next_deadline(self) -> float | None:
        """Deadline of the delayed response that is next in order, if one is."""
        delayed = self._slots[0].delayed if self._slots else None
        return delayed.deadline if delayed is not None else None

    @property
    def waiting(self) -> int:
        """Requests that are not answered yet; one that is being worked on counts as one."""
        kept = self._kept is not None
        return len(self._slots) + bool(self._sender) + self.strand.taken + kept

    def overdue(self, now: float, *, is_crowded: bool = False) -> str | None:
        """The reason to end the connection, if it waited for the other end for too long.

        Whoever has not shaken hands may be anybody: where it is crowded, that one does not keep the
        place of others for long.

        A client that is slow to read its responses is left alone for long: it costs no thread
        and no more than a socket buffer, and a Spark task with a slow sink does just that.
        """
        config = self._config
        if not self.handshaken:
            limit_s = config.stall_timeout_ms / 1000
            if is_crowded and now - self._opened > min(limit_s, _CROWDED_HANDSHAKE_S):
                return f"no handshake within {_CROWDED_HANDSHAKE_S:g} s, and others want the place"
            if now - self._opened <= limit_s:
                return None
            return f"no handshake within {limit_s:g} s (stall_timeout_ms)"
        sent = self._sender.last_progress  # while it is being sent to it is not read
        if self._may_receive() and (late := self._receiver.late(now, read_since=sent)) is not None:
            return late
        limit_s = config.idle_timeout_ms / 1000
        held_back = self._receiver.held_back or self._kept is not None
        ours = held_back or (self._slots and not self._sender)  # it waits for us
        if not ours and now - max(sent, self._receiver.last_progress) > limit_s:
            return f"no byte has moved for {limit_s:g} s (idle_timeout_ms)"
        return None

    def check_peer(self) -> None:
        """Find out if the other end is gone for good, after an event that says so.

        The event alone may be about an earlier socket with the same descriptor. What the other
        end sent before it went is still received, but nothing is answered any more.
        """
        poller = select.poll()
        poller.register(self.fd, 0)
        gone = select.POLLHUP | select.POLLERR
        if any(events & gone for _, events in poller.poll(0)):
            self._deserted = True
            self._forget_answers()
            if self._receiver.held_back or self._kept is not None:
                self.end()  # the poller would report the end over and over until it can go on

    def certificate(self) -> bytes | None:
        """Returns the certificate that the other end has shown, as DER, which was checked."""
        return self.transport.certificate()

    def handshake_done(self) -> None:
        self.handshaken = True
        self._receiver.handshake_done()

    def end_when_answered(self) -> None:
        """Begin no more requests, and end when those that were begun are answered."""
        self._ends_when_sent = True

    def end(self) -> None:
        """Do no more. The descriptor stays until ``close``: another connection could get it while
        this one is still known by it."""
        if not self.closed:
            self.closed = True
            self._forget_answers()
            kept, self._kept = self._kept, None
            if kept is not None:
                self._receiver.handled(kept)
            self._receiver.close()
            self.strand.end()

    def close(self) -> None:
        self.end()
        self.transport.close()

    def _forget_answers(self) -> None:
        for slot in self._slots:
            if slot.held is not None:
                slot.held.release()
        self._slots.clear()
        self._sender.clear()

    # -- receiving ------------------------------------------------------------------------

    def _may_receive(self) -> bool:
        return (
            not self.closed
            and not self._ends_when_sent
            and not self._sender
            and len(self._slots) < self._config.max_in_flight
            and not self._receiver.held_back
            and self._kept is None
            and not (self._slots and self._waiting_memory.exhausted)
        )

    def _receive(self, now: float) -> Frame | None:
        """The next frame, or None when that is not there yet, or never will be."""
        try:
            frame = self._receiver.receive(now)
            if frame is not None or not self._deserted:
                return frame
        except OSError:
            pass  # the other end is gone, like one that has closed
        except LogbusError as error:
            self._refuse(error)
            return None
        self.end()
        return None

    def _start(self, frame: Frame) -> None:
        answer: Answer | None = None
        try:
            answer = self._handle(self, frame)
        finally:
            if not isinstance(answer, NotYet):
                self._receiver.handled(frame)
        if isinstance(answer, NotYet):
            self._kept = frame
            answer.when(self.strand.call)
            return
        if answer is NoResponse.NOT_WANTED or self._deserted:
            return
        if answer is NoResponse.CLOSE_CONNECTION:
            self._ends_when_sent = True
            return
        slot = _Slot(api=frame.api, version=frame.version, correlation=frame.correlation)
        if isinstance(answer, Response):
            slot.response = answer
            self._hold(slot, len(answer.header))
        elif isinstance(answer, DelayedResponse):
            slot.delayed = answer
            answer.subscribe(self.strand.call)
            self._hold(slot, len(frame.header), factor=DECODED)
        self._slots.append(slot)

    def _hold(self, slot: _Slot, size: int, *, factor: int = 1) -> None:
        if size > _UNCOUNTED_BYTES:
            slot.held = self._waiting_memory.charge(size * factor)

    def _refuse(self, error: LogbusError) -> None:
        """Answer bytes that are no valid frame with the error, then end the connection."""
        slot = _Slot(api=ABOUT_CONNECTION, version=0, correlation=0)
        slot.response = Response(encode_error(error))
        self._slots.append(slot)
        self._ends_when_sent = True

    # -- sending --------------------------------------------------------------------------

    def _queue_answers(self) -> None:
        """Hand the responses that are there, in order, to the sender."""
        heads = b""  # of consecutive responses, which leave in one system call
        while self._slots and (response := self._slots[0].resolve()) is not None:
            slot = self._slots.popleft()
            if slot.held is not None:
                self._sender.hold([slot.held])
            if response.file is not None:
                # By itself: the descriptor has to come with the first byte of its response.
                if heads:
                    self._sender.append(heads)
                    heads = b""
                instead = slot.head(response.header, response.payload_length)
                self._sender.append_file(
                    slot.head(response.file.header), response.file.slice, instead, response.slices
                )
                continue
            heads += slot.head(response.header, response.payload_length)
            if response.slices:
                self._sender.append(heads, response.slices)
                heads = b""
        if heads:
            self._sender.append(heads)

    def _send(self, now: float, may_send_slices: bool) -> bool:
        """Send what can be sent; False when something is left over, or the end has come."""
        budget: int | None = None
        while not self.closed:
            if self._slots and not self._sender:
                self._queue_answers()
            if not self._sender:
                if self._ends_when_sent and not self._slots:
                    self.end()
                return not self.closed
            try:
                budget = self._sender.send(now, may_send_slices=may_send_slices, budget=budget)
            except BlockingIOError:
                return False
            except OSError:
                self.end()
                return False
            if self._sender:
                return False
        return False

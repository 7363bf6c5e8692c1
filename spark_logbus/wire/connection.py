"""One connection to one broker, with pipelined requests and responses in their order.

The transport never blocks. A synchronous caller waits in ``PendingResponse.result`` and moves the
bytes itself, both ways, so that a broker that is busy answering cannot lock up with a client
that is busy sending. The producer's thread instead calls ``progress`` when its poller says so.

Payloads are received straight into the memory that ``allocate`` gives for them.
"""

from __future__ import annotations

import select
import threading
from collections import deque
from collections.abc import Sequence
from typing import Final, TypeVar

from spark_logbus.errors import (
    AuthenticationError,
    BrokerUnavailableError,
    InvalidRequestError,
    LogbusError,
    ProtocolError,
    RequestTimeoutError,
)
from spark_logbus.forks import follow_forks
from spark_logbus.model import BrokerAddress
from spark_logbus.protocol import (
    ABOUT_CONNECTION,
    PROTOCOL_VERSION,
    Api,
    Frame,
    FrameLimits,
    FrameReader,
    Message,
    decode_response,
    encode_request,
    frame_head,
)
from spark_logbus.retry import Deadline
from spark_logbus.wire.buffers import Allocate, new_buffer
from spark_logbus.wire.passed_file import PassedFile
from spark_logbus.wire.transport import Transport

M = TypeVar("M", bound=Message)

_PRELUDE_AFTER_LENGTH: Final = 12  # bytes that a frame's length counts beside header and payload
_MAX_BUFFERS_PER_CALL: Final = 512  # below IOV_MAX, which is 1024 on Linux and macOS
_NOTHING: Final = memoryview(b"")


class PendingResponse:
    """The answer to one request, once it has come. Used by its connection's thread only."""

    __slots__ = (
        "_connection", "_message", "api", "correlation", "done", "error", "file", "payload"
    )  # fmt: skip

    def __init__(self, connection: BrokerConnection, api: Api, correlation: int) -> None:
        self._connection = connection
        self._message: Message | None = None
        self.api = api
        self.correlation = correlation
        self.done = False
        self.error: LogbusError | None = None
        self.payload: memoryview = _NOTHING
        self.file: PassedFile | None = None  # that came with the response, for who asked for it

    def result(self, kind: type[M], deadline: Deadline, *, begun: Deadline | None = None) -> M:
        """The response, waited for until ``deadline``, or until ``begun`` while it comes, which
        takes long over a slow network; its payload is in ``payload``.

        Raises the error that the broker reported or that broke the connection, or
        RequestTimeoutError, after which the connection is closed.
        """
        if not self.done:
            self._connection.wait(self, deadline, begun=begun)
        if self.error is not None:
            raise self.error.again()
        if not isinstance(self._message, kind):
            raise ProtocolError(f"A {self.api.name.lower()} request has no {kind.__name__}.")
        return self._message

    def starts(self, deadline: Deadline) -> bool:
        """Waits until the response is there or begins to come, or has failed; False if nothing has
        come by ``deadline``. It may still come then."""
        return self.done or self._connection.wait_for_start(self, deadline)

    def resolve(
        self, message: Message | None, payload: memoryview, file: PassedFile | None = None
    ) -> None:
        self._message = message
        self.payload = payload
        self.file = file
        self.done = True

    def fail(self, error: LogbusError) -> None:
        self.error = error.again()
        self.done = True


class BrokerConnection:
    """A connection over ``transport``. One user at a time (see ``pool``), whose wait another thread
    can end by ``interrupt``; the rest is not thread-safe."""

    def __init__(
        self,
        transport: Transport,
        address: BrokerAddress,
        *,
        max_response_bytes: int,
        allocate: Allocate = new_buffer,
    ) -> None:
        self.address = address
        self.max_request_bytes: int | None = None  # what the broker accepts; None: not yet known
        self.max_record_batch_bytes = 0
        self.failure: LogbusError | None = None
        self._transport = transport
        # The header of a response can be large too: metadata takes 110 bytes a partition.
        limits = FrameLimits(max_response_bytes, max_header_bytes=max_response_bytes // 8)
        self._reader = FrameReader(limits, allocate=allocate)
        self._file: PassedFile | None = None  # came with the frame that is being received
        self.takes_files = transport.takes_files
        self._correlation = 0
        self._out: deque[memoryview] = deque()
        self._queued_total = 0
        self._written_total = 0
        self._awaited: deque[PendingResponse] = deque()
        self._unanswered: deque[tuple[int, PendingResponse]] = deque()
        self._interruption: LogbusError | None = None
        self._ending = threading.Lock()  # a socket is not closed while it is being shut down
        self._poll = select.poll()
        self._poll.register(self)
        follow_forks(self)

    # -- state ----------------------------------------------------------------------------

    def fileno(self) -> int:
        return self._transport.fileno()

    @property
    def wants_to_write(self) -> bool:
        """True if it goes on when bytes can be written; it always may when bytes can be read."""
        transport = self._transport
        sends = bool(self._out) and not transport.send_waits_for_read
        return sends or transport.receive_waits_for_write

    @property
    def receives(self) -> bool:
        """True if a response has begun to come."""
        return self._reader.in_frame

    @property
    def idle(self) -> bool:
        """True if it is usable and nothing is under way on it."""
        return not (self.failure or self._out or self._awaited or self._reader.in_frame)

    def looks_alive(self) -> bool:
        """Tells if an idle connection shows no end of stream, and no byte that nobody asked for."""
        return self.idle and self._transport.is_silent()

    # -- sending --------------------------------------------------------------------------

    def send(
        self,
        api: Api,
        message: Message,
        payload: Sequence[memoryview] = (),
        *,
        answered: bool = True,
    ) -> PendingResponse:
        """Queue one request and write what the socket takes at once, without waiting.

        ``payload`` buffers are not copied and must stay as they are until the response. With
        ``answered=False`` no response is expected: it counts as done when it is written.
        """
        if self.failure is not None:
            raise self.failure.again()
        header = encode_request(message)
        payload_length = sum(len(part) for part in payload)
        length = _PRELUDE_AFTER_LENGTH + len(header) + payload_length
        if self.max_request_bytes is not None and length > self.max_request_bytes:
            raise InvalidRequestError(
                f"A {api.name.lower()} request of {length} bytes is above the limit of "
                f"{self.address}, {self.max_request_bytes} bytes; send less at once."
            )
        self._correlation = (self._correlation + 1) & 0xFFFF_FFFF
        head = frame_head(
            api=api,
            version=PROTOCOL_VERSION,
            correlation=self._correlation,
            header=header,
            payload_length=payload_length,
        )
        pending = PendingResponse(self, api, self._correlation)
        self._out.append(memoryview(head))
        self._out.extend(part for part in payload if len(part))
        self._queued_total += len(head) + payload_length
        if answered:
            self._awaited.append(pending)
        else:
            self._unanswered.append((self._queued_total, pending))
        self._write_some()
        return pending

    def _write_some(self) -> None:
        while self._out:
            buffers = [self._out[i] for i in range(min(len(self._out), _MAX_BUFFERS_PER_CALL))]
            try:
                written = self._transport.send(buffers)
            except BlockingIOError:
                return
            except OSError as error:
                self._read_some(None)  # the broker may have said why before it closed
                if self.failure is None:
                    self._broke(error)
                return
            self._written_total += written
            self._drop_written(written)
        while self._unanswered and self._unanswered[0][0] <= self._written_total:
            self._unanswered.popleft()[1].resolve(None, _NOTHING)

    def _drop_written(self, written: int) -> None:
        while written:
            first = self._out[0]
            if written < len(first):
                self._out[0] = first[written:]
                return
            written -= len(first)
            self._out.popleft()

    # -- receiving ------------------------------------------------------------------------

    def progress(self, *, until: PendingResponse | None = None) -> None:
        """Write and read what is possible without waiting; stop early once ``until`` is done."""
        if self._out and self.failure is None:
            self._write_some()
        self._read_some(until)

    def _read_some(self, until: PendingResponse | None) -> None:
        while self.failure is None and not (until is not None and until.done):
            if self._interruption is not None:
                self.close()
                return
            try:
                received = self._receive(self._reader.buffer())
            except BlockingIOError:
                return
            except OSError as error:
                self._broke(error)
                return
            if received == 0:
                self.close(BrokerUnavailableError(f"{self.address} closed the connection."))
                return
            try:
                frame = self._reader.advance(received)
                if frame is not None:
                    self._complete(frame)
                    if not self._awaited:
                        return  # that nothing more comes would take another system call to learn
            except LogbusError as error:
                self.close(error)

    def _receive(self, buffer: memoryview) -> int:
        if not self.takes_files or self._reader.in_frame:
            return self._transport.receive_into(buffer)
        # A descriptor comes with the first byte of a frame, or is lost.
        received, self._file = self._transport.receive_with_file(buffer)
        return received

    def _complete(self, frame: Frame) -> None:
        file, self._file = self._file, None
        if frame.api == ABOUT_CONNECTION:
            decode_response(Api.HANDSHAKE, frame.header)  # raises the error that it carries
            raise ProtocolError(f"{self.address} sent a frame about the connection without error.")
        pending = self._awaited.popleft() if self._awaited else None
        if pending is None or (pending.api, pending.correlation) != (frame.api, frame.correlation):
            expected = f"{pending.api}, {pending.correlation}" if pending else "none"
            if pending is not None:
                self._awaited.appendleft(pending)
            raise ProtocolError(
                f"{self.address} answered a request that was not next in line: expected API and "
                f"correlation {expected}, got {frame.api}, {frame.correlation}."
            )
        try:
            pending.resolve(decode_response(pending.api, frame.header), frame.payload, file)
        except LogbusError as error:
            pending.fail(error)
            if isinstance(error, AuthenticationError):
                self.close(error)  # as the broker does

    def wait(
        self, pending: PendingResponse, deadline: Deadline, *, begun: Deadline | None = None
    ) -> None:
        """Move bytes until ``pending`` is done; past the deadline, or past ``begun`` in the middle
        of a response, the connection is closed."""
        while True:
            self.progress(until=pending)
            if pending.done:
                return
            patience = begun if begun is not None and self.receives else deadline
            remaining_s = patience.remaining_s
            if remaining_s <= 0:
                self.close(
                    RequestTimeoutError(
                        f"{self.address} did not answer a {pending.api.name.lower()} request in "
                        "time; it may or may not have been done."
                    )
                )
                return
            self._poll_for(remaining_s)

    def wait_for_start(self, pending: PendingResponse, deadline: Deadline) -> bool:
        """Move bytes until ``pending`` is done or a response begins to come; False past the
        deadline, which changes nothing."""
        while True:
            self.progress(until=pending)
            if pending.done or self.receives:
                return True
            if deadline.expired:
                return False
            self._poll_for(deadline.remaining_s)

    def _poll_for(self, seconds: float) -> None:
        events = select.POLLIN | (select.POLLOUT if self.wants_to_write else 0)
        self._poll.modify(self, events)
        self._poll.poll(max(1.0, seconds * 1000))

    # -- the end --------------------------------------------------------------------------

    def _broke(self, error: OSError) -> None:
        self.close(BrokerUnavailableError(f"The connection to {self.address} broke: {error}."))

    def close(self, reason: LogbusError | None = None) -> None:
        """Close the transport; all that is under way fails with ``reason``."""
        if self.failure is not None:
            return
        reason = self._interruption or reason
        if reason is None:
            closed = f"The connection to {self.address} was closed by this client."
            self.failure = BrokerUnavailableError(closed)
        else:
            self.failure = reason.again()
        with self._ending:
            self._transport.close()
        self._file = None
        self._out.clear()
        for pending in self._awaited:
            pending.fail(self.failure)
        for _, pending in self._unanswered:
            pending.fail(self.failure)
        self._awaited.clear()
        self._unanswered.clear()

    def interrupt(self, reason: LogbusError) -> None:
        """End the connection for its user, whose request that is under way, or else the next one,
        fails with ``reason``; the user still closes it. Thread-safe."""
        with self._ending:
            if self.failure is None:
                self._interruption = reason.again()
                self._transport.shut_down()

    def after_fork(self) -> None:
        """Give the connection up in the child, which would take away its parent's answers."""
        self._ending = threading.Lock()
        self.close(
            BrokerUnavailableError(
                f"The connection to {self.address} belongs to the process from which this one was "
                "forked."
            )
        )

    def take_limits(self, *, max_request_bytes: int, max_record_batch_bytes: int) -> None:
        """Take over what the broker announced in its handshake."""
        self.max_request_bytes = max_request_bytes
        self.max_record_batch_bytes = max_record_batch_bytes

"""Publishes what a program logs to one topic, and holds up no one.

Whoever logs only puts a value into a queue. A thread finds the cluster when the first value comes,
tries again for as long as it finds none, and sends what waits. It must not begin earlier:
``logging.config`` holds the lock of ``logging`` while it makes handlers, and threads that log, such
as those of a ZooKeeper session, wait for that lock.

All that is not acknowledged counts against one bound. Values that find no room are dropped, and so
are those that no broker takes; the thread says so on the standard error, as handlers of ``logging``
do, because a log record about it would come back to the handler.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 - what the next comment says: sockets import it when they connect
import logging
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from spark_logbus.client import at_exit
from spark_logbus.client.cluster.bootstrap import Bootstrap
from spark_logbus.client.cluster.cluster import Cluster
from spark_logbus.client.config import ProducerConfig
from spark_logbus.client.producer.acknowledgements import RecordFuture
from spark_logbus.client.producer.producer import Producer

# All that the thread needs is imported here: a process that is forked while it imports a module
# has half of that module for ever.
from spark_logbus.coordination.cluster.brokers import BrokerRegistry
from spark_logbus.errors import LogbusError, ProducerClosedError, UnknownTopicError
from spark_logbus.record.rows.builder import RECORD_OVERHEAD_BYTES
from spark_logbus.retry import Backoff
from spark_logbus.zookeeper import Session, default_connect

#: The thread sees by then that it has to end, or that there is something to say.
_MAX_BLOCK_MS: Final = 5_000
#: What was dropped is said so often, while it goes on.
_SAY_AGAIN_S: Final = 60.0
_BACKOFF: Final = Backoff(first_ms=200, max_ms=10_000)


class _Waiting(NamedTuple):
    value: bytes
    timestamp_us: int
    size: int


class LogPublisher:
    """The queue of one handler, and the thread that empties it. Thread-safe."""

    def __init__(
        self, topic: str, *, zookeeper: str | None, key: bytes | None, config: ProducerConfig
    ) -> None:
        self._topic = topic
        self._zookeeper = zookeeper or None
        self._key = key
        self._buffer_bytes = config.buffer_bytes
        self._patience_s = config.delivery_timeout_ms / 1000
        self._config = replace(config, max_block_ms=_MAX_BLOCK_MS)
        # A signal's handler may log while the same thread is in here: this lock lets it.
        self._changed = threading.Condition(threading.RLock())
        self._incoming: deque[_Waiting | str] = deque()  # a text is why something was dropped
        self._taking_in = False
        self._queue: deque[_Waiting] = deque()
        self._taken = 0
        self._waited_for = -1  # values that were taken when somebody waited for them in vain
        self._unsettled = 0  # values that wait or are on their way
        self._unsettled_bytes = 0
        self._dropped = 0
        self._why_dropped = ""
        self._said_dropped = 0
        self._say_at = 0.0
        self._thread: threading.Thread | None = None
        self._cluster: Cluster | None = None  # of the thread
        self._producer: Producer | None = None  # likewise
        self._failures = 0  # since something was sent
        self._flush_asked = False
        self._closing = False
        self._give_up_at = 0.0  # when closing
        self._program_ended = False

    @property
    def dropped(self) -> int:
        """The number of values that are not in the topic, or not known to be there."""
        return self._dropped

    def is_own_thread(self, ident: int | None) -> bool:
        thread = self._thread
        return thread is not None and thread.ident == ident

    def put(self, value: bytes, timestamp_us: int) -> None:
        """Take a value for the topic, or drop it. Never waits."""
        size = RECORD_OVERHEAD_BYTES + len(value) + len(self._key or b"")
        self._incoming.append(_Waiting(value, timestamp_us, size))
        self._take_in()

    def count_dropped(self, why: str) -> None:
        """Count a record of which nothing could be put in."""
        self._incoming.append(why)
        self._take_in()

    def _take_in(self) -> None:
        with self._changed:
            # Where a signal's handler interrupts this, it leaves its value to the call below it.
            while self._incoming and not self._taking_in:
                self._taking_in = True
                try:
                    while self._incoming:
                        self._take_one(self._incoming.popleft())
                    if self._queue and self._thread is None:
                        self._start()
                finally:
                    self._taking_in = False
            self._changed.notify_all()

    def _take_one(self, incoming: _Waiting | str) -> None:
        if isinstance(incoming, str):
            self._drop(1, incoming)
        elif self._program_ended:
            self._drop(1, "the program ended")
        elif self._unsettled_bytes + incoming.size > self._buffer_bytes:
            self._drop(1, f"the buffer of {self._buffer_bytes} bytes is full (buffer_bytes)")
        else:
            self._taken += 1
            self._queue.append(incoming)
            self._unsettled += 1
            self._unsettled_bytes += incoming.size
            if self._closing:
                self._give_up_at = time.monotonic() + self._patience_s

    def flush(self, timeout_s: float) -> bool:
        """Wait until all that was put in is acknowledged or dropped; whether it is. Who has waited
        for the same values in vain is not held up once more."""
        with self._changed:
            self._flush_asked = True
            self._changed.notify_all()
            wait_s = 0.0 if self._waited_for == self._taken else timeout_s
            if self._changed.wait_for(lambda: not self._unsettled, wait_s):
                return True
            if timeout_s:
                self._waited_for = self._taken
            return False

    def close(self) -> None:
        """Let the thread end when it has sent what there is. Waits for nothing."""
        with self._changed:
            self._closing = True
            self._give_up_at = time.monotonic() + self._patience_s
            self._changed.notify_all()
        self._say_dropped()

    def finish(self, timeout_s: float) -> bool:
        """Flushes at the end of the program: what is not sent by then is dropped."""
        if self.flush(timeout_s):
            self._say_dropped()
            return True
        with self._changed:
            self._program_ended = True
            self._queue.clear()
            self._drop(self._unsettled, f"the program ended. {self._why_dropped}".rstrip())
        self._say_dropped()
        return False

    # -- the thread -----------------------------------------------------------------------

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="logbus-logging", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # at the end of the program, or of what the system allows
            self._drop_queue(str(error))
            return
        self._thread = thread
        at_exit.add_sender(self, self.finish)

    def _run(self) -> None:
        while self._await_work():
            self._say_dropped_at_times()
            try:
                self._send_queue()
            except Exception as error:  # noqa: BLE001 - the thread is all that sends
                self._failed(error)
            else:
                self._recovered()

    def _await_work(self) -> bool:
        """Wait for a value; False when the thread has ended."""
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work, self._until_news_s())
                if self._queue:
                    if self._closing and time.monotonic() >= self._give_up_at:
                        self._drop_queue("the handler was closed, and nothing could be sent")
                    else:
                        return True
                is_over = self._closing and not self._unsettled
                if is_over:
                    self._thread = None  # whatever is put in from now on starts another one
                    at_exit.discard(self)
                flush_asked, self._flush_asked = self._flush_asked, False
            self._say_dropped_at_times()
            if is_over:
                self._disconnect()
                return False
            if self._producer is not None and (flush_asked or self._closing):
                with suppress(LogbusError):  # those that wait for it look at what is unsettled
                    self._producer.flush(0.0 if not self._closing else 0.1)

    def _has_work(self) -> bool:
        return bool(self._queue) or self._flush_asked or self._closing or self._until_news_s() == 0

    def _until_news_s(self) -> float | None:
        """Seconds until it is time to tell what was dropped; None if that is told."""
        if self._dropped == self._said_dropped:
            return None
        return max(0.0, self._say_at - time.monotonic())

    def _send_queue(self) -> None:
        producer = self._producer or self._connect()
        while (waiting := self._first()) is not None:
            try:
                future = producer.send(
                    self._topic, waiting.value, key=self._key, timestamp_us=waiting.timestamp_us
                )
            except LogbusError as error:
                if error.retriable or isinstance(error, ProducerClosedError | UnknownTopicError):
                    raise
                self._take(waiting)
                self._settled(waiting.size, error)
            else:
                self._take(waiting)
                future.add_done_callback(partial(self._acknowledged, waiting.size))

    def _first(self) -> _Waiting | None:
        with self._changed:
            return self._queue[0] if self._queue else None

    def _take(self, waiting: _Waiting) -> None:
        with self._changed:
            if self._queue and self._queue[0] is waiting:  # else the program has ended
                self._queue.popleft()

    def _acknowledged(self, size: int, future: RecordFuture) -> None:
        self._settled(size, future.exception())

    def _settled(self, size: int, error: LogbusError | None) -> None:
        with self._changed:
            self._unsettled -= 1
            self._unsettled_bytes -= size
            if error is not None and not self._program_ended:
                self._drop(1, str(error))
            if not self._unsettled:
                self._changed.notify_all()

    def _connect(self) -> Producer:
        self._disconnect()
        address = self._zookeeper or default_connect()
        with Session(address, client_name="logging", expects_cluster=True) as session:
            found = Bootstrap.registered(BrokerRegistry(session).live(), address)
        self._cluster = Cluster.from_zookeeper(address, found=found)
        self._producer = Producer(self._cluster, self._config)
        at_exit.discard(self._producer)  # this publisher finishes it
        return self._producer

    def _disconnect(self) -> None:
        producer, self._producer = self._producer, None
        cluster, self._cluster = self._cluster, None
        if producer is not None:
            with suppress(LogbusError):
                producer.close(0.0)
        if cluster is not None:
            cluster.close()

    def _failed(self, error: Exception) -> None:
        if isinstance(error, ProducerClosedError):
            self._disconnect()
        if not self._failures:
            self._say(f"log records wait until they can be published. The reason: {error}")
        self._failures += 1
        with self._changed:
            self._why_dropped = str(error)
            pause_s = _BACKOFF.pause_s(self._failures)
            if self._closing:
                pause_s = min(pause_s, max(0.0, self._give_up_at - time.monotonic()))
            self._changed.wait_for(lambda: self._program_ended, pause_s)

    def _recovered(self) -> None:
        if self._failures:
            self._failures = 0
            self._say("log records are published again.")

    # -- what is dropped ------------------------------------------------------------------

    def _drop(self, count: int, why: str) -> None:
        self._dropped += count
        self._why_dropped = why
        self._changed.notify_all()

    def _drop_queue(self, why: str) -> None:
        self._unsettled -= len(self._queue)
        self._unsettled_bytes -= sum(each.size for each in self._queue)
        self._drop(len(self._queue), why)
        self._queue.clear()

    def _say_dropped_at_times(self) -> None:
        if time.monotonic() >= self._say_at:
            self._say_dropped()

    def _say_dropped(self) -> None:
        with self._changed:
            news = self._dropped - self._said_dropped
            if not news:
                return
            self._said_dropped = self._dropped
            self._say_at = time.monotonic() + _SAY_AGAIN_S
            reason = self._why_dropped
        self._say(f"{news} log records dropped, {self._dropped} in all. The last reason: {reason}")

    def _say(self, what: str) -> None:
        if logging.raiseExceptions and sys.stderr is not None:
            with suppress(OSError, ValueError):  # it may be closed
                # At once, as several threads may have something to say.
                sys.stderr.write(f"LogbusHandler of topic {self._topic}: {what}\n")
                sys.stderr.flush()

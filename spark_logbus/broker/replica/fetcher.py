"""Copies partitions from one leader, on a thread and a connection of its own.

The thread asks for all of them at once, applies what comes, and asks again: each request tells the
leader what is on the disk here by then. A leader that has nothing new answers after half a second,
or as soon as it has.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from typing import Final

from spark_logbus.broker.replica.applying import FollowedLog
from spark_logbus.broker.replica.throttle import Throttle
from spark_logbus.clock import Clock
from spark_logbus.errors import (
    BrokerUnavailableError,
    LogbusError,
    NotLeaderError,
    ProtocolError,
    StorageError,
)
from spark_logbus.metrics import Counter
from spark_logbus.model import BrokerAddress, TopicPartition
from spark_logbus.protocol import (
    Api,
    FollowedPartition,
    ReplicateRequest,
    ReplicateResponse,
    ReplicateResult,
)
from spark_logbus.retry import Deadline
from spark_logbus.threads import Periodic
from spark_logbus.wire.buffers import ReusableBuffer
from spark_logbus.wire.config import ConnectionConfig
from spark_logbus.wire.connect import connect
from spark_logbus.wire.connection import BrokerConnection

logger = logging.getLogger(__name__)

_MAX_WAIT_MS: Final = 500
# An answer: some milliseconds of a network and a disk. The memory for it is used again and again.
_MAX_BYTES: Final = 8 << 20
# Less than this is not worth a request: a throttle lets it gather first.
_LEAST_BYTES: Final = 64 << 10
_CONNECT_MS: Final = 5_000
# Beyond the wait that was asked for. A leader whose disk is busy answers late.
_ANSWER_MS: Final = 10_000
_TRANSFER_MS: Final = 60_000
_PAUSE_S: Final = 1.0  # after what was not foreseen


class LeaderFetcher:
    """Copies from the leader with the id ``leader``. ``address`` gives its address, None while it
    is not registered.

    ``failed`` is called on the thread of the fetcher, which does not go on with that log until it
    is added again. Thread-safe but for ``start`` and ``stop``.
    """

    def __init__(
        self,
        leader: int,
        *,
        broker_id: int,
        address: Callable[[int], BrokerAddress | None],
        throttle: Throttle,
        received: Counter,
        clock: Clock,
        got_on: Callable[[FollowedLog], None],
        failed: Callable[[FollowedLog, LogbusError, bool], None],
    ) -> None:
        self._leader = leader
        self._broker_id = broker_id
        self._address = address
        self._throttle = throttle
        self._received = received
        self._clock = clock
        self._got_on = got_on
        self._failed = failed
        self._lock = threading.Lock()
        self._followed: list[FollowedLog] = []  # the next request begins with the first
        self._buffer = ReusableBuffer()
        self._config = ConnectionConfig(
            client_id=f"broker-{broker_id}", connect_timeout_ms=_CONNECT_MS
        )
        self._connection: BrokerConnection | None = None
        self._waits = False  # for something new, so that it may as well ask again
        self._interrupted = False
        self.thread = Periodic(
            f"follow-broker-{leader}",
            self._round,
            pause_s=_PAUSE_S,
            first_pause_s=math.inf,
            failure=f"The copying from broker {leader} has failed.",
            at_end=self._disconnect,
        )

    def add(self, followed: FollowedLog) -> None:
        """Has a log followed, from the next request on, which comes soon."""
        with self._lock:
            self._followed.append(followed)
        self.thread.wake()
        self._interrupt(only_waiting=True)

    def remove(self, followed: FollowedLog) -> None:
        """Has a log not asked for any more; what is on the way may still be applied, until it is
        ended."""
        with self._lock:
            if followed in self._followed:
                self._followed.remove(followed)

    def stop(self) -> None:
        """Ends the thread, at once but for what is being applied."""
        self.thread.end()
        self._interrupt(only_waiting=False)
        self.thread.join()

    def _interrupt(self, *, only_waiting: bool) -> None:
        with self._lock:
            connection = self._connection
            if connection is not None and (self._waits or not only_waiting):
                self._interrupted = True
                connection.interrupt(BrokerUnavailableError("There is something else to ask."))

    # -- one round ------------------------------------------------------------------------

    def _round(self) -> float:
        """Asks once; returns the pause before the next time."""
        with self._lock:
            followed = [*self._followed]
            self._followed = [*self._followed[1:], *self._followed[:1]]
        if not followed:
            self._disconnect()
            return math.inf
        asked, pause_s = self._choose(followed)
        if not asked:
            return pause_s
        max_wait_ms = min(_MAX_WAIT_MS, math.ceil(pause_s * 1000))
        try:
            self._ask(asked, max_wait_ms)
        except LogbusError as error:
            self._disconnect()
            if self.thread.stopping.is_set():
                return math.inf
            if not self._was_interrupted():
                for each, _ in asked:
                    self._give_up(each, error, by_leader=True)
        except Exception:
            self._disconnect()  # nobody knows what is on its way there
            raise
        return 0.0

    def _choose(
        self, followed: list[FollowedLog]
    ) -> tuple[list[tuple[FollowedLog, FollowedPartition]], float]:
        """Returns what is to be asked for now, by the throttle, and the seconds until more is."""
        asked = []
        pause_s = _MAX_WAIT_MS / 1000
        for each in followed:
            max_bytes = _MAX_BYTES
            if not each.is_near and (allowance := self._throttle.allowance()) is not None:
                wait_s = self._throttle.wait_s(_LEAST_BYTES)
                if wait_s > 0 and each.remaining_bytes is not None:
                    pause_s = min(pause_s, max(wait_s, 0.001))
                    continue
                max_bytes = min(max_bytes, max(allowance, 1))
            try:
                with each.lock:
                    if not each.ended:
                        asked.append((each, each.request(max_bytes)))
            except LogbusError as error:
                self._give_up(each, error, by_leader=False)
            except Exception as error:
                logger.exception("%s could not be copied.", each.topic_partition)
                self._give_up(each, _fault(each, error), by_leader=False)
        return asked, pause_s

    def _ask(self, asked: list[tuple[FollowedLog, FollowedPartition]], max_wait_ms: int) -> None:
        """Raises LogbusError when the leader could not be asked, or answers none of it."""
        connection = self._connected()
        request = ReplicateRequest(
            broker_id=self._broker_id,
            max_wait_ms=max_wait_ms,
            max_bytes=_MAX_BYTES,
            partitions=[wanted for _, wanted in asked],
        )
        with self._lock:
            self._waits = all(each.is_near for each, _ in asked)
        try:
            pending = connection.send(Api.REPLICATE, request)
            answer = pending.result(
                ReplicateResponse,
                Deadline.after_ms(self._clock, max_wait_ms + _ANSWER_MS),
                begun=Deadline.after_ms(self._clock, _TRANSFER_MS),
            )
        finally:
            with self._lock:
                self._waits = False
        if len(answer.results) != len(asked):
            raise ProtocolError(
                f"{connection.address} answered for {len(answer.results)} partitions, and was "
                f"asked for {len(asked)}."
            )
        at = 0
        for (each, _), result in zip(asked, answer.results, strict=True):
            size = result.length + sum(source.length for source in result.staged)
            payload = pending.payload[at : at + size]
            at += size
            of = TopicPartition(result.topic, result.partition)
            if of != each.topic_partition or len(payload) != size:
                raise ProtocolError(
                    f"{connection.address} answered with {size} bytes of {of}, where those of "
                    f"{each.topic_partition} were expected."
                )
            self._received.add(size)
            if not each.is_near:
                self._throttle.copied(size)
            self._apply(each, result, payload)

    def _apply(self, followed: FollowedLog, result: ReplicateResult, payload: memoryview) -> None:
        by_leader = False
        try:
            with followed.lock:
                if followed.ended:
                    return
                by_leader = True
                if result.handed_over:
                    raise NotLeaderError(f"{followed.topic_partition} is this broker's by now.")
                if result.error is not None:
                    raise result.error.to_exception()
                by_leader = False
                followed.apply(result, payload)
        except LogbusError as error:
            self._give_up(followed, error, by_leader=by_leader)
        except Exception as error:
            logger.exception("%s could not be copied.", followed.topic_partition)
            self._give_up(followed, _fault(followed, error), by_leader=False)
        else:
            self._got_on(followed)

    def _give_up(self, followed: FollowedLog, error: LogbusError, *, by_leader: bool) -> None:
        self.remove(followed)
        self._failed(followed, error, by_leader)

    # -- the connection -------------------------------------------------------------------

    def _connected(self) -> BrokerConnection:
        connection = self._connection
        if connection is not None and connection.failure is None:
            return connection
        self._disconnect()
        address = self._address(self._leader)
        if address is None:
            raise BrokerUnavailableError(f"Broker {self._leader} is not registered in ZooKeeper.")
        deadline = Deadline.after_ms(self._clock, _CONNECT_MS)
        connection = connect(address, self._config, deadline, allocate=self._buffer.take)
        with self._lock:
            self._connection = connection
        return connection

    def _disconnect(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _was_interrupted(self) -> bool:
        with self._lock:
            interrupted, self._interrupted = self._interrupted, False
        return interrupted


def _fault(followed: FollowedLog, error: Exception) -> LogbusError:
    """Returns the error with which a log is given up for what was not foreseen, so that others go
    on."""
    where = followed.topic_partition
    fault = StorageError(f"{where} could not be copied: {type(error).__name__}: {error}")
    fault.__cause__ = error
    return fault

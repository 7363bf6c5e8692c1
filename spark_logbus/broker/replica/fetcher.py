"""Copies partitions from one leader, on a thread and a connection of its own.

The thread has one session with the leader. It names what it has to tell, applies what comes, and
asks again: each request tells the leader what is on the disk here by then. A leader that has
nothing new answers after half a second, or as soon as it has. So what rests costs next to nothing.
What is added meanwhile is named at once by another request, which has the leader answer the first.

A leader that cannot be reached ends the copying of what moves here, which gives its place to
others. Assigned replicas wait for it, or for another leader.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Container, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, NamedTuple

from spark_logbus.broker.replica.applying import FollowedLog
from spark_logbus.broker.replica.leader_session import LeaderSession
from spark_logbus.broker.replica.throttle import Throttle
from spark_logbus.clock import Clock
from spark_logbus.errors import (
    BrokerUnavailableError,
    LogbusError,
    NotLeaderError,
    ProtocolError,
    ReplicaSessionError,
    StorageError,
)
from spark_logbus.metrics import Counter
from spark_logbus.model import BrokerAddress, TopicPartition
from spark_logbus.protocol import (
    Api,
    FollowedPartition,
    PartitionLeft,
    ReplicateRequest,
    ReplicateResponse,
    ReplicateResult,
)
from spark_logbus.retry import Backoff, Deadline
from spark_logbus.threads import Periodic
from spark_logbus.wire.buffers import ReusableBuffer
from spark_logbus.wire.config import ConnectionConfig
from spark_logbus.wire.connect import connect
from spark_logbus.wire.connection import BrokerConnection, PendingResponse
from spark_logbus.wire.poller import Poller

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
# A leader that is away and comes back is asked again soon: it waits for this broker.
_RETRY: Final = Backoff(first_ms=50, max_ms=1_000)
# Two processes that take themselves for the same broker end each other's sessions.
_REPLACED: Final = Backoff(first_ms=50, max_ms=10_000)
# A session that stood so long was ended by a passing fault.
_STOOD_S: Final = 60.0
# One that stays away is told of so often.
_TELL_EVERY_S: Final = 600.0
# Partitions that one request names, so that it is answered soon.
_MAX_NAMED: Final = 1_000
# Files that are flushed at a time: the disk does several in the time of one.
_FLUSHES: Final = 4


class _Requested(NamedTuple):
    """A request that is under way, and what it names."""

    pending: PendingResponse
    deadline: Deadline
    named: list[FollowedLog]


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
        connections: ConnectionConfig,
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
        self._followed: dict[TopicPartition, FollowedLog] = {}
        self._added: list[FollowedLog] = []  # since the last request
        self._left: dict[TopicPartition, None] = {}  # since then, too
        self._buffer = ReusableBuffer()
        self._config = replace(connections, connect_timeout_ms=_CONNECT_MS)
        self._session: LeaderSession | None = None
        self._poller: Poller[BrokerConnection] = Poller()
        self._failures = 0  # to reach the leader, in a row
        self._replaced = 0  # sessions in a row that another one ended soon
        self._told_at = -math.inf
        self._flushes = ThreadPoolExecutor(_FLUSHES, thread_name_prefix=f"follow-flush-{leader}")
        self.thread = Periodic(
            f"follow-broker-{leader}",
            self._round,
            pause_s=_PAUSE_S,
            first_pause_s=math.inf,
            failure=f"The copying from broker {leader} has failed.",
            at_end=self._end,
        )

    def add(self, some: Iterable[FollowedLog]) -> None:
        """Has logs followed, from the next request on, which comes soon."""
        with self._lock:
            for followed in some:
                if not followed.ended:
                    self._followed[followed.topic_partition] = followed
                    self._added.append(followed)
        self.thread.wake()
        self._poller.wake()

    def remove(self, followed: FollowedLog) -> None:
        """Has a log not asked for any more; what is on the way may still be applied, until it is
        ended."""
        where = followed.topic_partition
        with self._lock:
            if self._followed.get(where) is followed:
                del self._followed[where]
                self._left[where] = None

    def stop(self) -> None:
        """Ends the thread, at once but for what is being applied."""
        self.thread.end()
        with self._lock:
            session = self._session
            if session is not None:
                session.connection.interrupt(BrokerUnavailableError("This broker stops."))
        self.thread.join()
        self._flushes.shutdown(wait=False)

    # -- one round ------------------------------------------------------------------------

    def _round(self) -> float:
        """Asks once; returns the pause before the next time."""
        if not self._followed:
            self._disconnect()
            return math.inf
        try:
            session = self._connected()
            pause_s = self._ask(session)
        except LogbusError as error:
            return self._ended(error)
        except Exception:
            self._disconnect()  # nobody knows what is on its way there
            raise
        if self._failures:
            self._failures = 0
            logger.info("Broker %d is followed again.", self._leader)
        return pause_s

    def _ended(self, error: LogbusError) -> float:
        """Ends a session that has failed, and returns the pause before the next."""
        session = self._session
        self._disconnect()
        if self.thread.stopping.is_set():
            return math.inf
        if isinstance(error, ReplicaSessionError):
            stood = session is not None and self._clock.monotonic() - session.began_at >= _STOOD_S
            self._replaced = 1 if stood else self._replaced + 1
            if self._replaced == 1:
                return 0.0
            pause_s = _REPLACED.pause_s(self._replaced)
        else:
            self._failures += 1
            pause_s = _RETRY.pause_s(self._failures)
        for each in list(self._followed.values()):
            if each.is_move:
                self._give_up(each, error, by_leader=True)
        now = self._clock.monotonic()
        if self._followed and now - self._told_at >= _TELL_EVERY_S:
            self._told_at = now
            logger.warning(
                "Broker %d cannot be followed for now, %d partitions of which are assigned here: "
                "%s", self._leader, len(self._followed), error,
            )  # fmt: skip
        return pause_s

    def _take_changes(self, session: LeaderSession) -> list[TopicPartition]:
        """Has what was added named next; returns what the leader is to forget."""
        with self._lock:
            added, self._added = self._added, []
            left, self._left = self._left, {}
            if session.sequence == 0:
                session.due = dict(self._followed)
                return []
            for followed in added:
                where = followed.topic_partition
                if self._followed.get(where) is followed:
                    session.due[where] = followed
        return [where for where in left if session.take_out(where)]

    def _name_untold(self, session: LeaderSession) -> None:
        """Has those named of which more is on the disk than the leader was told."""
        to_flush = session.take_untold(self._clock.monotonic())
        self._settle(to_flush)
        session.due |= {each.topic_partition: each for each in to_flush}

    def _choose(
        self, session: LeaderSession, but: Container[TopicPartition]
    ) -> tuple[list[FollowedLog], list[FollowedPartition], float]:
        """Returns what is to be named now, by the throttle, and the seconds until more is; nothing
        of ``but``, for which an answer may be on its way."""
        asked: list[FollowedLog] = []
        named: list[FollowedPartition] = []
        pause_s = _MAX_WAIT_MS / 1000
        for where, each in list(session.due.items()):
            if where in but:
                pause_s = 0.0
                continue
            if len(named) >= _MAX_NAMED:
                return asked, named, 0.0
            max_bytes = _MAX_BYTES
            allowance = self._throttle.allowance() if each.is_move and not each.is_near else None
            if allowance is not None:
                wait_s = self._throttle.wait_s(_LEAST_BYTES)
                if wait_s > 0 and each.remaining_bytes is not None:
                    pause_s = min(pause_s, max(wait_s, 0.001))
                    continue
                max_bytes = min(max_bytes, max(allowance, 1))
            del session.due[where]
            with self._giving_up(each), each.lock:
                if not each.ended:
                    named.append(each.request(max_bytes))
                    session.name(each, named[-1].safe_end)
                    asked.append(each)
        return asked, named, pause_s

    def _ask(self, session: LeaderSession) -> float:
        """Raises LogbusError when the leader could not be asked, or answers none of it."""
        self._name_untold(session)
        requested, pause_s = self._request(session)
        if requested is None:
            return pause_s
        while self._is_to_ask_more(session, requested):
            more, _ = self._request(session, but={**session.asked})
            if more is None:
                break
            self._receive(session, requested)
            requested = more
        self._receive(session, requested)
        return 0.0

    def _request(
        self, session: LeaderSession, *, but: Container[TopicPartition] = ()
    ) -> tuple[_Requested | None, float]:
        """Sends a request; None if there is nothing to ask for so many seconds."""
        left = self._take_changes(session)
        named, partitions, pause_s = self._choose(session, but)
        if not partitions and session.sequence == 0:
            return None, pause_s
        max_wait_ms = min(_MAX_WAIT_MS, math.ceil(pause_s * 1000))
        session.sequence += 1
        request = ReplicateRequest(
            broker_id=self._broker_id,
            sequence=session.sequence,
            max_wait_ms=max_wait_ms,
            max_bytes=_MAX_BYTES,
            partitions=partitions,
            left=[PartitionLeft(where.topic, where.partition) for where in left],
        )
        pending = session.connection.send(Api.REPLICATE, request)
        deadline = Deadline.after_ms(self._clock, max_wait_ms + _ANSWER_MS)
        return _Requested(pending, deadline, named), 0.0

    def _is_to_ask_more(self, session: LeaderSession, requested: _Requested) -> bool:
        """Waits for an answer; returns True as soon as something is added before that begins."""
        at_once = Deadline.after_ms(self._clock, 0)
        while not requested.pending.starts(at_once):
            if self._added:
                return True
            if requested.deadline.expired:
                break
            self._poller.update(session.connection)
            self._poller.wait(requested.deadline.remaining_s)
        return False

    def _receive(self, session: LeaderSession, requested: _Requested) -> None:
        pending = requested.pending
        answer = pending.result(
            ReplicateResponse,
            requested.deadline,
            begun=Deadline.after_ms(self._clock, _TRANSFER_MS),
        )
        self._take(session, answer, pending.payload)
        for each in requested.named:
            # The leader looks at when it was told of what it is to hand over. What has ended may be
            # followed anew by now, and that is due.
            if each.is_move and not each.ended:
                session.due[each.topic_partition] = each

    def _take(self, session: LeaderSession, answer: ReplicateResponse, payload: memoryview) -> None:
        """Applies an answer: all that is to be written first, then what is to be flushed."""
        written: list[FollowedLog] = []
        at = 0
        for result in answer.results:
            size = result.length + sum(source.length for source in result.staged)
            part = payload[at : at + size]
            at += size
            where = TopicPartition(result.topic, result.partition)
            if len(part) != size:
                raise ProtocolError(
                    f"{session.connection.address} answered with {len(part)} bytes of {where}, "
                    f"and said that they were {size}."
                )
            self._received.add(size)
            followed = session.asked.get(where)
            if followed is None:
                continue  # it was left, and the leader had not heard of it
            if followed.is_move and not followed.is_near:
                self._throttle.copied(size)
            if self._apply(followed, result, part):
                written.append(followed)
                if result.waits:
                    session.due[where] = followed
        for moved in answer.high_watermarks:
            followed = session.asked.get(TopicPartition(moved.topic, moved.partition))
            if followed is not None and not followed.ended:
                followed.take_watermark(moved.offset)
                if followed not in written:
                    written.append(followed)
        self._settle(written)

    def _apply(self, followed: FollowedLog, result: ReplicateResult, payload: memoryview) -> bool:
        if result.handed_over or result.error is not None:
            error: LogbusError = NotLeaderError(
                f"{followed.topic_partition} is this broker's by now."
            )
            if result.error is not None:
                error = result.error.to_exception()
            self._give_up(followed, error, by_leader=True)
            return False
        with self._giving_up(followed), followed.lock:
            if not followed.ended:
                followed.apply(result, payload)
                return True
        return False

    def _settle(self, written: list[FollowedLog]) -> None:
        """Flushes what was written, several logs at a time, and moves the high watermarks."""
        flushes = [each for each in written if each.is_to_be_flushed]
        if len(flushes) > 1:
            list(self._flushes.map(self._flush, flushes))
        elif flushes:
            self._flush(flushes[0])
        for followed in written:
            with self._giving_up(followed):
                with followed.lock:
                    if not followed.ended:
                        followed.settle()
                self._got_on(followed)

    def _flush(self, followed: FollowedLog) -> None:
        with self._giving_up(followed), followed.lock:
            if not followed.ended:
                followed.flush()

    def _give_up(self, followed: FollowedLog, error: LogbusError, *, by_leader: bool) -> None:
        self.remove(followed)
        self._failed(followed, error, by_leader)

    @contextmanager
    def _giving_up(self, followed: FollowedLog) -> Iterator[None]:
        """Gives a log up for what is met here, foreseen or not, so that others go on."""
        try:
            yield
        except LogbusError as error:
            self._give_up(followed, error, by_leader=False)
        except Exception as error:
            where = followed.topic_partition
            logger.exception("%s could not be copied.", where)
            fault = StorageError(f"{where} could not be copied: {type(error).__name__}: {error}")
            fault.__cause__ = error
            self._give_up(followed, fault, by_leader=False)

    # -- the connection -------------------------------------------------------------------

    def _connected(self) -> LeaderSession:
        """Returns the session that stands, or a new one on a new connection."""
        session = self._session
        if session is not None and session.connection.failure is None:
            return session
        self._disconnect()
        address = self._address(self._leader)
        if address is None:
            raise BrokerUnavailableError(f"Broker {self._leader} is not registered in ZooKeeper.")
        deadline = Deadline.after_ms(self._clock, _CONNECT_MS)
        connection = connect(address, self._config, deadline, allocate=self._buffer.take)
        self._poller.add(connection, connection)
        with self._lock:
            self._session = session = LeaderSession(connection, self._clock.monotonic())
        return session

    def _disconnect(self) -> None:
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            self._poller.remove(session.connection)
            session.connection.close()

    def _end(self) -> None:
        self._disconnect()
        self._poller.close()

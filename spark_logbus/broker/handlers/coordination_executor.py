"""Threads for requests that ask ZooKeeper, so that appends and fetches never wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from spark_logbus.broker.network import DelayedResponse, Response
from spark_logbus.clock import Clock
from spark_logbus.errors import LimitExceededError, LogbusError, RequestTimeoutError
from spark_logbus.protocol import encode_error

_THREADS = 2
_MAX_WAITING = 64  # such requests are rare; more than this is a runaway script


class CoordinationExecutor:
    """Runs the work of requests that ask ZooKeeper. Thread-safe."""

    def __init__(self, *, clock: Clock, max_wait_ms: int) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="coordination-request")
        self._clock = clock
        self._max_wait_s = max_wait_ms / 1000
        self._lock = threading.Lock()
        self._unfinished = 0

    def run(self, work: Callable[[], Response]) -> DelayedResponse:
        """Answer with what ``work`` returns or raises, when it is done."""
        with self._lock:
            if self._unfinished >= _MAX_WAITING:
                raise LimitExceededError(
                    f"{_MAX_WAITING} requests wait for ZooKeeper already; try again later."
                )
            self._unfinished += 1
        job = _Job(work, clock=self._clock, deadline=self._clock.monotonic() + self._max_wait_s)
        self._pool.submit(job.run).add_done_callback(self._count_down)
        return job

    def _count_down(self, _: object) -> None:
        with self._lock:
            self._unfinished -= 1

    def stop(self) -> None:
        """Drop what has not begun; what has ends when the ZooKeeper session is closed."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class _Job(DelayedResponse):
    """One request that waits for ZooKeeper."""

    def __init__(self, work: Callable[[], Response], *, clock: Clock, deadline: float) -> None:
        super().__init__(deadline=deadline)
        self._work = work
        self._clock = clock
        self._outcome: Response | BaseException | None = None

    def run(self) -> None:
        try:
            self._outcome = self._work()
        except LogbusError as error:
            self._outcome = Response(encode_error(error))
        except BaseException as bug:  # noqa: BLE001 - raised again where the response is asked for
            self._outcome = bug
        self.wake()

    def poll(self) -> Response | None:
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        if self._outcome is None and self._clock.monotonic() >= self.deadline:
            late = "ZooKeeper did not answer in time; a change may still be made."
            return Response(encode_error(RequestTimeoutError(late)))
        return self._outcome

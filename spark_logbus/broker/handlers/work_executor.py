"""Threads for requests that wait for ZooKeeper or the disk, so that no append or fetch does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor

from spark_logbus.clock import Clock
from spark_logbus.errors import LimitExceededError, LogbusError, RequestTimeoutError
from spark_logbus.network import DelayedResponse, Response
from spark_logbus.protocol import encode_error

_THREADS = 2
_MAX_WAITING = 64  # such requests are rare; more than this is a runaway script


class WorkExecutor:
    """Runs the work of requests that wait for ``what``: "ZooKeeper", say. Thread-safe."""

    def __init__(
        self, what: str, *, clock: Clock, max_wait_ms: int, threads: int = _THREADS
    ) -> None:
        prefix = f"{what.lower().replace(' ', '-')}-request"
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=prefix)
        self._what = what
        self._clock = clock
        self._max_wait_s = max_wait_ms / 1000
        self._lock = threading.Lock()
        self._unfinished = 0
        self._by_key: dict[Hashable, list[_Job]] = {}

    def run(self, work: Callable[[], Response], *, key: Hashable = None) -> DelayedResponse:
        """Answer with what ``work`` returns or raises, when it is done. With a ``key``, of which
        one is under way, it is not run: the answer is what that one returns."""
        with self._lock:
            if key in self._by_key:
                job = _Job(work, self._what, clock=self._clock, deadline=self._deadline())
                self._by_key[key].append(job)
                return job
            if self._unfinished >= _MAX_WAITING:
                raise LimitExceededError(
                    f"{_MAX_WAITING} requests wait for {self._what} already; try again later."
                )
            self._unfinished += 1
            job = _Job(work, self._what, clock=self._clock, deadline=self._deadline())
            if key is not None:
                self._by_key[key] = []

        def done(_: object) -> None:
            with self._lock:
                self._unfinished -= 1
                others = self._by_key.pop(key, [])
            for other in others:
                other.take_over(job)

        self._pool.submit(job.run).add_done_callback(done)
        return job

    def _deadline(self) -> float:
        return self._clock.monotonic() + self._max_wait_s

    def stop(self) -> None:
        """Drop what has not begun. What has ends by itself, what waits for ZooKeeper when its
        session is closed."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class _Job(DelayedResponse):
    """One request that waits."""

    def __init__(
        self, work: Callable[[], Response], what: str, *, clock: Clock, deadline: float
    ) -> None:
        super().__init__(deadline=deadline)
        self._what = what
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

    def take_over(self, other: _Job) -> None:
        """Answer as the other does, which is done."""
        self._outcome = other._outcome
        self.wake()

    def poll(self) -> Response | None:
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        if self._outcome is None and self._clock.monotonic() >= self.deadline:
            late = f"This waits for {self._what} for too long; it may still be done."
            return Response(encode_error(RequestTimeoutError(late)))
        return self._outcome

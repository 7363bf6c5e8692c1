"""Requests that ask ZooKeeper run on threads of their own, so that a ZooKeeper that does not
answer holds up nobody's appends and fetches."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from spark_logbus.broker.replies import Deferred, Reply
from spark_logbus.clock import Clock
from spark_logbus.errors import LimitExceededError, LogbusError, RequestTimeoutError
from spark_logbus.protocol import encode_error

_THREADS = 2
_MAX_WAITING = 64  # topic requests are rare; more than this is a runaway script


class Offload:
    """Thread-safe."""

    def __init__(self, *, clock: Clock, max_wait_ms: int) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="coordination-request")
        self._clock = clock
        self._max_wait_s = max_wait_ms / 1000
        self._running: set[Future[Reply]] = set()

    def run(self, work: Callable[[], Reply]) -> Deferred:
        """Answer with what ``work`` returns or raises, when it is done."""
        if len(self._running) >= _MAX_WAITING:
            raise LimitExceededError(
                f"{_MAX_WAITING} topic requests wait for ZooKeeper already; try again later."
            )
        future = self._pool.submit(work)
        self._running.add(future)
        deadline = self._clock.monotonic() + self._max_wait_s

        def poll() -> Reply | None:
            if future.done():
                return _outcome(future)
            if self._clock.monotonic() >= deadline:
                return Reply(
                    encode_error(
                        RequestTimeoutError(
                            "ZooKeeper did not answer in time; the change may still be made."
                        )
                    )
                )
            return None

        deferred = Deferred(poll, deadline=deadline)

        def done(finished: Future[Reply]) -> None:
            self._running.discard(finished)
            deferred.wake()

        future.add_done_callback(done)
        return deferred

    def stop(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _outcome(future: Future[Reply]) -> Reply:
    try:
        return future.result()
    except LogbusError as error:
        return Reply(encode_error(error))

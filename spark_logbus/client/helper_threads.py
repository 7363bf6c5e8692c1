"""Threads that run calls which may wait, until the very end of the program.

``concurrent.futures.ThreadPoolExecutor`` takes no more calls as soon as the main thread has ended,
although other threads of the program may work on for hours, and the program does not end before
its threads have. Clients must do their work until the last thread of the program has ended, and
must not hold up that end.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class HelperThreads(Executor):
    """Executor that runs the calls submitted to it in order, in up to ``most`` daemon threads.
    Thread-safe.

    Threads are started when they are needed. When the system or Python refuses another one, those
    that are there run all calls.
    """

    def __init__(self, most: int, *, name: str) -> None:
        self._most = most
        self._name = name
        self._changed = threading.Condition()
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._closed = False

    def submit(self, call: Callable[P, T], /, *arguments: P.args, **options: P.kwargs) -> Future[T]:
        """Run ``call`` in one of the threads. Raises RuntimeError after ``shutdown``, and when
        there is no thread and none can be started."""
        future: Future[T] = Future()
        with self._changed:
            if self._closed:
                raise RuntimeError(f"The threads {self._name} were ended.")
            if self._idle <= len(self._calls) and len(self._threads) < self._most:
                self._start_thread()
            self._calls.append((future, partial(call, *arguments, **options)))
            self._changed.notify()
        return future

    def _start_thread(self) -> None:
        name = f"{self._name}_{len(self._threads)}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            if not self._threads:
                raise
        else:
            self._threads.append(thread)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads after the calls that they have. With ``cancel_futures`` those that have
        not begun are cancelled; with ``wait`` it returns when the threads have ended."""
        with self._changed:
            self._closed = True
            cancelled = list(self._calls) if cancel_futures else []
            if cancel_futures:
                self._calls.clear()
            self._changed.notify_all()
        for future, _ in cancelled:
            future.cancel()
        if wait:
            for thread in self._threads:
                thread.join()

    def _run(self) -> None:
        while (taken := self._take()) is not None:
            future, call = taken
            if future.set_running_or_notify_cancel():
                try:
                    result = call()
                except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            del taken, future, call  # what they hold must not live until the next call

    def _take(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._calls or self._closed)
            self._idle -= 1
            return self._calls.popleft() if self._calls else None

"""Threads that do what may take long, until the program is at its very end.

Not an executor of ``concurrent.futures``: when the main thread has ended, these take nothing more,
and records that are published while the program ends, by a producer that is closed then or by
logging, would have nobody to find their leader.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar

from spark_logbus.errors import BrokerUnavailableError

P = ParamSpec("P")
T = TypeVar("T")


class Helpers:
    """Up to so many daemon threads, started when there is work for them. Thread-safe."""

    def __init__(self, threads: int, *, name: str) -> None:
        self._most = threads
        self._name = name
        self._changed = threading.Condition()
        self._work: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._closed = False

    def submit(self, call: Callable[P, T], *args: P.args, **more: P.kwargs) -> Future[T]:
        """Have it called soon. The future has BrokerUnavailableError where no thread can be
        started."""
        future: Future[T] = Future()
        with self._changed:
            self._work.append((future, lambda: call(*args, **more)))
            if self._idle < len(self._work) and len(self._threads) < self._most:
                name = f"{self._name}_{len(self._threads)}"
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    if not self._threads:
                        self._work.pop()
                        future.set_exception(
                            BrokerUnavailableError(
                                f"There is no thread to connect to a broker: {error}."
                            )
                        )
                else:
                    self._threads.append(thread)
            self._changed.notify()
        return future

    def _run(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                self._changed.wait_for(lambda: self._work or self._closed)
                self._idle -= 1
                if not self._work:
                    return
                future, call = self._work.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001 - whoever asks the future gets it
                future.set_exception(error)
            del future, call

    def close(self) -> None:
        """Cancel what was not begun, and wait for the rest."""
        with self._changed:
            self._closed = True
            while self._work:
                self._work.popleft()[0].cancel()
            self._changed.notify_all()
            threads = list(self._threads)
        for thread in threads:
            thread.join()

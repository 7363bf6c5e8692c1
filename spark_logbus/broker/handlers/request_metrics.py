"""Counts, times and errors of requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable
from typing import TypeVar

from spark_logbus.clock import Clock
from spark_logbus.errors import LogbusError
from spark_logbus.metrics import Counter, Histogram
from spark_logbus.network import Answer, DelayedResponse, NotYet, Response
from spark_logbus.protocol import Api

K = TypeVar("K", bound=Hashable)


class RequestMetrics:
    """Counts for the whole broker. Thread-safe.

    A request takes as long as its answer needs to be there: the wait for a flush or for records
    is in it, sending is not.
    """

    def __init__(self, clock: Clock) -> None:
        self.now: Callable[[], float] = clock.monotonic
        #: By API; None: frames that name none that there is.
        self.seconds: dict[Api | None, Histogram] = {api: Histogram() for api in (*Api, None)}
        #: Of fetches that found too little at first: how long they then waited.
        self.fetch_wait = Histogram()
        self._lock = threading.Lock()
        self._errors: dict[tuple[str, str], Counter] = {}
        self._bytes_out: dict[str, Counter] = {}

    def answered(self, api: Api | None, answer: Answer, began: float) -> Answer:
        """``answer``, which is measured when it is there; ``began`` is a time of ``now``."""
        if isinstance(answer, DelayedResponse):
            return _Measured(answer, self, api, began)
        if not isinstance(answer, NotYet):
            self.seconds[api].observe(self.now() - began)
        return answer

    def failed(self, api: Api | None, error: LogbusError) -> None:
        """One request, or its part for one partition, met ``error``."""
        name = type(error).__name__.removesuffix("Error")
        self._counter(self._errors, (name_of(api), name)).add()

    def sent(self, topic: str, size_bytes: int) -> None:
        """Record batches of ``topic`` that answer a fetch."""
        self._counter(self._bytes_out, topic).add(size_bytes)

    def errors(self) -> dict[tuple[str, str], int]:
        """Counts of errors by API and kind of error."""
        with self._lock:
            return {key: counter.value for key, counter in self._errors.items()}

    def bytes_out(self, topics: Collection[str]) -> dict[str, int]:
        """Returns the counts of those topics, and forgets those of others, which are no longer
        here."""
        with self._lock:
            for topic in [topic for topic in self._bytes_out if topic not in topics]:
                del self._bytes_out[topic]
            return {topic: counter.value for topic, counter in self._bytes_out.items()}

    def _counter(self, counters: dict[K, Counter], key: K) -> Counter:
        counter = counters.get(key)
        if counter is None:
            with self._lock:
                counter = counters.setdefault(key, Counter())
        return counter


def name_of(api: Api | None) -> str:
    return api.name.lower() if api is not None else "unknown"


class _Measured(DelayedResponse):
    """An answer that waits, and is measured when it comes."""

    def __init__(
        self, answer: DelayedResponse, metrics: RequestMetrics, api: Api | None, began: float
    ) -> None:
        super().__init__(deadline=answer.deadline)
        self._answer = answer
        self._metrics = metrics
        self._api = api
        self._began = began

    def poll(self) -> Response | None:
        response = self._answer.poll()
        self.deadline = self._answer.deadline
        if response is not None:
            seconds = self._metrics.now() - self._began
            self._metrics.seconds[self._api].observe(seconds)
            if self._api is Api.FETCH:
                self._metrics.fetch_wait.observe(seconds)
        return response

    def subscribe(self, notify: Callable[[], None]) -> None:
        self._answer.subscribe(notify)

    def wake(self) -> None:
        self._answer.wake()

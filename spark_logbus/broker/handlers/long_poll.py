"""Fetches that wait for something to come, of clients and of followers."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection

from spark_logbus.model import TopicPartition
from spark_logbus.network import DelayedResponse, Response


class DelayedFetches:
    """The fetches that wait for records, by partition. Thread-safe.

    A waiting fetch is forgotten when it is woken (it comes back if that was not enough) and when
    its connection drops it: only weak references are held.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[TopicPartition, weakref.WeakSet[DelayedResponse]] = {}

    def __len__(self) -> int:
        """Partitions that somebody waits for, or has waited for."""
        return len(self._waiting)

    def add(self, topic_partition: TopicPartition, fetch: DelayedResponse) -> None:
        with self._lock:
            self._waiting.setdefault(topic_partition, weakref.WeakSet()).add(fetch)

    def remove(self, topic_partition: TopicPartition, fetch: DelayedResponse) -> None:
        with self._lock:
            fetches = self._waiting.get(topic_partition)
            if fetches is not None:
                fetches.discard(fetch)
                if not fetches:
                    del self._waiting[topic_partition]

    def wake(self, topic_partition: TopicPartition) -> None:
        """Wake the fetches of a partition that has something new, or is led elsewhere."""
        with self._lock:
            waiting = list(self._waiting.pop(topic_partition, ()))
        for fetch in waiting:
            fetch.wake()

    def wake_all(self) -> None:
        with self._lock:
            waiting = {fetch for fetches in self._waiting.values() for fetch in fetches}
            self._waiting.clear()
        for fetch in waiting:
            fetch.wake()


class LongPoll(DelayedResponse):
    """One fetch that waits for any of the partitions that it names.

    ``attempt`` gives the response if there is something to say, or the deadline has passed.
    """

    def __init__(
        self,
        wanted: Collection[TopicPartition],
        attempt: Callable[[float], Response | None],
        waiting: DelayedFetches,
        *,
        deadline: float,
    ) -> None:
        super().__init__(deadline=deadline)
        self._attempt = attempt
        self._waiting = waiting
        self._wanted = wanted

    def poll(self) -> Response | None:
        # Registered before looking, so that nothing can come unnoticed in between.
        for topic_partition in self._wanted:
            self._waiting.add(topic_partition, self)
        response = self._attempt(self.deadline)
        if response is not None:
            for topic_partition in self._wanted:
                self._waiting.remove(topic_partition, self)
        return response

"""Partitions that take nothing for a moment, while their lead is handed over.

Requests to append wait meanwhile: the pause is some tens of milliseconds, less than it takes a
client to be refused, to pause and to come again. A hand-over of which nobody knows whether it was
done takes as long as ZooKeeper is away. Then they wait no longer, and are refused, because what
waits holds up all that comes after it on its connection.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from spark_logbus.model import TopicPartition


class Hold:
    """One partition that takes nothing. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waits = True
        self._waiting: dict[Callable[[], None], None] = {}

    @property
    def waits(self) -> bool:
        """True while requests are to wait for the end of it."""
        return self._waits

    def when_over(self, f: Callable[[], None]) -> None:
        """Call ``f`` once, when nothing waits any more; at once if that is so. ``f`` must not
        block."""
        with self._lock:
            if self._waits:
                self._waiting[f] = None
                return
        f()

    def let_go(self) -> None:
        """Have those that wait try again."""
        with self._lock:
            self._waits = False
            waiting, self._waiting = self._waiting, {}
        for f in waiting:
            f()


class Holds:
    """The partitions that are on hold. Thread-safe; costs nothing while there are none."""

    def __init__(self) -> None:
        self._holds: dict[TopicPartition, Hold] = {}

    def __bool__(self) -> bool:
        return bool(self._holds)

    def __contains__(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._holds

    def get(self, topic_partition: TopicPartition) -> Hold | None:
        return self._holds.get(topic_partition)

    def begin(self, topic_partition: TopicPartition) -> Hold:
        hold = self._holds[topic_partition] = Hold()
        return hold

    def end(self, topic_partition: TopicPartition) -> None:
        hold = self._holds.pop(topic_partition, None)
        if hold is not None:
            hold.let_go()

    def awaited(self, topic_partitions: Iterable[TopicPartition]) -> Hold | None:
        """Returns a hold that requests for these partitions are to wait for."""
        for topic_partition in topic_partitions:
            hold = self._holds.get(topic_partition)
            if hold is not None and hold.waits:
                return hold
        return None

    def let_go_all(self) -> None:
        """Have all that wait try again: the broker stops."""
        for hold in list(self._holds.values()):
            hold.let_go()

"""Rules for how far consumers see."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from spark_logbus.model import TopicPartition

#: Gives the high watermark of one log from the end of what is safe in it here. Called with locks of
#: the log held, so it must not block.
Rule = Callable[[int], int]


def sole_replica(_: TopicPartition, end: int) -> int:
    """Returns the high watermark of a partition without followers: the end of what is safe here.

    That is the flushed end, or the log end where flushing is left to the operating system.
    """
    return end


class HighWatermarks:
    """The rules of a broker for its logs: that of a sole replica, where nothing else was said.
    Thread-safe.

    What is said of a partition that is followed changes nothing while it is led here: it may come
    late, and who leads decides what is replicated.
    """

    def __init__(self) -> None:
        self._led: dict[TopicPartition, Rule] = {}
        self._followed: dict[TopicPartition, Rule] = {}

    def __call__(self, topic_partition: TopicPartition, end: int) -> int:
        rule = self._led.get(topic_partition) or self._followed.get(topic_partition)
        return end if rule is None else rule(end)

    def follow(self, topic_partition: TopicPartition, high_watermark: int) -> None:
        """Notes what the leader has told; 0 before it has told anything."""
        self._followed[topic_partition] = partial(min, high_watermark)

    def hold(self, topic_partition: TopicPartition) -> None:
        """Leaves the high watermark where it is, until it is known who leads the partition."""
        self.follow(topic_partition, 0)

    def forget(self, topic_partition: TopicPartition) -> None:
        """Forgets what a leader has told: the partition has no replica but this one, or none here
        any more."""
        self._followed.pop(topic_partition, None)

    def lead(self, topic_partition: TopicPartition, rule: Rule | None = None) -> None:
        """Goes by the rule of a partition that is led here; without one, by that of a sole
        replica."""
        self._led[topic_partition] = rule or partial(sole_replica, topic_partition)

    def end_lead(self, topic_partition: TopicPartition, *, is_sole: bool) -> None:
        """Leaves the high watermark where it is of what is not led here any more, unless it has no
        other replica."""
        if is_sole:
            self.forget(topic_partition)
        else:
            self.hold(topic_partition)
        self._led.pop(topic_partition, None)

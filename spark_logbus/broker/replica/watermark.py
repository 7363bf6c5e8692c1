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
    Thread-safe."""

    def __init__(self) -> None:
        self._rules: dict[TopicPartition, Rule] = {}

    def __call__(self, topic_partition: TopicPartition, end: int) -> int:
        rule = self._rules.get(topic_partition)
        return end if rule is None else rule(end)

    def follow(self, topic_partition: TopicPartition, high_watermark: int) -> None:
        """Notes what the leader has told; 0 before it has told anything."""
        self._rules[topic_partition] = partial(min, high_watermark)

    def hold(self, topic_partition: TopicPartition) -> None:
        """Leaves the high watermark where it is, until it is known who leads the partition."""
        self.follow(topic_partition, 0)

    def lead(self, topic_partition: TopicPartition, rule: Rule | None = None) -> None:
        """Goes by the rule of a partition that is led here, in the place of what a leader has told;
        without one, by that of a sole replica. That is also for what is not here any more."""
        if rule is None:
            self._rules.pop(topic_partition, None)
        else:
            self._rules[topic_partition] = rule

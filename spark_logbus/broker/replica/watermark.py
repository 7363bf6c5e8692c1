"""Rules for how far consumers see."""

from __future__ import annotations

from spark_logbus.model import TopicPartition


def sole_replica(_: TopicPartition, end: int) -> int:
    """Returns the high watermark of a partition without followers: the end of what is safe here.

    That is the flushed end, or the log end where flushing is left to the operating system.
    """
    return end


class HighWatermarks:
    """The rule of a broker for all its logs: that of a sole replica for what it leads; what it
    follows has the high watermark that the leader has told. Thread-safe."""

    def __init__(self) -> None:
        self._told: dict[TopicPartition, int] = {}

    def __call__(self, topic_partition: TopicPartition, end: int) -> int:
        told = self._told.get(topic_partition)
        return end if told is None else min(end, told)

    def follow(self, topic_partition: TopicPartition, high_watermark: int) -> None:
        """Notes what the leader has told; 0 before it has told anything."""
        self._told[topic_partition] = high_watermark

    def lead(self, topic_partition: TopicPartition) -> None:
        """Forgets what a leader has told: the partition is led here, or not here any more."""
        self._told.pop(topic_partition, None)

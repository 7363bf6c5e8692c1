"""Logs that are not there, or end too early, told with both remedies.

An empty log in the place of one that is missing would give its offsets to other records, and no
reader could tell. So a log that is known to have been there is never made anew by itself.
"""

from __future__ import annotations

from pathlib import Path

from spark_logbus.errors import LogMissingError
from spark_logbus.model import TopicPartition


class EndsTooEarlyError(Exception):
    """A log ends before its checkpoint says. Never leaves this package."""

    def __init__(self, end: int, known_end: int) -> None:
        super().__init__(end, known_end)
        self.end = end
        self.known_end = known_end


def missing(topic_partition: TopicPartition, directory: Path, *, known_end: int) -> LogMissingError:
    """``directory`` is not there; ``known_end`` is 0 when only that there was a log is known."""
    reached = f" and reached offset {known_end} at least" if known_end else ""
    return LogMissingError(
        f"Partition {topic_partition} is not served: its log was in {directory}{reached}, and is "
        f"not there. {_remedies(topic_partition)}"
    )


def too_short(
    topic_partition: TopicPartition, directory: Path, *, end: int, known_end: int
) -> LogMissingError:
    """The log in ``directory`` ends at ``end``, and ``known_end`` was on disk once."""
    return LogMissingError(
        f"Partition {topic_partition} is not served: its log in {directory} ends at offset {end}, "
        f"and reached {known_end} at least. Is it an older copy? {_remedies(topic_partition)}"
    )


def _remedies(topic_partition: TopicPartition) -> str:
    return (
        "Mount its disk, or put the directory back, and restart the broker; or, if it is lost, "
        f"give it up: logbus topics give-up {topic_partition.topic} --partition "
        f"{topic_partition.partition}."
    )

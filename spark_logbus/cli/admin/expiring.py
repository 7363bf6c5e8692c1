"""Records that a change of a topic's retention would delete at once."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

from spark_logbus.plurals import plural
from spark_logbus.sizes import human_bytes

if TYPE_CHECKING:
    from spark_logbus.client import Admin, TopicDescription

_TIME: Final = "retention.ms"
_SIZE: Final = "retention.bytes"


def expiring(
    admin: Admin, topic: TopicDescription, *, put: Mapping[str, str], drop: Collection[str]
) -> str | None:
    """A warning that records will be deleted soon after the change; None if none will.

    What counts is whole segments, so the figures are upper bounds.
    """
    warnings = []
    limit = _number(put.get(_TIME))
    if _falls(topic, _TIME, limit) and (count := _older(admin, topic, limit or 0)):
        warnings.append(f"{plural(count, 'record')} at most, older than {_TIME}={limit}")
    limit = _number(put.get(_SIZE))
    if _falls(topic, _SIZE, limit) and (excess := _beyond(topic, limit or 0)):
        warnings.append(f"{human_bytes(excess)} at most, beyond {_SIZE}={limit}")
    warnings += [
        f"without {key} the brokers' default decides what is kept"
        for key in (_TIME, _SIZE)
        if key in drop and topic.config.get(key) is not None
    ]
    return f"Records of {topic.name} will be deleted: {'; '.join(warnings)}." if warnings else None


def _falls(topic: TopicDescription, key: str, limit: int | None) -> bool:
    before = _number(topic.config.get(key))
    return limit is not None and (before is None or limit < before)


def _number(text: str | None) -> int | None:
    """Reads a bound; None for a text that sets none. The broker refuses what is no number."""
    try:
        value = int(text or "")
    except ValueError:
        return None
    return value if value >= 0 else None


def _older(admin: Admin, topic: TopicDescription, age_ms: int) -> int:
    from spark_logbus.model import AtTimestamp, TopicPartition
    from spark_logbus.offsets.snapshot import span_of

    ends = {
        TopicPartition(topic.name, number): partition.ends
        for number, partition in topic.partitions.items()
        if partition.ends is not None
    }
    cutoff = AtTimestamp((time.time_ns() // 1_000_000 - age_ms) * 1000)
    first_kept = admin.list_offsets(dict.fromkeys(ends, cutoff))
    count = 0
    for topic_partition, end in ends.items():
        kept = first_kept[topic_partition]
        span = span_of(end)
        count += span.count(span.start, span.end if kept is None else kept)
    return count


def _beyond(topic: TopicDescription, size: int) -> int:
    """Sums up the bytes beyond ``size`` of each partition, as ``retention.bytes`` bounds each."""
    sizes = [each.ends.size_bytes for each in topic.partitions.values() if each.ends is not None]
    return sum(max(0, held - size) for held in sizes)

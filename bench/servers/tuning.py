"""What Kafka's documentation names for throughput, as options of Spark's Kafka connector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# Larger fetches, polls and socket buffers. The values took the least time and half the default's
# CPU. Fetches of 16 MiB and more take longer: Java's collector handles such arrays apart.
# fetch.max.bytes (50 MiB) has room for both partitions.
TUNED_SOURCE: Final[Mapping[str, str]] = {
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    "kafka.receive.buffer.bytes": str(1 << 20),
}
# With Kafka's defaults, and a flush for each of its small appends, a write takes minutes.
TUNED_SINK: Final[Mapping[str, str]] = {
    "kafka.batch.size": str(1 << 20),
    "kafka.linger.ms": "20",
}


def shown(settings: Mapping[str, str]) -> str:
    """Returns the settings as text, by Kafka's names."""
    return ", ".join(f"{name.removeprefix('kafka.')} {value}" for name, value in settings.items())

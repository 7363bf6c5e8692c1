"""What atomic writes have left staged on the brokers' disks."""

from __future__ import annotations

import re

from spark_logbus.local.cluster import EmbeddedCluster
from tests.helpers import paths_below


def staged_bytes(embedded: EmbeddedCluster, topic: str) -> int:
    """For all partitions of the topic, on all brokers. Files that are free for reuse are empty."""
    of_topic = re.compile(rf"/{re.escape(topic)}-\d+/\d+\.staged$")
    total = 0
    for broker in embedded.brokers:
        for path in paths_below(broker.directory / "data"):
            if of_topic.search(str(path)):
                try:
                    total += path.stat().st_size
                except FileNotFoundError:
                    continue  # removed meanwhile
    return total

"""What atomic writes have left staged on the brokers' disks."""

from __future__ import annotations

import re

from spark_logbus.local.cluster import EmbeddedCluster
from spark_logbus.log import OS_FILES
from spark_logbus.log.inspect import inspect_staged
from tests.helpers import paths_below


def staged_bytes(embedded: EmbeddedCluster, topic: str) -> int:
    """For all partitions of the topic, on all brokers; none in files that are free for reuse."""
    of_topic = re.compile(rf"/{re.escape(topic)}-\d+/\d+\.staged$")
    total = 0
    for broker in embedded.brokers:
        for path in paths_below(broker.directory / "data"):
            if of_topic.search(str(path)):
                try:
                    total += inspect_staged(OS_FILES, path).size_bytes
                except FileNotFoundError:
                    continue  # removed meanwhile
    return total

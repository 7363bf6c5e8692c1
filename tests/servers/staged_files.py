"""What atomic writes have left staged on the brokers' disks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from spark_logbus.local.cluster import EmbeddedCluster
from spark_logbus.log import OS_FILES
from spark_logbus.log.inspect import StagedReport, inspect_staged
from tests.helpers import paths_below


def staged_bytes(embedded: EmbeddedCluster, topic: str) -> int:
    """Sums the bytes staged for the topic on all brokers, without files that are free for reuse."""
    return sum(report.size_bytes for report in _reports(embedded, topic))


def staged_writes(embedded: EmbeddedCluster, topic: str) -> set[int]:
    """The writes that have something staged for the topic."""
    writes = {report.write for report in _reports(embedded, topic)}
    return {write for write in writes if write is not None}


def _reports(embedded: EmbeddedCluster, topic: str) -> Iterator[StagedReport]:
    of_topic = re.compile(rf"/{re.escape(topic)}-\d+/\d+\.staged$")
    for broker in embedded.brokers:
        for path in paths_below(broker.directory / "data"):
            if of_topic.search(str(path)):
                try:
                    yield inspect_staged(OS_FILES, path)
                except FileNotFoundError:
                    continue  # removed meanwhile

"""Counts what a producer appends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from spark_logbus.audit.report import Tier
from spark_logbus.audit.reporter import AuditConfig, AuditReporter
from spark_logbus.client import AppendedRange, Cluster, ProducerInterceptor
from spark_logbus.errors import LogbusError

_TIMESTAMP: Final = "timestamp"


class AuditInterceptor(ProducerInterceptor):
    """Counts the records of one producer, by topic and window, and publishes the counts.

    What was acknowledged is counted as published. What failed is counted as in doubt: after a
    timeout or a lost connection it may be there all the same. A producer closes it. See
    ``AuditReporter``.
    """

    def __init__(
        self,
        cluster: Cluster,
        counter: str | None = None,
        *,
        config: AuditConfig | None = None,
        topics: Sequence[str] = (),
    ) -> None:
        """``counter`` is the producer's name in the audit, by default the machine's and the
        process's: one that stays the same from start to start is easier to look for."""
        self._reporter = AuditReporter(
            cluster, tier=Tier.PRODUCER, counter=counter, config=config, topics=topics
        )
        self._met: set[str] = set()

    def before_append(self, topic: str, records: pa.RecordBatch) -> pa.RecordBatch:
        if topic not in self._met:
            self._reporter.open_topic(topic, records.column(_TIMESTAMP))
            self._met.add(topic)  # after it: another thread that meets it waits as well
        return records

    def under_way(self, topic: str, records: pa.RecordBatch) -> None:
        del topic
        self._reporter.under_way(records)

    def after_append(
        self,
        topic: str,
        records: pa.RecordBatch,
        appended: AppendedRange | None,
        error: LogbusError | None,
    ) -> None:
        del error
        count = self._reporter.doubt if appended is None else self._reporter.count
        try:
            count(topic, records.column(_TIMESTAMP))
        finally:
            self._reporter.settled(records)

    def close(self) -> None:
        self._reporter.close()

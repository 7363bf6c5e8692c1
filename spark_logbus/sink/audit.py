"""Counts what a write appends, for the audit: in its tasks, which tell the driver.

Only what the driver commits is reported, once for each write: an attempt that failed, or a task
that ran twice, is in no commit message that counts. What such an attempt of a write at least once
has left in the topic is then more than was counted, which is what the audit is to show.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from functools import lru_cache

import pyarrow as pa

from spark_logbus.audit.counts import Tallies, WindowTally, add, tally_times
from spark_logbus.audit.report import Tier
from spark_logbus.audit.reporter import AuditConfig, prepare, report_commit
from spark_logbus.client import AppendedRange, Cluster, ProducerInterceptor, WriteIdentity
from spark_logbus.client.schemas.topic import WriterSchema
from spark_logbus.errors import LogbusError
from spark_logbus.spark.worker import driver_cluster

CONFIG = AuditConfig()

Counts = Mapping[str, Tallies]
"""Tallies by topic. Picklable."""


class TaskCounts(ProducerInterceptor):
    """Counts of one task's producer, complete when that is closed."""

    def __init__(self) -> None:
        self.counts: dict[str, dict[int, WindowTally]] = {}

    def after_append(
        self,
        topic: str,
        records: pa.RecordBatch,
        appended: AppendedRange | None,
        error: LogbusError | None,
    ) -> None:
        del error
        if appended is not None:  # called by one thread, the producer's
            tallies = tally_times(records.column("timestamp"), window_us=CONFIG.window_us)
            add(self.counts.setdefault(topic, {}), tallies)


@lru_cache(maxsize=8)
def schema_of_reports(zookeeper: str) -> WriterSchema:
    """Returns the schema of the audit topic, which is made if need be. A stream's micro-batches are
    planned one by one, and go on with what the first of this process has found."""
    return prepare(driver_cluster(zookeeper), CONFIG)


def report(
    cluster: Cluster,
    schema: WriterSchema,
    counts: Iterable[Counts],
    identity: WriteIdentity | None,
) -> None:
    """Publishes the sum of what a write's tasks have counted. A write that is reported again, as it
    was committed before, has the same name. Never raises."""
    total: dict[str, dict[int, WindowTally]] = {}
    for one in counts:
        for topic, tallies in one.items():
            add(total.setdefault(topic, {}), tallies)
    if not total:
        return
    counter, run = "a write at least once", uuid.uuid4().hex
    if identity is not None:
        counter = "a write" if identity.once else identity.writer
        run = f"{identity.writer}/{identity.version}"
    report_commit(
        cluster, CONFIG, schema,
        tier=Tier.SINK, counter=counter, run=run, tallies=total,
    )  # fmt: skip

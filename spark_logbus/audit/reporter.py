"""Publishes what a counter has counted, beside whatever it is that counts.

A thread drafts reports of what has changed every interval, and publishes them with a producer of
its own. It waits for one draft's acknowledgement before it makes the next: so what a report says is
complete has arrived. What failed is in the next one, because counts are cumulative. The counting
program only adds numbers; it waits for the thread twice, each time for a bounded while, in order
that its life is known before its records are: when it begins, and when it meets a topic.

Memory is bounded by the number of windows. A run that has many is ended, and another one begins;
while that cannot be told, because the audit topic is away, a full run is given up and never ended:
the audit shows a counter that died there, which is what is known of it.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from spark_logbus.audit.counts import DEFAULT_WINDOW_MS, Tallies, tally_times
from spark_logbus.audit.report import AUDIT_TOPIC, CounterReport, Tier, open_audit_topic
from spark_logbus.audit.run import Run, UnderWay
from spark_logbus.client import Admin, Cluster, ConsumerRecord, Producer, ProducerConfig, at_exit
from spark_logbus.client.config import names_settings
from spark_logbus.client.schemas.topic import WriterSchema, find_writer_schema, opened_registry
from spark_logbus.errors import ConfigError, InvalidRequestError, LogbusError
from spark_logbus.model import check_name
from spark_logbus.record.rows.plain import integers
from spark_logbus.threads import Periodic

logger = logging.getLogger(__name__)

_DAY_MS: Final = 86_400_000
_BUFFER_BYTES: Final = 8 << 20


@names_settings
@dataclass(frozen=True, slots=True, kw_only=True)
class AuditConfig:
    """Settings of a program that counts."""

    #: Where reports go.
    topic: str = AUDIT_TOPIC
    #: Length of a window of event time; the same in all that count one topic, or a part of it.
    window_ms: int = DEFAULT_WINDOW_MS
    #: What has changed is published so often. A counter that is silent three times as long is dead.
    interval_ms: int = 60_000
    #: Of the audit topic, if it is to be created: as long as one may want to look back.
    retention_ms: int = 30 * _DAY_MS
    #: Waited for so long when the counter begins, meets a topic, or ends; then it goes on without.
    wait_ms: int = 2_000
    #: Windows in memory, over all topics; some 300 bytes each.
    max_windows: int = 20_000

    def __post_init__(self) -> None:
        check_name("topic", self.topic)
        for name in ("window_ms", "interval_ms", "retention_ms", "max_windows"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it has to be 1 or more.")
        if self.wait_ms < 0:
            raise ConfigError(f"wait_ms is {self.wait_ms}; use 0 to wait for nothing.")

    @property
    def window_us(self) -> int:
        return self.window_ms * 1_000

    def new_run(self, *, tier: Tier, counter: str, run: str) -> Run:
        """Begins a run of a counter, which has counted nothing."""
        return Run(
            tier=tier,
            counter=counter,
            run=run,
            interval_us=self.interval_ms * 1_000,
            window_us=self.window_us,
        )


class AuditReporter:
    """Counts records of topics, and publishes the counts. Thread-safe.

    Never raises once it is made: what cannot be published is logged, once until it can be again,
    and published later. ``cluster`` is shared, and has to know ZooKeeper, where the audit topic's
    schema is. Close it, or leave its ``with`` block, when no more is counted: else it counts as
    dead, and what it may have counted last as not known.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        tier: Tier,
        counter: str | None = None,
        config: AuditConfig | None = None,
        topics: Sequence[str] = (),
    ) -> None:
        """``counter`` is its name in the audit, the same from one start to the next. ``topics``
        are those that it is known to count; others are met as they come."""
        self._cluster = cluster
        self._config = config or AuditConfig()
        self._tier = tier
        self._counter = counter or f"{platform.node()}:{os.getpid()}"
        self._run = self._new_run(topics)
        self._under_way = UnderWay()
        self._ending: Run | None = None  # a full one, whose last report has not arrived
        self._producer: Producer | None = None
        self._told = False  # of a failure, in the log
        self._closing = False
        self._round = threading.Condition()  # guards the two numbers
        self._rounds_asked = 1
        self._rounds_done = 0
        self._thread = Periodic(
            "logbus-audit",
            self._publish_round,
            pause_s=self._config.interval_ms / 1_000,
            first_pause_s=0.0,
            failure=f"The counts of {self._counter} could not be published.",
            at_end=self._publish_last_round,
        )
        self._thread.start()
        at_exit.add_counter(self, self._finish)
        self._await_round(1)

    # -- counting -------------------------------------------------------------------------

    def count(self, topic: str, timestamps: pa.Array) -> None:
        """Counts records of ``topic`` by their times: an Arrow column of timestamps in µs."""
        self.count_windows(topic, self._tallies(timestamps))

    def count_records(self, records: Iterable[ConsumerRecord]) -> None:
        """Counts records as a consumer hands them out one by one."""
        times: dict[str, list[int]] = {}
        for record in records:
            times.setdefault(record.topic, []).append(record.timestamp_us)
        for topic, of_topic in times.items():
            self.count(topic, integers(of_topic, pa.int64()))

    def doubt(self, topic: str, timestamps: pa.Array) -> None:
        """Counts records that may be there or not."""
        self.count_windows(topic, self._tallies(timestamps), in_doubt=True)

    def count_windows(self, topic: str, tallies: Tallies, *, in_doubt: bool = False) -> None:
        """Counts records by their tallies, in windows of the length that ``config`` says."""
        if topic == self._config.topic:  # or each report would make for another one
            return
        while not (run := self._run).add(topic, tallies, in_doubt=in_doubt):
            if run is self._run:
                return  # closed: nothing is promised of what comes now
        if run.windows > self._config.max_windows:
            self._begin_anew()

    def open_topic(self, topic: str, timestamps: pa.Array) -> None:
        """Reports that records of ``topic`` with these times are about to be counted, and waits a
        moment for that to arrive: a counter that dies then is known to have lived."""
        if topic == self._config.topic:
            return
        self._run.open_topic(topic, self._tallies(timestamps))
        if not self._told:
            self._await_round(self._ask_round())

    def under_way(self, records: object) -> None:
        """Notes records that may be in the topic before they are counted: the time from then on is
        not reported as complete until ``settled`` is told of the same records."""
        self._under_way.add(records, self._cluster.clock.now_us())

    def settled(self, records: object) -> None:
        """Notes that records that were under way are counted now, or in doubt."""
        self._under_way.remove(records)

    def _tallies(self, timestamps: pa.Array) -> Tallies:
        return tally_times(timestamps, window_us=self._config.window_us)

    def _new_run(self, topics: Iterable[str]) -> Run:
        run = self._config.new_run(tier=self._tier, counter=self._counter, run=uuid.uuid4().hex)
        for topic in topics:
            run.open_topic(topic)
        return run

    def _begin_anew(self) -> None:
        with self._round:
            full = self._run
            if full.windows <= self._config.max_windows:
                return  # another thread was faster
            self._run = self._new_run(full.topics)
            if self._ending is None:
                self._ending = full
            else:
                logger.error(
                    "%s has counted records of more than %d windows while nothing could be "
                    "published to %s; the audit will show a gap.",
                    self._counter, self._config.max_windows, self._config.topic,
                )  # fmt: skip
        self._ask_round()

    # -- publishing -----------------------------------------------------------------------

    def _ask_round(self) -> int:
        """Returns the number of a round that begins after this call."""
        with self._round:
            self._rounds_asked += 1
            asked = self._rounds_asked
        self._thread.wake()
        return asked

    def _await_round(self, number: int) -> None:
        with self._round:
            self._round.wait_for(lambda: self._rounds_done >= number, self._config.wait_ms / 1_000)

    def _publish_last_round(self) -> None:
        try:
            self._publish_round(last=True)
        finally:
            if self._producer is not None:
                self._producer.close(0.0 if self._told else None)

    def _publish_round(self, *, last: bool = False) -> None:
        with self._round:
            number = self._rounds_asked
        self._publish_all(last=last)
        with self._round:
            self._rounds_done = number
            self._round.notify_all()

    def _publish_all(self, *, last: bool) -> None:
        try:
            if self._ending is not None:
                self._publish(self._ending, last=True)
                self._ending = None
            self._publish(self._run, last=last)
        except LogbusError as error:
            if not self._told:
                logger.warning(
                    "The counts of %s cannot be published to %s; that is tried again every %d s, "
                    "and what is counted goes on. %s",
                    self._counter, self._config.topic, self._config.interval_ms // 1_000, error,
                )  # fmt: skip
            self._told = True
        else:
            if self._told:
                logger.warning("The counts of %s are published again.", self._counter)
            self._told = False

    def _publish(self, run: Run, *, last: bool) -> None:
        now_us = self._cluster.clock.now_us()  # before the next line, and both before the draft
        through_us = min(now_us, self._under_way.oldest_us(default_us=now_us))
        draft = run.draft(now_us=now_us, complete_through_us=through_us, last=last)
        try:
            if self._producer is None:
                self._producer = _opened_producer(self._cluster, self._config)
                at_exit.discard(self._producer)  # it is closed with this reporter
            _append(self._producer, self._config, draft.reports)
        except LogbusError:
            run.put_back(draft)
            raise

    # -- the end --------------------------------------------------------------------------

    def close(self) -> None:
        """Publishes the rest, and that it is all. Waits for at most ``wait_ms`` for that to arrive;
        a counter that could not say so will look like one that died."""
        if self._closing:
            return
        at_exit.discard(self)
        self._closing = True
        self._thread.end()
        self._thread.join(self._config.wait_ms / 1_000)

    def _finish(self, timeout_s: float) -> bool:
        """Closes the reporter at the end of a program that has not done so."""
        del timeout_s  # its own bound is shorter
        self.close()
        return False

    def __enter__(self) -> AuditReporter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _opened_producer(
    cluster: Cluster, config: AuditConfig, schema: WriterSchema | None = None
) -> Producer:
    """Opens a producer of reports, of little memory and patience: what fails is reported anew. With
    the ``schema`` that ``prepare`` has found it needs no ZooKeeper."""
    if schema is None:
        open_audit_topic(cluster, config.topic, retention_ms=config.retention_ms)
    patience_ms = min(30_000, max(1_000, config.interval_ms))
    return Producer(
        cluster,
        ProducerConfig(
            linger_ms=0,
            buffer_bytes=_BUFFER_BYTES,
            max_block_ms=patience_ms,
            delivery_timeout_ms=patience_ms,
        ),
        schemas=None if schema is None else {config.topic: schema},
    )


def _append(producer: Producer, config: AuditConfig, reports: Sequence[CounterReport]) -> None:
    """Appends reports as one record batch and waits for it. Raises what the producer does."""
    for future in producer.send_many(config.topic, reports):
        future.result()


# -- commits ------------------------------------------------------------------------------


def prepare(cluster: Cluster, config: AuditConfig) -> WriterSchema:
    """Makes sure of the audit topic, before there is something to report, and returns its schema,
    for ``report_commit``. Raises what ``Admin.create_topic`` and a look into ZooKeeper do."""
    open_audit_topic(cluster, config.topic, retention_ms=config.retention_ms)
    described = Admin(cluster).describe([config.topic], ends=False)[config.topic]
    with opened_registry(cluster, client_name="audit") as registry:
        schema = find_writer_schema(registry, described.config)
    if schema is None:
        raise InvalidRequestError(
            f"The topic {config.topic} takes no reports: its values have no schema. Choose another "
            "name for the audit topic, or delete this one, and it is made anew."
        )
    return schema


def reports_of_commit(
    config: AuditConfig,
    *,
    tier: Tier,
    counter: str,
    run: str,
    tallies: Mapping[str, Tallies],
    now_us: int,
    complete_through_us: int | None = None,
) -> list[CounterReport]:
    """Returns the reports of a run that is over, as a commit is, with its counts by topic."""
    counted = config.new_run(tier=tier, counter=counter, run=run)
    for topic, windows in tallies.items():
        counted.add(topic, windows)
    draft = counted.draft(now_us=now_us, complete_through_us=complete_through_us, last=True)
    return draft.reports


def report_commit(
    cluster: Cluster,
    config: AuditConfig,
    schema: WriterSchema,
    *,
    tier: Tier,
    counter: str,
    run: str,
    tallies: Mapping[str, Tallies],
    complete_through_us: int | None = None,
) -> None:
    """Publishes the counts, by topic, of a commit. To repeat it is harmless.

    Never raises: what was committed stays, whether or not it could be reported.
    """
    reports = reports_of_commit(
        config,
        tier=tier, counter=counter, run=run, tallies=tallies,
        now_us=cluster.clock.now_us(), complete_through_us=complete_through_us,
    )  # fmt: skip
    try:
        with _opened_producer(cluster, config, schema) as producer:
            _append(producer, config, reports)
    except LogbusError as error:
        logger.warning(
            "The counts of %s, run %s, could not be published to %s; the audit will show its "
            "records as counted by nobody. %s",
            counter, run, config.topic, error,
        )  # fmt: skip

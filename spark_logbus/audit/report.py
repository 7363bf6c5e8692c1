"""Reports to the audit topic: their fields, their schema, and the topic.

A report is a value that one *counter* (a producer, a sink, a load, ...) publishes: of one topic and
window, all that it has counted so far. Counts are cumulative within a *run* of the counter, so a
report that comes twice, late or after a later one does no harm, and one that is lost is made up for
by the next. ``complete_through_us`` is a promise: whatever this run has published by then is in
this report or in an earlier one. A report without a window says that the run lives.

All reports of one moment are one record batch, which is appended whole or not at all.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark_logbus.audit.counts import WindowTally
from spark_logbus.client import Admin, Cluster

AUDIT_TOPIC: Final = "logbus-audit"


class Tier(enum.Enum):
    """The place at which records were counted."""

    #: Appended by a program's producer.
    PRODUCER = "producer"
    #: Appended by a write of Spark's.
    SINK = "sink"
    #: Appended to a copy by a mirror, which reports it where the copy is.
    MIRROR = "mirror"
    #: Committed to a warehouse.
    LOAD = "load"
    #: Dealt with by a consumer.
    CONSUMER = "consumer"

    @property
    def appends(self) -> bool:
        """True for tiers whose counts say what is to be in the topic."""
        return self in (Tier.PRODUCER, Tier.SINK, Tier.MIRROR)


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterReport:
    """Counts of one window by one run of a counter; times in µs since 1970."""

    tier: Tier
    counter: str
    """The counter's name, the same for all of its runs: a service, a query, a warehouse."""

    run: str
    """One life of the counter; no other has its name."""

    sequence: int
    """Rises from one moment of the run to the next."""

    reported_at_us: int
    interval_us: int
    """The run reports at least so often, for as long as it lives."""

    complete_through_us: int
    """What was published by then is in this report or an earlier one. It lies behind
    ``reported_at_us`` while records are under way whose fate is not known."""

    last: bool = False
    """The run has ended, and counts nothing any more."""

    topic: str | None = None
    """None: of no topic yet."""

    window_start_us: int | None = None
    window_us: int
    counted: WindowTally = WindowTally()
    in_doubt: WindowTally = WindowTally()
    """Of records that were never acknowledged: they may be there or not."""


_MOMENT: Final = {"type": "long", "logicalType": "timestamp-micros"}

SCHEMA: Final[dict[str, Any]] = {
    "type": "record",
    "name": "Report",
    "namespace": "logbus.audit",
    "fields": [
        {"name": "tier", "type": "string"},
        {"name": "counter", "type": "string"},
        {"name": "run", "type": "string"},
        {"name": "sequence", "type": "long"},
        {"name": "reported_at", "type": _MOMENT},
        {"name": "complete_through", "type": _MOMENT},
        {"name": "interval_us", "type": "long"},
        {"name": "last", "type": "boolean"},
        {"name": "topic", "type": ["null", "string"], "default": None},
        {"name": "window_start", "type": ["null", _MOMENT], "default": None},
        {"name": "window_us", "type": "long"},
        {"name": "records", "type": "long"},
        {"name": "time_sum", "type": "long"},
        {"name": "in_doubt", "type": "long", "default": 0},
        {"name": "in_doubt_time_sum", "type": "long", "default": 0},
    ],
}

MOMENTS: Final = ("reported_at", "complete_through", "window_start")
"""Fields that are times."""


def as_row(report: CounterReport) -> dict[str, Any]:
    """Makes a report the value of a record of the audit topic."""
    return {
        "tier": report.tier.value,
        "counter": report.counter,
        "run": report.run,
        "sequence": report.sequence,
        "reported_at": report.reported_at_us,
        "complete_through": report.complete_through_us,
        "interval_us": report.interval_us,
        "last": report.last,
        "topic": report.topic,
        "window_start": report.window_start_us,
        "window_us": report.window_us,
        "records": report.counted.records,
        "time_sum": report.counted.time_sum,
        "in_doubt": report.in_doubt.records,
        "in_doubt_time_sum": report.in_doubt.time_sum,
    }


def from_row(row: Mapping[str, Any]) -> CounterReport | None:
    """Reads the report of such a value, with times as numbers; None for a later release's tier."""
    try:
        tier = Tier(row["tier"])
    except ValueError:
        return None
    return CounterReport(
        tier=tier,
        counter=row["counter"],
        run=row["run"],
        sequence=row["sequence"],
        reported_at_us=row["reported_at"],
        complete_through_us=row["complete_through"],
        interval_us=row["interval_us"],
        last=row["last"],
        topic=row["topic"],
        window_start_us=row["window_start"],
        window_us=row["window_us"],
        counted=WindowTally(row["records"], row["time_sum"]),
        in_doubt=WindowTally(row["in_doubt"], row["in_doubt_time_sum"]),
    )


def from_rows(rows: Iterable[Mapping[str, Any]]) -> list[CounterReport]:
    """Reads the reports whose tier this release knows."""
    return [report for row in rows if (report := from_row(row)) is not None]


def open_audit_topic(cluster: Cluster, topic: str, *, retention_ms: int) -> None:
    """Makes sure that the audit topic is there. Raises what ``Admin.create_topic`` does."""
    Admin(cluster).create_topic(
        topic,
        partitions=1,
        config={"retention.ms": retention_ms},
        value_schema=SCHEMA,
        value_encoding="columns",
        if_not_exists=True,
    )

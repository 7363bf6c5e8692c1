"""Reports to the audit topic: their fields, their schema, and the topic.

A report is a value that one *counter* (a producer, a sink, a load, ...) publishes: of one topic and
window, all that it has counted so far. Counts are cumulative within a *run* of the counter, so a
report that comes twice, late or after a later one does no harm, and one that is lost is made up for
by the next. ``complete_through`` is a promise: whatever this run has published by then is in
this report or in an earlier one. A report without a window says that the run lives.

All reports of one moment are one record batch, which is appended whole or not at all.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any, Final, TypedDict

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


class CounterReport(TypedDict):
    """Counts of one window by one run of a counter: a value of the audit topic. Times are in µs
    since 1970."""

    tier: str
    counter: str
    """The counter's name, the same for all of its runs: a service, a query, a warehouse."""

    run: str
    """One life of the counter; no other has its name."""

    sequence: int
    """Rises from one moment of the run to the next."""

    reported_at: int
    complete_through: int
    """Time by which all that was published is in this report or an earlier one. It lies behind
    ``reported_at`` while records are under way whose fate is not known."""

    interval_us: int
    """The run reports at least so often, for as long as it lives."""

    last: bool
    """The run has ended, and counts nothing any more."""

    topic: str | None
    """None: of no topic yet."""

    window_start: int | None
    window_us: int
    records: int
    time_sum: int
    in_doubt: int
    """Number of records that were never acknowledged: they may be there or not."""

    in_doubt_time_sum: int


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

_TIERS: Final = frozenset(tier.value for tier in Tier)

MOMENTS: Final = ("reported_at", "complete_through", "window_start")
"""Fields that are times."""


def known_reports(rows: Iterable[Any]) -> list[CounterReport]:
    """Picks the reports of tiers that this release knows; a later one may have others."""
    return [row for row in rows if row["tier"] in _TIERS]


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

"""An audit of one topic: read what was reported and what is there, and compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from spark_logbus.audit.comparison import AuditResult, AuditSpan, Copy, compare
from spark_logbus.audit.counts import common_window_us
from spark_logbus.audit.ledger import RunRecord, State, fold, in_windows
from spark_logbus.audit.report import AUDIT_TOPIC
from spark_logbus.audit.topic import TopicCounts, count_topic, read_reports
from spark_logbus.client import Cluster

# Reports of a window come with it or later. One of records whose times lie ahead comes before.
AHEAD_US: Final = 3_600_000_000
_LOOK_AGAIN_S: Final = 1.0

_INTERVALS_TO_SETTLE: Final = 2
"""Windows that ended this long ago have been reported by all runs that live."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The topic and windows to audit; times in µs since 1970."""

    topic: str
    since_us: int
    until_us: int | None = None
    """None: as late as all counters that live have reported in."""

    window_us: int | None = None
    audit_topic: str = AUDIT_TOPIC
    wait_s: float = 90.0
    """For reports that decide whether something is too many, at most so long."""

    clock_skew_s: float = 5.0
    """By so much may clocks of machines differ: what was counted so shortly before the topic was
    read is not missed yet."""


Count = Callable[[int, int], TopicCounts]
"""Counts a topic in windows of that length, from that moment on."""


Place = Callable[[int, int], Copy]
"""Reads what is in a place into which the topic was copied, in windows of that length, from that
moment on."""


def audit(
    cluster: Cluster,
    question: Question,
    *,
    places: Sequence[Place] = (),
    count: Count | None = None,
) -> AuditResult:
    """Read the reports and the topic, and compare them. ``count`` counts the topic another way than
    by reading it here.

    Raises UnknownTopicError, InvalidRequestError for a topic that cannot be audited, ConfigError
    for windows that cannot be compared, and what reading raises.
    """
    topic = question.topic
    runs = _read(cluster, question)
    window_us = _window_us(runs, question)
    since_us = question.since_us // window_us * window_us
    if count is None:
        found = count_topic(cluster, topic, window_us=window_us, since_us=since_us)
    else:
        found = count(window_us, since_us)
    copies = [place(window_us, since_us) for place in places]
    deadline = cluster.deadline_ms(question.wait_s * 1_000)
    until_us = question.until_us
    while True:
        runs = _read(cluster, question)
        now_us = cluster.clock.now_us()
        if until_us is None:
            until_us = _settled_us(runs, topic, found.read_at_us)
        span = AuditSpan(
            since_us=since_us,
            until_us=until_us,
            now_us=now_us,
            window_us=window_us,
            clock_skew_us=round(question.clock_skew_s * 1e6),
        )
        in_these = [in_windows(run, topic, window_us=window_us) for run in runs]
        result = compare(topic, in_these, found, span, copies=copies)
        # A commit is reported just after it can be seen.
        too_soon = now_us < found.read_at_us + span.clock_skew_us and result.has_surplus
        if not (result.awaits_report or too_soon) or deadline.expired:
            return result
        cluster.pause(_LOOK_AGAIN_S)


def _read(cluster: Cluster, question: Question) -> list[RunRecord]:
    since_us = question.since_us - AHEAD_US
    return fold(
        read_reports(cluster, question.audit_topic, question.topic, since_us=max(0, since_us))
    )


def _window_us(runs: Sequence[RunRecord], question: Question) -> int:
    lengths = {length for run in runs for length in run.window_lengths}
    return common_window_us(lengths, wanted_us=question.window_us, topic=question.topic)


def _settled_us(runs: Sequence[RunRecord], topic: str, read_at_us: int) -> int:
    intervals = [
        run.interval_us
        for run in runs
        if run.concerns(topic) and run.state(read_at_us) is State.LIVE
    ]
    return read_at_us - _INTERVALS_TO_SETTLE * max(intervals, default=0)


def topic_place(cluster: Cluster, topic: str, *, name: str) -> Place:
    """Makes a place of a topic into which records are copied as they are."""

    def read(window_us: int, since_us: int) -> Copy:
        counts = count_topic(cluster, topic, window_us=window_us, since_us=since_us)
        return Copy(name=name, counts=counts)

    return read

"""One run of a counter: what it has counted, and which of that it has published. No I/O."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from spark_logbus.audit.counts import NOTHING, Tallies, WindowTally
from spark_logbus.audit.report import CounterReport, Tier


@dataclass(slots=True)
class _Window:
    counted: WindowTally = NOTHING
    in_doubt: WindowTally = NOTHING


@dataclass(frozen=True, slots=True)
class Draft:
    """Reports that are to be published together, and what they take off the list of changes."""

    reports: list[CounterReport]
    changed: frozenset[tuple[str, int]] = field(default_factory=frozenset)


class Run:
    """Counts, and drafts reports of what has changed. Thread-safe."""

    def __init__(
        self, *, tier: Tier, counter: str, run: str, interval_us: int, window_us: int
    ) -> None:
        self._tier = tier
        self._counter = counter
        self._run = run
        self._interval_us = interval_us
        self._window_us = window_us
        self._lock = threading.Lock()
        self._windows: dict[tuple[str, int], _Window] = {}
        self._changed: set[tuple[str, int]] = set()
        self._topics: set[str] = set()
        self._sequence = 0
        self._ended = False

    @property
    def windows(self) -> int:
        """Number of windows in memory."""
        return len(self._windows)

    @property
    def topics(self) -> frozenset[str]:
        return frozenset(self._topics)

    def open_topic(self, topic: str, starts: Iterable[int] = ()) -> None:
        """Names ``topic`` in all reports from now on, and in the next one the windows that begin at
        ``starts``, of which nothing is counted yet."""
        with self._lock:
            self._topics.add(topic)
            for start in starts:
                self._windows.setdefault((topic, start), _Window())
                self._changed.add((topic, start))

    def add(self, topic: str, tallies: Tallies, *, in_doubt: bool = False) -> bool:
        """Counts records. False, and nothing is counted, if the run has drafted its last report."""
        with self._lock:
            if self._ended:
                return False
            self._topics.add(topic)
            for start, tally in tallies.items():
                key = topic, start
                window = self._windows.get(key)
                if window is None:
                    window = self._windows[key] = _Window()
                if in_doubt:
                    window.in_doubt += tally
                else:
                    window.counted += tally
                self._changed.add(key)
            return True

    def draft(
        self, *, now_us: int, complete_through_us: int | None = None, last: bool = False
    ) -> Draft:
        """Drafts reports of what is new since the last draft, or that there is nothing. Both times
        were read before: all that was published by ``complete_through_us``, or else ``now_us``,
        was counted."""
        through_us = now_us if complete_through_us is None else complete_through_us
        with self._lock:
            self._ended = self._ended or last
            changed = frozenset(self._changed)
            self._changed.clear()
            self._sequence += 1
            silent = self._topics.difference(topic for topic, _ in changed)
            places: list[tuple[str | None, int | None]] = [
                *((topic, None) for topic in sorted(silent)),
                *sorted(changed),
            ]
            return Draft(
                [
                    self._report(place, now_us, through_us, last)
                    for place in places or [(None, None)]
                ],
                changed,
            )

    def _report(
        self, place: tuple[str | None, int | None], now_us: int, through_us: int, last: bool
    ) -> CounterReport:
        topic, start = place
        window = _Window()
        if topic is not None and start is not None:
            window = self._windows[topic, start]
        return {
            "tier": self._tier.value,
            "counter": self._counter,
            "run": self._run,
            "sequence": self._sequence,
            "reported_at": now_us,
            "complete_through": through_us,
            "interval_us": self._interval_us,
            "last": last,
            "topic": topic,
            "window_start": start,
            "window_us": self._window_us,
            "records": window.counted.records,
            "time_sum": window.counted.time_sum,
            "in_doubt": window.in_doubt.records,
            "in_doubt_time_sum": window.in_doubt.time_sum,
        }

    def put_back(self, draft: Draft) -> None:
        """Has the next draft report the same again: this one may not have come to the topic."""
        with self._lock:
            self._changed |= draft.changed


class UnderWay:
    """Records that were sent and are not settled, in the order of sending. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: dict[int, tuple[object, int]] = {}  # by identity, of what is kept for that

    def add(self, sent: object, at_us: int) -> None:
        with self._lock:
            self._since[id(sent)] = sent, at_us

    def remove(self, sent: object) -> None:
        with self._lock:
            self._since.pop(id(sent), None)

    def oldest_us(self, *, default_us: int) -> int:
        """Returns when the oldest of them was sent."""
        with self._lock:
            return next((at_us for _, at_us in self._since.values()), default_us)

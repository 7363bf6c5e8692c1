"""Compares, window by window, what was counted with what is there. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from spark_logbus.audit.counts import NOTHING, WindowTally
from spark_logbus.audit.ledger import RunRecord, State
from spark_logbus.audit.topic import TopicCounts
from spark_logbus.audit.verdicts import FINDINGS, Expected, Status, Verdict, judge


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSpan:
    """The windows that are judged: those that begin at ``since_us`` or later and have ended by
    ``until_us``. ``now_us`` decides which runs are dead."""

    since_us: int
    until_us: int
    now_us: int
    window_us: int
    clock_skew_us: int = 0
    """By so much may the clocks of counters differ from the one here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A place into which the records of the topic were copied, as it was read."""

    name: str
    counts: TopicCounts
    not_yet: Mapping[int, WindowTally] = field(default_factory=dict)
    """Records of the topic that are not due there yet."""

    topic: Mapping[int, WindowTally] | None = None
    """The topic's records as they were counted for this place; None: as the audit found them."""

    from_us: int = 0
    """Windows that begin before are not compared."""

    notes: tuple[str, ...] = ()
    """What was found there that is no matter of windows: offsets that are missing or doubled."""


@dataclass(frozen=True, slots=True)
class Share:
    """Records of a window that one counter has counted, and the state of its worst run."""

    counter: str
    records: int
    in_doubt: int
    state: State


@dataclass(frozen=True, slots=True)
class CopyResult:
    """A window in one of the places into which it was copied."""

    name: str
    records: int
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowResult:
    """Outcome of the audit for one window."""

    start_us: int
    counted: WindowTally
    in_doubt: int
    found: WindowTally
    verdict: Verdict
    counters: tuple[Share, ...]
    copies: tuple[CopyResult, ...]
    awaits_report: bool
    """The verdict will be known when a counter that lives has reported once more."""

    @property
    def is_of_something(self) -> bool:
        """False where no record was counted or found, and none may have been."""
        return bool(
            self.counted
            or self.found
            or self.in_doubt
            or any(verdict.status is not Status.COMPLETE for verdict in self.verdicts)
        )

    @property
    def verdicts(self) -> list[Verdict]:
        return [self.verdict, *(copy.verdict for copy in self.copies)]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditResult:
    """The outcome of an audit."""

    topic: str
    window_us: int
    windows: tuple[WindowResult, ...]
    runs: tuple[RunRecord, ...]
    dead: tuple[RunRecord, ...] = ()
    """Those that ended without a word, in one of these windows or while they counted it."""

    notes: tuple[str, ...] = ()
    """Findings beside those of windows, one sentence each."""

    @property
    def findings(self) -> int:
        """Windows with something to look at, in the topic or a copy. Notes say more of these; they
        count where they are of other windows only."""
        windows = sum(
            any(verdict.status in FINDINGS for verdict in window.verdicts)
            for window in self.windows
        )
        return windows or len(self.notes)

    @property
    def not_yet_known(self) -> int:
        return sum(
            any(verdict.status is Status.NOT_YET for verdict in window.verdicts)
            for window in self.windows
        )

    @property
    def has_surplus(self) -> bool:
        """True if some window of the topic has more records than were counted."""
        surplus = (Status.TOO_MANY, Status.UNCOUNTED, Status.IN_DOUBT)
        return any(window.verdict.status in surplus for window in self.windows)

    @property
    def awaits_report(self) -> bool:
        return any(window.awaits_report for window in self.windows)


def compare(
    topic: str,
    runs: Sequence[RunRecord],
    found: TopicCounts,
    span: AuditSpan,
    *,
    copies: Sequence[Copy] = (),
) -> AuditResult:
    """Judges the windows of ``span``. ``runs`` are in these, as ``in_windows`` makes them."""
    concerned = [run for run in runs if run.concerns(topic)]
    comparison = _Comparison(topic, concerned, found, span, copies)
    starts = {start for run in concerned for of, start in run.windows if of == topic}
    starts |= found.tallies.keys()
    starts |= {start for copy in copies for start in copy.counts.tallies}
    dead = [run for run in concerned if run.state(span.now_us) is State.DEAD]
    for run in dead:
        starts |= _clock_windows(run, span)
    results = [
        comparison.judged(start)
        for start in sorted(starts)
        if span.since_us <= start and start + span.window_us <= span.until_us
    ]
    return AuditResult(
        topic=topic,
        window_us=span.window_us,
        windows=tuple(window for window in results if window.is_of_something),
        runs=tuple(concerned),
        dead=tuple(
            run for run in dead if any(comparison.left_open(run, one.start_us) for one in results)
        ),
        notes=tuple(note for copy in copies for note in copy.notes),
    )


def _clock_windows(run: RunRecord, span: AuditSpan) -> set[int]:
    """Returns the windows in which a run has died, by the clock."""
    first = max(run.through_us, span.since_us) // span.window_us
    last = min(run.heard_us + run.silence_us, span.until_us) // span.window_us
    return {number * span.window_us for number in range(first, last + 1)}


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Judges one window after the other, each by its start."""

    topic: str
    runs: Sequence[RunRecord]
    found: TopicCounts
    span: AuditSpan
    copies: Sequence[Copy]

    def judged(self, start: int) -> WindowResult:
        appending = [run for run in self.runs if run.tier.appends]
        there = self.found.tallies.get(start, NOTHING)
        expected = self._expected(start, appending)
        expired_before_us = self.found.expired_before_us
        expired = expired_before_us is not None and start < expired_before_us
        if expired:
            verdict = Verdict(Status.EXPIRED)
            reference = expected
        else:
            verdict = self._judge(expected, there, start)
            reference = Expected(counted=there, reported=True)
        results = [
            self._judged_copy(copy, start, reference, expired=expired)
            for copy in self.copies
            if start >= copy.from_us
        ]
        return WindowResult(
            start_us=start,
            counted=expected.counted,
            in_doubt=expected.in_doubt.records,
            found=there,
            verdict=verdict,
            counters=tuple(self._shares(start, appending)),
            copies=(*results, *self._reported_copies(start, reference)),
            awaits_report=verdict.status is Status.NOT_YET and expected.behind,
        )

    def left_open(self, run: RunRecord, start: int) -> bool:
        return run.left_open(self.topic, start_us=start, end_us=start + self.span.window_us)

    def _judge(self, expected: Expected, there: WindowTally, start: int) -> Verdict:
        return judge(expected, there, start_us=start, window_us=self.span.window_us)

    def _expected(self, start: int, runs: Sequence[RunRecord]) -> Expected:
        windows = [
            run.windows[self.topic, start] for run in runs if (self.topic, start) in run.windows
        ]
        live, dead = (
            [run for run in runs if run.state(self.span.now_us) is state]
            for state in (State.LIVE, State.DEAD)
        )
        read_at_us, skew_us = self.found.read_at_us, self.span.clock_skew_us
        return Expected(
            counted=sum((window.tally for window in windows), NOTHING),
            in_doubt=sum((window.in_doubt for window in windows), NOTHING),
            reported=bool(windows),
            changing=any(window.changed_us > read_at_us - skew_us for window in windows),
            pending=any(run.through_us < start + self.span.window_us for run in live),
            behind=any(run.through_us < read_at_us + skew_us for run in live),
            gap=any(self.left_open(run, start) for run in dead),
            unplaced=any(not run.has_counted(self.topic) for run in dead),
        )

    def _judged_copy(
        self, copy: Copy, start: int, reference: Expected, *, expired: bool
    ) -> CopyResult:
        of_topic = reference.counted
        if copy.topic is not None and not expired:
            of_topic = copy.topic.get(start, NOTHING)
        not_yet = copy.not_yet.get(start, NOTHING)
        there = copy.counts.tallies.get(start, NOTHING)
        verdict = self._judge(replace(reference, counted=of_topic - not_yet), there, start)
        if verdict.status is Status.COMPLETE and not_yet:
            verdict = Verdict(Status.NOT_YET, not_yet.records)
        return CopyResult(copy.name, there.records, verdict)

    def _reported_copies(self, start: int, reference: Expected) -> Iterator[CopyResult]:
        """Judges loads and consumers by what they have reported, from their first window on."""
        by_name: dict[tuple[str, str], list[RunRecord]] = {}
        for run in self.runs:
            if not run.tier.appends and self.topic in run.topics:
                by_name.setdefault((run.tier.value, run.counter), []).append(run)
        for (tier, counter), own in sorted(by_name.items()):
            starts = (at for run in own for of, at in run.windows if of == self.topic)
            first = min(starts, default=None)
            if first is None or start < first:
                continue
            counts = self._expected(start, own)
            changing = reference.changing or counts.changing
            verdict = self._judge(replace(reference, changing=changing), counts.counted, start)
            if verdict.status is Status.MISSING:
                verdict = self._of_fewer(verdict, start, own, counts)
            yield CopyResult(f"{tier} {counter}", counts.counted.records, verdict)

    def _of_fewer(
        self, verdict: Verdict, start: int, own: Sequence[RunRecord], counts: Expected
    ) -> Verdict:
        """Judges a place with fewer records: it may get the others yet, or have got them before it
        died."""
        if counts.gap:
            return Verdict(Status.GAP, verdict.records)
        lives = any(run.state(self.span.now_us) is State.LIVE for run in own)
        if lives or max(run.through_us for run in own) < start + self.span.window_us:
            return Verdict(Status.NOT_YET, verdict.records)
        return verdict

    def _shares(self, start: int, runs: Sequence[RunRecord]) -> Iterable[Share]:
        """Returns the shares of the counters that have counted something of the window, or may
        have."""
        shares: dict[str, Share] = {}
        for run in runs:
            state = run.state(self.span.now_us)
            window = run.windows.get((self.topic, start))
            open_here = state is State.DEAD and self.left_open(run, start)
            if window is None and not open_here:
                continue
            if state is State.DEAD and not open_here:
                state = State.CLOSED  # of this window all is known
            before = shares.get(run.counter, Share(run.counter, 0, 0, State.CLOSED))
            shares[run.counter] = Share(
                run.counter,
                before.records + (window.tally.records if window else 0),
                before.in_doubt + (window.in_doubt.records if window else 0),
                max(before.state, state, key=_WORST.index),
            )
        return shares.values()


_WORST: Final = (State.CLOSED, State.LIVE, State.DEAD)

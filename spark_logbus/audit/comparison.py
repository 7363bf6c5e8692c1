"""Compares, window by window, what was counted with what is there. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from spark_logbus.audit.counts import WindowTally
from spark_logbus.audit.ledger import RunRecord, State
from spark_logbus.audit.topic import TopicCounts
from spark_logbus.audit.verdicts import FINDINGS, Expected, Status, Verdict, judge

_NOTHING: Final = WindowTally()


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSpan:
    """The windows that are judged: those that begin at ``since_us`` or later and have ended by
    ``until_us``. ``now_us`` decides who is dead."""

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
    """What one counter has counted of a window, and the state of its worst run."""

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
    """All about one window."""

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
        """More is somewhere in the topic than was counted."""
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
    """``runs`` are in the windows of ``span``, as ``ledger.in_windows`` makes them."""
    concerned = [run for run in runs if run.concerns(topic)]
    starts = {start for run in concerned for of, start in run.windows if of == topic}
    starts |= found.tallies.keys()
    starts |= {start for copy in copies for start in copy.counts.tallies}
    for run in concerned:
        if run.state(span.now_us) is State.DEAD:
            starts |= _clock_windows(run, span)
    results = [
        _judged(topic, start, concerned, found, span, copies)
        for start in sorted(starts)
        if span.since_us <= start and start + span.window_us <= span.until_us
    ]
    return AuditResult(
        topic=topic,
        window_us=span.window_us,
        windows=tuple(window for window in results if window.is_of_something),
        runs=tuple(concerned),
        dead=tuple(run for run in concerned if _died_in(topic, run, results, span)),
        notes=tuple(note for copy in copies for note in copy.notes),
    )


def _died_in(topic: str, run: RunRecord, results: Sequence[WindowResult], span: AuditSpan) -> bool:
    return run.state(span.now_us) is State.DEAD and any(
        run.left_open(topic, start_us=one.start_us, end_us=one.start_us + span.window_us)
        for one in results
    )


def _clock_windows(run: RunRecord, span: AuditSpan) -> set[int]:
    """The windows in which a run has died, by the clock."""
    first = max(run.through_us, span.since_us) // span.window_us
    last = min(run.heard_us + run.silence_us, span.until_us) // span.window_us
    return {number * span.window_us for number in range(first, last + 1)}


def _judged(
    topic: str,
    start: int,
    runs: Sequence[RunRecord],
    found: TopicCounts,
    span: AuditSpan,
    copies: Sequence[Copy],
) -> WindowResult:
    appending = [run for run in runs if run.tier.appends]
    there = found.tallies.get(start, _NOTHING)
    expected = _expected(topic, start, appending, span, read_at_us=found.read_at_us)
    expired = found.expired_before_us is not None and start < found.expired_before_us
    if expired:
        verdict = Verdict(Status.EXPIRED)
        reference = expected
    else:
        verdict = judge(expected, there, start_us=start, window_us=span.window_us)
        reference = Expected(counted=there, reported=True)
    results = [
        *(
            _judged_copy(copy, start, reference, span, expired=expired)
            for copy in copies
            if start >= copy.from_us
        ),
        *_reported_copies(topic, start, runs, reference, found, span),
    ]
    return WindowResult(
        start_us=start,
        counted=expected.counted,
        in_doubt=expected.in_doubt.records,
        found=there,
        verdict=verdict,
        counters=tuple(_shares(topic, start, appending, span)),
        copies=tuple(results),
        awaits_report=verdict.status is Status.NOT_YET and expected.behind,
    )


def _expected(
    topic: str, start: int, runs: Sequence[RunRecord], span: AuditSpan, *, read_at_us: int
) -> Expected:
    counted = in_doubt = _NOTHING
    reported = changing = pending = behind = gap = unplaced = False
    end = start + span.window_us
    for run in runs:
        window = run.windows.get((topic, start))
        if window is not None:
            counted += window.tally
            in_doubt += window.in_doubt
            reported = True
            changing |= window.changed_us > read_at_us - span.clock_skew_us
        match run.state(span.now_us):
            case State.LIVE:
                pending |= run.through_us < end
                behind |= run.through_us < read_at_us + span.clock_skew_us
            case State.DEAD:
                gap |= run.left_open(topic, start_us=start, end_us=end)
                unplaced |= not run.has_counted(topic)
            case State.CLOSED:
                pass
    return Expected(
        counted=counted,
        in_doubt=in_doubt,
        reported=reported,
        changing=changing,
        pending=pending,
        behind=behind,
        gap=gap,
        unplaced=unplaced,
    )


def _judged_copy(
    copy: Copy, start: int, reference: Expected, span: AuditSpan, *, expired: bool
) -> CopyResult:
    of_topic = reference.counted
    if copy.topic is not None and not expired:
        of_topic = copy.topic.get(start, _NOTHING)
    due = of_topic - copy.not_yet.get(start, _NOTHING)
    there = copy.counts.tallies.get(start, _NOTHING)
    expected = replace(reference, counted=due)
    verdict = judge(expected, there, start_us=start, window_us=span.window_us)
    if verdict.status is Status.COMPLETE and copy.not_yet.get(start, _NOTHING):
        verdict = Verdict(Status.NOT_YET, copy.not_yet[start].records)
    return CopyResult(copy.name, there.records, verdict)


def _reported_copies(
    topic: str,
    start: int,
    runs: Iterable[RunRecord],
    reference: Expected,
    found: TopicCounts,
    span: AuditSpan,
) -> Iterable[CopyResult]:
    """Of loads and consumers, by what they have reported, from their first window on."""
    by_name: dict[tuple[str, str], list[RunRecord]] = {}
    for run in runs:
        if not run.tier.appends and topic in run.topics:
            by_name.setdefault((run.tier.value, run.counter), []).append(run)
    for (tier, counter), own in sorted(by_name.items()):
        first = min((at for run in own for of, at in run.windows if of == topic), default=None)
        if first is None or start < first:
            continue
        counts = _expected(topic, start, own, span, read_at_us=found.read_at_us)
        verdict = judge(
            replace(reference, changing=reference.changing or counts.changing),
            counts.counted,
            start_us=start,
            window_us=span.window_us,
        )
        if verdict.status is Status.MISSING:
            verdict = _of_fewer(verdict, own, counts, start + span.window_us, span)
        yield CopyResult(f"{tier} {counter}", counts.counted.records, verdict)


def _of_fewer(
    verdict: Verdict, own: Sequence[RunRecord], counts: Expected, end_us: int, span: AuditSpan
) -> Verdict:
    """A place that has fewer may get the others yet, or have got them before it died."""
    if counts.gap:
        return Verdict(Status.GAP, verdict.records)
    lives = any(run.state(span.now_us) is State.LIVE for run in own)
    if lives or max(run.through_us for run in own) < end_us:
        return Verdict(Status.NOT_YET, verdict.records)
    return verdict


_WORST: Final = (State.CLOSED, State.LIVE, State.DEAD)


def _shares(topic: str, start: int, runs: Sequence[RunRecord], span: AuditSpan) -> Iterable[Share]:
    """Of the counters that have counted something of the window, or may have."""
    shares: dict[str, Share] = {}
    end = start + span.window_us
    for run in runs:
        state = run.state(span.now_us)
        window = run.windows.get((topic, start))
        open_here = state is State.DEAD and run.left_open(topic, start_us=start, end_us=end)
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

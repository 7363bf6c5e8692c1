"""The outcome of an audit as objects, rows, sentences and an exit code."""

from __future__ import annotations

from typing import Any, Final

from spark_logbus.audit.comparison import AuditResult, WindowResult
from spark_logbus.audit.ledger import State
from spark_logbus.audit.verdicts import Status
from spark_logbus.plurals import plural
from spark_logbus.times import show_moment

_FINDINGS: Final = 1
_NOT_YET_KNOWN: Final = 3


def exit_code(result: AuditResult) -> int:
    """Returns the exit code of a command that audits: 0 only if all is known and well."""
    if result.findings:
        return _FINDINGS
    return _NOT_YET_KNOWN if result.not_yet_known else 0


def as_objects(result: AuditResult, *, only_findings: bool = False) -> list[dict[str, Any]]:
    """Makes an object of each window, or of each incomplete one, and one that sums up all."""
    shown = [each for each in result.windows if not (only_findings and is_complete(each))]
    return [*map(_window, shown), _summary(result)]


def _window(window: WindowResult) -> dict[str, Any]:
    verdict = window.verdict
    return {
        "window_us": window.start_us,
        "counted": window.counted.records,
        "in_doubt": window.in_doubt,
        "found": window.found.records,
        "verdict": verdict.status.value,
        "records": verdict.records,
        "at_us": verdict.at_us,
        "counters": [
            {
                "counter": share.counter,
                "records": share.records,
                "in_doubt": share.in_doubt,
                "state": share.state.value,
            }
            for share in window.counters
        ],
        "copies": [
            {
                "name": copy.name,
                "found": copy.records,
                "verdict": copy.verdict.status.value,
                "records": copy.verdict.records,
                "at_us": copy.verdict.at_us,
            }
            for copy in window.copies
        ],
    }


def _summary(result: AuditResult) -> dict[str, Any]:
    return {
        "topic": result.topic,
        "windows": len(result.windows),
        "counted": sum(window.counted.records for window in result.windows),
        "found": sum(window.found.records for window in result.windows),
        "findings": result.findings,
        "not_yet_known": result.not_yet_known,
        "dead": [
            {"counter": run.counter, "run": run.run, "reported_until_us": run.through_us}
            for run in result.dead
        ],
        "notes": list(result.notes),
    }


def is_complete(window: WindowResult) -> bool:
    """True if the window is complete in the topic and in each copy."""
    return all(verdict.status is Status.COMPLETE for verdict in window.verdicts)


def row_of(window: WindowResult) -> dict[str, Any]:
    """Makes a row of a table for people."""
    return {
        "window_us": window.start_us,
        "counted": window.counted.records,
        "in_doubt": window.in_doubt,
        "found": window.found.records,
        "verdict": str(window.verdict),
        # To the µs, so that the record can be looked for.
        "its_time": None if window.verdict.at_us is None else show_moment(window.verdict.at_us),
        "counters": ", ".join(
            share.counter
            if share.state is State.CLOSED
            else f"{share.counter} ({share.state.value})"
            for share in window.counters
        ),
        "copies": _copies(window),
    }


def _copies(window: WindowResult) -> str | None:
    """Names the copies that are not complete, with their verdicts."""
    if not window.copies:
        return None
    wrong = [
        f"{copy.name}: {copy.verdict}"
        for copy in window.copies
        if copy.verdict.status is not Status.COMPLETE
    ]
    return "; ".join(wrong) or Status.COMPLETE.value


def sentences(result: AuditResult) -> list[str]:
    """Returns the lines below the table: one for each run that died, and one for all windows."""
    lines = [
        f"{run.tier.value.capitalize()} {run.counter} has died: it reported until "
        f"{show_moment(run.through_us, timespec='seconds')} and never said that it had ended."
        for run in result.dead
    ]
    lines += result.notes
    if not result.windows:
        return [*lines, f"Of {result.topic} nothing was counted or found in that time."]
    counted = sum(window.counted.records for window in result.windows)
    found = sum(window.found.records for window in result.windows)
    state = "all complete"
    if result.findings:
        state = plural(result.findings, "finding")
    elif result.not_yet_known:
        state = f"{plural(result.not_yet_known, 'window')} not yet known"
    lines.append(
        f"{plural(len(result.windows), 'window')} of {result.topic}: {counted:,} records counted, "
        f"{found:,} found; {state}."
    )
    return lines

"""``logbus audit``: compares what was counted of a topic with what is there."""

from __future__ import annotations

import re
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from spark_logbus.cli.options import DEFAULT_ZOOKEEPER, AsJson, Topic, ZooKeeper, connected
from spark_logbus.cli.output import MOMENT, NUMBER, Column, Table, console, plural, print_json, utc

if TYPE_CHECKING:
    from spark_logbus.audit import AuditResult, WindowResult
    from spark_logbus.audit.auditing import Place
    from spark_logbus.client import Cluster

FINDINGS: Final = 1
NOT_YET_KNOWN: Final = 3

_DATE = re.compile(r"\d{4}-\d\d-\d\d")


def audit(
    topic: Topic,
    since: Annotated[
        str,
        typer.Option(
            "--since", "-s", help="From this time of records on: -1d, or 2026-01-31T12:00Z."
        ),
    ] = "-1d",
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            "-u",
            help="Up to here; by default as late as all counters that live have reported.",
        ),
    ] = None,
    window: Annotated[
        str | None,
        typer.Option("--window", "-w", help="A multiple of the counters' own, such as 1h."),
    ] = None,
    warehouse: Annotated[
        Path | None,
        typer.Option(
            "--warehouse",
            help="Also compare this directory of load_warehouse.py, on this machine.",
            metavar="DIR",
        ),
    ] = None,
    mirror: Annotated[
        str | None,
        typer.Option(
            "--mirror",
            help="Also compare the topic of the cluster with this ZooKeeper.",
            metavar="HOST:PORT/PATH",
        ),
    ] = None,
    mirror_topic: Annotated[
        str | None, typer.Option("--mirror-topic", help="Its name there, if it is another.")
    ] = None,
    audit_topic: Annotated[
        str, typer.Option("--audit-topic", help="Where the counts are.")
    ] = "logbus-audit",
    wait: Annotated[
        str,
        typer.Option("--wait", help="At most so long, where the next counts decide something."),
    ] = "90s",
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Only windows that are not complete.")
    ] = False,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
    as_json: AsJson = False,
) -> None:
    """Compare what producers counted with what is in a topic, window by window.

    Exit code 0: complete, 1: something is missing, there twice, in doubt, uncounted or not known,
    2: wrong usage, 3: not yet known. What each finding means stands in docs/audit.md.

    \b
    Example:
      logbus audit orders --since -6h
      logbus audit orders --since 2026-01-31 --until 2026-02-01 --warehouse /data/warehouse -q
    """
    from spark_logbus.audit import Question
    from spark_logbus.audit import audit as run_audit

    now_us = time.time_ns() // 1_000
    question = Question(
        topic=topic,
        since_us=_moment(since, "--since", now_us),
        until_us=None if until is None else _moment(until, "--until", now_us),
        window_us=None if window is None else _duration(window, "--window"),
        audit_topic=audit_topic,
        wait_s=_duration(wait, "--wait") / 1e6,
    )
    with ExitStack() as stack:
        cluster = stack.enter_context(connected(zookeeper))
        places = list(_places(stack, cluster, topic, warehouse, mirror, mirror_topic))
        with console(stderr=True).status(f"Comparing the records of {topic}..."):
            result = run_audit(cluster, question, places=places)
    if as_json:
        print_json(*as_objects(result))
    else:
        _print(result, only_findings=quiet)
    code = exit_code(result)
    if code:
        raise typer.Exit(code)


def exit_code(result: AuditResult) -> int:
    """For scripts: 0 only if all is known and well."""
    if result.findings:
        return FINDINGS
    return NOT_YET_KNOWN if result.not_yet_known else 0


def _places(
    stack: ExitStack,
    cluster: Cluster,
    topic: str,
    warehouse: Path | None,
    mirror: str | None,
    mirror_topic: str | None,
) -> list[Place]:
    found = []
    if warehouse is not None:
        from spark_logbus.audit.warehouse import local_warehouse

        found.append(local_warehouse(cluster, topic, warehouse))
    if mirror is not None:
        from spark_logbus.audit.auditing import mirror as mirror_of

        other = stack.enter_context(connected(mirror))
        found.append(mirror_of(other, mirror_topic or topic, name=f"mirror {mirror}"))
    return found


def _moment(text: str, option: str, now_us: int) -> int:
    """``-1d`` before now, or a date or time."""
    from spark_logbus.times import parse_duration_us, parse_moment_us

    try:
        if text.startswith("-"):
            return now_us - parse_duration_us(text[1:])
        if _DATE.match(text):
            return parse_moment_us(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}.") from error
    raise typer.BadParameter(
        f"{option} is {text!r}; use a time such as 2026-01-31T12:00Z, or how long ago, such as -1d."
    )


def _duration(text: str, option: str) -> int:
    from spark_logbus.times import parse_duration_us

    try:
        return parse_duration_us(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}.") from error


# -- what is shown ------------------------------------------------------------------------


def as_objects(result: AuditResult) -> list[dict[str, Any]]:
    """An object for each window, and one that sums up."""
    return [*(_window(window) for window in result.windows), _summary(result)]


def _window(window: WindowResult) -> dict[str, Any]:
    verdict = window.verdict
    return {
        "window_us": window.start_us,
        "counted": window.counted.records,
        "in_doubt": window.in_doubt,
        "found": window.found.records,
        "verdict": verdict.finding.value,
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
                "verdict": copy.verdict.finding.value,
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


def _print(result: AuditResult, *, only_findings: bool) -> None:
    from spark_logbus.audit import Finding

    out = console()
    rows = Table(
        Column("window_us", MOMENT, "window"),
        Column("counted", NUMBER),
        Column("in_doubt", NUMBER),
        Column("found", NUMBER),
        Column("verdict"),
        Column("time_us", MOMENT, "its time"),
        Column("counters"),
        Column("copies"),
    )
    for window in result.windows:
        well = all(verdict.finding is Finding.COMPLETE for verdict in window.verdicts)
        if well and only_findings:
            continue
        rows.add(
            {
                "window_us": window.start_us,
                "counted": window.counted.records,
                "in_doubt": window.in_doubt,
                "found": window.found.records,
                "verdict": str(window.verdict),
                "time_us": window.verdict.at_us,
                "counters": ", ".join(
                    f"{share.counter} ({share.records:,}, {share.state.value})"
                    for share in window.counters
                ),
                "copies": ", ".join(
                    f"{copy.name} ({copy.records:,}, {copy.verdict})" for copy in window.copies
                ),
            },
            styles=None if well else {"verdict": "bold red"},
        )
    if len(rows):
        out.print(rows)
    for line in sentences(result):
        out.print(line)


def sentences(result: AuditResult) -> list[str]:
    """What stands below the table: one sentence for each that died, and for all together."""
    lines = [
        f"{run.tier.value.capitalize()} {run.counter} has died: it reported until "
        f"{utc(run.through_us)} and never said that it had ended."
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

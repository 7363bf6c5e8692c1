"""``logbus audit``: compares what was counted of a topic with what is there."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spark_logbus.cli.options import DEFAULT_ZOOKEEPER, AsJson, Topic, ZooKeeper, connected
from spark_logbus.cli.output import MOMENT, NUMBER, Column, Table, console, print_json
from spark_logbus.times import parse_duration_us, parse_past_us

if TYPE_CHECKING:
    from spark_logbus.audit import AuditResult
    from spark_logbus.audit.auditing import Place
    from spark_logbus.load.tables import TableOfLake


def audit(
    topic: Topic,
    since: Annotated[
        str,
        typer.Option(
            "--since", "-s", help="From this time of records on: 2026-01-31T12:00Z, or 6h, ago."
        ),
    ] = "1d",
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
    delta: Annotated[
        str | None,
        typer.Option(
            "--delta", help="Also compare this Delta table of load_warehouse.py.", metavar="URI"
        ),
    ] = None,
    iceberg: Annotated[
        str | None,
        typer.Option(
            "--iceberg",
            help="Also compare this Iceberg table of load_warehouse.py.",
            metavar="CATALOG.NAMESPACE.TABLE",
        ),
    ] = None,
    lake_properties: Annotated[
        str | None,
        typer.Option(
            "--lake-properties",
            help="Storage options of Delta, or properties of Iceberg's catalogue, as for loads.",
            metavar="FILE",
        ),
    ] = None,
    mirror: Annotated[
        str | None,
        typer.Option(
            "--mirror",
            help="Also compare the copy, and its mirror's counts, in this ZooKeeper's cluster.",
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
        bool, typer.Option("--quiet", "-q", help="Only windows that are not complete, as JSON too.")
    ] = False,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
    as_json: AsJson = False,
) -> None:
    """Compare what producers counted with what is in a topic, window by window.

    Exit code 0: complete, 1: something is missing, there twice, in doubt, uncounted or not known,
    2: wrong usage, 3: not yet known. What each finding means stands in docs/audit.md.

    \b
    Example:
      logbus audit orders --since 6h
      logbus audit orders --since 2026-01-31 --until 2026-02-01 --warehouse /data/warehouse -q
    """
    from spark_logbus.audit import Question
    from spark_logbus.audit import audit as run_audit
    from spark_logbus.audit.showing import as_objects, exit_code

    moment = partial(parse_past_us, now_us=time.time_ns() // 1_000)
    question = Question(
        topic=topic,
        since_us=_parsed(since, "--since", moment),
        until_us=None if until is None else _parsed(until, "--until", moment),
        window_us=None if window is None else _parsed(window, "--window", parse_duration_us),
        audit_topic=audit_topic,
        wait_s=_parsed(wait, "--wait", parse_duration_us) / 1e6,
    )
    table = _named(delta, iceberg, lake_properties)
    with ExitStack() as stack:
        cluster = stack.enter_context(connected(zookeeper))
        places: list[Place] = []
        if warehouse is not None:
            from spark_logbus.audit.warehouse import local_warehouse

            places.append(local_warehouse(cluster, topic, warehouse))
        if table is not None:
            from spark_logbus.load.lake.places import lake_place

            places.append(lake_place(cluster, topic, table))
        if mirror is not None:
            from spark_logbus.mirror import mirror_places

            places += mirror_places(
                cluster, topic,
                copy=stack.enter_context(connected(mirror)), copy_topic=mirror_topic or topic,
                address=mirror, audit_topic=audit_topic,
            )  # fmt: skip
        with console(stderr=True).status(f"Comparing the records of {topic}..."):
            result = run_audit(cluster, question, places=places)
    if as_json:
        print_json(*as_objects(result, only_findings=quiet))
    else:
        _print(result, only_findings=quiet)
    code = exit_code(result)
    if code:
        raise typer.Exit(code)


def _parsed(text: str, option: str, parse: Callable[[str], int]) -> int:
    try:
        return parse(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}.") from error


def _named(
    delta: str | None, iceberg: str | None, lake_properties: str | None
) -> TableOfLake | None:
    """Returns the table of a lake that the options name, without an import where none is given."""
    if (delta, iceberg, lake_properties) == (None, None, None):
        return None
    from spark_logbus.load.config import named_lake
    from spark_logbus.load.errors import UsageError

    try:
        return named_lake(delta, iceberg, lake_properties)
    except UsageError as error:
        raise typer.BadParameter(error.message) from error


def _print(result: AuditResult, *, only_findings: bool) -> None:
    from spark_logbus.audit.showing import is_complete, row_of, sentences

    out = console()
    rows = Table(
        Column("window_us", MOMENT, "window"),
        Column("counted", NUMBER),
        Column("in_doubt", NUMBER),
        Column("found", NUMBER),
        Column("verdict"),
        Column("its_time"),
        Column("counters"),
        Column("copies"),
    )
    for window in result.windows:
        complete = is_complete(window)
        if not (complete and only_findings):
            rows.add(row_of(window), styles=None if complete else {"verdict": "bold red"})
    if len(rows):
        out.print(rows)
    for line in sentences(result):
        out.print(line)

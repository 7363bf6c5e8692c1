"""``logbus groups``: list, describe, rewind."""

from __future__ import annotations

import datetime as dt
import getpass
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from spark_logbus.cli.options import DEFAULT_ZOOKEEPER, ZooKeeper, connected

if TYPE_CHECKING:
    from spark_logbus.coordination import Session
    from spark_logbus.offsets import RewindPlan, Target

app = typer.Typer(help="List, describe and rewind consumer groups.", no_args_is_help=True)

_UNITS_US = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}


@contextmanager
def _session(zookeeper: str) -> Iterator[Session]:
    from spark_logbus.coordination import Session

    with Session(zookeeper, client_name="logbus-groups") as session:
        yield session


@app.command("list")
def list_(zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER) -> None:
    """The groups that have committed offsets."""
    from spark_logbus.coordination import GroupOffsets, GroupRewinds

    with _session(zookeeper) as session:
        offsets, rewinds = GroupOffsets(session), GroupRewinds(session)
        table = Table("group", "topics", "partitions", "rewinds", "last commit")
        for group in offsets.groups():
            committed = offsets.committed(group)
            last = max((entry.committed_at_us for entry in committed.values()), default=None)
            table.add_row(
                group,
                ", ".join(sorted({tp.topic for tp in committed})),
                str(len(committed)),
                str(rewinds.generation(group)),
                _when(last) if last is not None else "-",
            )
    Console().print(table)


@app.command("describe")
def describe(group: str, zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER) -> None:
    """A group's committed offsets and its lag, and how it was rewound."""
    from spark_logbus.client import Admin
    from spark_logbus.coordination import GroupOffsets, GroupRewinds
    from spark_logbus.model import Latest

    console = Console()
    with _session(zookeeper) as session, connected(zookeeper) as cluster:
        committed = GroupOffsets(session).committed(group)
        if not committed:
            _refuse_unknown(group, GroupOffsets(session).groups())
        known = Admin(cluster).describe(sorted({tp.topic for tp in committed}), ends=False)
        alive = [tp for tp in committed if tp.topic in known]
        ends = Admin(cluster).list_offsets({tp: Latest() for tp in alive})
        table = Table("topic", "partition", "committed", "high watermark", "lag", "by", "at")
        for column in (1, 2, 3, 4):
            table.columns[column].justify = "right"
        for tp, entry in sorted(committed.items()):
            end = ends.get(tp)
            table.add_row(
                tp.topic,
                str(tp.partition),
                f"{entry.offset:,}",
                "topic deleted" if end is None else f"{end:,}",
                "-" if end is None else f"{max(0, end - entry.offset):,}",
                entry.by,
                _when(entry.committed_at_us),
            )
        console.print(table)
        for rewind in GroupRewinds(session).history(group):
            console.print(
                f"Rewind {rewind.generation}: {rewind.why}, by {rewind.by} at "
                f"{_when(rewind.when_us)}.",
                highlight=False,
            )


@app.command("rewind")
def rewind(
    group: str,
    topic: Annotated[
        list[str] | None,
        typer.Option(help="Only these topics; default: all that the group has committed."),
    ] = None,
    to_offset: Annotated[int | None, typer.Option(help="This offset in every partition.")] = None,
    to_time: Annotated[
        str | None, typer.Option(help="The first record at or after it, e.g. 2013-12-01T00:00Z.")
    ] = None,
    by_duration: Annotated[
        str | None, typer.Option(help="Back from now: 90s, 10m, 6h, 7d.")
    ] = None,
    by_count: Annotated[int | None, typer.Option(help="So many records in each partition.")] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest")] = False,
    execute: Annotated[
        bool, typer.Option("--execute", help="Do it. Without this nothing is changed.")
    ] = False,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
) -> None:
    """Set a group's committed offsets back (or forward); a dry run unless --execute is given.

    What reads with startingOffsets=committed then processes those records again.
    """
    from spark_logbus.client import Admin
    from spark_logbus.clock import SystemClock
    from spark_logbus.coordination import GroupOffsets, GroupRewinds
    from spark_logbus.offsets import apply, prepare, take_snapshot
    from spark_logbus.offsets.selection import Topics

    target = _target(to_offset, to_time, by_duration, by_count, to_earliest, to_latest)
    console = Console()
    with _session(zookeeper) as session, connected(zookeeper) as cluster:
        groups = GroupOffsets(session)
        topics = topic or sorted({tp.topic for tp in groups.committed(group)})
        if not topics:
            _refuse_unknown(group, groups.groups())
        admin = Admin(cluster)
        snapshot = take_snapshot(admin, Topics(tuple(topics)), missing_ok=False)
        plan = prepare(
            group,
            target,
            admin=admin,
            groups=groups,
            snapshot=snapshot,
            now_us=SystemClock().now_us,
        )
        console.print(_plan_table(plan))
        total = f"{plan.records_to_read_again:,} records will be read again."
        if not execute:
            console.print(f"Dry run: {total} Nothing was changed; add --execute to do it.")
            return
        done = apply(plan, rewinds=GroupRewinds(session), by=getpass.getuser())
        console.print(f"Rewind {done.generation} of group {group} is recorded: {total}")


def _refuse_unknown(group: str, known: list[str]) -> None:
    from spark_logbus.errors import InvalidRequestError

    names = ", ".join(known) or "none"
    raise InvalidRequestError(
        f"Group {group!r} has committed no offsets; groups that have: {names}."
    )


def _plan_table(plan: RewindPlan) -> Table:
    table = Table(
        "topic", "partition", "log start", "high watermark", "committed", "new", "change",
        title=f"Rewind {plan.group} {plan.target}",
    )  # fmt: skip
    for column in range(1, 7):
        table.columns[column].justify = "right"
    for row in plan.rows:
        table.add_row(
            row.topic_partition.topic,
            str(row.topic_partition.partition),
            f"{row.span.start:,}",
            f"{row.span.end:,}",
            "-" if row.committed is None else f"{row.committed:,}",
            f"{row.new_offset:,}" + (" (cut to the log)" if row.clamped else ""),
            f"{row.change:+,}",
        )
    return table


def _target(
    to_offset: int | None,
    to_time: str | None,
    by_duration: str | None,
    by_count: int | None,
    to_earliest: bool,
    to_latest: bool,
) -> Target:
    from spark_logbus.errors import InvalidRequestError
    from spark_logbus.offsets import ByCount, ByDuration, ToEarliest, ToLatest, ToOffset, ToTime

    targets: list[Target] = []
    if to_offset is not None:
        targets.append(ToOffset(to_offset))
    if to_time is not None:
        targets.append(ToTime(_parse_time(to_time)))
    if by_duration is not None:
        targets.append(ByDuration(_parse_duration(by_duration)))
    if by_count is not None:
        targets.append(ByCount(by_count))
    if to_earliest:
        targets.append(ToEarliest())
    if to_latest:
        targets.append(ToLatest())
    if len(targets) != 1:
        raise InvalidRequestError(
            "Say where to, once: --to-offset, --to-time, --by-duration, --by-count, "
            f"--to-earliest or --to-latest; got {len(targets)} of them."
        )
    return targets[0]


def _parse_time(text: str) -> int:
    from spark_logbus.errors import InvalidRequestError

    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidRequestError(
            f"--to-time is {text!r}; use ISO 8601, such as 2013-12-01T00:00:00Z."
        ) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return int(moment.timestamp() * 1_000_000)


def _parse_duration(text: str) -> int:
    from spark_logbus.errors import InvalidRequestError

    match = re.fullmatch(r"(\d+)([smhd])", text)
    if match is None:
        raise InvalidRequestError(f"--by-duration is {text!r}; use a number and s, m, h or d.")
    return int(match[1]) * _UNITS_US[match[2]]


def _when(time_us: int) -> str:
    return dt.datetime.fromtimestamp(time_us / 1e6, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")

"""``logbus groups``: list, describe, rewind, forget, delete."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from spark_logbus.cli.group_views import describe, group_session, list_, refuse_unknown
from spark_logbus.cli.options import DEFAULT_ZOOKEEPER, ZooKeeper, connected
from spark_logbus.cli.output import console, plural, table

if TYPE_CHECKING:
    from spark_logbus.offsets import RewindPlan, Target

app = typer.Typer(help="List, describe, rewind and clear consumer groups.", no_args_is_help=True)

_MAX_OFFSET = 2**63 - 1


app.command("list")(list_)
app.command("describe")(describe)


@app.command("rewind")
def rewind(
    group: str,
    topic: Annotated[
        list[str] | None,
        typer.Option(help="Only these topics; default: all that the group has committed."),
    ] = None,
    to_offset: Annotated[
        int | None, typer.Option(help="This offset in every partition.", min=0, max=_MAX_OFFSET)
    ] = None,
    to_time: Annotated[
        str | None, typer.Option(help="The first record at or after it, e.g. 2013-12-01T00:00Z.")
    ] = None,
    by_duration: Annotated[
        str | None, typer.Option(help="Back from now: 90s, 10m, 6h, 7d.")
    ] = None,
    by_count: Annotated[
        int | None, typer.Option(help="Back by so many records in each partition.", min=0)
    ] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest")] = False,
    why: Annotated[
        str, typer.Option(help="The reason, for those who look at the group later.")
    ] = "",
    execute: Annotated[
        bool, typer.Option("--execute", help="Do it. Without this nothing is changed.")
    ] = False,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
) -> None:
    """Set a group's committed offsets back (or forward); a dry run unless --execute is given.

    A streaming query of the group follows with its next micro-batch, or when it is started
    again; what starts with startingOffsets=committed starts there.
    """
    from spark_logbus.client import Admin
    from spark_logbus.clock import SystemClock
    from spark_logbus.coordination import GroupOffsets, GroupRewinds
    from spark_logbus.offsets import apply, prepare, require_rows, take_snapshot
    from spark_logbus.offsets.selection import Topics

    target = _target(to_offset, to_time, by_duration, by_count, to_earliest, to_latest)
    out = console()
    with group_session(zookeeper) as session, connected(zookeeper) as cluster:
        groups = GroupOffsets(session)
        topics = topic or sorted({tp.topic for tp in groups.committed(group)})
        if not topics:
            refuse_unknown(group, groups.groups())
        admin = Admin(cluster)
        snapshot = take_snapshot(admin, Topics(tuple(topics)), missing_ok=topic is None)
        plan = prepare(
            group,
            target,
            admin=admin,
            groups=groups,
            snapshot=snapshot,
            now_us=SystemClock().now_us,
        )
        require_rows(plan)
        for name in sorted(set(topics) - set(snapshot.topic_ids)):
            out.print(
                f"Topic {name} was deleted and is left out; "
                f"`logbus groups forget {group} --topic {name}` clears what is committed for it."
            )
        for name in plan.recreated:
            out.print(
                f"Topic {name} was deleted and created again since group {group} committed "
                "offsets for it; those count for nothing."
            )
        out.print(_plan_table(plan))
        if any(row.clamped for row in plan.rows):
            out.print("* cut to what the log holds")
        total = f"{plural(plan.records_to_read_again, 'record')} will be read again."
        if not execute:
            out.print(f"Dry run: {total} Nothing was changed; add --execute to do it.")
            return
        done = apply(plan, rewinds=GroupRewinds(session), by=_user(), why=why)
        out.print(f"Rewind {done.generation} of group {group} is recorded: {total}")


@app.command("forget")
def forget(
    group: str,
    topic: Annotated[list[str], typer.Option(help="May be given more than once.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
) -> None:
    """Forget what a group has committed for some topics, such as deleted ones."""
    from spark_logbus.coordination import GroupOffsets

    with group_session(zookeeper) as session:
        groups = GroupOffsets(session)
        known = {tp.topic for tp in groups.committed(group)}
        if not known:
            refuse_unknown(group, groups.groups())
        if not yes:
            names = ", ".join(topic)
            typer.confirm(f"Forget what group {group} has committed for {names}?", abort=True)
        for name in topic:
            if groups.forget(group, name):
                console().print(f"Group {group} has no offsets for topic {name} any more.")
            else:
                console().print(f"Group {group} had committed no offsets for topic {name}.")


@app.command("delete")
def delete(
    group: str,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
) -> None:
    """Delete a group: its committed offsets and the record of its rewinds."""
    from spark_logbus.coordination import GroupOffsets

    with group_session(zookeeper) as session:
        groups = GroupOffsets(session)
        known = groups.groups()
        if group not in known:
            refuse_unknown(group, known)
        if not yes:
            typer.confirm(f"Delete group {group} and all its committed offsets?", abort=True)
        groups.delete(group)
    console().print(f"Group {group} is deleted.")


def _plan_table(plan: RewindPlan) -> Table:
    numbers = ("partition", "log start", "high watermark", "committed", "new", "change")
    rows = table("topic", *numbers, numbers=numbers, title=f"Rewind {plan.group} {plan.target}")
    for row in plan.rows:
        rows.add_row(
            row.topic_partition.topic,
            str(row.topic_partition.partition),
            f"{row.span.start:,}",
            f"{row.span.end:,}",
            "-" if row.committed is None else f"{row.committed:,}",
            f"{row.new_offset:,}" + (" *" if row.clamped else ""),
            f"{row.change:+,}",
        )
    return rows


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
    from spark_logbus.times import parse_duration_us, parse_moment_us

    targets: list[Target] = []
    if to_offset is not None:
        targets.append(ToOffset(to_offset))
    if to_time is not None:
        targets.append(
            ToTime(
                _parsed(
                    "--to-time", to_time, parse_moment_us, "ISO 8601, such as 2013-12-01T00:00:00Z"
                )
            )
        )
    if by_duration is not None:
        targets.append(
            ByDuration(
                _parsed(
                    "--by-duration",
                    by_duration,
                    parse_duration_us,
                    "6h, 10 minutes or at most 36500d",
                )
            )
        )
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


def _parsed(option: str, text: str, parse: Callable[[str], int], example: str) -> int:
    from spark_logbus.errors import InvalidRequestError

    try:
        return parse(text)
    except ValueError as error:
        raise InvalidRequestError(f"{option} is {text!r}; use {example}.") from error


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no entry
        return "unknown"

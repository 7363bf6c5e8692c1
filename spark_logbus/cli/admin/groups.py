"""``logbus groups``: list, describe, rewind, forget, delete."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_logbus.cli.completion import topic_names
from spark_logbus.cli.options import (
    DEFAULT_ZOOKEEPER,
    AsJson,
    Execute,
    Group,
    Groups,
    Yes,
    ZooKeeper,
    connected,
)
from spark_logbus.cli.output import (
    AGE,
    CHANGE,
    MARK,
    MOMENT,
    NUMBER,
    WORDS,
    Column,
    Table,
    console,
    print_json,
    utc,
)
from spark_logbus.clock import SystemClock
from spark_logbus.errors import InvalidRequestError
from spark_logbus.plurals import plural
from spark_logbus.record.format import MAX_OFFSET
from spark_logbus.times import parse_duration_us, parse_moment_us

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_logbus.client.admin.groups import GroupDescription, GroupPosition
    from spark_logbus.coordination.groups.owners import GroupOwner
    from spark_logbus.coordination.groups.rewinds import Rewind
    from spark_logbus.offsets.rewind import RewindPlan, Target

app = typer.Typer(
    help="List, describe, rewind and clear consumer groups.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("rewind")
def rewind(
    group: Group,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            help="Only these topics; default: all that the group has committed.",
            autocompletion=topic_names,
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            help="earliest, latest, an offset, -1000 (records before the end), '-10 minutes', or "
            'an offset for each partition, as in {"events": {"0": 23}}.'
        ),
    ] = None,
    to_offset: Annotated[
        int | None, typer.Option(help="This offset in every partition.", min=0, max=MAX_OFFSET)
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
    execute: Execute = False,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
    as_json: AsJson = False,
) -> None:
    """Set a group's committed offsets back (or forward); a dry run unless --execute is given.

    A streaming query of the group follows with its next micro-batch, or when it is started
    again; what starts with startingOffsets=committed starts there.

    \b
    Example:
      logbus groups rewind warehouse --to '-6 hours' --why 'a bad deploy' --execute
    """
    from spark_logbus.client import Admin

    target = _target(to, to_offset, to_time, by_duration, by_count, to_earliest, to_latest)
    out = console(stderr=as_json)
    with connected(zookeeper) as cluster:
        done = Admin(cluster).rewind(group, target, topics=topic, execute=execute, why=why)
    plan = done.plan
    for name in done.deleted:
        out.print(
            f"Topic {name} was deleted and is left out; "
            f"`logbus groups forget {group} --topic {name}` clears what is committed for it."
        )
    for name in plan.recreated:
        out.print(
            f"Topic {name} was deleted and created again since group {group} committed "
            "offsets for it; those count for nothing."
        )
    _plan_table(plan).print(as_json=as_json)
    if any(row.clamped for row in plan.rows):
        out.print("* cut to what the log holds")
    total = f"{plural(plan.records_to_read_again, 'record')} will be read again."
    if done.recorded is None:
        out.print(f"Dry run: {total} Nothing was changed; add --execute to do it.")
    else:
        out.print(f"Rewind {done.recorded.epoch} of group {group} is recorded: {total}")


@app.command("forget")
def forget(
    group: Group,
    topic: Annotated[
        list[str],
        typer.Option(
            "--topic", "-t", help="May be given more than once.", autocompletion=topic_names
        ),
    ],
    yes: Yes = False,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
) -> None:
    """Forget what a group has committed for some topics, such as deleted ones.

    \b
    Example:
      logbus groups forget warehouse -t orders-2019
    """
    from spark_logbus.client.admin.stored_groups import stored_groups

    with stored_groups(zookeeper) as groups:
        groups.require_offsets(group)
        if not yes:
            names = ", ".join(topic)
            typer.confirm(f"Forget what group {group} has committed for {names}?", abort=True)
        forgotten = groups.forget(group, topic)
    for name in dict.fromkeys(topic):
        if name in forgotten:
            console().print(f"Group {group} has no offsets for topic {name} any more.")
        else:
            console().print(f"Group {group} had committed no offsets for topic {name}.")


@app.command("delete")
def delete(names: Groups, yes: Yes = False, zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER) -> None:
    """Delete groups: their committed offsets and the record of their rewinds.

    Topics are left as they are, and need not be there any more.

    \b
    Example:
      logbus groups delete warehouse-test --yes
    """
    from spark_logbus.client.admin.stored_groups import stored_groups

    with stored_groups(zookeeper) as groups:
        groups.require_known(names)
        if not yes:
            which = "group" if len(names) == 1 else "groups"
            what = f"{which} {', '.join(names)} and all committed offsets"
            typer.confirm(f"Delete {what}?", abort=True)
        for name in dict.fromkeys(names):
            groups.delete(name)
            console().print(f"Group {name} is deleted.")


def _plan_table(plan: RewindPlan) -> Table:
    from spark_logbus.offsets.rewind import describe

    rows = Table(
        Column("topic", of="topic_partition.topic"),
        Column("partition", NUMBER, of="topic_partition.partition"),
        Column("log_start_offset", NUMBER, "log start", of="span.start"),
        Column("high_watermark", NUMBER, of="span.end"),
        Column("committed", NUMBER),
        Column("new", NUMBER, of="new_offset"),
        Column("change", CHANGE),
        Column("cut", MARK, of="clamped"),
        title=f"Rewind {plan.group} {describe(plan.target)}",
    )
    return rows.fill(plan.rows, group=plan.group)


def _target(
    to: str | None,
    to_offset: int | None,
    to_time: str | None,
    by_duration: str | None,
    by_count: int | None,
    to_earliest: bool,
    to_latest: bool,
) -> Target:
    from spark_logbus.model import AtOffset, AtTimestamp, Earliest, LastDuration, Latest
    from spark_logbus.offsets.position import ShiftBack

    def at_time(text: str) -> Target:
        example = "ISO 8601, such as 2013-12-01T00:00:00Z"
        return AtTimestamp(_parsed("--to-time", text, parse_moment_us, example))

    def last_duration(text: str) -> Target:
        example = "6h, 10 minutes or at most 36500d"
        return LastDuration(_parsed("--by-duration", text, parse_duration_us, example))

    choices: list[tuple[Any, Callable[[Any], Target]]] = [
        (to, _position),
        (to_offset, AtOffset),
        (to_time, at_time),
        (by_duration, last_duration),
        (by_count, ShiftBack),
        (to_earliest or None, lambda _: Earliest()),
        (to_latest or None, lambda _: Latest()),
    ]
    targets = [target(given) for given, target in choices if given is not None]
    if len(targets) != 1:
        raise InvalidRequestError(
            "Say where to, once: --to, --to-offset, --to-time, --by-duration, --by-count, "
            f"--to-earliest or --to-latest; got {len(targets)} of them."
        )
    return targets[0]


def _position(text: str) -> Target:
    from spark_logbus.offsets.position import parse_partition_offsets
    from spark_logbus.position_text import parse_position

    if text.lstrip().startswith("{"):
        return parse_partition_offsets(text, option="--to")
    return parse_position(text, what="--to")


def _parsed(option: str, text: str, parse: Callable[[str], int], example: str) -> int:
    try:
        return parse(text)
    except ValueError as error:
        raise InvalidRequestError(f"{option} is {text!r}; use {example}.") from error


@app.command("list")
def list_(zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER, as_json: AsJson = False) -> None:
    """The groups that have committed offsets, and the queries and consumers that hold them.

    \b
    Example:
      logbus groups list
    """
    from spark_logbus.client.admin.stored_groups import stored_groups

    with stored_groups(zookeeper) as groups:
        listed = groups.summaries()
    for name, failure in listed.unreadable.items():
        console(stderr=True).print(f"Group {name} is left out. {failure.message}")
    rows = Table(
        Column("group"),
        Column("topics", WORDS),
        Column("partitions", NUMBER),
        Column("rewinds", NUMBER),
        Column("last_commit_us", MOMENT, "last commit (UTC)"),
        Column("held_by", WORDS),
    )
    for group in listed.found:
        row = {
            "group": group.name,
            "topics": group.topics,
            "partitions": len(group.committed),
            "rewinds": group.rewinds,
            "last_commit_us": group.last_commit_us,
            "holders": _holders_json(group.owners),
            "members": len(group.members),
        }
        held_by = sorted({f"{owner.pid} on {owner.host}" for owner in group.owners.values()})
        if group.members:
            held_by.append(plural(len(group.members), "consumer"))
        rows.add(row if as_json else {**row, "held_by": held_by})
    rows.print(as_json=as_json, empty="No consumer group has committed offsets.")


@app.command("describe")
def describe(
    names: Groups, zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER, as_json: AsJson = False
) -> None:
    """Show groups' owners, committed offsets, lag and rewinds.

    \b
    Example:
      logbus groups describe warehouse --json | jq '.partitions[] | .lag'
    """
    from spark_logbus.client import Admin

    with connected(zookeeper) as cluster:
        found = [Admin(cluster).describe_group(name) for name in dict.fromkeys(names)]
    if as_json:
        print_json(*map(_as_json, found))
        return
    for number, described in enumerate(found):
        if number:
            console().print("")
        _describe(described)


def _describe(described: GroupDescription) -> None:
    out = console()
    for topic, owner in sorted(described.owners.items()):
        out.print(f"Topic {topic} is held by {owner}.")
    if described.members:
        out.print(f"{plural(len(described.members), 'consumer')} share group {described.name}.")
    elif not described.owners:
        out.print(f"No running query or consumer holds group {described.name}.")
    if described.positions:
        out.print(_table(described.positions, now_us=SystemClock().now_us()))
    idle = {member.name for member in described.members} - {
        position.reader.consumer for position in described.positions if position.reader is not None
    }
    if idle:
        out.print(f"Without a partition: {', '.join(sorted(idle))}.")
    for rewind in described.rewinds:
        out.print(_told(rewind))


def _table(positions: list[GroupPosition], *, now_us: int) -> Table:
    shared = any(position.reader is not None for position in positions)
    rows = Table(
        Column("topic"),
        Column("partition", NUMBER),
        Column("committed", NUMBER),
        Column("high_watermark", NUMBER),
        Column("lag", NUMBER),
        Column("age", AGE),
        Column("by"),
        Column("committed_at_us", MOMENT, "at (UTC)"),
        *([Column("consumer", head="read by")] if shared else []),
        Column("state"),
    )
    for position in positions:
        row = _position_json(position)
        if position.committed is not None:
            row["age"] = now_us - position.committed.committed_at_us
        rows.add(row, styles=None if position.state == "ok" else {"state": "yellow"})
    return rows


def _told(rewind: Rewind) -> str:
    what = " ".join(
        part for part in (rewind.description, f"({rewind.reason})" if rewind.reason else "") if part
    )
    to = ", ".join(
        f"{topic_partition}: {offset:,}"
        for topic_partition, offset in sorted(rewind.positions.items())
    )
    return (
        f"Rewind {rewind.epoch} by {rewind.actor} at {utc(rewind.when_us)} UTC: "
        f"{what or 'for no given reason'}; {to}."
    )


def _as_json(described: GroupDescription) -> dict[str, Any]:
    return {
        "group": described.name,
        "holders": _holders_json(described.owners),
        "members": [asdict(member) for member in described.members],
        "partitions": [_position_json(position) for position in described.positions],
        "rewinds": [
            {
                "rewind_epoch": rewind.epoch,
                "what": rewind.description,
                "why": rewind.reason,
                "by": rewind.actor,
                "when_us": rewind.when_us,
                "positions": [
                    {
                        "topic": topic_partition.topic,
                        "partition": topic_partition.partition,
                        "offset": offset,
                    }
                    for topic_partition, offset in sorted(rewind.positions.items())
                ],
            }
            for rewind in described.rewinds
        ],
    }


def _position_json(position: GroupPosition) -> dict[str, Any]:
    entry, reader = position.committed, position.reader
    return {
        "topic": position.topic_partition.topic,
        "partition": position.topic_partition.partition,
        "committed": None if entry is None else entry.offset,
        "high_watermark": position.high_watermark,
        "lag": position.lag,
        "state": position.state,
        "by": None if entry is None else entry.actor,
        "committed_at_us": None if entry is None else entry.committed_at_us,
        "rewind_epoch": None if entry is None else entry.rewind_epoch,
        "consumer": None if reader is None else reader.consumer,
    }


def _holders_json(holders: Mapping[str, GroupOwner]) -> dict[str, Any]:
    return {topic: asdict(holder) for topic, holder in sorted(holders.items())}

"""``logbus groups``: list, describe, rewind, forget, delete."""

from __future__ import annotations

import getpass
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from spark_logbus.cli.options import DEFAULT_ZOOKEEPER, AsJson, ZooKeeper, connected
from spark_logbus.cli.output import ago, console, plural, table, utc
from spark_logbus.record.format import MAX_OFFSET

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_logbus.client import Cluster
    from spark_logbus.coordination.group_offsets import CommittedOffset
    from spark_logbus.coordination.group_owners import GroupOwner
    from spark_logbus.coordination.rewinds import Rewind
    from spark_logbus.model import TopicPartition
    from spark_logbus.offsets.rewind import RewindPlan, Target
    from spark_logbus.zookeeper import Session

app = typer.Typer(help="List, describe, rewind and clear consumer groups.", no_args_is_help=True)


@app.command("rewind")
def rewind(
    group: str,
    topic: Annotated[
        list[str] | None,
        typer.Option(help="Only these topics; default: all that the group has committed."),
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
    from spark_logbus.coordination.group_offsets import GroupOffsets
    from spark_logbus.coordination.rewinds import GroupRewinds
    from spark_logbus.offsets.rewind import apply, prepare, require_rows
    from spark_logbus.offsets.selection import Topics
    from spark_logbus.offsets.snapshot import take_snapshot

    target = _target(to, to_offset, to_time, by_duration, by_count, to_earliest, to_latest)
    out = console()
    with group_session(zookeeper) as session, connected(zookeeper) as cluster:
        groups = GroupOffsets(session)
        topics = topic or sorted(
            {topic_partition.topic for topic_partition in groups.committed(group)}
        )
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
        out.print(f"Rewind {done.epoch} of group {group} is recorded: {total}")


@app.command("forget")
def forget(
    group: str,
    topic: Annotated[list[str], typer.Option(help="May be given more than once.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
) -> None:
    """Forget what a group has committed for some topics, such as deleted ones."""
    from spark_logbus.coordination.group_offsets import GroupOffsets

    with group_session(zookeeper) as session:
        groups = GroupOffsets(session)
        known = {topic_partition.topic for topic_partition in groups.committed(group)}
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
    from spark_logbus.coordination.group_offsets import GroupOffsets

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
    from spark_logbus.offsets.rewind import describe

    numbers = ("partition", "log start", "high watermark", "committed", "new", "change")
    rows = table(
        "topic", *numbers, numbers=numbers, title=f"Rewind {plan.group} {describe(plan.target)}"
    )
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
    to: str | None,
    to_offset: int | None,
    to_time: str | None,
    by_duration: str | None,
    by_count: int | None,
    to_earliest: bool,
    to_latest: bool,
) -> Target:
    from spark_logbus.errors import InvalidRequestError
    from spark_logbus.model import AtOffset, AtTimestamp, Earliest, LastDuration, Latest
    from spark_logbus.offsets.position import ShiftBack
    from spark_logbus.times import parse_duration_us, parse_moment_us

    targets: list[Target] = []
    if to is not None:
        targets.append(_position(to))
    if to_offset is not None:
        targets.append(AtOffset(to_offset))
    if to_time is not None:
        example = "ISO 8601, such as 2013-12-01T00:00:00Z"
        targets.append(AtTimestamp(_parsed("--to-time", to_time, parse_moment_us, example)))
    if by_duration is not None:
        example = "6h, 10 minutes or at most 36500d"
        back_us = _parsed("--by-duration", by_duration, parse_duration_us, example)
        targets.append(LastDuration(back_us))
    if by_count is not None:
        targets.append(ShiftBack(by_count))
    if to_earliest:
        targets.append(Earliest())
    if to_latest:
        targets.append(Latest())
    if len(targets) != 1:
        raise InvalidRequestError(
            "Say where to, once: --to, --to-offset, --to-time, --by-duration, --by-count, "
            f"--to-earliest or --to-latest; got {len(targets)} of them."
        )
    return targets[0]


def _position(text: str) -> Target:
    from spark_logbus.offsets.position import parse_partition_offsets, parse_spec

    if text.lstrip().startswith("{"):
        return parse_partition_offsets(text, option="--to")
    return parse_spec(text, option="--to")


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


@contextmanager
def group_session(zookeeper: str) -> Iterator[Session]:
    from spark_logbus.zookeeper import Session

    with Session(zookeeper, client_name="logbus-groups", expects_cluster=True) as session:
        yield session


def refuse_unknown(group: str, known: list[str]) -> None:
    from spark_logbus.errors import InvalidRequestError

    names = ", ".join(known) or "none"
    raise InvalidRequestError(
        f"Group {group!r} has committed no offsets; groups that have: {names}."
    )


@app.command("list")
def list_(zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER, as_json: AsJson = False) -> None:
    """The groups that have committed offsets, and the queries that hold them."""
    from spark_logbus.coordination.group_offsets import GroupOffsets
    from spark_logbus.coordination.rewinds import GroupRewinds
    from spark_logbus.zookeeper import CorruptNodeError

    with group_session(zookeeper) as session:
        offsets, rewinds = GroupOffsets(session), GroupRewinds(session)
        numbers = ("partitions", "rewinds")
        heads = ("group", "topics", *numbers, "last commit (UTC)", "held by")
        rows = table(*heads, numbers=numbers)
        for group in offsets.groups():
            try:
                committed = offsets.committed(group)
                holders = offsets.owners(group)
                epoch = rewinds.epoch(group)
            except CorruptNodeError as failure:
                console(stderr=True).print(f"Group {group} is left out. {failure.message}")
                continue
            topics = sorted({topic_partition.topic for topic_partition in committed})
            last = max((entry.committed_at_us for entry in committed.values()), default=None)
            if as_json:
                line = {
                    "group": group,
                    "topics": topics,
                    "partitions": len(committed),
                    "rewinds": epoch,
                    "last_commit_us": last,
                    "holders": _holders_json(holders),
                }
                print(json.dumps(line))
            rows.add_row(
                group,
                ", ".join(topics),
                str(len(committed)),
                str(epoch),
                utc(last) if last is not None else "-",
                ", ".join(sorted({f"{h.pid} on {h.host}" for h in holders.values()})) or "-",
            )
    if not as_json:
        console().print(rows if rows.rows else "No consumer group has committed offsets.")


@app.command("describe")
def describe(group: str, zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER, as_json: AsJson = False) -> None:
    """Show a group's owners, committed offsets, lag and rewinds."""
    from spark_logbus.clock import SystemClock
    from spark_logbus.coordination.group_offsets import GroupOffsets
    from spark_logbus.coordination.rewinds import GroupRewinds

    with group_session(zookeeper) as session, connected(zookeeper) as cluster:
        offsets = GroupOffsets(session)
        committed, holders = offsets.committed(group), offsets.owners(group)
        rewinds = GroupRewinds(session).history(group)
        if not committed and not holders:
            refuse_unknown(group, offsets.groups())
        positions = _positions(committed, cluster)
    if as_json:
        print(json.dumps(_as_json(group, holders, positions, rewinds)))
        return
    out = console()
    for topic, holder in sorted(holders.items()):
        out.print(f"Topic {topic} is held by {holder}.")
    if not holders:
        out.print("No running query holds this group.")
    if positions:
        out.print(_table(positions, now_us=SystemClock().now_us()))
    for rewind in rewinds:
        out.print(_told(rewind))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Position:
    """A committed offset beside what the partition holds now; ``state`` says why that is
    unknown, or ``ok``."""

    topic_partition: TopicPartition
    committed: CommittedOffset
    high_watermark: int | None
    state: str

    @property
    def lag(self) -> int | None:
        end = self.high_watermark
        return None if end is None else max(0, end - self.committed.offset)


def _positions(
    committed: Mapping[TopicPartition, CommittedOffset], cluster: Cluster
) -> list[_Position]:
    from spark_logbus.client import Admin
    from spark_logbus.model import Latest

    admin = Admin(cluster)
    topics = {topic.name: topic for topic in admin.topics()}
    states: dict[TopicPartition, str] = {}
    for topic_partition, entry in committed.items():
        topic = topics.get(topic_partition.topic)
        if topic is None or topic_partition.partition not in topic.partitions:
            states[topic_partition] = "topic deleted"
        elif not entry.is_of(topic.topic_id):
            states[topic_partition] = "topic recreated"
        else:
            states[topic_partition] = "ok"
    ends = admin.list_offsets(
        {topic_partition: Latest() for topic_partition, state in states.items() if state == "ok"}
    )
    return [
        _Position(
            topic_partition=topic_partition,
            committed=entry,
            high_watermark=ends.get(topic_partition),
            state=states[topic_partition],
        )
        for topic_partition, entry in sorted(committed.items())
    ]


def _table(positions: list[_Position], *, now_us: int) -> Table:
    numbers = ("partition", "committed", "high watermark", "lag", "age")
    rows = table("topic", *numbers, "by", "at (UTC)", numbers=numbers)
    rows.columns[-1].no_wrap = True
    for position in positions:
        end, lag, entry = position.high_watermark, position.lag, position.committed
        rows.add_row(
            position.topic_partition.topic,
            str(position.topic_partition.partition),
            f"{entry.offset:,}",
            position.state if end is None else f"{end:,}",
            "-" if lag is None else f"{lag:,}",
            ago(now_us - entry.committed_at_us),
            entry.actor,
            utc(entry.committed_at_us),
        )
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


def _as_json(
    group: str,
    holders: Mapping[str, GroupOwner],
    positions: list[_Position],
    rewinds: list[Rewind],
) -> dict[str, Any]:
    return {
        "group": group,
        "holders": _holders_json(holders),
        "partitions": [
            {
                "topic": position.topic_partition.topic,
                "partition": position.topic_partition.partition,
                "committed": position.committed.offset,
                "high_watermark": position.high_watermark,
                "lag": position.lag,
                "state": position.state,
                "by": position.committed.actor,
                "committed_at_us": position.committed.committed_at_us,
                "rewind_epoch": position.committed.rewind_epoch,
            }
            for position in positions
        ],
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
            for rewind in rewinds
        ],
    }


def _holders_json(holders: Mapping[str, GroupOwner]) -> dict[str, Any]:
    return {topic: asdict(holder) for topic, holder in sorted(holders.items())}

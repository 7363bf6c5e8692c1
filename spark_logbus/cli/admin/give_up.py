"""``logbus topics give-up``."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated

import typer

from spark_logbus.cli.admin.following_up import not_followed
from spark_logbus.cli.options import DEFAULT_ZOOKEEPER, AsJson, Execute, Topic, ZooKeeper
from spark_logbus.cli.output import NUMBER, Column, Console, Table, console

if TYPE_CHECKING:
    from spark_logbus.offsets.give_up import GiveUpPlan, GiveUpRow
    from spark_logbus.zookeeper import Session


def give_up(
    name: Topic,
    partition: Annotated[
        list[int] | None,
        typer.Option(
            "--partition",
            "-p",
            help="Only these partitions; default: all that their brokers refuse.",
            min=0,
        ),
    ] = None,
    keep: Annotated[
        bool | None,
        typer.Option(
            "--keep/--set-aside",
            help="Keep what is there of their logs readable, or move it aside; default: keep it "
            "where a log is there.",
            show_default=False,
        ),
    ] = None,
    execute: Execute = False,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
    as_json: AsJson = False,
) -> None:
    """Give up what is lost of partitions that are not served: their disk, or the end of an older
    copy.

    They go on behind every offset that was ever given, and keep the records that are there. A dry
    run unless --execute is given.

    \b
    Example:
      logbus topics give-up orders -p 3
      logbus topics give-up orders --execute
    """
    from spark_logbus.offsets.give_up import apply, prepare
    from spark_logbus.zookeeper import Session

    out = console(stderr=as_json)
    with Session(zookeeper, client_name="logbus-topics") as session:
        plan = prepare(name, session, only=partition or (), keep=keep)
        _plan_table(name, plan).print(as_json=as_json)
        if not execute:
            out.print(_dry_run(plan))
            return
        apply(plan, session)
        for row in _unfollowed(name, plan, session, out):
            out.print(
                f"{row.topic_partition} is given up, and broker {row.broker_id} has not followed "
                "yet; it will when it runs and ZooKeeper can be reached."
            )


def _dry_run(plan: GiveUpPlan) -> str:
    kept = [row for row in plan.rows if row.kept_end is not None]
    told = []
    if kept:
        of = "these partitions" if len(kept) == len(plan.rows) else "those with a number there"
        told.append(f"the records of {of} before what is kept stay readable, and all after it")
    if len(kept) < len(plan.rows):
        of = "the others" if kept else "these partitions"
        told.append(f"all records of {of}")
    return (
        f"Dry run: {'; '.join(told)} would be lost to readers; those that have not read to the end "
        "are told of data loss. If the disk or a newer copy of the directory can be had back, put "
        "it there and restart the broker instead. Nothing was changed; add --execute to do it."
    )


def _unfollowed(name: str, plan: GiveUpPlan, session: Session, out: Console) -> list[GiveUpRow]:
    """Waits for the brokers, and says what is served again; returns what is not in time."""
    from spark_logbus.coordination.cluster.partition_states import PartitionStates
    from spark_logbus.offsets.give_up import is_followed

    partition_states = PartitionStates(session)

    def look(left: Collection[GiveUpRow]) -> list[GiveUpRow]:
        states = partition_states.states(name)
        followed = [row for row in left if is_followed(row, states)]
        for row in followed:
            start = states[row.topic_partition.partition].end or 0
            kept = row.kept_end
            out.print(
                f"{row.topic_partition} is served again, from offset {start:,} on"
                f"{'' if kept is None else f', with what it has up to offset {kept:,}'}."
            )
        return followed

    return not_followed(plan.rows, look)


def _plan_table(name: str, plan: GiveUpPlan) -> Table:
    rows = Table(
        Column("topic"),
        Column("partition", NUMBER, of="topic_partition.partition"),
        Column("broker", NUMBER, of="broker_id"),
        Column("reached", NUMBER, "reached at least", of="known_end"),
        Column("committed", NUMBER, "groups are at"),
        Column("kept_end", NUMBER, "kept up to"),
        Column("goes_on_at", NUMBER, of="go_on_at"),
        title=f"Give up partitions of {name}",
    )
    return rows.fill(plan.rows, topic=name)

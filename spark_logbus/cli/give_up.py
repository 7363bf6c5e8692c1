"""``logbus topics give-up``."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated

import typer

from spark_logbus.cli.options import DEFAULT_ZOOKEEPER, AsJson, Execute, Topic, ZooKeeper
from spark_logbus.cli.output import NUMBER, Column, Console, Table, console

if TYPE_CHECKING:
    from spark_logbus.coordination.topics import TopicRegistry
    from spark_logbus.offsets.give_up import GiveUpPlan, GiveUpRow

_FOLLOWED_WITHIN_S = 30.0
_LOOK_EVERY_S = 0.2


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
    execute: Execute = False,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
    as_json: AsJson = False,
) -> None:
    """Give up the logs of partitions that are not served because their disk is lost.

    They go on empty, behind every offset that was ever given. A dry run unless --execute is given.

    \b
    Example:
      logbus topics give-up orders -p 3
    """
    from spark_logbus.coordination.group_offsets import GroupOffsets
    from spark_logbus.coordination.topics import TopicRegistry
    from spark_logbus.offsets.give_up import prepare
    from spark_logbus.zookeeper import Session

    out = console(stderr=as_json)
    with Session(zookeeper, client_name="logbus-topics") as session:
        topics = TopicRegistry(session)
        plan = prepare(name, topics=topics, groups=GroupOffsets(session), only=partition or ())
        _plan_table(name, plan).print(as_json=as_json)
        if not execute:
            out.print(
                "Dry run: all records of these partitions would be lost to readers; those that "
                "have not read to the end are told of data loss. If the disk or the directory can "
                "be had back, put it there and restart the broker instead. Nothing was changed; "
                "add --execute to do it."
            )
            return
        for row in plan.rows:
            topics.give_up(row.topic_partition, topic_id=plan.topic_id, go_on_at=row.go_on_at)
        for row in _unfollowed(name, plan, topics, out):
            out.print(
                f"{row.topic_partition} is given up, and broker {row.broker_id} has not followed "
                "yet; it will when it runs and ZooKeeper can be reached."
            )


def _unfollowed(
    name: str, plan: GiveUpPlan, topics: TopicRegistry, out: Console
) -> list[GiveUpRow]:
    """Wait for the brokers, and say what is served again; what is not in time."""
    from spark_logbus.clock import SystemClock
    from spark_logbus.offsets.give_up import is_followed

    clock, pause = SystemClock(), threading.Event()
    deadline = clock.monotonic() + _FOLLOWED_WITHIN_S
    left = list(plan.rows)
    while left and clock.monotonic() < deadline:
        states = topics.states(name)
        for row in [row for row in left if is_followed(row, states)]:
            left.remove(row)
            start = states[row.topic_partition.partition].end or 0
            out.print(f"{row.topic_partition} is served again, from offset {start:,} on.")
        if left:
            pause.wait(_LOOK_EVERY_S)
    return left


def _plan_table(name: str, plan: GiveUpPlan) -> Table:
    rows = Table(
        Column("topic"),
        Column("partition", NUMBER),
        Column("broker", NUMBER),
        Column("reached", NUMBER, "reached at least"),
        Column("committed", NUMBER, "groups are at"),
        Column("goes_on_at", NUMBER),
        title=f"Give up partitions of {name}",
    )
    for row in plan.rows:
        rows.add(
            {
                "topic": name,
                "partition": row.topic_partition.partition,
                "broker": row.broker_id,
                "reached": row.known_end,
                "committed": row.committed,
                "goes_on_at": row.go_on_at,
            }
        )
    return rows

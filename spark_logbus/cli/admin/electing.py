"""``logbus topics elect``."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Final

import typer

from spark_logbus.cli.admin.following_up import not_followed
from spark_logbus.cli.admin.moves_shown import BROKERS
from spark_logbus.cli.options import (
    DEFAULT_ZOOKEEPER,
    AsJson,
    Execute,
    Topic,
    ZooKeeper,
    connected,
)
from spark_logbus.cli.output import NUMBER, Column, Console, Kind, Table, console
from spark_logbus.plurals import plural

if TYPE_CHECKING:
    from spark_logbus.client import Admin, Cluster
    from spark_logbus.client.admin.unclean_elections import UncleanPlan, UncleanRow

# Offsets by broker.
_ENDS: Final = Kind(
    lambda ends: ", ".join(f"{each}: {end:,}" for each, end in ends.items()),
    lambda ends: ",".join(f"{each}:{end}" for each, end in ends.items()),
    right=True,
)


def elect(
    name: Topic,
    preferred: Annotated[
        bool,
        typer.Option("--preferred", help="Their preferred leaders, where those are in sync."),
    ] = False,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean",
            help="Brokers that are not in sync, where none that is runs: what they lack is lost.",
        ),
    ] = False,
    partition: Annotated[
        list[int] | None,
        typer.Option(
            "--partition",
            "-p",
            help="Only these partitions; default: all, with --unclean all that are offline.",
            min=0,
        ),
    ] = None,
    broker: Annotated[
        int | None,
        typer.Option(
            "--broker", help="With --unclean: this broker, and not the one with the most.", min=0
        ),
    ] = None,
    execute: Execute = False,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
    as_json: AsJson = False,
) -> None:
    """Have partitions with several replicas led by their preferred leaders again, now and not after
    a while. Writers and readers go on.

    Or, with --unclean, those that are offline as no broker in sync runs, by brokers that run and
    lack some of their records: these are lost. It shows which, and is a dry run unless --execute is
    given.

    Exit code 1 when one could not be.

    \b
    Example:
      logbus topics elect orders --preferred
      logbus topics elect orders -p 0 -p 3 --preferred
      logbus topics elect orders -p 3 --unclean
      logbus topics elect orders -p 3 --unclean --execute
    """
    if preferred == unclean:
        raise typer.BadParameter("say who is to lead: --preferred or --unclean.")
    if preferred and (execute or broker is not None):
        raise typer.BadParameter("--execute and --broker go with --unclean.")
    with connected(zookeeper) as cluster:
        from spark_logbus.client import Admin

        admin = Admin(cluster)
        if unclean:
            _elect_unclean(
                admin, cluster, name, partition or (), broker, execute=execute, as_json=as_json
            )
            return
        outcomes = admin.elect_preferred(name, partition or ())
    rows = Table(Column("topic"), Column("partition", NUMBER), Column("problem"))
    for each, error in outcomes.items():
        problem = None if error is None else error.message
        rows.add({"topic": name, "partition": each, "problem": problem})
    rows.print(as_json=as_json)
    if any(outcomes.values()):
        raise typer.Exit(1)


def _elect_unclean(
    admin: Admin,
    cluster: Cluster,
    name: str,
    partitions: Collection[int],
    broker: int | None,
    *,
    execute: bool,
    as_json: bool,
) -> None:
    out = console(stderr=as_json)
    plan = admin.elect_unclean(name, partitions, broker=broker)
    if plan.rows or as_json:
        _plan_table(name, plan).print(as_json=as_json)
    if execute and plan.rows:
        # As it was shown: where another has led since, the broker refuses.
        from spark_logbus.client.admin.unclean_elections import elect as carry_out

        plan = carry_out(cluster, name, plan)
    for where, why in sorted(plan.problems.items()):
        out.print(f"Nobody is elected leader of {where}: {why}", style="yellow")
    if not execute:
        if plan.rows:
            out.print(_dry_run(plan))
        elif plan.problems:
            raise typer.Exit(1)
        return
    unserved = _unserved(admin, name, plan, out)
    for row in unserved:
        out.print(
            f"Broker {row.elected} is elected leader of {row.topic_partition}, and does not serve "
            "it yet; its log says why."
        )
    if plan.problems or unserved:
        raise typer.Exit(1)


def _dry_run(plan: UncleanPlan) -> str:
    known = sum(row.lost_records for row in plan.rows)
    return (
        f"Dry run: of {plural(len(plan.rows), 'partition')} all records from the ends shown on "
        f"would be lost: {known:,} at least, and what came after the last note of that. Readers "
        "that have not read to the end are told of data loss. If a broker that was in sync can be "
        "started with its disk, nothing is lost: do that instead. What only such a broker has is "
        "cut off there when it comes back later. Nothing was changed; add --execute to do it."
    )


def _unserved(admin: Admin, name: str, plan: UncleanPlan, out: Console) -> list[UncleanRow]:
    """Waits for the brokers, and says what is served again; returns what is not in time."""

    def look(left: Collection[UncleanRow]) -> list[UncleanRow]:
        parts = admin.describe([name])[name].partitions
        served = [
            row
            for row in left
            if (part := parts[row.topic_partition.partition]).leader_id == row.elected
            and part.ends is not None
        ]
        for row in served:
            out.print(
                f"{row.topic_partition} is led by broker {row.elected}. It has what it had up to "
                f"offset {row.lost_from:,}, and goes on at {row.goes_on_at:,}."
            )
        return served

    return not_followed(plan.rows, look)


def _plan_table(name: str, plan: UncleanPlan) -> Table:
    rows = Table(
        Column("topic"),
        Column("partition", NUMBER),
        Column("in_sync", BROKERS, "in sync"),
        Column("reached", NUMBER, "reached at least"),
        Column("committed", NUMBER, "acknowledged up to"),
        Column("ends", _ENDS, "brokers have up to"),
        Column("elected", NUMBER),
        Column("goes_on_at", NUMBER),
        title=f"Unclean elections of {name}",
    )
    for row in plan.rows:
        rows.add(
            {
                "topic": name,
                "partition": row.topic_partition.partition,
                "in_sync": [*row.in_sync],
                "reached": row.known_end,
                "committed": row.committed,
                "ends": {str(each): end for each, end in row.ends.items()},
                "elected": row.elected,
                "goes_on_at": row.goes_on_at,
            }
        )
    return rows

"""``logbus topics elect``."""

from __future__ import annotations

from typing import Annotated

import typer

from spark_logbus.cli.options import DEFAULT_ZOOKEEPER, AsJson, Topic, ZooKeeper, connected
from spark_logbus.cli.output import NUMBER, Column, Table


def elect(
    name: Topic,
    preferred: Annotated[
        bool,
        typer.Option("--preferred", help="Their preferred leaders, where those are in sync."),
    ] = False,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", help="Only these partitions; default: all.", min=0),
    ] = None,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
    as_json: AsJson = False,
) -> None:
    """Have partitions with several replicas led by their preferred leaders again, now and not after
    a while. Writers and readers go on.

    Exit code 1 when one could not be.

    \b
    Example:
      logbus topics elect orders --preferred
      logbus topics elect orders -p 0 -p 3 --preferred
    """
    if not preferred:
        raise typer.BadParameter("say who is to lead: --preferred.")
    with connected(zookeeper) as cluster:
        from spark_logbus.client import Admin

        outcomes = Admin(cluster).elect_preferred(name, partition or ())
    rows = Table(Column("topic"), Column("partition", NUMBER), Column("problem"))
    for each, error in outcomes.items():
        problem = None if error is None else error.message
        rows.add({"topic": name, "partition": each, "problem": problem})
    rows.print(as_json=as_json)
    if any(outcomes.values()):
        raise typer.Exit(1)

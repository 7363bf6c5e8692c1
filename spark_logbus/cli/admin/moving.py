"""Moves of partitions from the command line: ``topics move``, ``cluster drain``, ``rebalance``."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from spark_logbus.cli.admin.moves_shown import outcome, place, plan_table, shown
from spark_logbus.cli.admin.quantities import parse_size
from spark_logbus.cli.completion import topic_names
from spark_logbus.cli.options import DEFAULT_ZOOKEEPER, AsJson, Execute, ZooKeeper, connected
from spark_logbus.cli.output import (
    NUMBER,
    Column,
    Console,
    Table,
    console,
    print_json,
)
from spark_logbus.errors import LogbusError
from spark_logbus.model import TopicPartition
from spark_logbus.plurals import plural
from spark_logbus.sizes import human_bytes

if TYPE_CHECKING:
    from spark_logbus.client import Admin, Cluster, MovePlan
    from spark_logbus.client.admin.move_progress import MoveFollower, MoveProgress

_LOOK_EVERY_S: Final = 1.0


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


Throttle = Annotated[
    int,
    typer.Option(
        "--throttle",
        parser=_size,
        metavar="SIZE",
        help="Bytes a second that each broker copies at most, such as 50MB; 0: as fast as it can.",
    ),
]
NoWait = Annotated[
    bool, typer.Option("--no-wait", help="Leave the brokers to it, without showing how far it is.")
]


class Manner(NamedTuple):
    """Options of all commands that move partitions."""

    throttle: int
    execute: bool
    wait: bool
    as_json: bool


def move(
    name: Annotated[
        str | None,
        typer.Argument(
            help="The topic.", metavar="TOPIC", autocompletion=topic_names, show_default=False
        ),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option("--topic", "-t", help="The topic, too.", autocompletion=topic_names),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", help="Only these partitions; default: all.", min=0),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            help="Ids of the brokers; partitions are spread over them. Of partitions with several "
            "replicas: as many as these, the preferred leader first; of several partitions they "
            "take turns.",
            metavar="ID,...",
        ),
    ] = None,
    cancel: Annotated[
        bool,
        typer.Option("--cancel", help="End moves: what has not arrived stays where it is."),
    ] = False,
    throttle: Throttle = "50MB",  # type: ignore[assignment]
    no_wait: NoWait = False,
    execute: Execute = False,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
    as_json: AsJson = False,
) -> None:
    """Move partitions of a topic to other brokers, while it is in use. A dry run unless --execute
    is given.

    The plan is shown first, then how far it is; Ctrl-C leaves the brokers to it. Exit code 1 when a
    partition could not be moved. --cancel needs no --execute.

    \b
    Example:
      logbus topics move events --to 3
      logbus topics move events -p 0 -p 1 --to 2,3 --throttle 200MB --execute
      logbus topics move bookings -p 0 --to 2,3,4 --execute
      logbus topics move events --cancel
    """
    if (name is None) == (topic is None):
        raise typer.BadParameter("name one topic, as TOPIC or with --topic.")
    if cancel == (to is not None):
        raise typer.BadParameter("give either --to or --cancel.")
    about = name or topic or ""
    with connected(zookeeper) as cluster:
        from spark_logbus.client import Admin

        admin = Admin(cluster)
        if to is None:
            _cancel(admin, about, partition, as_json=as_json)
            return
        from spark_logbus.client.admin.move_plans import plan_move
        from spark_logbus.client.admin.placement import read_placement

        brokers = _ids(to)
        placement = read_placement(admin, cluster)
        plan = plan_move(placement, about, partition or (), brokers)
        nothing = "Nothing to move: all of these partitions are there, or on their way."
        manner = Manner(throttle, execute, not no_wait, as_json)
        _carry_out(admin, cluster, plan, manner, nothing=nothing)


def drain(
    broker: Annotated[int, typer.Argument(help="The id of the broker.", min=0)],
    undo: Annotated[
        bool,
        typer.Option("--undo", help="Let partitions be placed on it again; moves go on."),
    ] = False,
    throttle: Throttle = "50MB",  # type: ignore[assignment]
    no_wait: NoWait = False,
    execute: Execute = False,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
    as_json: AsJson = False,
) -> None:
    """Move all partitions of a broker to the others, and place nothing new on it. A dry run unless
    --execute is given.

    The plan is shown first, then how far it is; Ctrl-C leaves the brokers to it. Exit code 1 when a
    partition could not be moved. --undo needs no --execute.

    \b
    Example:
      logbus cluster drain 3
      logbus cluster drain 3 --execute
      logbus cluster drain 3 --undo
    """
    from spark_logbus.client import Admin

    with connected(zookeeper) as cluster:
        admin = Admin(cluster)
        if undo:
            was = admin.undo_drain(broker)
            console(stderr=as_json).print(
                f"New partitions may be placed on broker {broker} again."
                if was
                else f"Broker {broker} was not being drained."
            )
            return
        plan = admin.plan_drain(broker)
        if execute:
            # Marked before it is planned for good, so that nothing new comes between.
            from spark_logbus.client.admin.placement import mark_drained

            mark_drained(cluster, broker)
            plan = admin.plan_drain(broker)
        nothing = f"Nothing to move: broker {broker} has no partition that is not on its way."
        manner = Manner(throttle, execute, not no_wait, as_json)
        _carry_out(admin, cluster, plan, manner, nothing=nothing)
        if execute and not no_wait:
            _tell_drained(admin, broker, as_json=as_json)


def _tell_drained(admin: Admin, broker: int, *, as_json: bool) -> None:
    plan, out = admin.plan_drain(broker), console(stderr=as_json)
    if left := len(plan.moves) + len(plan.under_way) + len(plan.left):
        out.print(
            f"Broker {broker} still has {plural(left, 'partition')}, or is to get them: see "
            "`logbus cluster`, and do the same again."
        )
        raise typer.Exit(1)
    out.print(
        f"Broker {broker} has nothing more. Stop it, and then: logbus cluster forget {broker} "
        "--execute"
    )


def rebalance(
    throttle: Throttle = "50MB",  # type: ignore[assignment]
    no_wait: NoWait = False,
    execute: Execute = False,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
    as_json: AsJson = False,
) -> None:
    """Level what the brokers have, by bytes and by number of partitions, with few moves. A dry run
    unless --execute is given.

    Nothing moves while all brokers are within 10 % of the mean. Brokers that are being drained get
    nothing. The plan is shown first, then how far it is; Ctrl-C leaves the brokers to it. Exit code
    1 when a partition could not be moved.

    \b
    Example:
      logbus cluster rebalance
      logbus cluster rebalance --throttle 200MB --execute
    """
    from spark_logbus.client import Admin

    with connected(zookeeper) as cluster:
        admin = Admin(cluster)
        nothing = "Nothing to move: the brokers are level."
        manner = Manner(throttle, execute, not no_wait, as_json)
        _carry_out(admin, cluster, admin.plan_rebalance(), manner, nothing=nothing)


def change_replicas(topic: str, replicas: int, manner: Manner, *, zookeeper: str) -> None:
    """Gives the partitions of a topic another number of replicas, by moves."""
    from spark_logbus.client import Admin

    with connected(zookeeper) as cluster:
        admin = Admin(cluster)
        has = f"{plural(replicas, 'replica')}, or is to have"
        nothing = f"Nothing to do: each partition of {topic} has {has}."
        _carry_out(admin, cluster, admin.plan_replicas(topic, replicas), manner, nothing=nothing)


def _ids(text: str) -> list[int]:
    try:
        ids = [int(each) for each in text.split(",")]
    except ValueError:
        ids = [-1]
    if min(ids) < 0:
        raise typer.BadParameter(f"--to takes ids of brokers, such as 2,3; got {text!r}.")
    return ids


def _cancel(admin: Admin, topic: str, partitions: Sequence[int] | None, *, as_json: bool) -> None:
    asked = partitions or admin.describe([topic], ends=False)[topic].partitions
    stays = admin.cancel_moves(TopicPartition(topic, each) for each in asked)
    rows = Table(Column("topic"), Column("partition", NUMBER), Column("move"))
    for where in sorted({*stays, *(TopicPartition(topic, each) for each in partitions or ())}):
        rows.add({**place(where), "move": "cancelled" if where in stays else "none"})
    rows.print(as_json=as_json, empty=f"No partition of {topic} is on its way.")


# -- the plan, and how far it is ------------------------------------------------------------


def _carry_out(
    admin: Admin,
    cluster: Cluster,
    plan: MovePlan,
    manner: Manner,
    *,
    nothing: str,
) -> None:
    throttle, execute, wait, as_json = manner
    out = console(stderr=as_json)
    if plan.moves or as_json:
        plan_table(plan).print(as_json=as_json)
    for where, why in plan.left.items():
        out.print(f"{where} stays where it is. {why}", style="yellow")
    if plan.under_way:
        out.print(f"On the way already: {plural(len(plan.under_way), 'partition')}.")
    if not plan.moves and not (plan.under_way and execute):
        if not plan.left and not plan.under_way:
            out.print(nothing)
        return
    what = f"{plural(len(plan.moves), 'partition')}, {human_bytes(plan.size_bytes)}"
    if not execute:
        out.print(f"Dry run: {what} would be moved. Nothing was changed; add --execute to do it.")
        return
    # Those that are under way are asked for again: they get the new throttle.
    under_way = {move.topic_partition: move.to for move in plan.under_way}
    admin.move_partitions({**under_way, **plan.targets()}, throttle)
    if not wait:
        out.print(f"The brokers are moving {what}; `logbus cluster` shows how far they are.")
        return
    from spark_logbus.client.admin.move_progress import MoveFollower

    try:
        found = _follow(MoveFollower(admin, cluster, plan), console(stderr=True))
    except KeyboardInterrupt:
        out.print(
            "Interrupted: the brokers go on moving; `logbus cluster` shows how far they are, and "
            "`logbus topics move TOPIC --cancel` ends it."
        )
        raise
    _tell_end(found, out, as_json=as_json)


def _follow(follower: MoveFollower, out: Console) -> MoveProgress:
    """Shows how far moves are, until the last one is over."""
    pause, trouble = threading.Event(), ""
    with shown(out) as show:
        while True:
            try:
                found = follower.look()
            except LogbusError as error:
                if not error.retriable:
                    raise
                if str(error) != trouble:
                    trouble = str(error)
                    out.print(f"The brokers do not tell how far they are, and go on: {error}")
            else:
                trouble = ""
                show(found)
                if found.over:
                    return found
            pause.wait(_LOOK_EVERY_S)


def _tell_end(found: MoveProgress, out: Console, *, as_json: bool) -> None:
    if as_json:
        print_json(outcome(found))
    for where, why in sorted({**found.failed, **found.stayed}.items()):
        failed = where in found.failed
        out.print(
            f"{where} {'was not moved' if failed else 'is not moved any more'}: {why}",
            style="bold red" if failed else "yellow",
        )
    if found.arrived:
        out.print(
            f"Moved {plural(len(found.arrived), 'partition')}, {human_bytes(found.copied_bytes)}."
        )
    if found.failed or found.stayed:
        raise typer.Exit(1)

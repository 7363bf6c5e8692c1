"""``logbus cluster``: brokers, what they lead, what nobody serves, and who is gone for good."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from spark_logbus.cli.admin.moves_shown import fields_of_move, moves_table
from spark_logbus.cli.admin.moving import drain, rebalance
from spark_logbus.cli.options import (
    DEFAULT_ZOOKEEPER,
    AsJson,
    Execute,
    ZooKeeper,
    connected,
    opened_session,
)
from spark_logbus.cli.output import (
    MOMENT,
    NUMBER,
    SIZE,
    Column,
    Table,
    console,
    print_json,
)
from spark_logbus.plurals import plural
from spark_logbus.sizes import human_bytes
from spark_logbus.topic_replication import MIN_IN_SYNC

if TYPE_CHECKING:
    from spark_logbus.client import BrokerDescription, ClusterDescription

_SHOWN = 10  # partitions named in the line on health


class _Group(TyperGroup):
    """``logbus cluster`` alone shows it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["show", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_Group,
    help="Show the brokers, and if all is well; drain or forget one, or level all.",
    rich_markup_mode=None,
)
app.command("drain")(drain)
app.command("rebalance")(rebalance)


@app.command("forget")
def forget(
    broker: Annotated[int, typer.Argument(help="The id of the broker.", min=0)],
    execute: Execute = False,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
) -> None:
    """Forget a broker that is gone for good and leads nothing. A dry run unless --execute is given.

    It is refused, with names, while the broker lives or leads partitions: give those a broker of
    the same id, or delete their topics.

    \b
    Example:
      logbus cluster forget 3 --execute
    """
    from spark_logbus.coordination.cluster.gone_brokers import forget_broker

    with opened_session(zookeeper, "logbus-cluster") as session:
        found = forget_broker(session, broker, execute=execute)
    out = console()
    left = [
        *(["registration"] if found.leftover else []),
        *(["mark as one that is drained"] if found.drained else []),
    ]
    if not left:
        out.print(
            f"Broker {broker} leads nothing, and nothing of it is left in ZooKeeper: there is "
            "nothing to forget."
        )
    elif execute:
        out.print(
            f"Broker {broker} is forgotten: its {' and its '.join(left)} {_is(left)} removed."
        )
    else:
        out.print(
            f"Dry run: broker {broker} leads nothing, and its {' and its '.join(left)} would be "
            "removed. Nothing was changed; add --execute to do it."
        )


def _is(left: list[str]) -> str:
    return "is" if len(left) == 1 else "are"


@app.command("show")
def show(zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER, as_json: AsJson = False) -> None:
    """Show the brokers, their versions, what they lead and hold, and if all is well.

    Exit code 1 when a broker is away, also one that moves wait for, or a partition is served by
    nobody, takes no appends, as on a full disk, or has replicas that are not in sync.

    \b
    Example:
      logbus cluster show
    """
    from spark_logbus.client import Admin

    with connected(zookeeper) as found:
        described = Admin(found).describe_cluster()
    if as_json:
        print_json(_fields(described))
    else:
        _print(described)
    if not described.healthy:
        raise typer.Exit(1)


def _print(described: ClusterDescription) -> None:
    rows = Table(
        Column("broker", NUMBER),
        Column("address"),
        Column("version"),
        Column("started_us", MOMENT, "started (UTC)"),
        *([Column("rack")] if any(broker.rack for broker in described.brokers) else []),
        Column("partitions", NUMBER, "leads"),
        *(
            [Column("follows", NUMBER)]
            if any(broker.follows for broker in described.brokers)
            else []
        ),
        Column("offline", NUMBER),
        Column("size_bytes", SIZE, "size"),
        Column("state"),
    )
    for broker in described.brokers:
        row = _broker_fields(broker)
        state = {"state": "red"} if broker.problem else {"state": "green"}
        row["state"] = broker.problem or ("drained" if broker.drained else "ok")
        rows.add(row, styles=state)
    out = console()
    out.print(f"ZooKeeper {described.zookeeper}")
    out.print(rows)
    if described.moves:
        running = [each.broker_id for each in described.brokers if each.registration is not None]
        out.print(moves_table(described.moves, running))
    out.print(_verdict(described), style="green" if described.healthy else "bold red")


def _verdict(described: ClusterDescription) -> str:
    holds = (
        f"{plural(len(described.brokers), 'broker')}, {plural(described.topics, 'topic')}, "
        f"{plural(described.partitions, 'partition')}, {human_bytes(described.size_bytes)}"
    )
    if described.moves:
        failed = sum(bool(each.error) for each in described.moves)
        holds += f"; {plural(len(described.moves) - failed, 'move')} under way"
        holds += f", {failed:,} failed" * (failed > 0)
    if described.healthy:
        return f"Healthy: {holds}."
    troubles = [
        f"broker {broker.broker_id} is not running"
        if broker.registration is None
        else f"broker {broker.broker_id} has a problem"
        for broker in described.brokers
        if broker.problem is not None
    ]
    for broker_id, moves in described.waiting.items():
        troubles.append(f"{plural(moves, 'move')} waiting for broker {broker_id}")
    for state, found in (
        ("offline", described.offline),
        ("under-replicated", described.under_replicated),
        (f"under {MIN_IN_SYNC}", described.under_min_in_sync),
    ):
        if names := list(map(str, found)):
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            troubles.append(
                f"{len(names):,} of {plural(described.partitions, 'partition')} {state}: "
                f"{', '.join(names[:_SHOWN])}{more}"
            )
    return f"Not healthy: {'; '.join(troubles)}. There are {holds}."


def _fields(described: ClusterDescription) -> dict[str, Any]:
    return {
        "healthy": described.healthy,
        "zookeeper": described.zookeeper,
        "topics": described.topics,
        "partitions": described.partitions,
        "size_bytes": described.size_bytes,
        "brokers": [_broker_fields(broker) for broker in described.brokers],
        "offline": [
            {"topic": each.topic, "partition": each.partition, "leader": leader}
            for each, leader in described.offline.items()
        ],
        "under_replicated": [
            {"topic": each.topic, "partition": each.partition, "not_in_sync": brokers}
            for each, brokers in described.under_replicated.items()
        ],
        "under_min_in_sync": [
            {"topic": each.topic, "partition": each.partition, "in_sync": in_sync}
            for each, in_sync in described.under_min_in_sync.items()
        ],
        "moves": [fields_of_move(each) for each in described.moves],
        "waiting": [
            {"broker": broker_id, "moves": moves} for broker_id, moves in described.waiting.items()
        ],
    }


def _broker_fields(broker: BrokerDescription) -> dict[str, Any]:
    at = broker.registration
    return {
        "broker": broker.broker_id,
        "address": None if at is None else f"{at.address.host}:{at.address.port}",
        "version": None if at is None else at.version,
        "started_us": None if at is None else at.started_us,
        "rack": broker.rack,
        "partitions": broker.partitions,
        "follows": broker.follows,
        "offline": broker.offline,
        "size_bytes": broker.size_bytes,
        "refusing": broker.refusing,
        "drained": broker.drained,
        "problem": broker.problem,
    }

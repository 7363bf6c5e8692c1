"""``logbus cluster``: brokers, what they lead, and what nobody serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from spark_logbus.cli.options import DEFAULT_ZOOKEEPER, AsJson, ZooKeeper, connected
from spark_logbus.cli.output import (
    MOMENT,
    NUMBER,
    SIZE,
    Column,
    Table,
    console,
    human_bytes,
    plural,
    print_json,
)

if TYPE_CHECKING:
    from spark_logbus.client import BrokerDescription, ClusterDescription

_SHOWN = 10  # partitions named in the line on health


def cluster(zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER, as_json: AsJson = False) -> None:
    """Show the brokers, their versions, what they lead and hold, and if all is well.

    Exit code 1 when a broker is away, or a partition is served by nobody or takes no appends, as
    on a full disk.

    \b
    Example:
      logbus cluster
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
        Column("partitions", NUMBER, "leads"),
        Column("offline", NUMBER),
        Column("size_bytes", SIZE, "size"),
        Column("state"),
    )
    for broker in described.brokers:
        row = _broker_fields(broker)
        state = {"state": "red"} if broker.problem else {"state": "green"}
        row["state"] = broker.problem or "ok"
        rows.add(row, styles=state)
    out = console()
    out.print(f"ZooKeeper {described.zookeeper}")
    out.print(rows)
    out.print(_verdict(described), style="green" if described.healthy else "bold red")


def _verdict(described: ClusterDescription) -> str:
    holds = (
        f"{plural(len(described.brokers), 'broker')}, {plural(described.topics, 'topic')}, "
        f"{plural(described.partitions, 'partition')}, {human_bytes(described.size_bytes)}"
    )
    if described.healthy:
        return f"Healthy: {holds}."
    troubles = [
        f"broker {broker.broker_id} is not running"
        if broker.registration is None
        else f"broker {broker.broker_id} has a problem"
        for broker in described.brokers
        if broker.problem is not None
    ]
    if offline := list(map(str, described.offline)):
        more = f" and {len(offline) - _SHOWN} more" if len(offline) > _SHOWN else ""
        named = f"{', '.join(offline[:_SHOWN])}{more}"
        troubles.append(f"{len(offline):,} of {plural(described.partitions, 'partition')} "
                        f"offline: {named}")  # fmt: skip
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
    }


def _broker_fields(broker: BrokerDescription) -> dict[str, Any]:
    at = broker.registration
    return {
        "broker": broker.broker_id,
        "address": None if at is None else f"{at.address.host}:{at.address.port}",
        "version": None if at is None else at.version,
        "started_us": None if at is None else at.started_us,
        "partitions": broker.partitions,
        "offline": broker.offline,
        "size_bytes": broker.size_bytes,
        "refusing": broker.refusing,
        "problem": broker.problem,
    }

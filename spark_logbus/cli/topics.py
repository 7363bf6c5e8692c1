"""``logbus topics``: create, list, describe, delete."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from spark_logbus.cli.options import DEFAULT_ZOOKEEPER, ZooKeeper, connected

app = typer.Typer(help="Create, list, describe and delete topics.", no_args_is_help=True)


def _parse_config(pairs: list[str]) -> dict[str, str]:
    from spark_logbus.errors import ConfigError

    config = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator:
            raise ConfigError(f"--config takes key=value, got {pair!r}.")
        config[key.strip()] = value.strip()
    return config


@app.command("create")
def create(
    name: str,
    partitions: Annotated[int, typer.Option(help="How many partitions.", min=1)] = 1,
    config: Annotated[
        list[str] | None, typer.Option(help="key=value, such as retention.ms=3600000.")
    ] = None,
    if_not_exists: Annotated[bool, typer.Option(help="Be content if it is there.")] = False,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
) -> None:
    """Create a topic and wait until its partitions can be used."""
    from spark_logbus.client import Admin

    with connected(zookeeper) as cluster:
        Admin(cluster).create_topic(
            name,
            partitions=partitions,
            config=_parse_config(config or []),
            if_not_exists=if_not_exists,
        )
    Console().print(f"Topic {name} is ready with {partitions} partition(s).", highlight=False)


@app.command("list")
def list_(zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER) -> None:
    """All topics with their record counts and sizes."""
    from spark_logbus.client import Admin

    with connected(zookeeper) as cluster:
        described = Admin(cluster).describe(None, ends=True)
    table = Table("topic", "partitions", "records", "size", "offline")
    for column in table.columns[1:]:
        column.justify = "right"
    for name in sorted(described):
        ends = [partition.ends for partition in described[name].partitions.values()]
        known = [end for end in ends if end is not None]
        records = sum(end.high_watermark - end.log_start_offset for end in known)
        size = sum(end.size_bytes for end in known)
        offline = len(ends) - len(known)
        table.add_row(
            name,
            f"{len(ends)}",
            f"{records:,}",
            human_bytes(size),
            f"{offline}" if offline else "-",
        )
    Console().print(table)


@app.command("describe")
def describe(name: str, zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER) -> None:
    """A topic's partitions: leaders, offsets and sizes."""
    from spark_logbus.client import Admin
    from spark_logbus.errors import UnknownTopicError

    with connected(zookeeper) as cluster:
        described = Admin(cluster).describe([name], ends=True).get(name)
    if described is None:
        raise UnknownTopicError(f"There is no topic {name!r}; `logbus topics list` shows all.")
    table = Table("partition", "leader", "log start", "high watermark", "size", title=name)
    for column in (0, 2, 3, 4):
        table.columns[column].justify = "right"
    for number, partition in sorted(described.partitions.items()):
        ends = partition.ends
        table.add_row(
            str(number),
            str(partition.leader) if partition.leader else "[red]none[/]",
            f"{ends.log_start_offset:,}" if ends else "?",
            f"{ends.high_watermark:,}" if ends else "?",
            human_bytes(ends.size_bytes) if ends else "?",
        )
    console = Console()
    console.print(table)
    for key, value in sorted(described.config.items()):
        console.print(f"  {key} = {value}", highlight=False)


@app.command("delete")
def delete(
    name: str,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
) -> None:
    """Delete a topic and all its records."""
    from spark_logbus.client import Admin

    if not yes:
        typer.confirm(f"Delete topic {name} and all its records?", abort=True)
    with connected(zookeeper) as cluster:
        Admin(cluster).delete_topic(name)
    Console().print(f"Topic {name} is deleted.", highlight=False)


def human_bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"

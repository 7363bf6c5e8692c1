"""``logbus topics``: create, list, describe, delete."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from spark_logbus.cli.options import DEFAULT_ZOOKEEPER, ZooKeeper, connected
from spark_logbus.cli.output import console, human_bytes, plural, table

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

    wanted = _parse_config(config or [])
    with connected(zookeeper) as cluster:
        admin = Admin(cluster)
        admin.create_topic(name, partitions=partitions, config=wanted, if_not_exists=if_not_exists)
        # With --if-not-exists it may have been there, and with another number.
        found = len(admin.describe([name], ends=False)[name].partitions)
    console().print(f"Topic {name} is ready with {plural(found, 'partition')}.")


@app.command("list")
def list_(zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER) -> None:
    """All topics with their record counts and sizes."""
    from spark_logbus.client import Admin

    with connected(zookeeper) as cluster:
        described = Admin(cluster).describe(None, ends=True)
    if not described:
        console().print("There are no topics; make one with `logbus topics create`.")
        return
    numbers = ("partitions", "records", "size", "offline")
    rows = table("topic", *numbers, numbers=numbers)
    for name in sorted(described):
        ends = [partition.ends for partition in described[name].partitions.values()]
        known = [end for end in ends if end is not None]
        records = sum(end.high_watermark - end.log_start_offset for end in known)
        size = sum(end.size_bytes for end in known)
        offline = len(ends) - len(known)
        rows.add_row(
            name,
            f"{len(ends)}",
            f"{records:,}",
            human_bytes(size),
            f"{offline}" if offline else "-",
        )
    console().print(rows)


@app.command("describe")
def describe(name: str, zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER) -> None:
    """A topic's partitions: leaders, offsets and sizes."""
    from spark_logbus.client import Admin

    with connected(zookeeper) as cluster:
        described = Admin(cluster).describe([name], ends=True)[name]
    numbers = ("partition", "log start", "high watermark", "size")
    rows = table(
        "partition", "leader", "log start", "high watermark", "size", numbers=numbers, title=name
    )
    for number, partition in sorted(described.partitions.items()):
        ends = partition.ends
        rows.add_row(
            str(number),
            str(partition.leader) if partition.leader else Text("none", style="red"),
            f"{ends.log_start_offset:,}" if ends else "?",
            f"{ends.high_watermark:,}" if ends else "?",
            human_bytes(ends.size_bytes) if ends else "?",
        )
    out = console()
    out.print(rows)
    for key, value in sorted(described.config.items()):
        out.print(f"  {key} = {value}")


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
    console().print(f"Topic {name} is deleted.")

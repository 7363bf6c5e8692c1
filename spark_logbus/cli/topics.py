"""``logbus topics``: create, list, describe, alter, delete, give-up."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from spark_logbus.cli.expiring import expiring
from spark_logbus.cli.give_up import give_up
from spark_logbus.cli.options import DEFAULT_ZOOKEEPER, ZooKeeper, connected
from spark_logbus.cli.output import console, human_bytes, plural, table

app = typer.Typer(help="Create, list, describe, alter and delete topics.", no_args_is_help=True)

app.command("give-up")(give_up)


def _parse_config(pairs: list[str], *, option: str = "--config") -> dict[str, str]:
    from spark_logbus.errors import ConfigError

    config = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator:
            raise ConfigError(f"{option} takes key=value, got {pair!r}.")
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
    """All topics with their offsets and sizes. Compaction leaves offsets without a record."""
    from spark_logbus.client import Admin

    with connected(zookeeper) as cluster:
        described = Admin(cluster).describe(None, ends=True)
    if not described:
        console().print("There are no topics; make one with `logbus topics create`.")
        return
    numbers = ("partitions", "offsets", "size", "offline")
    rows = table("topic", *numbers, numbers=numbers)
    for name in sorted(described):
        ends = [partition.ends for partition in described[name].partitions.values()]
        known = [end for end in ends if end is not None]
        offsets = sum(end.high_watermark - end.log_start_offset for end in known)
        size = sum(end.size_bytes for end in known)
        offline = len(ends) - len(known)
        rows.add_row(
            name,
            f"{len(ends)}",
            f"{offsets:,}",
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


@app.command("alter")
def alter(
    name: str,
    put: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, such as retention.ms=3600000.")
    ] = None,
    drop: Annotated[
        list[str] | None, typer.Option("--unset", help="Go back to the brokers' default.")
    ] = None,
    partitions: Annotated[
        int | None, typer.Option(help="Have so many partitions from now on; only more.", min=1)
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before data is deleted.")] = False,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
) -> None:
    """Change a topic's configuration or add partitions, while it is in use."""
    from spark_logbus.client import Admin
    from spark_logbus.config import refuse_unknown

    wanted = _parse_config(put or [], option="--set")
    unwanted = drop or []
    if not wanted and not unwanted and partitions is None:
        raise typer.BadParameter("say what to change: --set, --unset or --partitions.")
    out = console()
    with connected(zookeeper) as cluster:
        admin = Admin(cluster)
        topic = admin.describe([name])[name]
        refuse_unknown(unwanted, topic.config, where=f"what topic {name} sets itself")
        warning = expiring(admin, topic, put=wanted, drop=unwanted)
        if warning:
            console(stderr=True).print(warning, style="yellow")
            if not yes:
                typer.confirm(f"Alter topic {name} all the same?", abort=True, err=True)
        done = admin.alter_topic(name, put=wanted, drop=unwanted, partitions=partitions)
    rows = table("setting", "before", "now", title=name)
    for key in sorted({*done.config_before, *done.config}):
        before, now = (each.get(key, "(default)") for each in (done.config_before, done.config))
        rows.add_row(key, before, now if now == before else Text(now, style="bold"))
    rows.add_row("partitions", str(done.partitions_before), str(done.partitions))
    out.print(rows)
    if done.partitions > done.partitions_before:
        out.print("Keys may go to other partitions from now on than their earlier records.")


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

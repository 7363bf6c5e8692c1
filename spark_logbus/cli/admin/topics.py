"""``logbus topics``: create, list, describe, alter, add partitions, delete, give up, move,
elect leaders."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_logbus.cli.admin.electing import elect
from spark_logbus.cli.admin.expiring import expiring
from spark_logbus.cli.admin.give_up import give_up
from spark_logbus.cli.admin.moves_shown import move_fields, moved_so_far
from spark_logbus.cli.admin.moving import Manner, NoWait, Throttle, change_replicas, move
from spark_logbus.cli.admin.quantities import in_units, topic_config
from spark_logbus.cli.admin.schema_files import read_schema
from spark_logbus.cli.completion import subject_names
from spark_logbus.cli.options import (
    DEFAULT_ZOOKEEPER,
    AsJson,
    Execute,
    Topic,
    Topics,
    Yes,
    ZooKeeper,
    connected,
)
from spark_logbus.cli.output import NUMBER, SIZE, Column, Table, console, print_json
from spark_logbus.plurals import plural
from spark_logbus.topic_schemas import Encoding

if TYPE_CHECKING:
    from spark_logbus.client import SchemaDescription, TopicAlteration, TopicDescription
    from spark_logbus.protocol import PartitionEnds

app = typer.Typer(
    help="Create, list, describe, alter, move and delete topics.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_PAIR = "key=value, such as retention.ms=7d or segment.bytes=256MiB; may be given more than once."


@app.command("create")
def create(
    names: Annotated[list[str], typer.Argument(help="One topic or several.", metavar="TOPIC")],
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", help="How many partitions each.", min=1)
    ] = 1,
    replicas: Annotated[
        int,
        typer.Option(
            "--replicas", "-r", help="How many brokers have a copy of each partition.", min=1
        ),
    ] = 1,
    config: Annotated[
        list[str] | None, typer.Option("--config", "-c", help=_PAIR, metavar="KEY=VALUE")
    ] = None,
    value_schema: Annotated[
        Path | None,
        typer.Option(
            "--value-schema",
            help="The file with the Avro schema of the values, as JSON, to be registered; "
            "-: standard input.",
            metavar="FILE",
        ),
    ] = None,
    value_encoding: Annotated[
        Encoding | None,
        typer.Option(
            "--value-encoding",
            help="How values with a schema are stored: a column for each field, or Avro. By "
            "default columns if a schema is given, else plain bytes.",
        ),
    ] = None,
    value_subject: Annotated[
        str | None,
        typer.Option(
            "--value-subject",
            help="The subject of the values' schemas; by default TOPIC-value.",
            metavar="SUBJECT",
            autocompletion=subject_names,
        ),
    ] = None,
    key_schema: Annotated[
        Path | None,
        typer.Option(
            "--key-schema",
            help="The file with the Avro schema of the keys, which are stored as Avro; "
            "-: standard input.",
            metavar="FILE",
        ),
    ] = None,
    key_subject: Annotated[
        str | None,
        typer.Option(
            "--key-subject",
            help="The subject of the keys' schemas, which are stored as Avro; by default "
            "TOPIC-key.",
            metavar="SUBJECT",
            autocompletion=subject_names,
        ),
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Be content if it is there.")
    ] = False,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
) -> None:
    """Create topics and wait until their partitions can be used.

    With a schema, it is registered first, and brokers take no values without a schema of its
    subject. Encodings and subjects cannot be changed afterwards.

    Replicas are on as many brokers, and in as many racks while there are enough.

    \b
    Example:
      logbus topics create orders payments -p 4 -c retention.ms=7d
      logbus topics create bookings -p 12 --replicas 3
      logbus topics create flights --value-schema flight.avsc --value-encoding columns
    """
    from spark_logbus.client import Admin

    wanted = topic_config(config or [], option="--config")
    if value_schema == key_schema == Path("-"):
        raise typer.BadParameter("only one of --value-schema and --key-schema can be -.")
    value_text, key_text = (
        None if file is None else read_schema(file) for file in (value_schema, key_schema)
    )
    has_keys = key_schema is not None or key_subject is not None
    with connected(zookeeper) as cluster:
        admin = Admin(cluster)
        for name in names:
            admin.create_topic(
                name,
                partitions=partitions,
                replicas=replicas,
                config=wanted,
                value_schema=value_text,
                value_encoding=None if value_encoding is None else value_encoding.value,
                value_subject=value_subject,
                key_schema=key_text,
                key_encoding=Encoding.AVRO.value if has_keys else None,
                key_subject=key_subject,
                if_not_exists=if_not_exists,
            )
            # With --if-not-exists it may have been there, and with another number.
            found = len(admin.describe([name], ends=False)[name].partitions)
            console().print(f"Topic {name} is ready with {plural(found, 'partition')}.")


@app.command("list")
def list_(zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER, as_json: AsJson = False) -> None:
    """All topics: replicas, offsets and sizes. Compaction leaves offsets without a record.

    \b
    Example:
      logbus topics list --json | jq -r 'select(.offline > 0).topic'
    """
    from spark_logbus.client import Admin

    with connected(zookeeper) as cluster:
        described = Admin(cluster).describe(None, ends=True)
    rows = Table(
        Column("topic"),
        Column("partitions", NUMBER),
        Column("replicas", NUMBER),
        Column("offsets", NUMBER),
        Column("size_bytes", SIZE, "size"),
        Column("offline", NUMBER),
    )
    for name in sorted(described):
        ends = [partition.ends for partition in described[name].partitions.values()]
        known = [end for end in ends if end is not None]
        offline = len(ends) - len(known)
        row = {
            "topic": name,
            "partitions": len(ends),
            "replicas": _factor(described[name]),
            "offsets": sum(_offsets_of(end) for end in known),
            "size_bytes": sum(end.size_bytes for end in known),
            "offline": offline,
        }
        rows.add(row, styles={"offline": "bold red"} if offline else None)
    rows.print(as_json=as_json, empty="There are no topics; make one with `logbus topics create`.")


@app.command("describe")
def describe(
    names: Topics, zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER, as_json: AsJson = False
) -> None:
    """Partitions of topics: leaders, replicas, offsets, sizes; schemas; all settings.

    A partition is under-replicated while some of its replicas are not in sync. A setting that is
    not the topic's own is shown as logbus has it by default; the [log] table of a broker's
    configuration may say otherwise.

    \b
    Example:
      logbus topics describe orders payments
    """
    from spark_logbus.client import Admin

    with connected(zookeeper) as cluster:
        admin = Admin(cluster)
        described = admin.describe(names, ends=True)
        schemas = admin.describe_schemas(names)
        running = {broker.broker_id for broker in cluster.brokers}
    found = [described[name] for name in dict.fromkeys(names)]
    if as_json:
        print_json(*(_fields(topic, schemas[topic.name]) for topic in found))
        return
    out = console()
    out.print(_partitions_table(found, running))
    out.print("")
    if any(schemas.values()):
        out.print(_schemas_table(schemas))
        out.print("")
    out.print(_settings_table(found))


def _partitions_table(topics: list[TopicDescription], running: Collection[int]) -> Table:
    rows = Table(
        Column("topic"),
        Column("partition", NUMBER),
        Column("leader"),
        Column("address"),
        *(
            [Column("replicas"), Column("in_sync")]
            if any(_factor(topic) > 1 for topic in topics)
            else []
        ),
        Column("log_start_offset", NUMBER, "log start"),
        Column("high_watermark", NUMBER),
        Column("size_bytes", SIZE, "size"),
        Column("state"),
        *([Column("move")] if any(_moves(topic) for topic in topics) else []),
    )
    for topic in topics:
        for row in _partitions(topic):
            shown = {**row, "topic": topic.name, "state": "ok"}
            shown |= {each: ", ".join(map(str, row[each])) for each in ("replicas", "in_sync")}
            styles = {}
            if not row["served"]:
                shown["state"], styles["state"] = "offline", "bold red"
            elif row["under_replicated"]:
                shown["state"], styles["state"] = "under-replicated", "bold red"
            if row["move"] is not None:
                shown["move"] = moved_so_far(row["move"], row["leader"], running)
                styles |= {"move": "bold red"} if row["move"]["error"] else {}
            rows.add(shown, styles=styles)
    return rows


def _moves(topic: TopicDescription) -> bool:
    return any(part.move is not None for part in topic.partitions.values())


def _factor(topic: TopicDescription) -> int:
    """The number of replicas of a partition; the largest while it is being changed."""
    return max((len(part.replicas) for part in topic.partitions.values()), default=0) or 1


def _schemas_table(schemas: Mapping[str, list[SchemaDescription]]) -> Table:
    rows = Table(
        Column("topic"),
        Column("of"),
        Column("encoding"),
        Column("subject"),
        Column("version", NUMBER),
        Column("id", NUMBER, of="schema_id"),
    )
    for topic, described in schemas.items():
        rows.fill(described, topic=topic)
    return rows


def _schema_fields(described: SchemaDescription) -> dict[str, Any]:
    return {
        "encoding": described.encoding,
        "subject": described.subject,
        "version": described.version,
        "id": described.schema_id,
    }


def _settings_table(topics: list[TopicDescription]) -> Table:
    rows = Table(
        Column("topic"), Column("setting"), Column("value"), Column("in_units"), Column("source")
    )
    for topic in topics:
        for key, setting in _settings(topic).items():
            row = {
                "topic": topic.name,
                "setting": key,
                "in_units": in_units(key, setting["value"]),
                **setting,
            }
            rows.add(row, styles={"value": "bold"} if setting["source"] == "topic" else None)
    return rows


def _fields(topic: TopicDescription, schemas: list[SchemaDescription]) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "topic_id": topic.topic_id,
        "partitions": _partitions(topic),
        "schemas": {each.of: _schema_fields(each) for each in schemas},
        "settings": _settings(topic),
    }


def _partitions(topic: TopicDescription) -> list[dict[str, Any]]:
    return [
        {
            "partition": number,
            "leader": partition.leader_id,
            "address": f"{partition.leader.host}:{partition.leader.port}"
            if partition.leader
            else None,
            "log_start_offset": partition.ends.log_start_offset if partition.ends else None,
            "high_watermark": partition.ends.high_watermark if partition.ends else None,
            "size_bytes": partition.ends.size_bytes if partition.ends else None,
            "served": partition.ends is not None,
            "replicas": list(partition.replicas) or [partition.leader_id],
            "in_sync": list(partition.in_sync) or [partition.leader_id],
            "under_replicated": partition.is_under_replicated,
            "move": None if partition.move is None else move_fields(partition.move),
        }
        for number, partition in sorted(topic.partitions.items())
    ]


def _offsets_of(ends: PartitionEnds) -> int:
    """Number of records between log start and high watermark that are not lost."""
    from spark_logbus.offsets.snapshot import span_of

    span = span_of(ends)
    return span.count(span.start, span.end)


def _settings(topic: TopicDescription) -> dict[str, dict[str, str]]:
    """Value and source of each key, the topic's own first."""
    from spark_logbus.log.config import LogConfig
    from spark_logbus.topic_replication import default_config

    replicas = max((len(each.replicas) for each in topic.partitions.values()), default=0)
    defaults = default_config(replicas) if replicas > 1 else {}
    values = {**LogConfig().topic_config, **defaults, **topic.config}
    settings = {
        key: {"value": values[key], "source": "topic" if key in topic.config else "default"}
        for key in sorted(values)
    }
    return dict(sorted(settings.items(), key=lambda setting: setting[1]["source"] != "topic"))


@app.command("alter")
def alter(
    name: Topic,
    put: Annotated[
        list[str] | None, typer.Option("--set", "-s", help=_PAIR, metavar="KEY=VALUE")
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(
            "--unset", "-u", help="A key that goes back to the brokers' default.", metavar="KEY"
        ),
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", help="Have so many from now on; only more.", min=1),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replicas",
            "-r",
            help="Have so many replicas of each partition. A plan is shown, and done with "
            "--execute.",
            min=1,
        ),
    ] = None,
    throttle: Throttle = "50MB",  # type: ignore[assignment]
    no_wait: NoWait = False,
    execute: Execute = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask before data is deleted.")
    ] = False,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
    as_json: AsJson = False,
) -> None:
    """Change a topic's configuration or its replicas, or add partitions, while it is in use.

    Replicas are added where least is, in other racks while there are some, and taken away where
    most is; that is done by moves of partitions, which `logbus cluster` shows. A dry run unless
    --execute is given.

    \b
    Example:
      logbus topics alter orders -s retention.ms=12h -u segment.bytes
      logbus topics alter orders --replicas 3 --execute
    """
    from spark_logbus.client import Admin
    from spark_logbus.config import refuse_unknown

    wanted = topic_config(put or [], option="--set")
    unwanted = drop or []
    other = bool(wanted or unwanted or partitions is not None)
    if replicas is not None:
        if other:
            raise typer.BadParameter("change --replicas by itself, as it takes a while.")
        manner = Manner(throttle, execute, not no_wait, as_json)
        change_replicas(name, replicas, manner, zookeeper=zookeeper)
        return
    if execute or no_wait:
        raise typer.BadParameter("--execute and --no-wait are for --replicas.")
    if not other:
        raise typer.BadParameter("say what to change: --set, --unset, --partitions or --replicas.")
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
    _changes(done).print(as_json=as_json)
    if done.partitions > done.partitions_before:
        _note_keys()


def _changes(done: TopicAlteration) -> Table:
    rows = Table(Column("setting"), Column("before"), Column("now"))
    for key in sorted({*done.config_before, *done.config}):
        before, now = done.config_before.get(key), done.config.get(key)
        row = {"setting": key, "before": before or "default", "now": now or "default"}
        rows.add(row, styles=None if now == before else {"now": "bold"})
    rows.add({"setting": "partitions", "before": str(done.partitions_before),
              "now": str(done.partitions)})  # fmt: skip
    return rows


def _note_keys() -> None:
    console(stderr=True).print(
        "Keys may go to other partitions from now on than their earlier records."
    )


@app.command("add-partitions")
def add_partitions(
    names: Topics,
    num: Annotated[int, typer.Option("--num", "-n", help="How many more each.", min=1)],
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
) -> None:
    """Add partitions to topics; to have a certain number, see topics alter --partitions.

    \b
    Example:
      logbus topics add-partitions orders -n 2
    """
    from spark_logbus.client import Admin

    with connected(zookeeper) as cluster:
        admin = Admin(cluster)
        topics = admin.describe(names, ends=False)
        for name in dict.fromkeys(names):
            wanted = len(topics[name].partitions) + num
            done = admin.alter_topic(name, partitions=wanted)
            console().print(
                f"Topic {name} has {plural(done.partitions, 'partition')}, and had "
                f"{done.partitions_before:,}."
            )
    _note_keys()


@app.command("delete")
def delete(names: Topics, yes: Yes = False, zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER) -> None:
    """Delete topics and all their records.

    \b
    Example:
      logbus topics delete orders --yes
    """
    from spark_logbus.client import Admin

    if not yes:
        what = f"topic {names[0]} and all its" if len(names) == 1 else f"{', '.join(names)} and all"
        typer.confirm(f"Delete {what} records?", abort=True)
    with connected(zookeeper) as cluster:
        admin = Admin(cluster)
        for name in dict.fromkeys(names):
            admin.delete_topic(name)
            console().print(f"Topic {name} is deleted.")


app.command("give-up")(give_up)
app.command("move")(move)
app.command("elect")(elect)

"""``logbus mirror``: copy topics into another cluster, and what belongs to that."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Annotated, Final

import typer

from spark_logbus.cli.options import (
    DEFAULT_ZOOKEEPER,
    AsJson,
    Execute,
    Group,
    Yes,
    ZooKeeper,
    opened_session,
)
from spark_logbus.cli.output import (
    MARK,
    NUMBER,
    Column,
    Table,
    console,
)
from spark_logbus.errors import InvalidRequestError
from spark_logbus.plurals import plural

if TYPE_CHECKING:
    from spark_logbus.selection import Selection

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_DEFAULT_NAME: Final = "mirror"

Name = Annotated[
    str, typer.Option("--name", "-n", help="The mirror's own name, by which its state is kept.")
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        "-f",
        envvar="LOGBUS_MIRROR_FROM",
        help="ZooKeeper's address and chroot of the cluster that is copied.",
        metavar="HOST:PORT/PATH",
    ),
]
Kafka = Annotated[
    str | None,
    typer.Option(
        help="Copy from Kafka instead, at these bootstrap servers (the extra kafka).",
        metavar="HOST:PORT,...",
    ),
]


@app.callback(invoke_without_command=True)
def mirror(
    context: typer.Context,
    source: From = None,
    from_kafka: Kafka = None,
    topics: Annotated[
        str | None, typer.Option("--topics", "-t", help="These topics, with commas between them.")
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option(
            help="All topics whose whole name matches this regular expression, later ones too."
        ),
    ] = None,
    name: Name = _DEFAULT_NAME,
    rename: Annotated[
        str, typer.Option(help="The names of the copies, as in replica.{topic}.")
    ] = "{topic}",
    once: Annotated[bool, typer.Option("--once", help="Copy what is there now, and end.")] = False,
    allow_gaps: Annotated[
        bool,
        typer.Option(
            "--allow-gaps",
            help="Copy what is left when the source deleted records before they were copied.",
        ),
    ] = False,
    round_bytes: Annotated[
        int, typer.Option(help="About the bytes of a round, which is committed at once.", min=1)
    ] = 64 << 20,
    audit: Annotated[
        bool,
        typer.Option(
            "--audit", help="Count what is copied, by window, in the target's topic logbus-audit."
        ),
    ] = False,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
    as_json: AsJson = False,
) -> None:
    """Copy topics into the cluster of --zookeeper from the one of --from, until SIGTERM or Ctrl-C.

    Partitions, keys, timestamps, headers and schemas stay what they are, and each record is there
    once, however often a mirror is killed and started again under its name.

    \b
    Example:
      logbus mirror --from main:2181/logbus -z replica:2181/logbus --topics clicks,views
    """
    if context.invoked_subcommand is not None:
        return
    from spark_logbus.cli.admin.mirroring import MirrorReporter
    from spark_logbus.mirror import MirrorConfig, Renaming, open_mirror, run_mirror
    from spark_logbus.signals import call_at

    _require_one_source(source, from_kafka)
    config = MirrorConfig(
        name=name,
        topics=_selection(topics, pattern),
        renaming=Renaming(rename),
        allow_gaps=allow_gaps,
        round_bytes=round_bytes,
        audit=audit,
    )
    with open_mirror(config, target=zookeeper, zookeeper=source, kafka=from_kafka) as opened:
        call_at([signal.SIGTERM, signal.SIGINT], opened.stop)
        with MirrorReporter(as_json=as_json) as reporter:
            copied = run_mirror(opened, once=once, listener=reporter)
    if as_json:
        return
    out = console()
    if opened.stopping.is_set():
        out.print(f"Stopped; {plural(copied, 'record')} copied. Start it again to go on.")
    elif copied:
        out.print(f"Copied {plural(copied, 'record')}.")
    else:
        out.print("Nothing new.")


def _require_one_source(source: str | None, kafka: str | None) -> None:
    if (source is None) == (kafka is None):
        raise InvalidRequestError(
            "Say where to copy from, once: --from HOST:PORT/PATH for another cluster, or "
            "--from-kafka HOST:PORT for Kafka."
        )


def _selection(topics: str | None, pattern: str | None) -> Selection:
    import re

    from spark_logbus.model import check_name
    from spark_logbus.selection import Pattern, Topics

    if (topics is None) == (pattern is None):
        raise InvalidRequestError("Say which topics, once: --topics clicks,views, or --pattern.")
    if topics is not None:
        return Topics(tuple(check_name("topic", each.strip()) for each in topics.split(",")))
    assert pattern is not None
    try:
        re.compile(pattern)
    except re.error as error:
        raise InvalidRequestError(
            f"--pattern {pattern!r} is no regular expression: {error}."
        ) from error
    return Pattern(pattern)


# -- what belongs to it -------------------------------------------------------------------


@app.command("status")
def status(
    name: Name = _DEFAULT_NAME,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
    as_json: AsJson = False,
) -> None:
    """Show how far a mirror has come, as its state in the target's ZooKeeper says.

    \b
    Example:
      logbus mirror status -z replica:2181/logbus
    """
    from spark_logbus.coordination.mirrors import Mirrors

    with opened_session(zookeeper, "mirror") as session:
        state = Mirrors(session).read(name)
    rows = Table(
        Column("topic"),
        Column("partition", NUMBER),
        Column("copy"),
        Column("position", NUMBER),
        Column("target_offset", NUMBER),
        title=f"Mirror {name} of {state.source}, round {state.round.number}",
    )
    for topic, entry in sorted(state.topics.items()):
        for partition, points in sorted(entry.points.items()):
            rows.add(
                {
                    "topic": topic,
                    "partition": partition,
                    "copy": entry.target,
                    "position": points[-1].source,
                    "target_offset": points[-1].target,
                }
            )
    rows.print(as_json=as_json, empty=f"The mirror {name} has copied nothing yet.")


@app.command("offsets")
def offsets(
    group: Group,
    source: From = None,
    from_kafka: Kafka = None,
    name: Name = _DEFAULT_NAME,
    execute: Execute = False,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
    as_json: AsJson = False,
) -> None:
    """Carry a group's committed offsets over to the copies; a dry run unless --execute is given.

    A group that goes on there reads every record that it has not read in the source. Where an
    offset of a compacted topic is inexact, it may read some again.

    \b
    Example:
      logbus mirror offsets billing --from main:2181/logbus -z replica:2181/logbus --execute
    """
    from spark_logbus.mirror import source_at, translate_group

    _require_one_source(source, from_kafka)
    with (
        opened_session(zookeeper, "mirror") as session,
        source_at(zookeeper=source, kafka=from_kafka) as opened,
    ):
        found = translate_group(name, group, source=opened, session=session, execute=execute)
    rows = Table(
        Column("topic", of="source.topic"),
        Column("partition", NUMBER, of="source.partition"),
        Column("committed", NUMBER),
        Column("copy", of="target.topic"),
        Column("new", NUMBER),
        Column("inexact", MARK, of=lambda each: not each.exact),
        Column("not_copied", NUMBER, of="ahead"),
        title=f"Group {group} in the copies of mirror {name}",
    )
    rows.fill(found, group=group).print(as_json=as_json)
    out = console(stderr=as_json)
    if execute:
        out.print(f"Committed for group {group} in {plural(len(found), 'partition')}.")
    else:
        out.print("Dry run: nothing was changed; add --execute to do it.")


@app.command("forget")
def forget(
    topic: Annotated[str, typer.Argument(help="The topic's name in the source.", metavar="TOPIC")],
    name: Name = _DEFAULT_NAME,
    yes: Yes = False,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
) -> None:
    """Let a mirror know nothing of a topic any more: it is copied anew, from its beginning.

    For a topic that was deleted and created again, here or there. Its copy has to be deleted first,
    or the next one gets another name.

    \b
    Example:
      logbus mirror forget clicks -z replica:2181/logbus
    """
    from spark_logbus.mirror import forget_topic

    if not yes:
        typer.confirm(f"Forget how far mirror {name} has copied {topic}?", abort=True)
    with opened_session(zookeeper, "mirror") as session:
        forget_topic(name, topic, session=session)
    console().print(f"Mirror {name} knows nothing of {topic} any more.")

"""Arguments and options that several verbs share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from spark_logbus.cli.completion import group_names, topic_names

if TYPE_CHECKING:
    from spark_logbus.client import ClientConfig, Cluster

DEFAULT_ZOOKEEPER = "localhost:2181/logbus"
ZooKeeper = Annotated[
    str,
    typer.Option(
        "--zookeeper",
        "-z",
        envvar="LOGBUS_ZOOKEEPER",
        help="ZooKeeper's address and chroot.",
        metavar="HOST:PORT/PATH",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", "-J", help="One JSON object a line.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Execute = Annotated[
    bool, typer.Option("--execute", "-x", help="Do it. Without this nothing is changed.")
]
Topic = Annotated[
    str, typer.Argument(help="The topic.", metavar="TOPIC", autocompletion=topic_names)
]
Topics = Annotated[
    list[str],
    typer.Argument(help="One topic or several.", metavar="TOPIC", autocompletion=topic_names),
]
Group = Annotated[
    str, typer.Argument(help="The group.", metavar="GROUP", autocompletion=group_names)
]
Groups = Annotated[
    list[str],
    typer.Argument(help="One group or several.", metavar="GROUP", autocompletion=group_names),
]


@contextmanager
def connected(zookeeper: str, config: ClientConfig | None = None) -> Iterator[Cluster]:
    """A client cluster for the length of one command."""
    from spark_logbus.client import Cluster

    with Cluster.from_zookeeper(zookeeper, config) as cluster:
        yield cluster

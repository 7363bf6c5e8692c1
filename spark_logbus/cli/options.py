"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from spark_logbus.client import ClientConfig, Cluster

ZooKeeper = Annotated[
    str,
    typer.Option(
        "--zookeeper",
        "-z",
        envvar="LOGBUS_ZOOKEEPER",
        help="ZooKeeper's address and chroot.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
DEFAULT_ZOOKEEPER = "localhost:2181/logbus"


@contextmanager
def connected(zookeeper: str, config: ClientConfig | None = None) -> Iterator[Cluster]:
    """A client cluster for the length of one command."""
    from spark_logbus.client import Bootstrap, Cluster

    with Cluster.connect(
        Bootstrap.from_zookeeper(zookeeper),
        config,
        rebootstrap=lambda: Bootstrap.from_zookeeper(zookeeper),
    ) as cluster:
        yield cluster

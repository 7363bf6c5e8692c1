"""``logbus registry``: serve the schema registry in the foreground."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from spark_logbus.cli.options import DEFAULT_ZOOKEEPER, ZooKeeper
from spark_logbus.cli.server.serving import serve


def registry(
    host: Annotated[
        str, typer.Option(help="The address to listen on; 0.0.0.0 for all of this machine's.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", help="0: any free one.")] = 8081,
    preferred_port: Annotated[
        int | None, typer.Option(help="With --port 0: the one to take if it is free.")
    ] = None,
    ready_file: Annotated[
        Path | None, typer.Option(help="Write the URL to this file once requests are served.")
    ] = None,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
) -> None:
    """Serve schemas over Confluent's Schema Registry API until SIGTERM or Ctrl-C.

    All that is kept is in ZooKeeper: any number of registries can run side by side. There is no
    encryption and no password; let only those reach it who may register schemas.

    \b
    Example:
      logbus registry --host 0.0.0.0 --port 8081
    """
    from spark_logbus.schemas.rest.server import RegistryServer

    server = RegistryServer(
        zookeeper=zookeeper, host=host, port=port, preferred_port=preferred_port
    )
    logging.getLogger("spark_logbus").setLevel(logging.INFO)
    serve(
        server,
        "The registry",
        address=lambda: server.url,
        ready_file=ready_file,
        does="Schemas are served",
    )

"""``logbus broker``: run one broker in the foreground."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from spark_logbus.cli.server.serving import serve
from spark_logbus.errors import LogbusError
from spark_logbus.security.profiles import use_profiles_beside

logger = logging.getLogger(__name__)


def broker(
    config: Annotated[
        Path, typer.Option("--config", "-c", help="TOML file; see conf/broker.toml.")
    ],
    ready_file: Annotated[
        Path | None,
        typer.Option(help="Write host:port to this file once requests are served."),
    ] = None,
    log_format: Annotated[
        str | None,
        typer.Option(help="text, or json: one object a line; default: [logging] of the file."),
    ] = None,
) -> None:
    """Run one broker until SIGTERM or Ctrl-C. A profile that the file names is looked for in
    profiles.toml beside it, if that is there and LOGBUS_PROFILES is not set.

    \b
    Example:
      logbus broker -c conf/broker.toml
    """
    from spark_logbus.broker import load_broker_config
    from spark_logbus.cli.server.logs import configure
    from spark_logbus.gateway.beside import BrokerWithGateway

    use_profiles_beside(config)
    loaded = load_broker_config(config)
    logging_config = replace(loaded.logging, format=log_format or loaded.logging.format)
    configure(
        format=logging_config.format,
        level=logging_config.level,
        broker_id=loaded.id,
        audit_file=logging_config.audit_file,
    )
    server = BrokerWithGateway(loaded)
    try:
        serve(
            server,
            f"Broker {loaded.id}",
            address=lambda: f"{server.broker.address.host}:{server.broker.address.port}",
            ready_file=ready_file,
            does="The broker serves",
        )
    except LogbusError as error:
        if logging_config.format == "text":
            raise  # shown as every verb shows its error
        logger.critical("%s", error)
        raise typer.Exit(1) from error

"""``logbus broker``: run one broker in the foreground."""

from __future__ import annotations

import logging
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

log = logging.getLogger(__name__)


def broker(
    config: Annotated[Path, typer.Option(help="TOML file; see conf/broker.toml.")],
    ready_file: Annotated[
        Path | None,
        typer.Option(help="Write host:port to this file once requests are served."),
    ] = None,
    log_format: Annotated[
        str | None,
        typer.Option(help="text, or json: one object a line; default: [logging] of the file."),
    ] = None,
) -> None:
    """Run one broker until SIGTERM or Ctrl-C."""
    from spark_logbus.broker import Broker, LoggingConfig, load_broker_config
    from spark_logbus.cli.logs import configure
    from spark_logbus.errors import LogbusError

    loaded = load_broker_config(config)
    logging_config = LoggingConfig(log_format or loaded.logging.format, loaded.logging.level)
    configure(format=logging_config.format, level=logging_config.level, broker_id=loaded.id)
    server = Broker(loaded)
    stop = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    try:
        server.start()
    except LogbusError as error:
        if logging_config.format == "text":
            raise  # shown as every verb shows its error
        log.critical("%s", error)
        raise typer.Exit(1) from error
    try:
        if ready_file is not None:
            fresh = ready_file.with_suffix(".new")
            fresh.write_text(f"{server.address.host}:{server.address.port}\n")
            fresh.replace(ready_file)
        stop.wait()
    finally:
        server.stop()

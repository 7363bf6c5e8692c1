"""``logbus broker``: run one broker in the foreground."""

from __future__ import annotations

import logging
import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from spark_logbus.signals import call_at

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
    """Run one broker until SIGTERM or Ctrl-C.

    \b
    Example:
      logbus broker -c conf/broker.toml
    """
    from spark_logbus.broker import Broker, LoggingConfig, load_broker_config
    from spark_logbus.cli.server.logs import configure
    from spark_logbus.errors import LogbusError

    loaded = load_broker_config(config)
    logging_config = LoggingConfig(log_format or loaded.logging.format, loaded.logging.level)
    configure(format=logging_config.format, level=logging_config.level, broker_id=loaded.id)
    server = Broker(loaded)
    stop = threading.Event()

    started = threading.Event()

    def on_signal() -> None:
        stop.set()
        if not started.is_set():
            server.give_up_start()

    call_at((signal.SIGTERM, signal.SIGINT), on_signal)
    try:
        server.start()
        started.set()
    except LogbusError as error:
        if stop.is_set():
            logger.info("Broker %d was stopped before it served.", loaded.id)
            return
        if logging_config.format == "text":
            raise  # shown as every verb shows its error
        logger.critical("%s", error)
        raise typer.Exit(1) from error
    try:
        if ready_file is not None:
            _write_ready_file(ready_file, f"{server.address.host}:{server.address.port}")
        stop.wait()
    finally:
        server.stop()


def _write_ready_file(ready_file: Path, address: str) -> None:
    from spark_logbus.log.disk.filesystem import OS_FILES, write_atomically

    try:
        write_atomically(OS_FILES, ready_file, f"{address}\n".encode())
    except OSError as error:
        logger.error(
            "Cannot write the ready file %s: %s. The broker serves at %s all the same.",
            ready_file, error.strerror, address,
        )  # fmt: skip

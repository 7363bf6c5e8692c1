"""``logbus broker``: run one broker in the foreground."""

from __future__ import annotations

import logging
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer


def broker(
    config: Annotated[Path, typer.Option(help="TOML file; see conf/broker.toml.")],
    ready_file: Annotated[
        Path | None,
        typer.Option(help="Write host:port to this file once requests are served."),
    ] = None,
) -> None:
    """Run one broker until SIGTERM or Ctrl-C."""
    from spark_logbus.broker import Broker, load_broker_config

    logging.getLogger("spark_logbus").setLevel(logging.INFO)
    server = Broker(load_broker_config(config))
    stop = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    server.start()
    try:
        if ready_file is not None:
            fresh = ready_file.with_suffix(".new")
            fresh.write_text(f"{server.address.host}:{server.address.port}\n")
            fresh.replace(ready_file)
        stop.wait()
    finally:
        server.stop()

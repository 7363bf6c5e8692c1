"""Runs a server in the foreground until a signal comes, whatever it serves."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from spark_logbus.errors import LogbusError
from spark_logbus.signals import call_at

logger = logging.getLogger(__name__)


class Server(Protocol):
    """A server that another thread can have give up its start."""

    def start(self) -> None: ...

    def give_up_start(self) -> None: ...

    def stop(self) -> None: ...


def serve(
    server: Server, name: str, *, address: Callable[[], str], ready_file: Path | None, does: str
) -> None:
    """Runs a server until SIGTERM or Ctrl-C, and writes its address to ``ready_file`` meanwhile.
    ``name`` and ``does`` are of log messages. Raises what its start does, unless that was given
    up."""
    stop, started = threading.Event(), threading.Event()

    def on_signal() -> None:
        stop.set()
        if not started.is_set():
            server.give_up_start()

    call_at((signal.SIGTERM, signal.SIGINT), on_signal)
    try:
        server.start()
        started.set()
    except LogbusError:
        if not stop.is_set():
            raise
        logger.info("%s was stopped before it served.", name)
        return
    try:
        if ready_file is not None:
            _write_ready_file(ready_file, address(), does)
        stop.wait()
    finally:
        server.stop()


def _write_ready_file(ready_file: Path, address: str, does: str) -> None:
    from spark_logbus.log.disk.filesystem import OS_FILES, write_atomically

    try:
        write_atomically(OS_FILES, ready_file, f"{address}\n".encode())
    except OSError as error:
        logger.error(
            "Cannot write the ready file %s: %s. %s at %s all the same.",
            ready_file, error.strerror, does, address,
        )  # fmt: skip

"""Maintains the logs twice a second: timed flushes and rolls, retention, checkpoints."""

from __future__ import annotations

import logging
import threading
from typing import Final

from spark_logbus.errors import LogbusError
from spark_logbus.log import LogDirectory

logger = logging.getLogger(__name__)

_INTERVAL_S: Final = 0.5


class LogMaintenance:
    """A thread of its own. ``start`` and ``stop`` are called once each."""

    def __init__(self, logs: LogDirectory) -> None:
        self._logs = logs
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="maintenance", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=30)

    def _run(self) -> None:
        while not self._stopping.wait(_INTERVAL_S):
            try:
                self._logs.maintain()
            except LogbusError as error:
                logger.error("Maintenance of the logs failed and will be tried again: %s", error)
            except Exception:
                logger.exception("Maintenance of the logs failed and will be tried again.")

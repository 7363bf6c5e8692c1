"""Maintains the logs twice a second: timed flushes and rolls, retention, checkpoints."""

from __future__ import annotations

import logging
from typing import Final

from spark_logbus.errors import LogbusError
from spark_logbus.log import LogDirectory
from spark_logbus.threads import Periodic

logger = logging.getLogger(__name__)

_INTERVAL_S: Final = 0.5


def log_maintenance(logs: LogDirectory) -> Periodic:
    """Returns the thread that maintains the logs, to be started."""

    def maintain() -> None:
        try:
            logs.maintain()
        except LogbusError as error:
            logger.error("Maintenance of the logs failed and will be tried again: %s", error)

    return Periodic(
        "maintenance",
        maintain,
        pause_s=_INTERVAL_S,
        failure="Maintenance of the logs failed and will be tried again.",
    )

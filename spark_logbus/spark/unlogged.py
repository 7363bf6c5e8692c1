"""Keeps what is sent to Spark out of the log.

PySpark sends a function with all that it holds to the JVM as a command, and logs each command where
somebody logs everything (DEBUG). A function that reads has the token of its tasks.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

_LOGGERS: Final = ("py4j.clientserver", "py4j.java_gateway")


@contextmanager
def unlogged() -> Iterator[None]:
    """Leaves out what PySpark would log of what this thread sends meanwhile."""
    thread = threading.get_ident()

    def is_of_another(record: logging.LogRecord) -> bool:
        return record.thread != thread

    with ExitStack() as filters:
        for name in _LOGGERS:
            logger = logging.getLogger(name)
            logger.addFilter(is_of_another)
            filters.callback(logger.removeFilter, is_of_another)
        yield

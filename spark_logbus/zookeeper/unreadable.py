"""Nodes whose content is not what logbus wrote there.

Each costs the topic, the broker or the group that it is about, and is logged once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import ClassVar

from spark_logbus.errors import CoordinationError, Fault

logger = logging.getLogger(__name__)


class CorruptNodeError(CoordinationError):
    """A node holds something else than logbus wrote there; the message names its path."""

    fault: ClassVar[Fault] = "data"
    retriable: ClassVar[bool] = False


def foreign_node(path: str, kind: str) -> CorruptNodeError:
    return CorruptNodeError(
        f"The ZooKeeper node {path} is not of logbus: no {kind} has such a name. Remove it by hand."
    )


_MOST = 1_000  # remembered; what goes beyond is logged each time it is met


class UnreadableNodes:
    """Nodes of a session's tree that were met and could not be read, by path. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._messages: dict[str, str] = {}

    def met(self, path: str, failure: CorruptNodeError, *, instead: str) -> None:
        """Log it, the first time; ``instead`` says what is done without it."""
        with self._lock:
            if self._messages.get(path) == failure.message:
                return
            if path in self._messages or len(self._messages) < _MOST:
                self._messages[path] = failure.message
        logger.error("%s %s", failure.message, instead)

    def in_order(self, path: str) -> None:
        self._forget(lambda each: each == path)

    def removed(self, path: str) -> None:
        """The node is gone, with all below it."""
        self._forget(lambda each: each == path or each.startswith(path + "/"))

    def _forget(self, which: Callable[[str], bool]) -> None:
        if not self._messages:
            return
        with self._lock:
            found = [each for each in self._messages if which(each)]
            for each in found:
                del self._messages[each]
        for each in found:
            logger.info("The ZooKeeper node %s is in order again, or gone.", each)

    @property
    def messages(self) -> dict[str, str]:
        """The fault of each node by path, as it was last met."""
        with self._lock:
            return dict(self._messages)

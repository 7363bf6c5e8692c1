"""Commits the group's offsets while Spark writes its offset log.

A commit takes several round trips to ZooKeeper, and more time the more partitions there are. Spark
asks for the next micro-batch when the last one is processed, and waits for the answer; what it does
with the answer takes longer than the commit does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Final

from spark_logbus.errors import LogbusError

logger = logging.getLogger(__name__)

_LAST_WAIT_S: Final = 1.5  # at the end of a query, which has 3 s in all


class DeferredCommit:
    """One commit at a time, in another thread. Not thread-safe.

    A commit that fails is done again by ``settle``, in the caller's thread, whose errors count.
    """

    def __init__(self, background: Executor) -> None:
        self._background = background
        self._commit: Callable[[], object] | None = None
        self._begun: Future[object] | None = None

    def begin(self, commit: Callable[[], object]) -> None:
        """Start ``commit`` and return at once; the one before is settled."""
        self._commit, self._begun = commit, self._background.submit(commit)

    def settle(self) -> None:
        """Wait until what was begun is done; raises what the commit raises."""
        if self._commit is None:
            return
        begun, self._begun = self._begun, None
        if begun is not None:
            try:
                begun.result()
            except LogbusError as error:
                logger.debug("The group's offsets are committed again after %r.", error)
            else:
                self._commit = None
                return
        self._commit()
        self._commit = None

    def close(self) -> None:
        """Give what was begun a moment to end."""
        if self._begun is not None:
            try:
                self._begun.result(_LAST_WAIT_S)
            except (LogbusError, FutureTimeoutError) as error:
                logger.info("The group's last offsets are not committed: %r.", error)

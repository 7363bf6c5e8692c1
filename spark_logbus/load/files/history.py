"""A warehouse of files as of one load, for readers that hold no lock while loads go on.

A directory is not read in one step. A load commits, and moves its files in afterwards; a reader
lists them, and another load may commit meanwhile. What is listed is known by three facts:

- The files of a load are all in when its staging directory is gone.
- While the last load's files come in, those of all loads before are in place. Where it only adds,
  its own are told by their offsets, and the rows end where it began.
- Where it replaces files, records are missing until it is done. So a reader waits, and one that
  has listed while such a load was committed lists again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from spark_logbus.clock import Clock, SystemClock
from spark_logbus.load.commit import Commit
from spark_logbus.load.errors import WarehouseError
from spark_logbus.load.files.warehouse import Warehouse
from spark_logbus.plurals import plural
from spark_logbus.retry import Deadline

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: More than the renames of a load that is alive take.
WAIT_MS: Final = 60_000
_PAUSE_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    """Files that a reader has listed, and the load that it ends with. Immutable."""

    last: Commit
    files: T
    #: Number of the load after it that is committed, and whose files are not all in.
    coming: int | None


def listed(
    warehouse: Warehouse,
    list_files: Callable[[Commit], T],
    *,
    clock: Clock | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> Listed[T] | None:
    """Returns what ``list_files`` finds of all records below the ends of ``Listed.last``, and of
    others; None before a first load.

    Raises WarehouseError where a load that replaces files does not come to its end.
    """
    deadline = Deadline.after_ms(clock or SystemClock(), WAIT_MS)
    told = False
    while True:
        last = warehouse.newest_commit()
        if last is None:
            return None
        all_in = warehouse.is_published(last)
        if all_in or _only_adds(last):
            try:
                found = list_files(last)
            except WarehouseError:
                if not _replaced_since(warehouse, last):
                    raise
            else:
                if not _replaced_since(warehouse, last):
                    if all_in:
                        return Listed(last, found, None)
                    return Listed(before(last), found, last.number)
        if deadline.expired:
            raise WarehouseError(
                f"Load {last.number} replaces {plural(len(last.replaces), 'file')} of "
                f"{warehouse.path}, and has not ended within {deadline.timeout_ms / 1000:.0f} s; "
                "without them and those that take their place, records would be missing. Wait for "
                "that load; if it was killed, run a load, which finishes it."
            )
        if not told:
            told = True
            logger.warning(
                "Load %d replaces files of %s; waiting for it up to %.0f s.",
                last.number,
                warehouse.path,
                deadline.remaining_s,
            )
        pause(_PAUSE_S)


def before(last: Commit) -> Commit:
    """Returns the offsets that were in before ``last`` (pure)."""
    starts = {each.topic_partition.partition: each.start for each in reversed(last.ranges)}
    return replace(last, ends={**last.ends, **starts})


def _replaced_since(warehouse: Warehouse, last: Commit) -> bool:
    """Tells whether a load after ``last`` takes files away that were there."""
    return not all(map(_only_adds, warehouse.commits_after(last)))


def _only_adds(commit: Commit) -> bool:
    """Tells whether all files of a load hold records that no load before has brought (pure)."""
    return not commit.replaces and (bool(commit.ranges) or not commit.files)

"""Whose atomic writes have staged something, and which of a writer's runs came first.

A writer works through one run at a time: a run of a query that begins takes the place of the one
before, and so does an application that writes a transaction again. What the one before has staged
and not committed is of no use to anybody then.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from typing import Final, NamedTuple

# In all partitions of a data directory. A run that was forgotten counts as one that just began.
_REMEMBERED: Final = 10_000
_SIGN: Final = 1 << 31


def writer_mark(writer: str) -> int | None:
    """A negative number of 32 bits that stands for the writer; None for none.

    It stands in the headers of what is staged, in the place of the leader epoch, which is stamped
    when it is published: so it outlives a restart. Two writers may share one in four billion times.
    """
    return _mark(_bytes(writer), b"") if writer else None


def owned_mark(writer: str, owner: str, secret: bytes) -> int:
    """The mark of what a principal stages as the writer, in the place of ``writer_mark``. Without
    the secret nobody finds another principal or writer that has the same."""
    return _mark(_bytes(owner) + b"\0" + _bytes(writer), secret)


def _mark(text: bytes, key: bytes) -> int:
    digest = hashlib.blake2b(text, digest_size=4, key=key).digest()
    return (int.from_bytes(digest, "big") | _SIGN) - (1 << 32)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


class StagedBy(NamedTuple):
    """The writer of what is staged, and its run; empty where the client does not say. ``owned`` is
    the mark of the principal that it belongs to; None: it belongs to nobody."""

    writer: str = ""
    run: str = ""
    owned: int | None = None

    @property
    def mark(self) -> int | None:
        return writer_mark(self.writer) if self.owned is None else self.owned


class WriterRuns:
    """The order in which runs of writers were met first, by a data directory. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._met = 0
        self._runs: OrderedDict[tuple[int, str], int] = OrderedDict()

    def order(self, mark: int, run: str) -> int:
        """The place of a run, 1 or more: those that begin later have a higher one."""
        key = (mark, run)
        with self._lock:
            place = self._runs.get(key)
            if place is None:
                self._met += 1
                place = self._runs[key] = self._met
                if len(self._runs) > _REMEMBERED:
                    self._runs.popitem(last=False)
            else:
                self._runs.move_to_end(key)
            return place

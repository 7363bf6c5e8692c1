"""Offsets of a topic as application transactions of a Delta table (pure).

Such a transaction is a whole number under a name. It goes in with the commit that adds the files,
and the log carries it along through its checkpoints::

    logbus:version                              version that our last commit made
    logbus:<topic id>:load                      number of the last load
    logbus:<topic id>:token                     its token
    logbus:<topic id>:<partition>               end offset; -1: not known any more
    logbus:<topic id>:<partition>:spans         count of the spans that came in, and each of them:
    logbus:<topic id>:<partition>:spans:<k>:start
    logbus:<topic id>:<partition>:spans:<k>:end

Each commit of ours has all of them, so that they can be read from one file: the library reads the
log for each number that it is asked for. None is ever taken away. Where an older version was
restored, the partitions that it did not have are unknown again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from spark_logbus.audit.warehouse import OffsetSpan
from spark_logbus.load.errors import WarehouseError
from spark_logbus.load.lake.table import Progress

#: Tells which version loads have committed last, whatever the topic.
VERSION: Final = "logbus:version"
_UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True)
class OffsetTransactions:
    """Transactions of one topic in one version of a table."""

    topic_id: str
    #: Returns the number under a name; None: there is none.
    read: Callable[[str], int | None]

    def name(self, *parts: object) -> str:
        return ":".join(("logbus", self.topic_id, *map(str, parts)))

    def progress(self) -> Progress | None:
        """Progress as the numbers tell it; None where the topic has none. Raises WarehouseError
        where some of them are missing."""
        number, token = self._value("load"), self._value("token")
        if number is None or token is None:
            return None
        ends = {each: end for each, end in enumerate(self._ends()) if end != _UNKNOWN}
        spans = {each: self._spans(each) for each in ends}
        spans = {each: own for each, own in spans.items() if own}
        return Progress(self.topic_id, number, token, ends, spans)

    def after(self, progress: Progress) -> dict[str, int]:
        """Returns all numbers that make the progress in the next version."""
        wanted = {self.name("load"): progress.number, self.name("token"): progress.token}
        for each in range(max((*progress.ends, len(self._ends()) - 1), default=-1) + 1):
            spans = progress.spans.get(each, ())
            wanted[self.name(each)] = progress.ends.get(each, _UNKNOWN)
            wanted[self.name(each, "spans")] = len(spans)
            for place, (start, end) in enumerate(spans):
                wanted[self.name(each, "spans", place, "start")] = start
                wanted[self.name(each, "spans", place, "end")] = end
        return wanted

    def _value(self, *parts: object) -> int | None:
        return self.read(self.name(*parts))

    def _ends(self) -> list[int]:
        """End offsets of the partitions, from 0 on."""
        found: list[int] = []
        while (end := self._value(len(found))) is not None:
            found.append(end)
        return found

    def _spans(self, partition: int) -> list[OffsetSpan]:
        found = []
        for place in range(self._value(partition, "spans") or 0):
            start = self._value(partition, "spans", place, "start")
            end = self._value(partition, "spans", place, "end")
            if start is None or end is None:
                raise WarehouseError(
                    f"The table has lost the offsets of span {place} of partition {partition}, "
                    f"{self.name(partition, 'spans', place)}. Restore its log."
                )
            found.append((start, end))
        return found

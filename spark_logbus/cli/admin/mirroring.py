"""What a running mirror says: a line that changes, lines, or JSON."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any, Final, Self

from spark_logbus.cli.output import ago, console, print_json
from spark_logbus.clock import SystemClock
from spark_logbus.errors import LogbusError
from spark_logbus.mirror import Listener, MirrorProgress, PartitionLag
from spark_logbus.plurals import plural
from spark_logbus.sizes import human_bytes

_EVERY_S: Final = 10.0  # between two lines about copying, where no line can be written over


class MirrorReporter(Listener):
    """Tells of rounds, and once of each time that all is copied. A context manager."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._out = console()
        self._problems = console(stderr=True)
        self._status: Any = None  # Rich's line
        self._open = ExitStack()
        self._idle = False
        self._told_at = 0.0

    def __enter__(self) -> Self:
        if self._out.is_terminal and not self._as_json:
            status = self._out.status("Looking for new records ...")
            self._status = self._open.enter_context(status)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def progressed(self, progress: MirrorProgress) -> None:
        for lost in () if progress.round is None else progress.round.lost:
            self._problems.print(f"The source has lost {lost} before it was copied.")
        was_idle, self._idle = self._idle, progress.round is None
        if self._status is not None:
            self._status.update(line(progress))
        elif self._as_json and not (was_idle and self._idle):
            print_json(as_json(progress))
        elif not self._as_json and self._due(was_idle=was_idle):
            self._out.print(line(progress))

    def _due(self, *, was_idle: bool) -> bool:
        now = time.monotonic()
        if (self._idle and was_idle) or (not self._idle and now - self._told_at < _EVERY_S):
            return False
        self._told_at = now
        return True

    def failed(self, error: LogbusError) -> None:
        self._problems.print(f"Waiting: {error}", style="yellow")

    def recovered(self) -> None:
        self._problems.print("It goes on.")


def line(progress: MirrorProgress) -> str:
    """Progress in one line."""
    lags = progress.lags
    lag = sum(each.records for each in lags)
    done = f"{plural(progress.records, 'record')} ({human_bytes(progress.size_bytes)}) copied"
    if not lag:
        return f"{done}, up to date in {plural(len(lags), 'partition')}."
    most = max(lags, key=lambda each: each.records)
    behind = _behind_us(lags)
    age = "" if behind is None else f", {ago(behind)}"
    return f"{done}, {lag:,} behind{age} ({most.topic_partition}: {most.records:,})."


def as_json(progress: MirrorProgress) -> dict[str, Any]:
    """Progress for programs; times in µs."""
    now = progress.round
    return {
        "round": None if now is None else now.number,
        "round_records": 0 if now is None else now.records,
        "round_bytes": 0 if now is None else now.size_bytes,
        "records": progress.records,
        "bytes": progress.size_bytes,
        "lag": sum(each.records for each in progress.lags),
        "behind_us": _behind_us(progress.lags),
        "partitions": [
            {
                "topic": each.topic_partition.topic,
                "partition": each.topic_partition.partition,
                "position": each.position,
                "end": each.end,
                "lag": each.records,
                "behind_us": _behind_us([each]),
            }
            for each in progress.lags
        ],
    }


def _behind_us(lags: list[PartitionLag]) -> int | None:
    """The age of the copy where it is oldest; 0 where it is up to date, None while that is not
    known."""
    behind = [each.copied_us for each in lags if each.records]
    if not behind:
        return 0
    times = [each for each in behind if each is not None]
    return max(0, SystemClock().now_us() - min(times)) if times else None

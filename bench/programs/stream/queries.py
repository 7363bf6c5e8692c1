"""Runs a query of a stream and takes its times from what Spark reports."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql.functions import unix_micros
from pyspark.sql.streaming.query import StreamingQuery

WARM_UP = 15
PHASES = ("latestOffset", "getBatch", "queryPlanning", "addBatch", "walCommit", "commitOffsets")
WHOLE = "triggerExecution"
REST = "rest"
_POLL_S = 0.5  # each poll takes processors' time that the query needs too
_DEADLINE_S = 300.0


@dataclass
class Sink:
    """Collects each micro-batch into the driver, and tells how old its records are by then."""

    ages_ms: list[np.ndarray[Any, Any]] = field(default_factory=list)

    def __call__(self, batch: DataFrame, _: int) -> None:
        sent = batch.select(unix_micros("timestamp").alias("at")).toArrow().column("at")
        self.ages_ms.append((time.time_ns() // 1_000 - sent.to_numpy()) / 1_000)

    @property
    def records(self) -> int:
        return sum(map(len, self.ages_ms))


class Query:
    """A query under way whose progress is read at its end, so that reading does not disturb it."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query

    def wait_for(self, batches: int, check: Callable[[], None] = lambda: None) -> None:
        """Waits until so many micro-batches are done; ``check`` raises if that cannot be."""
        deadline = time.monotonic() + _DEADLINE_S
        while True:
            self._raise_failure()
            check()
            last = self._query.lastProgress
            if last is not None and last["batchId"] + 1 >= batches:
                return
            if time.monotonic() > deadline:
                raise SystemExit(f"{batches} micro-batches took more than {_DEADLINE_S:.0f} s.")
            time.sleep(_POLL_S)

    def wait_for_reports(self, count: int) -> None:
        """Waits until there are so many progress reports, of idle triggers too."""
        deadline = time.monotonic() + _DEADLINE_S
        while len(self._query.recentProgress) < count:
            self._raise_failure()
            if time.monotonic() > deadline:
                raise SystemExit(f"{count} reports took more than {_DEADLINE_S:.0f} s.")
            time.sleep(_POLL_S)

    def drain(self) -> None:
        """Waits until all records are read that are there."""
        self._query.processAllAvailable()

    def progress(self) -> list[Any]:
        self._raise_failure()
        return list(self._query.recentProgress)

    def _raise_failure(self) -> None:
        failure = self._query.exception()
        if failure is not None:
            raise SystemExit(str(failure))


@contextmanager
def running(frame: DataFrame, sink: Sink | None = None) -> Iterator[Query]:
    """A query into ``sink``, or into one that discards, as fast as it goes, stopped at the end."""
    with tempfile.TemporaryDirectory(prefix="logbus-bench-") as directory:
        writer = frame.writeStream.option("checkpointLocation", directory)
        writer = writer.format("noop") if sink is None else writer.foreachBatch(sink)
        query = writer.start()
        try:
            yield Query(query)
        finally:
            query.stop()


def run_available_now(frame: DataFrame) -> int:
    """Run a query over what is there into a sink that discards; the records that it has read."""
    with tempfile.TemporaryDirectory(prefix="logbus-bench-") as directory:
        query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", directory)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return records_of(query.recentProgress)


def records_of(progress: list[Any]) -> int:
    return sum(one["numInputRows"] for one in progress)


def phases_of(progress: list[Any]) -> dict[str, list[float]]:
    """Milliseconds of each phase of each micro-batch, of the whole, and of what is left of it."""
    found: dict[str, list[float]] = {name: [] for name in (WHOLE, *PHASES, REST)}
    for one in progress:
        took = one["durationMs"]
        found[WHOLE].append(took[WHOLE])
        for phase in PHASES:
            found[phase].append(took.get(phase, 0))
        found[REST].append(took[WHOLE] - sum(took.get(phase, 0) for phase in PHASES))
    return found

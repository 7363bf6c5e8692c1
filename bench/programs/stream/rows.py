"""The rows of the comparison with Kafka and with a source that does nothing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from bench.kit.comparing import Compared, Comparing
from bench.kit.harness import drain
from bench.kit.program import Row, Whole
from bench.kit.result import LOGBUS, Metrics, Rounds
from bench.kit.rounds import in_turn
from bench.kit.shapes import Shape
from bench.programs.stream.contenders import KAFKA, TUNED, Contender, NothingSource
from bench.programs.stream.measuring import (
    FAST,
    P50,
    P99,
    SLOW,
    WARM_UP_BATCHES,
    Bench,
    check_count,
    filled,
    live,
)
from bench.programs.stream.queries import (
    REST,
    WARM_UP,
    WHOLE,
    phases_of,
    run_available_now,
    running,
)
from spark_logbus.model import Compression

READ = "load to the end"
START_RECORDS = 1_000
STARTS = 3
READY_MADE_ROWS = 11_000  # about what comes during a micro-batch at the fast pace
_IDLE_REPORTS = "spark.sql.streaming.noDataProgressEventInterval"


@dataclass(frozen=True)
class Steady:
    """Micro-batches while records come at a steady pace."""

    a_second: int
    foreach_batch: bool = False
    shape: Shape | None = None
    """None: that of the bench."""
    unit: str = "ms"

    @property
    def title(self) -> str:
        sink = "foreachBatch" if self.foreach_batch else "noop"
        shape = f", {self.shape}" if self.shape else ""
        return f"micro-batches at {self.a_second:,} records/s to {sink}{shape}"

    def measure(self, bench: Bench) -> Iterator[tuple[str, Rounds]]:
        def micro_batches(contender: Contender, counts: bool) -> Metrics:
            return live(
                bench,
                contender,
                a_second=self.a_second,
                batches=bench.batches if counts else WARM_UP_BATCHES,
                foreach_batch=self.foreach_batch,
                shape=self.shape,
            )

        yield "", in_turn(bench.sources(), micro_batches, rounds=bench.rounds)


def nothing(bench: Bench) -> Rounds:
    """Measures a Python source that does nothing: alone, beside an input, with rows at hand."""
    alone = NothingSource(bench.spark)
    beside = replace(alone, name="nothing, beside input", beside=bench.logbus)
    ready = replace(
        beside, name="ready-made rows", rows=READY_MADE_ROWS, value_bytes=bench.shape.value_bytes
    )

    def measure(contender: Contender, counts: bool) -> Metrics:
        batches = bench.batches if counts else WARM_UP_BATCHES
        return live(bench, contender, a_second=FAST, batches=batches)

    contenders: list[Contender] = [alone, beside, ready, bench.logbus]
    return in_turn(contenders, measure, rounds=bench.rounds)


def idle(bench: Bench) -> Rounds:
    """Measures triggers that find no new records."""

    def measure(contender: Contender, counts: bool) -> Metrics:
        wanted = WARM_UP + (bench.batches if counts else WARM_UP_BATCHES)
        with bench.topic(contender) as topic, running(contender.stream(topic)) as query:
            query.wait_for_reports(wanted + 1)  # the first may be of an empty micro-batch
            triggers = [one for one in query.progress() if "addBatch" not in one["durationMs"]]
        phases = phases_of(triggers[WARM_UP:])
        return {name: statistics.fmean(phases[name]) for name in (WHOLE, "latestOffset", REST)}

    # Without it, Spark reports idle triggers once in ten seconds.
    bench.spark.conf.set(_IDLE_REPORTS, "0")
    try:
        contenders = [NothingSource(bench.spark, idle=True), *bench.sources()]
        return in_turn(contenders, measure, rounds=bench.rounds)
    finally:
        bench.spark.conf.unset(_IDLE_REPORTS)


def start(bench: Bench) -> Rounds:
    """Measures from ``load`` to the end of an availableNow query, in a session that is warm."""
    contenders = [NothingSource(bench.spark, idle=True), *bench.sources()]
    topic = filled(bench, START_RECORDS)

    def once(contender: Contender) -> float:
        return _seconds(lambda: _read_by_stream(contender, topic, START_RECORDS))

    def measure(contender: Contender, _: bool) -> Metrics:
        return {READ: statistics.median(once(contender) for _ in range(STARTS))}

    return in_turn(contenders, measure, rounds=bench.rounds)


def available_now(bench: Bench) -> Rounds:
    """Measures one availableNow query that reads a backlog, all columns."""
    topic = filled(bench, bench.records)

    def measure(contender: Contender, _: bool) -> Metrics:
        return {READ: _seconds(lambda: _read_by_stream(contender, topic, bench.records))}

    return in_turn(_tuned_too(bench), measure, rounds=bench.rounds)


def read(bench: Bench) -> Rounds:
    """Measures a batch read, all columns."""
    topic = filled(bench, bench.records)
    for contender in bench.sources():
        check_count(contender, contender.batch(topic).count(), bench.records)

    def measure(contender: Contender, _: bool) -> Metrics:
        return {READ: _seconds(lambda: drain(contender.batch(topic)))}

    return in_turn(_tuned_too(bench), measure, rounds=bench.rounds)


def _tuned_too(bench: Bench) -> list[Contender]:
    return [*bench.sources(), *([] if bench.kafka is None else [bench.kafka.tuned()])]


def _seconds(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _read_by_stream(contender: Contender, topic: str, records: int) -> None:
    check_count(contender, run_available_now(contender.stream(topic)), records)


ROWS: Final[Mapping[str, Row[Bench]]] = {
    "idle": Whole("idle triggers", "ms", idle),
    "nothing": Whole(f"micro-batches at {FAST:,} records/s to noop, beside nothing", "ms", nothing),
    "noop": Steady(SLOW),
    "foreach": Steady(SLOW, foreach_batch=True),
    "foreach-fast": Steady(FAST, foreach_batch=True),
    "start": Whole(f"availableNow over {START_RECORDS:,} records to noop", "s", start),
    "available-now": Whole("availableNow over all records to noop", "s", available_now),
    "read": Whole("batch read of all records to noop", "s", read),
}

SHAPES: Final[Mapping[str, Shape]] = {
    "100": Shape(100),
    "1000": Shape(1_000),
    "keyed": Shape(keyed=True),
    "lz4": Shape(compression=Compression.LZ4),
    "zstd": Shape(compression=Compression.ZSTD),
    "keyed-zstd": Shape(keyed=True, compression=Compression.ZSTD),
}
PACES: Final[Mapping[str, int]] = {"foreach": SLOW, "foreach-fast": FAST}

#: The rows of those names with records of other shapes.
SHAPED: Final[Mapping[str, Row[Bench]]] = {
    f"{row}-{name}": Steady(a_second, foreach_batch=True, shape=shape)
    for row, a_second in PACES.items()
    for name, shape in SHAPES.items()
}
SHAPED_PATTERN: Final = "|".join(SHAPED)

COMPARED: Final = Comparing(
    {
        WHOLE: "micro-batch", "addBatch": "addBatch", P50: "age, p50", P99: "age, p99", READ: "",
        "latestOffset": "latestOffset", "walCommit": "walCommit",
    },
    own=f"{LOGBUS}|10 partitions|Spark's defaults",
    goals={
        **{
            Compared(row, what, LOGBUS, KAFKA): 1.2
            for row in ("noop", "foreach", "foreach-fast")
            for what in ("micro-batch", *(("age, p50", "age, p99") if row == "foreach" else ()))
        },
        Compared("start", "", LOGBUS, KAFKA): 0.8,
        Compared("available-now", "", LOGBUS, KAFKA): 3.0,
        Compared("available-now", "", LOGBUS, TUNED): 1.6,
        Compared("read", "", LOGBUS, KAFKA): 4.0,
        Compared("read", "", LOGBUS, TUNED): 2.2,
    },
)  # fmt: skip

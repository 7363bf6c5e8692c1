"""The rows of the comparison with Kafka and with a source that does nothing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from bench.result import Metrics, Result
from bench.rounds import in_turn
from bench.shapes import Shape
from bench.stream.contenders import Contender, NothingSource
from bench.stream.measuring import (
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
from bench.stream.queries import REST, WARM_UP, WHOLE, phases_of, run_available_now, running
from spark_logbus.model import Compression

READ = "load to the end"
START_RECORDS = 1_000
STARTS = 3
READY_MADE_ROWS = 11_000  # about what comes during a micro-batch at the fast pace
_IDLE_REPORTS = "spark.sql.streaming.noDataProgressEventInterval"


def micro_batches(
    bench: Bench, row: str, *, a_second: int, foreach_batch: bool, shape: Shape | None = None
) -> Result:
    def measure(contender: Contender, counts: bool) -> Metrics:
        return live(
            bench,
            contender,
            a_second=a_second,
            batches=bench.batches if counts else WARM_UP_BATCHES,
            foreach_batch=foreach_batch,
            shape=shape,
        )

    sink = "foreachBatch" if foreach_batch else "noop"
    return Result(
        row,
        f"micro-batches at {a_second:,} records/s to {sink}" + (f", {shape}" if shape else ""),
        "ms",
        in_turn(bench.sources(), measure, rounds=bench.rounds),
        (WHOLE, "addBatch", P50, P99),
    )


def noop(bench: Bench, row: str) -> Result:
    return micro_batches(bench, row, a_second=SLOW, foreach_batch=False)


def foreach(bench: Bench, row: str) -> Result:
    return micro_batches(bench, row, a_second=SLOW, foreach_batch=True)


def foreach_fast(bench: Bench, row: str) -> Result:
    return micro_batches(bench, row, a_second=FAST, foreach_batch=True)


def nothing(bench: Bench, row: str) -> Result:
    """What a Python source costs that does nothing: alone, beside an input, with rows at hand."""
    alone = NothingSource(bench.spark)
    beside = replace(alone, name="nothing, beside input", beside=bench.logbus)
    ready = replace(
        beside, name="ready-made rows", rows=READY_MADE_ROWS, value_bytes=bench.shape.value_bytes
    )

    def measure(contender: Contender, counts: bool) -> Metrics:
        batches = bench.batches if counts else WARM_UP_BATCHES
        return live(bench, contender, a_second=FAST, batches=batches)

    contenders: list[Contender] = [alone, beside, ready, bench.logbus]
    return Result(
        row,
        f"micro-batches at {FAST:,} records/s to noop",
        "ms",
        in_turn(contenders, measure, rounds=bench.rounds),
        (WHOLE,),
    )


def idle(bench: Bench, row: str) -> Result:
    """Triggers that find no new records."""

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
        took = in_turn(contenders, measure, rounds=bench.rounds)
    finally:
        bench.spark.conf.unset(_IDLE_REPORTS)
    return Result(row, "idle triggers", "ms", took, (WHOLE,))


def start(bench: Bench, row: str) -> Result:
    """From ``load`` to the end of an availableNow query, in a session that is warm."""
    contenders = [NothingSource(bench.spark, idle=True), *bench.sources()]
    topic = filled(bench, START_RECORDS)

    def once(contender: Contender) -> float:
        return _seconds(lambda: _read_by_stream(contender, topic, START_RECORDS))

    def measure(contender: Contender, _: bool) -> Metrics:
        return {READ: statistics.median(once(contender) for _ in range(STARTS))}

    return Result(
        row,
        f"start of a stream over {START_RECORDS:,} records, availableNow to noop",
        "s",
        in_turn(contenders, measure, rounds=bench.rounds),
        (READ,),
    )


def available_now(bench: Bench, row: str) -> Result:
    """A backlog that one availableNow query reads, all columns."""
    topic = filled(bench, bench.records)

    def measure(contender: Contender, _: bool) -> Metrics:
        return {READ: _seconds(lambda: _read_by_stream(contender, topic, bench.records))}

    return Result(
        row,
        f"availableNow over {bench.records:,} records to noop",
        "s",
        in_turn(_tuned_too(bench), measure, rounds=bench.rounds),
        (READ,),
    )


def read(bench: Bench, row: str) -> Result:
    """A batch read, all columns."""
    topic = filled(bench, bench.records)
    for contender in bench.sources():
        check_count(contender, contender.batch(topic).count(), bench.records)

    def measure(contender: Contender, _: bool) -> Metrics:
        def drain() -> None:
            contender.batch(topic).write.format("noop").mode("overwrite").save()

        return {READ: _seconds(drain)}

    return Result(
        row,
        f"batch read of {bench.records:,} records to noop",
        "s",
        in_turn(_tuned_too(bench), measure, rounds=bench.rounds),
        (READ,),
    )


def _tuned_too(bench: Bench) -> list[Contender]:
    return [*bench.sources(), *([] if bench.kafka is None else [bench.kafka.tuned()])]


def _seconds(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _read_by_stream(contender: Contender, topic: str, records: int) -> None:
    check_count(contender, run_available_now(contender.stream(topic)), records)


ROWS: Mapping[str, Callable[[Bench, str], Result]] = {
    "idle": idle,
    "nothing": nothing,
    "noop": noop,
    "foreach": foreach,
    "foreach-fast": foreach_fast,
    "start": start,
    "available-now": available_now,
    "read": read,
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

#: As the rows of those names, with records of other shapes.
SHAPED: Final[Mapping[str, Callable[[Bench, str], Result]]] = {
    f"{row}-{name}": partial(micro_batches, a_second=a_second, foreach_batch=True, shape=shape)
    for row, a_second in PACES.items()
    for name, shape in SHAPES.items()
}

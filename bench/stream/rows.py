"""The rows of the comparison: each measures its contenders in turn, round after round."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
from pyspark.sql import SparkSession

from bench.sender import fill, input_to
from bench.stream.contenders import Contender, KafkaSource, LogbusSource, NothingSource
from bench.stream.queries import (
    REST,
    WARM_UP,
    WHOLE,
    Sink,
    phases_of,
    records_of,
    run_available_now,
    running,
)
from bench.stream.results import Metrics, Result

SLOW, FAST = 5_000, 50_000  # records a second
PARTITIONS = 2
P50, P99 = "send to sink, p50", "send to sink, p99"
READ = "load to the end"
MANY_PARTITIONS = (10, 100, 1_000)
START_RECORDS = 1_000
STARTS = 3
PREFETCHED_RECORDS = (500, 5_000, 10_000, 20_000, 40_000)
_BY_FILE_SYSTEM = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
_MANAGER = {"spark.sql.streaming.checkpointFileManagerClass": _BY_FILE_SYSTEM}
_NO_CHECKSUMS = {"spark.sql.streaming.checkpoint.fileChecksum.enabled": "false"}
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "Spark's defaults": {},
    "no checksum files": _NO_CHECKSUMS,
    "FileSystem's manager": _MANAGER,
    "both": {**_NO_CHECKSUMS, **_MANAGER},
}
READY_MADE_ROWS = 11_000  # about what comes during a micro-batch at the fast pace
_IDLE_REPORTS = "spark.sql.streaming.noDataProgressEventInterval"
WARM_UP_BATCHES = 10  # of the round that does not count


@dataclass(frozen=True)
class Bench:
    """What all rows share."""

    spark: SparkSession
    logbus: LogbusSource
    kafka: KafkaSource | None
    rounds: int
    batches: int
    """Micro-batches that are timed in a round."""
    records: int
    """Of a large read."""
    value_bytes: int
    filled: set[str] = field(default_factory=set)
    """Topics that ``filled`` has made."""

    def sources(self) -> list[Contender]:
        return [self.logbus] if self.kafka is None else [self.kafka, self.logbus]

    @contextmanager
    def topic(self, contender: Contender, *, partitions: int = PARTITIONS) -> Iterator[str]:
        name = f"bench-{next(_numbers)}"
        contender.create_topic(name, partitions=partitions)
        try:
            yield name
        finally:
            contender.delete_topic(name)


_numbers = itertools.count(1)


def in_turn(
    contenders: Sequence[Contender],
    measure: Callable[[Contender, bool], Metrics],
    *,
    rounds: int,
) -> dict[str, list[Metrics]]:
    """Each contender in each round, after one that does not count (``measure`` is told), every
    second round in reverse order."""
    took: dict[str, list[Metrics]] = {contender.name: [] for contender in contenders}
    for number in range(rounds + 1):
        for contender in contenders if number % 2 else reversed(contenders):
            metrics = measure(contender, number > 0)
            if number:
                took[contender.name].append(metrics)
    return took


def live(
    bench: Bench,
    contender: Contender,
    *,
    a_second: int,
    batches: int,
    partitions: int = PARTITIONS,
    foreach_batch: bool = False,
) -> Metrics:
    """Medians of micro-batches with a steady input, and ages of the records in the sink."""
    sink = Sink() if foreach_batch else None
    with bench.topic(contender, partitions=partitions) as topic:
        target = contender.target(topic, partitions=partitions, value_bytes=bench.value_bytes)
        if target is None:
            with running(contender.stream(topic), sink) as query:
                query.wait_for(WARM_UP + batches)
                progress = query.progress()
        else:
            with (
                input_to(target, a_second=a_second) as steady,
                running(contender.stream(topic), sink) as query,
            ):
                steady.go()
                query.wait_for(WARM_UP + batches, steady.check)
                sent = steady.stop()
                if not isinstance(contender, NothingSource):  # whose records never end
                    query.drain()
                progress = query.progress()
            _check(contender, records_of(progress) if sink is None else sink.records, sent.records)
    busy = [one for one in progress if one["numInputRows"]] or progress
    metrics = {
        name: statistics.median(values)
        for name, values in phases_of(busy[WARM_UP : WARM_UP + batches]).items()
    }
    if sink is not None:
        ages = [one for one in sink.ages_ms if len(one)]
        p50, p99 = np.percentile(np.concatenate(ages[WARM_UP : WARM_UP + batches]), [50, 99])
        metrics |= {P50: float(p50), P99: float(p99)}
    if target is not None:
        rows = [one["numInputRows"] for one in busy[WARM_UP : WARM_UP + batches]]
        metrics |= {"records": statistics.median(rows), "sender late": sent.late_ms}
    return metrics


def micro_batches(bench: Bench, row: str, *, a_second: int, foreach_batch: bool) -> Result:
    def measure(contender: Contender, counts: bool) -> Metrics:
        return live(
            bench,
            contender,
            a_second=a_second,
            batches=bench.batches if counts else WARM_UP_BATCHES,
            foreach_batch=foreach_batch,
        )

    sink = "foreachBatch" if foreach_batch else "noop"
    return Result(
        row,
        f"micro-batches at {a_second:,} records/s to {sink}",
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
        beside, name="ready-made rows", rows=READY_MADE_ROWS, value_bytes=bench.value_bytes
    )

    def measure(contender: Contender, counts: bool) -> Metrics:
        batches = bench.batches if counts else WARM_UP_BATCHES
        return live(bench, contender, a_second=FAST, batches=batches)

    return Result(
        row,
        f"micro-batches at {FAST:,} records/s to noop",
        "ms",
        in_turn([alone, beside, ready, bench.logbus], measure, rounds=bench.rounds),
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


def partitions(bench: Bench, row: str) -> Result:
    """What a micro-batch costs over the partitions of its query, with a consumer group."""
    counts = {f"{count:,} partitions": count for count in MANY_PARTITIONS}
    own = bench.logbus.with_group("bench")
    contenders = [replace(own, name=name) for name in counts]

    def measure(contender: Contender, counted: bool) -> Metrics:
        return live(
            bench,
            contender,
            a_second=SLOW,
            batches=bench.batches if counted else WARM_UP_BATCHES,
            partitions=counts[contender.name],
        )

    return Result(
        row,
        f"micro-batches of logbus at {SLOW:,} records/s to noop, with a group",
        "ms",
        in_turn(contenders, measure, rounds=bench.rounds),
        (WHOLE,),
        own=contenders[0].name,
    )


def settings(bench: Bench, row: str) -> Result:
    """What settings of Spark's session give, to logbus as to every source."""
    contenders = [replace(bench.logbus, name=name) for name in SETTINGS]

    def measure(contender: Contender, counts: bool) -> Metrics:
        chosen = SETTINGS[contender.name]
        for name, value in chosen.items():
            bench.spark.conf.set(name, value)
        try:
            batches = bench.batches if counts else WARM_UP_BATCHES
            return live(bench, contender, a_second=SLOW, batches=batches)
        finally:
            for name in chosen:
                bench.spark.conf.unset(name)

    return Result(
        row,
        f"micro-batches of logbus at {SLOW:,} records/s to noop",
        "ms",
        in_turn(contenders, measure, rounds=bench.rounds),
        (WHOLE,),
        own=contenders[0].name,
    )


def prefetch(bench: Bench, row: str) -> Result:
    """Micro-batches of the same sizes, read by the planner and by tasks."""
    ways = {"prefetched": "1g", "by tasks": "0"}
    own = {
        f"{records:,} records, {way}": (records, option)
        for records in PREFETCHED_RECORDS
        for way, option in ways.items()
    }
    contenders = [replace(bench.logbus, name=name) for name in own]
    most = WARM_UP + max(bench.batches, WARM_UP_BATCHES)
    topic = filled(bench, most * max(PREFETCHED_RECORDS))

    def measure(contender: Contender, counts: bool) -> Metrics:
        assert isinstance(contender, LogbusSource)
        records, option = own[contender.name]
        limits = {"maxOffsetsPerTrigger": str(records), "maxPrefetchBytes": option}
        limited = replace(contender, options={**contender.options, **limits})
        batches = bench.batches if counts else WARM_UP_BATCHES
        with running(limited.stream(topic)) as query:
            query.wait_for(WARM_UP + batches)
            progress = query.progress()
        phases = phases_of(progress[WARM_UP : WARM_UP + batches])
        return {name: statistics.median(values) for name, values in phases.items()}

    return Result(
        row,
        f"micro-batches of logbus, values of {bench.value_bytes} bytes, to noop",
        "ms",
        in_turn(contenders, measure, rounds=bench.rounds),
        (WHOLE, "addBatch"),
        own=contenders[0].name,
    )


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
        _check(contender, contender.batch(topic).count(), bench.records)

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


def filled(bench: Bench, records: int) -> str:
    """A topic that holds so many records in each log; later rows find it as it is."""
    topic = f"bench-{records}-records"
    if topic not in bench.filled:
        for contender in bench.sources():
            contender.create_topic(topic, partitions=PARTITIONS)
            target = contender.target(topic, partitions=PARTITIONS, value_bytes=bench.value_bytes)
            assert target is not None
            fill(target, records=records)
        bench.filled.add(topic)
    return topic


def _tuned_too(bench: Bench) -> list[Contender]:
    return [*bench.sources(), *([] if bench.kafka is None else [bench.kafka.tuned()])]


def _seconds(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _read_by_stream(contender: Contender, topic: str, records: int) -> None:
    _check(contender, run_available_now(contender.stream(topic)), records)


def _check(contender: Contender, read: int, expected: int) -> None:
    if not isinstance(contender, NothingSource) and read != expected:
        raise SystemExit(f"{contender.name}: expected {expected} records, read {read}.")


ROWS: Mapping[str, Callable[[Bench, str], Result]] = {
    "idle": idle,
    "nothing": nothing,
    "noop": noop,
    "foreach": foreach,
    "foreach-fast": foreach_fast,
    "start": start,
    "available-now": available_now,
    "read": read,
    "partitions": partitions,
    "settings": settings,
    "prefetch": prefetch,
}
ON_REQUEST = ("partitions", "settings", "prefetch")
"""Rows about logbus alone."""

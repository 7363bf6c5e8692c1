"""Rows about logbus alone: the cost of partitions, and what settings and prefetching give."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from bench.kit.program import Row, Whole
from bench.kit.result import Metrics, Rounds
from bench.kit.rounds import in_turn
from bench.programs.stream.contenders import Contender, LogbusSource
from bench.programs.stream.measuring import SLOW, WARM_UP_BATCHES, Bench, filled, live
from bench.programs.stream.queries import WARM_UP, phases_of, running

MANY_PARTITIONS = (10, 100, 1_000)
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


def partitions(bench: Bench) -> Rounds:
    """Measures what a micro-batch costs over the partitions of its query, with a consumer group."""
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

    return in_turn(contenders, measure, rounds=bench.rounds)


def settings(bench: Bench) -> Rounds:
    """Measures what settings of Spark's session give, to logbus as to every source."""
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

    return in_turn(contenders, measure, rounds=bench.rounds)


def prefetch(bench: Bench) -> Rounds:
    """Measures micro-batches of the same sizes, read by the planner and by tasks."""
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

    return in_turn(contenders, measure, rounds=bench.rounds)


ROWS: Final[Mapping[str, Row[Bench]]] = {
    "partitions": Whole(
        f"micro-batches of logbus at {SLOW:,} records/s to noop, with a group", "ms", partitions
    ),
    "settings": Whole(f"micro-batches of logbus at {SLOW:,} records/s to noop", "ms", settings),
    "prefetch": Whole("micro-batches of logbus to noop, prefetched and by tasks", "ms", prefetch),
}

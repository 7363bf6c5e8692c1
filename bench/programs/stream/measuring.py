"""How contenders are measured: with a live input or a filled topic."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from pyspark.sql import SparkSession

from bench.kit.result import Metrics
from bench.kit.shapes import Shape
from bench.programs.stream.contenders import Contender, KafkaSource, LogbusSource, NothingSource
from bench.programs.stream.queries import WARM_UP, Sink, phases_of, records_of, running
from bench.programs.stream.sender import fill, input_to, stop
from bench.servers.systems import fresh_topic

SLOW, FAST = 5_000, 50_000  # records a second
PARTITIONS = 2
P50, P99 = "send to sink, p50", "send to sink, p99"
WARM_UP_BATCHES = 10  # of the round that does not count


@dataclass(frozen=True)
class Bench:
    """Sources, session and sizes that all rows share."""

    spark: SparkSession
    logbus: LogbusSource
    kafka: KafkaSource | None
    rounds: int
    batches: int
    """Micro-batches that are timed in a round."""
    records: int
    """Of a large read."""
    shape: Shape
    """Of records, where a row does not say."""
    filled: set[str] = field(default_factory=set)
    """Topics that ``filled`` has made."""

    def sources(self) -> list[Contender]:
        return [self.logbus] if self.kafka is None else [self.kafka, self.logbus]

    @contextmanager
    def topic(self, contender: Contender, *, partitions: int = PARTITIONS) -> Iterator[str]:
        """Creates a topic for a contender, and deletes it afterwards."""
        if contender.system is None:
            yield ""
            return
        flushed = self.logbus.flushed
        with fresh_topic(contender.system, partitions=partitions, flushed=flushed) as name:
            yield name


def live(
    bench: Bench,
    contender: Contender,
    *,
    a_second: int,
    batches: int,
    partitions: int = PARTITIONS,
    foreach_batch: bool = False,
    shape: Shape | None = None,
) -> Metrics:
    """Medians of micro-batches with a steady input, and ages of the records in the sink."""
    sink = Sink() if foreach_batch else None
    with bench.topic(contender, partitions=partitions) as topic:
        target = contender.target(topic, partitions=partitions, shape=shape or bench.shape)
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
                sent = stop(steady)
                if not isinstance(contender, NothingSource):  # whose records never end
                    query.drain()
                progress = query.progress()
            check_count(
                contender, records_of(progress) if sink is None else sink.records, sent.records
            )
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
        metrics |= {
            "records": statistics.median(rows),
            "sender late": sent.late_ms,
            "sender CPU, %": sent.cpu_percent,
        }
    return metrics


def filled(bench: Bench, records: int) -> str:
    """A topic that holds so many records in each log; later rows find it as it is."""
    topic = f"bench-{records}-records"
    if topic not in bench.filled:
        for contender in bench.sources():
            assert contender.system is not None
            flushed = bench.logbus.flushed
            contender.system.create_topic(topic, partitions=PARTITIONS, flushed=flushed)
            target = contender.target(topic, partitions=PARTITIONS, shape=bench.shape)
            assert target is not None
            fill(target, records=records)
        bench.filled.add(topic)
    return topic


def check_count(contender: Contender, read: int, expected: int) -> None:
    if not isinstance(contender, NothingSource) and read != expected:
        raise SystemExit(f"{contender.name}: expected {expected} records, read {read}.")

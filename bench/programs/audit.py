"""What counting for the audit costs a producer, and what an audit costs itself.

CPU time of this process, with the producer's and the reporter's threads, for each way to send; in
turn without and with the counts. The records go to a broker with ``acks=written``.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import pyarrow as pa
from rich.table import Table

from bench.kit.harness import best_us, console
from bench.servers.logbus import logbus
from spark_logbus.audit import AuditInterceptor, Question, Tier, audit
from spark_logbus.audit.counts import tally_times
from spark_logbus.audit.run import Run
from spark_logbus.client import Cluster, Producer, ProducerConfig, ProducerInterceptor
from spark_logbus.model import Acks

_CONFIG = ProducerConfig(acks=Acks.WRITTEN)
_PIECE = 10_000  # records of one call that takes many
_WINDOW_US = 600_000_000

Send = Callable[[Producer, int], object]
Interceptors = Sequence[ProducerInterceptor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=200_000, help="of a round, sent one by one")
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    value = b"v" * arguments.value_bytes
    values = [value] * _PIECE
    columns = pa.table({"value": pa.array(values)})
    ways: dict[str, tuple[int, Send]] = {
        "send": (1, lambda producer, _: producer.send("t", value)),
        "send_many": (_PIECE, lambda producer, _: producer.send_many("t", values)),
        "send_arrow": (_PIECE, lambda producer, _: producer.send_arrow("t", columns)),
    }
    table = Table("ns a record", "plain", "looked at", "audited", "audit adds", title="CPU time")
    for column in table.columns[1:]:
        column.justify = "right"
    with logbus() as system:
        client = system.client
        system.create_topic("t", partitions=2, flushed=True)
        for name, (piece, send) in ways.items():
            count = arguments.records if piece == 1 else 10 * arguments.records
            kinds: dict[str, Callable[[], Interceptors]] = {
                "plain": list,
                "looked at": lambda: [ProducerInterceptor()],
                "audited": lambda: [AuditInterceptor(client, "bench")],
            }
            took: dict[str, list[float]] = {kind: [] for kind in kinds}
            for number in range(arguments.rounds + 1):
                for kind, make in kinds.items():
                    ns = _round(client, make(), send, count // piece) * 1e9 / count
                    if number:  # the first one warms up
                        took[kind].append(ns)
            pairs = zip(took["plain"], took["audited"], strict=True)
            added = [audited - plain for plain, audited in pairs]
            table.add_row(
                name,
                *(f"{statistics.median(each):,.0f}" for each in took.values()),
                f"{statistics.median(added):,.0f} ({min(added):,.0f} to {max(added):,.0f})",
            )
        console.print(table)
        _audit(client)
    _counting()


def _round(client: Cluster, interceptors: Interceptors, send: Send, calls: int) -> float:
    """CPU seconds for so many calls, until all is acknowledged. Opening and closing do not count:
    they are once in a program's life."""
    with Producer(client, _CONFIG, interceptors=interceptors) as producer:
        send(producer, 0)
        producer.flush()
        started = time.process_time()
        for number in range(calls):
            send(producer, number)
        producer.flush()
        return time.process_time() - started


def _counting() -> None:
    """The work for each record batch that was acknowledged, by itself."""
    run = Run(
        tier=Tier.PRODUCER, counter="bench", run="one", interval_us=60_000_000, window_us=_WINDOW_US
    )
    now_us = time.time_ns() // 1_000 // _WINDOW_US * _WINDOW_US
    table = Table("records of a record batch", "µs", "ns a record", title="Counting, by itself")
    for column in table.columns:
        column.justify = "right"
    for records in (1, 100, 10_000, 1_000_000):
        times = pa.array(range(now_us, now_us + records), pa.timestamp("us", "UTC"))

        def count(times: pa.Array = times) -> None:
            run.add("t", tally_times(times, window_us=_WINDOW_US))

        took = best_us(count)
        table.add_row(f"{records:,}", f"{took:,.1f}", f"{took * 1e3 / records:,.1f}")
    console.print(table)


def _audit(client: Cluster) -> None:
    now_us = client.clock.now_us()
    started, cpu_started = time.perf_counter(), time.process_time()
    question = Question(
        topic="t", since_us=now_us - 86_400_000_000, until_us=now_us + 2 * _WINDOW_US, wait_s=0
    )
    result = audit(client, question)
    found = sum(window.found.records for window in result.windows)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    console.print(
        f"An audit of {found:,} records and {len(result.runs)} counters' runs: {seconds:.2f} s, "
        f"{cpu_seconds:.2f} s of CPU.",
        highlight=False,
    )

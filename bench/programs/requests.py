"""What an append request costs a broker: record batches of 500 records of 200 bytes."""

from __future__ import annotations

import argparse
import statistics
import threading

from rich.table import Table

from bench.kit.appender import Appender, record_batch
from bench.kit.harness import console
from bench.kit.processes import CpuTime
from bench.servers.logbus import logbus
from spark_logbus.client import Cluster


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=500, help="of a record batch")
    parser.add_argument("--value-bytes", type=int, default=200)
    parser.add_argument("--in-flight", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tcp", action="store_true", help="no UNIX socket, as if far away")
    arguments = parser.parse_args()
    data = record_batch(records=arguments.records, value_bytes=arguments.value_bytes)
    kinds = [(acks, producers) for acks in ("flushed", "written") for producers in (1, 4)]
    found: dict[tuple[str, int], list[tuple[float, float, float]]] = {kind: [] for kind in kinds}
    with logbus(tcp_only=arguments.tcp) as system:
        [pid] = system.pids
        for number in range(4):
            system.create_topic(f"bench-{number}", flushed=True)
        for number in range(arguments.rounds + 1):
            for acks, producers in kinds:
                before = CpuTime.of(pid)
                requests = run(system.client, data, acks, producers, arguments)
                after = CpuTime.of(pid)
                user, kernel = after.user - before.user, after.kernel - before.kernel
                if number:  # the first round does not count
                    rate = requests * arguments.records / arguments.seconds
                    share = kernel / (user + kernel)
                    found[acks, producers].append((rate, share, 1e6 * user / requests))
    title = (
        f"Appends of {arguments.records} records of {arguments.value_bytes} bytes, "
        f"{arguments.in_flight} under way; median (lowest - highest)"
    )
    table = Table(
        "", "records/s", "kernel's share of broker CPU", "broker user µs a request", title=title
    )
    for (acks, producers), rounds in found.items():
        rates, shares, costs = zip(*rounds, strict=True)
        table.add_row(
            f"acks={acks}, {producers} producer{'s' if producers > 1 else ''}",
            spread(rates, "{:,.0f}"), spread(shares, "{:.0%}"), spread(costs, "{:.0f}"),
        )  # fmt: skip
    console.print(table)


def run(
    client: Cluster, data: memoryview, acks: str, producers: int, arguments: argparse.Namespace
) -> int:
    """Returns the requests answered; each producer has a connection and a partition of its own."""
    counts: list[int] = []

    def produce(number: int) -> None:
        with Appender(client, f"bench-{number}", data, acks=acks) as appender:
            counts.append(
                appender.saturating(in_flight=arguments.in_flight, seconds=arguments.seconds)
            )

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(producers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts)


def spread(values: tuple[float, ...], form: str) -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{form} ({form} - {form})".format(middle, low, high)

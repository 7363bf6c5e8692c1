"""What readers and idle connections do to the latency of appends, against appends alone.

Each kind of disturbance is a process of its own, so that only the broker and the machine are
shared. Rounds in turn; the ratio of each round to "alone" in the same round, and their medians.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.kit.appender import Appender, record_batch
from bench.kit.children import Child
from bench.kit.comparing import Comparing
from bench.kit.harness import console
from bench.kit.program import medians_table
from bench.servers.logbus import logbus
from spark_logbus.client import Admin, ClientConfig, Cluster
from spark_logbus.errors import LogbusError
from spark_logbus.model import TopicPartition
from spark_logbus.protocol import Api, FetchPartition, FetchRequest, FetchResponse
from spark_logbus.wire.connection import BrokerConnection

MIB = 1 << 20
SETTINGS = {"max_connections": 10_000, "max_connections_per_address": 10_000}
SCENARIOS = {
    "alone": [],
    "50 readers of cold data": ["cold"],
    "20 readers that stopped reading": ["stalled"],
    "2,000 idle connections": ["idle"],
    "all of these": ["cold", "stalled", "idle"],
}


# -- disturbances, each in a process of its own -------------------------------------------


def fetch_of(offset: int, max_bytes: int) -> FetchRequest:
    return FetchRequest(0, 1, max_bytes, [FetchPartition("old", 0, offset, max_bytes)])


def leader_connections(client: Cluster, stack: ExitStack, count: int) -> list[BrokerConnection]:
    deadline = client.deadline_ms(120_000)
    leader = client.leader(TopicPartition("old", 0), deadline)
    return [stack.enter_context(client.pool.lease(leader, deadline)) for _ in range(count)]


def disturb(kind: str, zookeeper: str, data_dir: str, mib_s: float) -> None:
    config = ClientConfig(local_sockets=False, idle_connections=0)
    with Cluster.from_zookeeper(zookeeper, config) as client, ExitStack() as stack:
        if kind == "idle":
            leader_connections(client, stack, 2_000)
        elif kind == "stalled":
            for connection in leader_connections(client, stack, 20):
                connection.send(Api.FETCH, fetch_of(0, 64 * MIB))
        else:
            read_cold(client, Path(data_dir), mib_s)
        print("ready", flush=True)
        threading.Event().wait()


def read_cold(client: Cluster, data_dir: Path, mib_s: float) -> None:
    """50 threads that fetch 1 MiB from anywhere, and one that keeps the data out of memory."""
    ends = Admin(client).describe(["old"])["old"].partitions[0].ends
    assert ends is not None
    end = ends.high_watermark
    leader = client.leader(TopicPartition("old", 0), client.deadline_ms(60_000))

    def read(number: int) -> None:
        dice = random.Random(number)
        while True:
            started = time.perf_counter()
            request = fetch_of(dice.randrange(end), MIB)
            with contextlib.suppress(LogbusError):
                client.call(
                    leader, Api.FETCH, request, FetchResponse, deadline=client.deadline_ms(60_000)
                )
            time.sleep(max(0.0, 50 / mib_s - (time.perf_counter() - started)))

    def forget() -> None:
        while True:
            for segment in data_dir.glob("old-0/*.log"):
                descriptor = os.open(segment, os.O_RDONLY)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(descriptor)
            time.sleep(0.05)

    for number in range(50):
        threading.Thread(target=read, args=(number,), daemon=True).start()
    threading.Thread(target=forget, daemon=True).start()


@contextmanager
def disturbed(
    kinds: list[str], zookeeper: str, data_dir: Path, arguments: argparse.Namespace
) -> Iterator[None]:
    """Disturbs the broker in each of the ways."""
    with ExitStack() as stack:
        for kind in kinds:
            task = {
                "kind": kind,
                "zookeeper": zookeeper,
                "data_dir": str(data_dir),
                "mib_s": arguments.cold_mib_s,
            }
            stack.enter_context(Child("bench.programs.interference", task)).line()
        yield


# -- measuring ----------------------------------------------------------------------------


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def measure(client: Cluster, arguments: argparse.Namespace) -> dict[str, float]:
    """Milliseconds (and records a second when saturated) of the disturbed or lonely broker."""
    data = record_batch(records=500, value_bytes=200)
    found = {}
    for acks in ("flushed", "written"):
        with Appender(client, "new", data, acks=acks) as appender:
            times = appender.at_rate(arguments.rate, seconds=arguments.seconds)
            found[f"{acks}: p50 ms"] = percentile(times, 0.5)
            found[f"{acks}: p99 ms"] = percentile(times, 0.99)
    with Appender(client, "new", data, acks="flushed") as appender:
        seconds = arguments.seconds / 2
        count = appender.saturating(in_flight=5, seconds=seconds)
        found["saturated: µs a request"] = 1e6 * seconds / count
    return found


def fill(client: Cluster, mib: int) -> None:
    data = record_batch(records=5_000, value_bytes=200)
    with Appender(client, "old", data, acks="written") as appender:
        done = 0
        while done < mib * MIB:
            done += appender.saturating(in_flight=5, seconds=0.1) * len(data)
    with Appender(client, "old", data, acks="flushed") as appender:
        appender.at_rate(1, seconds=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    parser.add_argument("--rate", type=float, default=50.0, help="append requests a second")
    parser.add_argument("--old-mib", type=int, default=1_024, help="cold data to read")
    parser.add_argument("--cold-mib-s", type=float, default=100.0, help="of all cold readers")
    arguments = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {name: [] for name in SCENARIOS}
    with logbus(tcp_only=True, network=SETTINGS) as system:
        client = system.client
        for topic in ("old", "new"):
            system.create_topic(topic, flushed=True)
        with console.status("Filling the topic with old data ..."):
            fill(client, arguments.old_mib)
        for number in range(arguments.rounds):
            for name, kinds in SCENARIOS.items():
                with (
                    console.status(f"Round {number + 1} of {arguments.rounds}: {name} ..."),
                    disturbed(kinds, system.address, system.data, arguments),
                ):
                    found[name].append(measure(client, arguments))
    console.print(
        f"{arguments.rate:g} appends a second of 500 records of 200 bytes; medians of "
        f"{arguments.rounds} rounds; below, how long it takes alone, of what it takes disturbed"
    )
    measures = dict.fromkeys(found["alone"][0], "")
    console.print(medians_table(found, Comparing(measures, own="(?!alone).*")))


if __name__ == "__main__":
    disturb(**json.loads(sys.argv[1]))

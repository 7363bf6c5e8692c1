"""Start of a broker with much data: after a clean stop, after a crash, and its memory after."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

import pyarrow as pa
from rich.table import Table

from bench.kit.children import Child
from bench.kit.harness import console
from bench.kit.processes import memory_mib
from spark_logbus.broker.replica.watermark import sole_replica
from spark_logbus.client import Admin, Cluster, RangeReader
from spark_logbus.local.cluster import BrokerProcess, EmbeddedCluster
from spark_logbus.log import LogConfig, LogDirectory
from spark_logbus.model import Latest, OffsetRange, TopicPartition
from spark_logbus.record.rows.arrow import canonical, encode

TOPIC = "bench"
GIB = 1 << 30
RESTART_S = 2.0
RECOVERY_S_PER_GIB = 1.0
RSS_MIB = 200
_NEVER_MS = 1 << 40
_SETTINGS = {"log": {"retention_ms": _NEVER_MS}}


def record_batch(size_bytes: int) -> memoryview:
    """Encodes records of 200 bytes that do not compress, about so large together."""
    values = [os.urandom(200) for _ in range(max(1, size_bytes // 212))]
    batch = canonical(pa.record_batch({"value": pa.array(values)}), now_us=time.time_ns() // 1000)
    return encode(batch)


def open_logs(data_dir: Path, *, flush_ms: int | None = None) -> tuple[LogDirectory, float]:
    logs = LogDirectory(
        data_dir, defaults=LogConfig(retention_ms=None, flush_ms=flush_ms), watermark=sole_replica
    )
    started = time.perf_counter()
    logs.open()
    return logs, time.perf_counter() - started


def fill(logs: LogDirectory, *, total_bytes: int, batch_bytes: int) -> None:
    data = record_batch(batch_bytes)
    for _ in range(0, total_bytes, len(data) * len(logs.logs())):
        for log in logs.logs():
            log.append_as_leader(data, leader_epoch=1)


def append_and_die(data_dir: str, gib: float, batch_bytes: int) -> None:
    """Leaves what a crash does: written, not flushed. Nothing here may run at exit."""
    logs, _ = open_logs(Path(data_dir), flush_ms=_NEVER_MS)
    fill(logs, total_bytes=int(gib * GIB), batch_bytes=batch_bytes)
    os._exit(0)


def read_all(zookeeper: str, partitions: int) -> int:
    """Reads all that is there, a reader to a partition, and returns the bytes."""
    sizes: list[int] = []
    with Cluster.from_zookeeper(zookeeper) as cluster:
        topic_partitions = [TopicPartition(TOPIC, number) for number in range(partitions)]
        ends = Admin(cluster).list_offsets(dict.fromkeys(topic_partitions, Latest()))

        def read(topic_partition: TopicPartition) -> None:
            with RangeReader(
                cluster, OffsetRange(topic_partition, 0, ends[topic_partition] or 0)
            ) as reader:
                sizes.extend(batch.header.size for batch in reader)

        readers = [
            threading.Thread(target=read, args=(topic_partition,))
            for topic_partition in topic_partitions
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
    return sum(sizes)


def restart(broker: BrokerProcess) -> float:
    started = time.perf_counter()
    broker.start()
    return time.perf_counter() - started


def measure(directory: Path, arguments: argparse.Namespace) -> Table:
    table = Table("", "measured", "goal", title=f"Recovery of {arguments.gib:g} GiB")
    batch_bytes = arguments.batch_kib << 10
    with EmbeddedCluster(directory, settings=_SETTINGS) as running:
        (broker,) = running.brokers
        with Cluster.from_zookeeper(running.zookeeper) as cluster:
            Admin(cluster).create_topic(TOPIC, partitions=arguments.partitions)
        broker.stop()
        table.add_row("start of a broker without data", f"{restart(broker):.2f} s", "")
        broker.stop()
        data_dir = broker.directory / "data"
        logs, _ = open_logs(data_dir)
        fill(logs, total_bytes=int(arguments.gib * GIB), batch_bytes=batch_bytes)
        logs.close()

        logs, seconds = open_logs(data_dir)
        logs.close()
        table.add_row("opening the logs after a clean stop", f"{seconds:.3f} s", "")
        table.add_row(
            "start of the broker after a clean stop", f"{restart(broker):.2f} s", f"{RESTART_S} s"
        )
        total = read_all(running.zookeeper, arguments.partitions)
        assert total >= arguments.gib * GIB * 0.99, f"only {total} bytes were read"
        peak = memory_mib(broker.pid, "VmHWM")
        table.add_row(
            f"its memory while {total / GIB:.1f} GiB are read, highest", f"{peak} MiB",
            f"{RSS_MIB} MiB",
        )  # fmt: skip
        broker.stop()

        gib = arguments.unflushed_gib
        with Child("bench.programs.recovery", [str(data_dir), gib, batch_bytes]) as crashing:
            crashing.wait()
        logs, seconds = open_logs(data_dir)
        scanned = logs.recovery.bytes_scanned / GIB
        table.add_row(
            f"opening after a crash with {gib:g} GiB not flushed ({scanned:.1f} GiB scanned)",
            f"{seconds:.2f} s, {seconds / gib:.2f} s/GiB",
            f"{RECOVERY_S_PER_GIB} s/GiB",
        )
        logs.close()
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=10)
    parser.add_argument("--unflushed-gib", type=float, default=4)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--batch-kib", type=int, default=1024)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    arguments = parser.parse_args()
    needed = (arguments.gib + arguments.unflushed_gib + 1) * GIB
    if shutil.disk_usage(arguments.directory).free < needed:
        raise SystemExit(
            f"{arguments.directory} has less than the {needed / GIB:.0f} GiB that this takes; "
            "give another --directory, or less --gib."
        )
    with tempfile.TemporaryDirectory(prefix="logbus-bench-", dir=arguments.directory) as directory:
        console.print(measure(Path(directory), arguments))


if __name__ == "__main__":
    append_and_die(*json.loads(sys.argv[1]))

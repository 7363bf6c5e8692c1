"""A partition that moves to another broker, against a copy of its files over a loopback socket.

Nothing bounds the move's rate. The copy is what any program could do at best: ``sendfile`` on the
one side, and on the other files that are written and synced before the time is taken. Both read
what is in the page cache, if that is large enough. Memory is the highest that the brokers had in
the round.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from bench.kit.comparing import Compared, Comparing
from bench.kit.harness import cluster
from bench.kit.memory import claim_memory
from bench.kit.processes import cpu_seconds, memory_mib
from bench.kit.program import Opening, Program, Whole
from bench.kit.result import LOGBUS, Metrics, Rounds
from bench.kit.rounds import CPU, SECONDS, Contender, in_turn
from spark_logbus.client import Admin, Cluster, Producer
from spark_logbus.local.cluster import BrokerProcess, EmbeddedCluster
from spark_logbus.model import TopicPartition

COPY: Final = "copy"
SOURCE_MIB, TARGET_MIB = "source, MiB", "target, MiB"
GOAL: Final = 0.5
WHERE: Final = TopicPartition("bench", 0)
GIB: Final = 1 << 30
_VALUE_BYTES: Final = 200
_RECORDS: Final = 100_000  # of one call
_LOOK_EVERY_S: Final = 0.01
_CHUNK_BYTES: Final = 1 << 20
_DEADLINE_S: Final = 3_600.0
# What moved away takes no room, and no disk is too full.
_MOVES: Final = {"retention_ms": 0, "reserve_bytes": 0}


@dataclass(frozen=True)
class Bench:
    """Two brokers, of which one has the partition, and a directory for copies."""

    running: EmbeddedCluster
    client: Cluster
    copies: Path
    rounds: int

    def broker_of(self) -> BrokerProcess:
        """Returns the broker that serves the partition."""
        while True:
            part = Admin(self.client).describe([WHERE.topic])[WHERE.topic].partitions[0]
            if part.ends is not None:
                (found,) = [
                    broker for broker in self.running.brokers if broker.broker_id == part.leader_id
                ]
                return found
            time.sleep(_LOOK_EVERY_S)


def move(bench: Bench) -> Rounds:
    """Moves and copies the partition in turn."""
    contenders = [
        Contender(LOGBUS, lambda: _move(bench)),
        Contender(COPY, lambda: _copy(bench)),
    ]
    return in_turn(contenders, lambda each, _: each.measure(), rounds=bench.rounds)


def _move(bench: Bench) -> Metrics:
    """Moves it to the other broker, and back at the next call."""
    source = bench.broker_of()
    (target,) = [broker for broker in bench.running.brokers if broker is not source]
    for broker in (source, target):
        _forget_peak(broker.pid)
    cpu_started, started = cpu_seconds(), time.perf_counter()
    Admin(bench.client).move_partitions({WHERE: target.broker_id}, throttle=0)
    while bench.broker_of() is not target:
        if time.perf_counter() - started > _DEADLINE_S:
            raise SystemExit(f"{WHERE} was not moved within {_DEADLINE_S:.0f} s; see its brokers.")
        time.sleep(_LOOK_EVERY_S)
    return {
        SECONDS: time.perf_counter() - started,
        CPU: cpu_seconds() - cpu_started,
        SOURCE_MIB: memory_mib(source.pid, "VmHWM"),
        TARGET_MIB: memory_mib(target.pid, "VmHWM"),
    }


def _forget_peak(pid: int) -> None:
    """Has the kernel tell the highest memory since now (Linux)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _copy(bench: Bench) -> Metrics:
    """Copies its files over a socket, into a directory that is gone afterwards."""
    directory = bench.broker_of().directory / "data" / f"{WHERE.topic}-{WHERE.partition}"
    files = sorted(path for path in directory.iterdir() if path.suffix == ".log")
    with tempfile.TemporaryDirectory(dir=bench.copies) as into:
        cpu_started, started = cpu_seconds(), time.perf_counter()
        copy_files(files, Path(into))
        return {SECONDS: time.perf_counter() - started, CPU: cpu_seconds() - cpu_started}


def copy_files(files: Sequence[Path], into: Path) -> None:
    """Sends files over one loopback connection to a thread that writes and syncs them."""
    failed: list[BaseException] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()

        def send() -> None:
            try:
                with socket.create_connection(address) as connection:
                    for path in files:
                        with path.open("rb") as file:
                            connection.sendfile(file)
            except OSError as error:
                failed.append(error)

        sender = threading.Thread(target=send)
        sender.start()
        connection, _ = listener.accept()
        with connection:
            for path in files:
                _receive(connection, into / path.name, path.stat().st_size)
        sender.join()
    if failed:
        raise failed[0]


def _receive(connection: socket.socket, path: Path, size: int) -> None:
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    with path.open("wb", buffering=0) as file:
        left = size
        while left:
            count = connection.recv_into(buffer[:left])
            if not count:
                raise SystemExit(f"The copy of {path.name} ended {left} bytes too early.")
            left -= file.write(buffer[:count])
        os.fsync(file.fileno())


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the size of the partition, and where it is."""
    parser.add_argument("--gib", type=float, default=2)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))


def open_bench(opening: Opening) -> Bench:
    """Starts two brokers, and fills a partition of one of them."""
    args, _, stack, _ = opening
    size = int(args.gib * GIB)
    needed = 4 * size
    if shutil.disk_usage(args.directory).free < needed:
        raise SystemExit(
            f"{args.directory} has less than the {needed / GIB:.0f} GiB that this takes; give "
            "another --directory, or less --gib."
        )
    claim_memory(min(2 * size, 2 * GIB))
    running = stack.enter_context(cluster(brokers=2, directory=args.directory, moves=_MOVES))
    client = stack.enter_context(Cluster.from_zookeeper(running.zookeeper))
    copies = stack.enter_context(
        tempfile.TemporaryDirectory(prefix="logbus-bench-", dir=args.directory)
    )
    Admin(client).create_topic(WHERE.topic, partitions=1, config={"retention.ms": "-1"})
    values = pa.array([os.urandom(_VALUE_BYTES) for _ in range(_RECORDS)], pa.binary())
    table = pa.table({"value": values})
    with Producer(client) as producer:
        for _ in range(0, size, _RECORDS * (_VALUE_BYTES + 12)):
            producer.send_arrow(WHERE.topic, table)
    return Bench(running, client, Path(copies), args.rounds)


PROGRAM: Final = Program(
    name="move",
    description=__doc__,
    rows={"move": Whole("a partition moves to another broker", "s", move)},
    open_bench=open_bench,
    comparing=Comparing({SECONDS: ""}, goals={Compared("move", "", LOGBUS, COPY): GOAL}),
    rounds=3,
    add_flags=add_flags,
)

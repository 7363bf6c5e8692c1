"""``scripts/bench spark``: starts Spark and the two logs, and runs the rows that are asked for."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Final

from bench.append import TUNED as TUNED_SINK
from bench.clients.systems import KafkaSystem, LogbusSystem
from bench.harness import cluster, console, spark_session
from bench.peers import PeerUnavailableError
from bench.peers.kafka import Kafka, kafka
from bench.spark.logs import KafkaLog, LogbusLog
from bench.spark.results import Line, lines_of, show, told, what_of
from bench.spark.rows import ROWS, Bench
from bench.spark.shapes import PARTITIONS
from bench.stream.contenders import TUNED
from bench.stream.results import Csv
from spark_logbus.client import Cluster

RECORDS: Final = 2_000_000
_SMALL: Final = 10  # the part of them that --small takes


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Batch reads and writes of Spark, in turn with Spark's Kafka connector on a "
        "Kafka broker. `scripts/bench stream --kafka` measures streams beside it, `scripts/bench "
        "typed --measures k` topics with a schema.",
    )
    parser.add_argument("--rows", default=",".join(ROWS), help=f"of {', '.join(ROWS)}")
    parser.add_argument("--records", type=int, default=RECORDS, help="of each topic")
    parser.add_argument("--small", action="store_true", help="a tenth of the records, to try it")
    parser.add_argument("--rounds", type=int, default=5, help="after one that does not count")
    parser.add_argument("--alone", action="store_true", help="logbus alone, as for a profile")
    parser.add_argument("--csv", type=Path, help="a file for the result of each round")
    return parser


def main() -> None:
    args = parser().parse_args()
    rows = args.rows.split(",")
    unknown = [row for row in rows if row not in ROWS]
    if unknown:
        raise SystemExit(f"No row is called {', '.join(unknown)}; use {', '.join(ROWS)}.")
    records = args.records // _SMALL if args.small else args.records
    lines: list[Line] = []
    with ExitStack() as stack, Csv(args.csv) as raw:
        peer: Kafka | None = None
        if not args.alone:
            try:
                peer = stack.enter_context(kafka(flushed=False))
            except PeerUnavailableError as error:
                console.print(f"Kafka is left out, as it is not at hand: {error}", markup=False)
        running = stack.enter_context(cluster())
        client = stack.enter_context(Cluster.from_zookeeper(running.zookeeper))
        spark = stack.enter_context(spark_session(jars=peer.connector if peer else ()))
        _tell(peer)
        bench = Bench(
            spark=spark,
            logbus=LogbusLog(LogbusSystem(running, client, PARTITIONS)),
            kafka=None if peer is None else KafkaLog(KafkaSystem(peer, PARTITIONS)),
            rounds=args.rounds,
            records=records,
        )
        for row in rows:
            for result in ROWS[row](bench, row):
                raw.add(replace(result, row=f"{row}, {what_of(result)}"))
                console.print(told(result, records=records), highlight=False)
                lines += lines_of(result, records=records)
    if lines:
        show(lines)


def _tell(peer: Kafka | None) -> None:
    """The machine, the versions and the settings."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("pyspark", "pyarrow"))
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    console.print(
        f"{os.cpu_count()} processors ({_processor()}), {memory_gib:.0f} GiB; "
        f"Python {platform.python_version()}, {packages}.",
        highlight=False,
    )
    if peer is not None:
        jars = ", ".join(jar.stem for jar in peer.connector)
        console.print(
            f"Kafka {peer.version}; {jars}; tuned means to read with {_shown(TUNED)}, and to write "
            f"with {_shown(TUNED_SINK)}.",
            highlight=False,
        )


def _shown(settings: Mapping[str, str]) -> str:
    return ", ".join(f"{name.removeprefix('kafka.')} {value}" for name, value in settings.items())


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()

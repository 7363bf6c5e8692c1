"""Shared by all benchmarks: a cluster, a Spark session, and the time of small pieces of work."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from bench.kit import ROOT
from spark_logbus.local.cluster import EmbeddedCluster
from spark_logbus.local.java import ensure_java_home

# A file or a pipe has no width of its own; tables must not be squeezed for it.
console = Console(width=None if sys.stdout.isatty() else 132)


@contextmanager
def cluster(
    *,
    brokers: int = 1,
    directory: Path | None = None,
    tcp_only: bool = False,
    network: Mapping[str, int] | None = None,
    log: Mapping[str, str] | None = None,
    moves: Mapping[str, int] | None = None,
    broker: Mapping[str, int] | None = None,
    tables: Mapping[str, Mapping[str, Any]] | None = None,
) -> Iterator[EmbeddedCluster]:
    """Runs a fresh cluster, gone afterwards; its data is below ``directory``, or where temporary
    files are.

    With ``tcp_only`` clients reach it as they would from another machine. ``network``, ``log``,
    ``moves`` and ``broker`` are settings of the brokers' tables of these names, ``tables`` other
    tables.
    """
    with (
        tempfile.TemporaryDirectory(prefix="logbus-bench-", dir=directory) as own,
        EmbeddedCluster(
            Path(own),
            brokers=brokers,
            settings={
                "network": {"local_socket": not tcp_only, **(network or {})},
                "log": log or {},
                "moves": moves or {},
                "broker": broker or {},
                **(tables or {}),
            },
        ) as running,
    ):
        yield running


@contextmanager
def spark_session(*, cores: int = 2, jars: Sequence[Path] = ()) -> Iterator[SparkSession]:
    """Runs a local session with ``jars``, whose Python workers can import this package."""
    ensure_java_home()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    spark = (
        SparkSession.builder.master(f"local[{cores}]")
        .appName("logbus bench")
        .config("spark.driver.memory", "3g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.jars", ",".join(map(str, jars)))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def drain(frame: DataFrame) -> None:
    """Reads all rows into a sink that discards them."""
    frame.write.format("noop").mode("overwrite").save()


_BEST_ROUNDS = 7
_BEST_ROUND_S = 0.05


def best_us(work: Callable[[], object]) -> float:
    """Returns the best mean of several rounds: what the work costs when nothing else runs."""
    start = time.perf_counter()
    work()
    repeats = max(1, int(_BEST_ROUND_S / max(time.perf_counter() - start, 1e-6)))
    best = float("inf")
    for _ in range(_BEST_ROUNDS):
        start = time.perf_counter()
        for _ in range(repeats):
            work()
        best = min(best, (time.perf_counter() - start) / repeats)
    return best * 1e6

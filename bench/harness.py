"""What the benchmarks share: a cluster, a Spark session, timed rounds, a table of ratios.

A figure counts only against the baseline that ran in turn with it: the machines are noisy, so
the ratio of each round is taken, and the median of these is what to quote.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from bench.rounds import in_turn
from spark_logbus.local.cluster import EmbeddedCluster
from spark_logbus.local.java import ensure_java_home

ROOT = Path(__file__).resolve().parent.parent

# A file or a pipe has no width of its own; tables must not be squeezed for it.
console = Console(width=None if sys.stdout.isatty() else 132)


@contextmanager
def cluster(
    *,
    brokers: int = 1,
    tcp_only: bool = False,
    network: Mapping[str, int] | None = None,
    log: Mapping[str, str] | None = None,
) -> Iterator[EmbeddedCluster]:
    """A fresh cluster on this machine's disk, gone afterwards.

    With ``tcp_only`` clients reach it as they would from another machine. ``network`` and ``log``
    are settings of the brokers' tables of these names.
    """
    with (
        tempfile.TemporaryDirectory(prefix="logbus-bench-") as directory,
        EmbeddedCluster(
            Path(directory),
            brokers=brokers,
            settings={
                "network": {"local_socket": not tcp_only, **(network or {})},
                "log": log or {},
            },
        ) as running,
    ):
        yield running


@contextmanager
def spark_session(*, cores: int = 2, jars: Sequence[Path] = ()) -> Iterator[SparkSession]:
    """A local session with ``jars``, whose Python workers can import this package."""
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


@dataclass(frozen=True)
class Contender:
    """Something to time; ``work`` does it once."""

    name: str
    work: Callable[[], object]


class Round(NamedTuple):
    """What one round of one contender took."""

    seconds: float
    cpu_seconds: float
    """Of all processes of this machine; other work on it counts too. NaN where it is not told."""


def timed_in_turn(contenders: Sequence[Contender], *, rounds: int) -> dict[str, list[Round]]:
    """The times of the contenders' work, in turn as ``bench.rounds`` has it."""

    def measure(contender: Contender, _: bool) -> Round:
        started, cpu_started = time.perf_counter(), _cpu_seconds()
        contender.work()
        return Round(time.perf_counter() - started, _cpu_seconds() - cpu_started)

    return in_turn(contenders, measure, rounds=rounds)


def _cpu_seconds() -> float:
    """Time that this machine's processors have spent on anything (Linux)."""
    try:
        first_line = Path("/proc/stat").read_text().partition("\n")[0]
    except OSError:
        return float("nan")
    user, nice, system, _, _, irq, softirq = map(int, first_line.split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def print_ratios(
    title: str,
    took: dict[str, list[Round]],
    *,
    baseline: str,
    records: int,
    target: float | None = None,
    targets: Mapping[str, float] = MappingProxyType({}),
) -> float:
    """A row for each contender; the lowest median ratio among those that are not the baseline.

    ``target`` is for the lowest of them, ``targets`` are for single contenders.
    """
    headings = ("records/s", "seconds: min", "median", "max", "CPU s", "of baseline")
    table = Table("", *headings, title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    lowest = float("inf")
    for name, rounds in took.items():
        times = [one.seconds for one in rounds]
        pairs = zip(took[baseline], rounds, strict=True)
        ratios = [base.seconds / own.seconds for base, own in pairs]
        ratio = statistics.median(ratios)
        shown = (
            "baseline" if name == baseline else f"{ratio:.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
        )
        if name != baseline:
            lowest = min(lowest, ratio)
        if name in targets:
            shown += f", target {targets[name]:.2f}"
        median = statistics.median(times)
        table.add_row(
            name,
            f"{records / median:,.0f}",
            f"{min(times):.2f}",
            f"{median:.2f}",
            f"{max(times):.2f}",
            f"{statistics.median(one.cpu_seconds for one in rounds):.2f}",
            shown,
        )
    console.print(table)
    if target is not None:
        met = "met" if lowest >= target else "not met"
        console.print(f"Target: {target:.2f} of the baseline; {met}.", highlight=False)
    return lowest


_BEST_ROUNDS = 7
_BEST_ROUND_S = 0.05


def best_us(work: Callable[[], object]) -> float:
    """The best mean of several rounds: what the work costs when nothing else runs."""
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

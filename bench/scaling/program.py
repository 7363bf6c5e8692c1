"""``scripts/bench scaling``: runs the rows that are asked for, and shows, keeps and draws them."""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from bench.charts import draw_lines
from bench.harness import console
from bench.scaling.results import KAFKA, Csv, Curve
from bench.scaling.rows import ROWS, Settings

_RECORDS, _SMALL_RECORDS = 1_000_000, 20_000


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="How costs grow with size, beside Kafka where that has the same question."
    )
    parser.add_argument("--rows", default=",".join(ROWS), help=f"of {', '.join(ROWS)}")
    parser.add_argument("--sizes", help="instead of the row's own, such as 1,4,16; with one row")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=_RECORDS, help="of 200 bytes")
    parser.add_argument("--small", action="store_true", help="a quick try: few, small sizes")
    parser.add_argument("--alone", action="store_true", help="logbus alone")
    parser.add_argument(
        "--directory", type=Path, default=Path(tempfile.gettempdir()), help="of log-size's data"
    )
    parser.add_argument("--csv", type=Path, help="a file for the result of each round")
    parser.add_argument("--charts", type=Path, help="a directory for charts, as SVG")
    return parser


def main() -> None:
    args = parser().parse_args()
    rows = args.rows.split(",")
    unknown = [row for row in rows if row not in ROWS]
    if unknown:
        raise SystemExit(f"No row is called {', '.join(unknown)}; use {', '.join(ROWS)}.")
    if args.sizes and len(rows) > 1:
        raise SystemExit("--sizes are of one row; name it with --rows.")
    if args.charts is not None and importlib.util.find_spec("matplotlib") is None:
        raise SystemExit(
            "Charts need matplotlib; .venv/bin/python -m pip install -c constraints.txt "
            "matplotlib brings it."
        )
    _describe()
    with Csv(args.csv) as raw:
        for name in rows:
            row = ROWS[name]
            sizes = row.small if args.small else row.sizes
            settings = Settings(
                sizes=[int(size) for size in args.sizes.split(",")] if args.sizes else sizes,
                rounds=1 if args.small else args.rounds,
                records=_SMALL_RECORDS if args.small else args.records,
                alone=args.alone,
                directory=args.directory,
            )
            curve = Curve(name, row.title, row.size_name)
            row.measure(settings, curve)
            raw.add(curve)
            console.print(curve.table())
            if args.charts is not None:
                draw(args.charts, curve, row.charts)


def draw(directory: Path, curve: Curve, metrics: Sequence[str]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for number, metric in enumerate(metrics, 1):
        draw_lines(
            directory / f"{curve.row}-{number}.svg",
            curve.medians(metric),
            title=curve.finding(metric),
            x=curve.size_name,
            y=metric,
        )


def _describe() -> None:
    """The machine, and who is measured."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    versions = [f"logbus {version('logbus')}", f"Python {platform.python_version()}"]
    if importlib.util.find_spec("confluent_kafka") is not None:
        versions.append(f"confluent-kafka {version('confluent-kafka')}")
    for each in (
        f"{os.cpu_count()} processors, {memory:.0f} GiB, {platform.system()} "
        f"{platform.release()}; load average {os.getloadavg()[0]:.1f} at the start.",
        f"{', '.join(versions)}. One broker of each with its defaults, {KAFKA} in KRaft mode; what "
        "is acknowledged is in the page cache. logbus reads with poll_arrow.",
    ):
        console.print(each, markup=False, highlight=False)

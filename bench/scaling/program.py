"""``scripts/bench scaling``: runs the rows that are asked for, and shows, keeps and draws them."""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import tempfile
from importlib.metadata import version
from pathlib import Path

from rich.table import Table

from bench.harness import console
from bench.scaling.measuring import Settings
from bench.scaling.results import KAFKA, Csv, Curve, draw, read_curves
from bench.scaling.rows import ROWS

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
    parser.add_argument(
        "--from",
        dest="kept",
        type=Path,
        metavar="CSV",
        help="show what such a file holds instead of measuring",
    )
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
    if args.kept is not None:
        for curve in read_curves(args.kept):
            if curve.row in rows:
                _show(curve, args.charts)
        return
    with Csv(args.csv) as raw:
        conditions = _conditions(args)
        for line in conditions:
            console.print(line, markup=False, highlight=False)
        raw.keep_conditions(conditions)
        for name in rows:
            _show(_measured(name, args, raw), args.charts)


def _measured(name: str, args: argparse.Namespace, raw: Csv) -> Curve:
    row = ROWS[name]
    sizes = row.small if args.small else row.sizes
    settings = Settings(
        sizes=[float(size) for size in args.sizes.split(",")] if args.sizes else sizes,
        rounds=1 if args.small else args.rounds,
        records=_SMALL_RECORDS if args.small else args.records,
        alone=args.alone,
        small=args.small,
        directory=args.directory,
    )
    curve = Curve(name)
    for size, system, sample in row.measure(settings):
        curve.add(size, system, sample)
        raw.add(name, size, system, len(curve.samples[size, system]), sample)
    return curve


def _show(curve: Curve, directory: Path | None) -> None:
    question = curve.question
    console.print(_table(question.title, curve.cells()))
    if curve.lines():
        console.print(_table(f"{question.title}: a line through the medians", curve.model_cells()))
        console.print(f"It may be drawn so far where {question.assumption}.", highlight=False)
    if directory is not None:
        draw(curve, directory)


def _table(title: str, cells: list[list[str]]) -> Table:
    head, *body = cells
    table = Table(*head, title=title)
    for column in table.columns[2:]:
        column.justify = "right"
    for line in body:
        table.add_row(*line)
    return table


def _conditions(args: argparse.Namespace) -> list[str]:
    """The machine, and who is measured."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    versions = [f"logbus {version('logbus')}", f"Python {platform.python_version()}"]
    if importlib.util.find_spec("confluent_kafka") is not None:
        versions.append(f"confluent-kafka {version('confluent-kafka')}")
    return [
        f"{os.cpu_count()} processors, {memory:.0f} GiB, {platform.system()} "
        f"{platform.release()}; load average {os.getloadavg()[0]:.1f} at the start.",
        f"{', '.join(versions)}; {1 if args.small else args.rounds} rounds.",
        "Clients, ZooKeeper and one broker of each share the machine, with their defaults; "
        f"{KAFKA} in KRaft mode. What is acknowledged is in the page cache.",
        "Producers: Producer.send and send_many, librdkafka's produce, from Python; record batches "
        "of up to 1 MiB. Readers: poll_arrow, which makes no Python objects of records, and "
        "librdkafka's consume, which does; both check checksums.",
    ]

"""``scripts/bench scaling``: runs the rows that are asked for, and shows, keeps and draws them."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from rich.table import Table

from bench.charts import require_matplotlib
from bench.clients.work import LIBRDKAFKA_READS
from bench.harness import console
from bench.machine import described
from bench.program import add_raw_flags, chosen, raw_results
from bench.raw import RawError, RawResults
from bench.scaling.measuring import Settings
from bench.scaling.results import KAFKA, Curve, draw, read_curves
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
    add_raw_flags(parser)
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
    rows = chosen(args.rows, ROWS)
    if args.sizes and len(rows) > 1:
        raise SystemExit("--sizes are of one row; name it with --rows.")
    if args.charts is not None:
        require_matplotlib()
    if args.kept is not None:
        for curve in _kept(args.kept):
            if curve.row in rows:
                _show(curve, args.charts)
        return
    raw = raw_results(args)
    raw.tell(*_conditions(args))
    for name in rows:
        _show(_measured(name, args, raw), args.charts)


def _kept(path: Path) -> list[Curve]:
    try:
        return read_curves(path)
    except (RawError, FileNotFoundError) as error:
        raise SystemExit(f"{error} Name a file that --csv wrote.") from error


def _measured(name: str, args: argparse.Namespace, raw: RawResults) -> Curve:
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
        curve.keep(raw, size)
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
    rounds = 1 if args.small else args.rounds
    return [
        *described("pyarrow", "confluent-kafka"),
        f"{rounds} round{'s' * (rounds > 1)}, {args.records:,} records of 200 bytes.",
        "Clients, ZooKeeper and one broker of each share the machine, with their defaults; "
        f"{KAFKA} in KRaft mode. What is acknowledged is in the page cache.",
        "Producers: Producer.send and send_many, librdkafka's produce, from Python; record batches "
        "of up to 1 MiB. Readers: poll_arrow, which makes no Python objects of records, and "
        "librdkafka's consume, which does, with fetch.queue.backoff.ms of "
        f"{LIBRDKAFKA_READS['fetch.queue.backoff.ms']}; both check checksums.",
    ]

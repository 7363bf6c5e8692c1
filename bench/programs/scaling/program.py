"""``scripts/bench scaling``: runs the rows that are asked for, and shows, keeps and draws them."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rich.table import Table

from bench.kit.harness import console
from bench.kit.program import Opening, Program
from bench.kit.raw import Raw
from bench.programs.clients.work import LIBRDKAFKA_READS
from bench.programs.scaling.measuring import Settings
from bench.programs.scaling.results import COMPARED, KAFKA, curves_of, draw
from bench.programs.scaling.rows import ROWS

_RECORDS, _SMALL_RECORDS = 1_000_000, 20_000


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds at which sizes is measured, and with how many records."""
    parser.add_argument("--sizes", help="instead of the row's own, such as 1,4,16; with one row")
    parser.add_argument("--records", type=int, default=_RECORDS, help="of 200 bytes")
    parser.add_argument("--small", action="store_true", help="a quick try: few, small sizes")
    parser.add_argument("--alone", action="store_true", help="logbus alone")
    parser.add_argument(
        "--directory", type=Path, default=Path(tempfile.gettempdir()), help="of log-size's data"
    )


def open_bench(opening: Opening) -> Settings:
    """Returns the sizes and numbers; each row starts systems of its own."""
    args, rows, _, _ = opening
    if args.sizes and len(rows) > 1:
        raise SystemExit("--sizes are of one row; name it with --rows.")
    return Settings(
        sizes=[float(size) for size in args.sizes.split(",")] if args.sizes else (),
        rounds=1 if args.small else args.rounds,
        records=_SMALL_RECORDS if args.small else args.records,
        alone=args.alone,
        small=args.small,
        directory=args.directory,
    )


def conditions(bench: Settings, _: argparse.Namespace) -> Iterator[str]:
    """Tells the number of records, and who is measured with which settings."""
    yield (
        f"{bench.rounds} round{'s' * (bench.rounds > 1)}, {bench.records:,} records of 200 bytes."
    )
    yield (
        "Clients, ZooKeeper and one broker of each share the machine, with their defaults; "
        f"{KAFKA} in KRaft mode. What is acknowledged is in the page cache."
    )
    yield (
        "Producers: Producer.send and send_many, librdkafka's produce, from Python; record batches "
        "of up to 1 MiB. Readers: poll_arrow, which makes no Python objects of records, and "
        "librdkafka's consume, which does, with fetch.queue.backoff.ms of "
        f"{LIBRDKAFKA_READS['fetch.queue.backoff.ms']}; both check checksums."
    )


def show(_: str, parts: Raw) -> None:
    """Prints what a row found at each size, and lines through the medians."""
    for curve in curves_of(parts):
        question = curve.question
        console.print(_table(question.title, curve.cells()))
        if curve.lines():
            title = f"{question.title}: a line through the medians"
            console.print(_table(title, curve.model_cells()))
            console.print(f"It may be drawn so far where {question.assumption}.", highlight=False)


def _table(title: str, cells: Sequence[Sequence[str]]) -> Table:
    head, *body = cells
    table = Table(*head, title=title)
    for column in table.columns[2:]:
        column.justify = "right"
    for line in body:
        table.add_row(*line)
    return table


PROGRAM: Final = Program(
    name="scaling",
    description="How costs grow with size, beside Kafka where that has the same question.",
    rows=ROWS,
    open_bench=open_bench,
    conditions=conditions,
    comparing=COMPARED,
    rounds=3,
    add_flags=add_flags,
    packages=("pyarrow", "confluent-kafka"),
    show=show,
    draw=draw,
)

"""``logbus dump``: what stands in the files of a broker, also in damaged ones."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from spark_logbus.cli.dump_segments import segments
from spark_logbus.cli.dump_text import batch_fields, batch_row, decoded, record_fields, record_line
from spark_logbus.cli.output import console, plural, table, utc

if TYPE_CHECKING:
    from spark_logbus.log import File
    from spark_logbus.log.inspect.listing import OnHole
    from spark_logbus.log.segment.scan import DamagedRange, OnRecordBatch
    from spark_logbus.record import RecordBatchHeader

Segment = Annotated[Path, typer.Argument(help="A .log file of a partition's directory.")]
Limit = Annotated[int, typer.Option("--max", help="At most so many.", min=1)]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]


class _EnoughError(Exception):
    """As much has been shown as was asked for."""


class _Group(TyperGroup):
    """``logbus dump FILE`` shows the record batches of the file, as it always has."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands and Path(args[0]).is_file():
            args = ["batches", *args]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_Group,
    help="Show what stands in the files of a broker; running or not, damaged or not.",
    no_args_is_help=True,
)
app.command("segments")(segments)


@app.command("batches")
def batches(segment: Segment, limit: Limit = 100, as_json: AsJson = False) -> None:
    """The record batches of a segment, each checked; exit code 1 if one is damaged."""
    numbers = ("position", "offsets", "records", "bytes", "epoch")
    rows = table(
        *numbers, "newest record (UTC)", "compression", "attributes", "producer", "check",
        numbers=numbers,
    )  # fmt: skip
    rows.columns[8].overflow = "fold"
    shown = 0

    def see(header: RecordBatchHeader, position: int) -> None:
        nonlocal shown
        if shown == limit:
            raise _EnoughError
        shown += 1
        if as_json:
            fields = {"position": position, **batch_fields(header)}
            print(json.dumps({"kind": "record batch", **fields}))
        else:
            rows.add_row(*batch_row(header, position))

    def damaged(hole: DamagedRange) -> None:
        offsets = f"{hole.start:,} - {hole.end - 1:,}" if hole.end > hole.start else "?"
        size = f"{hole.end_position - hole.start_position:,}"
        rows.add_row(f"{hole.start_position:,}", offsets, "?", size, *[""] * 5, "DAMAGED")

    with _opened(segment, limit, as_json=as_json) as opened:
        opened.scan(see, damaged)
    if not as_json:
        console().print(rows if rows.rows else f"{segment} is empty.")
    opened.report()


@app.command("records")
def records(
    segment: Segment,
    from_offset: Annotated[int, typer.Option(help="Skip those before it.", min=0)] = 0,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """The records of a segment: offset, time, key and value; exit code 1 at damage."""
    from spark_logbus.errors import LogbusError

    shown = 0

    def see(header: RecordBatchHeader, position: int) -> None:
        nonlocal shown
        if header.last_offset < from_offset:
            return
        try:
            found = list(decoded(header, opened.file.pread(header.size, position)))
        except LogbusError as error:
            opened.tell(position, header.size, error.message)
            return
        for record in found:
            if record["offset"] < from_offset:
                continue
            if shown == limit:
                raise _EnoughError
            shown += 1
            print(json.dumps(record_fields(record)) if as_json else record_line(record))

    with _opened(segment, limit, as_json=as_json) as opened:
        opened.scan(see, lambda _: None)
    opened.report()


@app.command("index")
def index(
    index_file: Annotated[Path, typer.Argument(help="An .index file.", metavar="INDEX")],
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """The entries of an index, its summary, and whether it agrees with its segment."""
    from spark_logbus.errors import InvalidRequestError
    from spark_logbus.log import OS_FILES
    from spark_logbus.log.inspect.index_check import compare_index
    from spark_logbus.log.segment.index_file import read_index

    try:
        found = read_index(OS_FILES, index_file)
        if found is None:
            raise InvalidRequestError(f"There is no file {index_file}.")
        problem = found.problem or compare_index(OS_FILES, index_file.with_suffix(".log"), found)
    except OSError as error:
        raise InvalidRequestError(f"Cannot read {index_file}: {error.strerror}.") from error
    entries = list(found.index.entries()) if found.index is not None else []
    summary = dataclasses.asdict(found.summary) if found.summary is not None else {}
    verdict = "It agrees with its segment." if problem is None else f"It is wrong: {problem}."
    if as_json:
        for offset, position, newest in entries:
            print(json.dumps({"kind": "entry", "offset": offset, "position": position,
                              "max_timestamp_before_us": newest}))  # fmt: skip
        print(json.dumps({"kind": "index", **summary, "entries": len(entries),
                          "problem": problem}))  # fmt: skip
    else:
        out = console()
        for name, value in summary.items():
            shown = f"{utc(value)} UTC" if name.endswith("_us") else f"{value:,}"
            out.print(f"{name.removesuffix('_us')}: {shown}")
        rows = table("offset", "position", "newest before (UTC)", numbers=("offset", "position"))
        for offset, position, newest in entries[:limit]:
            rows.add_row(
                f"{offset:,}", f"{position:,}", utc(newest) if newest > -(1 << 63) else "-"
            )
        out.print(rows)
        if len(entries) > limit:
            out.print(f"Only the first {limit:,} of {len(entries):,} are shown; --max shows more.")
        out.print(verdict, style="green" if problem is None else "red")
    if problem is not None:
        raise typer.Exit(1)


class _Opened:
    """A segment file and what is found to be wrong with it."""

    def __init__(self, path: Path, file: File, *, as_json: bool) -> None:
        self.file = file
        self._path = path
        self._limit = file.size()  # a running broker may append to it meanwhile
        self._as_json = as_json
        self._lines: list[str] = []

    def scan(self, see: OnRecordBatch, damaged: OnHole) -> None:
        """From the first byte to the last, in order; ``damaged`` gets the end too if it is torn."""
        from spark_logbus.log.inspect.listing import first_offset, problem_at, scan_in_order
        from spark_logbus.log.segment.scan import DamagedRange

        def tell(hole: DamagedRange) -> None:
            damaged(hole)
            start, end = hole.start_position, hole.end_position
            why = problem_at(self.file, start, limit=self._limit, expected_offset=hole.start)
            self.tell(start, end - start, why)

        first = first_offset(self.file, self._path)
        result = scan_in_order(
            self.file, base_offset=first, limit=self._limit, see=see, damaged=tell
        )
        if result.end_position < self._limit:
            end = result.end_offset
            tell(DamagedRange(end, end, result.end_position, self._limit))

    def tell(self, position: int, size: int, why: str) -> None:
        if self._as_json:
            fields = {"position": position, "bytes": size, "problem": why}
            print(json.dumps({"kind": "damage", **fields}))
        self._lines.append(f"Position {position:,}, {plural(size, 'byte')}: {why}")

    def report(self) -> None:
        if not self._lines:
            return
        if not self._as_json:
            out = console()
            for line in self._lines:
                out.print(line, style="red")
            out.print(f"{plural(len(self._lines), 'place')} in {self._path} cannot be read.")
        raise typer.Exit(1)


@contextmanager
def _opened(segment: Path, limit: int, *, as_json: bool) -> Iterator[_Opened]:
    """For a scan, which may end early with ``_EnoughError``."""
    from spark_logbus.errors import InvalidRequestError
    from spark_logbus.log import OS_FILES

    try:
        yield _Opened(segment, OS_FILES.open_read_only(segment), as_json=as_json)
    except _EnoughError:
        console(stderr=True).print(f"Only the first {limit:,} are shown; --max shows more.")
    except BrokenPipeError:  # of standard output, not of the file
        raise
    except OSError as error:
        raise InvalidRequestError(f"Cannot read {segment}: {error.strerror}.") from error

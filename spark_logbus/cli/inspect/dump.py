"""``logbus dump``: the content of a broker's files, also of damaged ones."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from spark_logbus.cli.inspect.directories import holds_no_logs
from spark_logbus.cli.options import AsJson
from spark_logbus.cli.output import (
    MOMENT,
    NUMBER,
    WORDS,
    Column,
    Console,
    Kind,
    Table,
    console,
    print_json,
    text_of,
    utc,
)
from spark_logbus.errors import InvalidRequestError, LogbusError
from spark_logbus.plurals import plural
from spark_logbus.sizes import human_bytes

if TYPE_CHECKING:
    from spark_logbus.log import File
    from spark_logbus.log.inspect import Damage, LogListing, SegmentReport, StagedReport
    from spark_logbus.record import RecordBatchHeader

Segment = Annotated[Path, typer.Argument(help="A .log file of a partition's directory.")]
Limit = Annotated[int, typer.Option("--max", "-n", help="At most so many.", min=1)]

#: First and last, of a start and an end.
OFFSETS = Kind(
    lambda span: f"{span[0]:,} - {span[1] - 1:,}", lambda span: f"{span[0]}-{span[1] - 1}"
)
_TEXT_LINES_SHOWN = 5
_LONGEST_UNKNOWN_TEXT_BYTES = 256


class _Group(TyperGroup):
    """``logbus dump FILE`` shows the record batches of the file, or the entries of an index, and
    ``logbus dump DIRECTORY`` the segments in it."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands:
            path = Path(args[0])
            if path.is_dir():
                args = ["segments", *args]
            elif path.is_file():
                args = ["index" if path.suffix == ".index" else "batches", *args]
            elif path.suffix or len(path.parts) > 1:
                raise typer.BadParameter(
                    f"There is no file or directory {path}. Name a data directory, that of a "
                    "partition, or a .log or .index file in it."
                )
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_Group,
    help="Show what stands in the files of a broker; running or not, damaged or not.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


# -- segments -------------------------------------------------------------------------------


@app.command("segments")
def segments(
    directory: Annotated[Path, typer.Argument(help="A data directory, or that of one partition.")],
    as_json: AsJson = False,
) -> None:
    """The segments of each log and the small files; headers are read, not the records.

    \b
    Example:
      logbus dump segments logbus-data/broker-1/data
    """
    from spark_logbus.log import OS_FILES
    from spark_logbus.log.inspect import in_use, list_directory

    with _readable(directory):
        listing = list_directory(OS_FILES, directory.absolute())
    if listing is None:
        raise InvalidRequestError(holds_no_logs(directory))
    out = console()
    live = in_use(listing.path)
    if as_json:
        _print_json("directory", path=str(listing.path), in_use=live)
    else:
        out.print(f"{listing.path} ({'in use by a broker' if live else 'not in use'})")
    for name in listing.others:
        _show_file(out, listing.path / name, as_json=as_json)
    for log in listing.logs:
        _show_log(out, log, as_json=as_json)


def _show_log(out: Console, log: LogListing, *, as_json: bool) -> None:
    from spark_logbus.log import OS_FILES
    from spark_logbus.log.inspect import inspect_segment

    if not as_json:
        out.print(f"\n{log.topic_partition}", style="bold")
    for name in log.others:
        if not name.endswith(".index"):
            _show_file(out, log.path / name, as_json=as_json)
    rows = _Rows(
        as_json,
        Column("segment"),
        Column("offsets", OFFSETS),
        Column("record_batches", NUMBER),
        Column("records", NUMBER),
        Column("size_bytes", NUMBER, "bytes"),
        Column("min_timestamp_us", MOMENT, "oldest record (UTC)"),
        Column("max_timestamp_us", MOMENT, "newest record (UTC)"),
        Column("index"),
        Column("state"),
    )
    for base, following in itertools.zip_longest(log.base_offsets, log.base_offsets[1:]):
        path = log.segment(base)
        try:
            found = inspect_segment(OS_FILES, path, base_offset=base, checksums=False)
        except OSError as error:
            unreadable = f"Cannot be read: {error.strerror}"
            fields: dict[str, object] = {"path": str(path), "problem": unreadable}
            rows.add("segment", fields, segment=path.name, state=unreadable)
            continue
        index = found.index_state(active=following is None)
        problem = _segment_problem(log, found, following)
        offsets = (found.base_offset, found.end_offset) if found.record_batches else None
        fields = {"path": str(path), **_segment_fields(found), "index": index, "problem": problem}
        rows.add("segment", fields, segment=path.name, offsets=offsets, state=problem)
    rows.print(empty="It has no segment.")


def _segment_problem(log: LogListing, found: SegmentReport, following: int | None) -> str | None:
    if found.tail is not None:
        return f"no record batch at position {found.tail.position}: {found.tail.reason}"
    if following is None:
        return None
    if log.end_before(following) != found.end_offset:
        return f"the next segment begins at offset {following}, expected {found.end_offset}"
    if following != found.end_offset:
        return f"offsets {found.end_offset} up to {following} were given up"
    return None


def _segment_fields(found: SegmentReport) -> dict[str, object]:
    names = ("base_offset", "end_offset", "record_batches", "records", "size_bytes",
             "min_timestamp_us", "max_timestamp_us")  # fmt: skip
    return {name: getattr(found, name) for name in names}


def _show_file(out: Console, path: Path, *, as_json: bool) -> None:
    """A file beside the segments, with its lines if it is one of the small text files."""
    from spark_logbus.log import OS_FILES
    from spark_logbus.log.inspect import (
        inspect_staged,
        is_staged,
        is_text_file,
        read_text_file,
    )

    problem: str | None
    lines: list[str]
    try:
        size = path.stat().st_size
        if path.is_dir():
            lines, problem = [], "a directory that is no log"
        elif is_staged(path.name):
            lines, problem = _staged_lines(inspect_staged(OS_FILES, path))
        elif not is_text_file(path.name):
            lines, problem = _first_line(path, size), None
        else:
            text = read_text_file(OS_FILES, path)
            lines, problem = [text.title, *text.lines], text.problem
    except OSError as error:
        lines, problem, size = [], f"cannot be read: {error.strerror}", 0
    if as_json:
        _print_json("file", path=str(path), bytes=size, lines=lines, problem=problem)
        return
    rest = f"; {problem}" if problem else ""
    out.print(f"  {path.name} ({human_bytes(size)}{rest})")
    for line in lines[:_TEXT_LINES_SHOWN]:
        out.print(f"    {line}")
    if len(lines) > _TEXT_LINES_SHOWN:
        out.print(f"    ... {len(lines) - _TEXT_LINES_SHOWN:,} more lines")


def _staged_lines(found: StagedReport) -> tuple[list[str], str | None]:
    if found.write is None:
        return ["nothing is staged"], None
    rest = f"then {found.other_bytes:,} bytes, torn or of earlier writes"
    records = plural(sum(found.records.values()), "record")
    attempts = plural(len(found.records), "attempt")
    at = utc(found.newest_us)
    staged = f"write {found.write}: {records} of {attempts} of tasks, the last at {at}"
    return [staged, *([rest] if found.other_bytes else [])], None


def _first_line(path: Path, size: int) -> list[str]:
    """The text of a file that this release does not know, or the broker's own, if it is short."""
    if not 0 < size <= _LONGEST_UNKNOWN_TEXT_BYTES:
        return []
    text = path.read_text("utf-8", errors="replace").strip()
    return [text] if text.isprintable() else []


# -- record batches -------------------------------------------------------------------------


@app.command("batches")
def batches(segment: Segment, limit: Limit = 100, as_json: AsJson = False) -> None:
    """The record batches of a segment, each checked; exit code 1 if one is damaged.

    \b
    Example:
      logbus dump batches data/orders-0/00000000000000000000.log -n 10
    """
    from spark_logbus.log import OS_FILES
    from spark_logbus.log.inspect import Damage, read_segment

    rows = _Rows(
        as_json,
        Column("position", NUMBER),
        Column("offsets", OFFSETS),
        Column("records", NUMBER),
        Column("bytes", NUMBER),
        Column("leader_epoch", NUMBER, "epoch"),
        Column("max_timestamp_us", MOMENT, "newest record (UTC)"),
        Column("compression"),
        Column("flags", WORDS, "attributes"),
        Column("layout", NUMBER),
        Column("schema_id", NUMBER, "schema"),
        Column("columns", NUMBER),
        Column("producer"),
        Column("check"),
    )
    problems = _Problems(segment, as_json=as_json)
    shown = 0
    with _readable(segment):
        file = OS_FILES.open_read_only(segment)
        for found in read_segment(file):
            if isinstance(found, Damage):
                problems.add(found.position, found.size_bytes, found.reason)
                rows.add_damage(found)
                continue
            if shown == limit:
                _note_limit(limit)
                break
            shown += 1
            position, header = found
            columns = _column_count(file, position, header)
            fields = {"position": position, **_batch_fields(header), "columns": columns}
            producer = f"{header.producer_id}/{header.producer_epoch}/{header.base_sequence}"
            rows.add(
                "record batch",
                fields,
                offsets=(header.base_offset, header.last_offset + 1),
                records=header.record_count,
                schema_id=header.schema_id or None,
                producer=producer if header.producer_id >= 0 else None,
                check="ok",
            )
    rows.print(empty=f"{segment} is empty.")
    problems.report()


def _column_count(file: File, position: int, header: RecordBatchHeader) -> int | None:
    """Returns the number of columns in a record batch of columns; None for others."""
    from spark_logbus.record import format as fmt

    if header.layout != fmt.LAYOUT_COLUMNS:
        return None
    directory = file.pread(fmt.DIRECTORY.size, position + fmt.DIRECTORY_AT)
    return int(fmt.DIRECTORY.unpack(directory)[0])


def _batch_fields(header: RecordBatchHeader) -> dict[str, object]:
    plain = {name: getattr(header, name) for name in header.__struct_fields__}
    named = {"compression": header.compression.name.lower(), "flags": _attributes(header)}
    sizes = {"last_offset": header.last_offset, "bytes": header.size, "layout": header.layout}
    return {**plain, **sizes, **named}


def _attributes(header: RecordBatchHeader) -> list[str]:
    known = {
        "key": header.has_key, "headers": header.has_headers, "gaps": header.has_offset_delta,
        "tombstones": header.has_tombstones,
        "control": header.is_control, "append time": header.timestamp_type.value == 1,
    }  # fmt: skip
    return [name for name, there in known.items() if there]


# -- records --------------------------------------------------------------------------------


@app.command("records")
def records(
    segment: Segment,
    from_offset: Annotated[
        int, typer.Option("--from-offset", "-o", help="Skip those before it.", min=0)
    ] = 0,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """The records of a segment: offset, time, key and value; exit code 1 at damage.

    Of record batches of columns it says which offsets and which schema: only that explains them.

    \b
    Example:
      logbus dump records data/orders-0/00000000000000000000.log -o 151 -n 10
    """
    from spark_logbus.log import OS_FILES

    problems = _Problems(segment, as_json=as_json)
    with _readable(segment):
        found = _read_records(OS_FILES.open_read_only(segment), from_offset, problems)
        for record in itertools.islice(found, limit):
            if "schema_id" in record:
                print_json(record) if as_json else print(_columns_line(record))
            elif as_json:
                print_json(_record_fields(record))
            else:
                print(_record_line(record))
        if next(found, None) is not None:
            _note_limit(limit)
    problems.report()


def _read_records(file: File, from_offset: int, problems: _Problems) -> Iterator[dict[str, Any]]:
    from spark_logbus.log.inspect import Damage, read_segment
    from spark_logbus.record import format as fmt

    for found in read_segment(file):
        if isinstance(found, Damage):
            problems.add(found.position, found.size_bytes, found.reason)
            continue
        position, header = found
        if header.last_offset < from_offset:
            continue
        if header.layout == fmt.LAYOUT_COLUMNS:
            yield {
                "kind": "columns",
                "offset": header.base_offset,
                "last_offset": header.last_offset,
                "records": header.record_count,
                "schema_id": header.schema_id,
            }
            continue
        try:
            decoded = list(_decoded(header, file.pread(header.size, position)))
        except LogbusError as error:
            problems.add(position, header.size, error.message)
            continue
        for record in decoded:
            if record["offset"] >= from_offset:
                yield record


def _decoded(header: RecordBatchHeader, data: bytes) -> Iterator[dict[str, Any]]:
    from spark_logbus.record.rows.arrow import decode

    batch = decode(header, data)
    columns = {name: batch.column(name) for name in batch.schema.names}
    columns["timestamp"] = columns["timestamp"].cast("int64")  # also those beyond a datetime
    rows = {name: column.to_pylist() for name, column in columns.items()}
    for number in range(len(rows["value"])):
        record = {name: row[number] for name, row in rows.items()}
        record["offset"] = header.base_offset + record.pop("offset_delta", number)
        yield record


def _columns_line(found: dict[str, Any]) -> str:
    count, schema_id = plural(found["records"], "record"), found["schema_id"]
    span = f"{found['offset']}-{found['last_offset']}"
    return f"{span}\t{count} as columns of schema {schema_id}; not shown without that schema"


def _record_line(record: dict[str, Any]) -> str:
    fields = [str(record["offset"]), utc(record["timestamp"]), repr(record.get("key"))]
    fields.append(repr(record["value"]))
    if record.get("headers"):
        fields.append(repr([(h["key"], h["value"]) for h in record["headers"]]))
    return "\t".join(fields)


def _record_fields(record: dict[str, Any]) -> dict[str, object]:
    headers = record.get("headers") or []
    return {
        "offset": record["offset"],
        "timestamp_us": record["timestamp"],
        "key": text_of(record.get("key")),
        "value": text_of(record["value"]),
        "headers": [{"key": h["key"], "value": text_of(h["value"])} for h in headers],
    }


# -- indexes --------------------------------------------------------------------------------


@app.command("index")
def index(
    index_file: Annotated[Path, typer.Argument(help="An .index file.", metavar="INDEX")],
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """The entries of an index, its summary, and whether it agrees with its segment.

    \b
    Example:
      logbus dump index data/orders-0/00000000000000000000.index
    """
    from spark_logbus.log import OS_FILES
    from spark_logbus.log.inspect import inspect_index

    with _readable(index_file):
        found = inspect_index(OS_FILES, index_file)
    if found is None:
        raise InvalidRequestError(f"There is no file {index_file}.")
    entries = list(found.index.entries()) if found.index is not None else []
    summary = dataclasses.asdict(found.summary) if found.summary is not None else {}
    problem = found.problem
    if as_json:
        for offset, position, newest in entries:
            _print_json("entry", offset=offset, position=position, max_timestamp_before_us=newest)
        told = {"entries": len(entries), "outdated": found.outdated, "problem": problem}
        _print_json("index", **summary, **told)
    else:
        out = console()
        for name, value in summary.items():
            shown = f"{utc(value)} UTC" if name.endswith("_us") else f"{value:,}"
            out.print(f"{name.removesuffix('_us')}: {shown}")
        rows = Table(
            Column("offset", NUMBER),
            Column("position", NUMBER),
            Column("max_timestamp_before_us", MOMENT, "newest before (UTC)"),
        )
        for offset, position, newest in entries[:limit]:
            before = newest if newest > -(1 << 63) else None
            rows.add({"offset": offset, "position": position, "max_timestamp_before_us": before})
        out.print(rows)
        if len(entries) > limit:
            out.print(f"Only the first {limit:,} of {len(entries):,} are shown; --max shows more.")
        verdict = "It agrees with its segment." if problem is None else f"It is wrong: {problem}."
        if found.outdated:
            verdict = (
                "It is of the last orderly stop, and its segment has grown since: the broker keeps "
                "the newer index in memory, and rebuilds it when it starts."
            )
        out.print(verdict, style="green" if problem is None else "red")
    if problem is not None:
        raise typer.Exit(1)


# -- all ------------------------------------------------------------------------------------


class _Rows:
    """Rows of a verb: JSON of each at once, or all as a table at the end."""

    def __init__(self, as_json: bool, *columns: Column) -> None:
        self._as_json = as_json
        self._table = Table(*columns)

    def add(self, kind: str, fields: Mapping[str, object], **cells: object) -> None:
        """Adds a row: ``fields`` are the keys of JSON, and with ``cells`` those of the table."""
        if self._as_json:
            _print_json(kind, **fields)
        else:
            self._table.add({**fields, **cells})

    def add_damage(self, found: Damage) -> None:
        """Adds a row to the table alone: as JSON it is one of the problems."""
        cells = {
            "position": found.position,
            "offsets": None if found.at_end else (found.start, found.end),
            "bytes": found.size_bytes,
            "check": "DAMAGED",
        }
        self._table.add(cells, styles={"check": "bold red"})

    def print(self, *, empty: str) -> None:
        if not self._as_json:
            console().print(self._table if len(self._table) else empty)


class _Problems:
    """Places of a segment that cannot be read; JSON of each at once, lines of all at the end."""

    def __init__(self, segment: Path, *, as_json: bool) -> None:
        self._segment = segment
        self._as_json = as_json
        self._lines: list[str] = []

    def add(self, position: int, size_bytes: int, reason: str) -> None:
        if self._as_json:
            _print_json("damage", position=position, bytes=size_bytes, problem=reason)
        self._lines.append(f"Position {position:,}, {plural(size_bytes, 'byte')}: {reason}")

    def report(self) -> None:
        """Raises typer.Exit if there is a problem."""
        if not self._lines:
            return
        if not self._as_json:
            out = console()
            for line in self._lines:
                out.print(line, style="red")
            out.print(f"{plural(len(self._lines), 'place')} in {self._segment} cannot be read.")
        raise typer.Exit(1)


def _note_limit(limit: int) -> None:
    console(stderr=True).print(f"Only the first {limit:,} are shown; --max shows more.")


def _print_json(kind: str, **fields: object) -> None:
    print_json({"kind": kind, **fields})


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # of standard output, not of the file
        raise
    except OSError as error:
        raise InvalidRequestError(f"Cannot read {path}: {error.strerror}.") from error

"""``logbus dump segments``: the logs of a data directory and their files."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from spark_logbus.cli.output import console, human_bytes, table, utc

if TYPE_CHECKING:
    from spark_logbus.log.inspect.listing import LogListing
    from spark_logbus.log.inspect.segment_report import SegmentOverview

_LINES_SHOWN = 5


def segments(
    directory: Annotated[Path, typer.Argument(help="A data directory, or that of one partition.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """The segments of each log and the small files; headers are read, not the records."""
    from spark_logbus.errors import InvalidRequestError
    from spark_logbus.log import OS_FILES
    from spark_logbus.log.inspect.listing import in_use, list_directory

    try:
        listing = list_directory(OS_FILES, directory.absolute())
    except OSError as error:
        raise InvalidRequestError(f"Cannot read {directory}: {error.strerror}.") from error
    if listing is None:
        raise InvalidRequestError(f"{directory} holds no logs: name the data_dir of a broker.")
    out = console()
    live = in_use(listing.path)
    if as_json:
        print(json.dumps({"kind": "directory", "path": str(listing.path), "in_use": live}))
    else:
        out.print(f"{listing.path} ({'in use by a broker' if live else 'not in use'})")
    for name in listing.others:
        _show_file(out, listing.path / name, as_json=as_json)
    for log in listing.logs:
        _show_log(out, log, as_json=as_json)


def _show_log(out: Console, log: LogListing, *, as_json: bool) -> None:
    from spark_logbus.log import OS_FILES, names
    from spark_logbus.log.inspect.segment_report import overview

    if not as_json:
        out.print(f"\n{log.topic_partition}", style="bold")
    for name in log.others:
        if not name.endswith(".index"):
            _show_file(out, log.path / name, as_json=as_json)
    numbers = ("offsets", "record batches", "records", "bytes")
    rows = table("segment", *numbers, "oldest record (UTC)", "newest record (UTC)", "index",
                 "state", numbers=numbers)  # fmt: skip
    rows.columns[0].no_wrap = True
    rows.columns[0].min_width = len(names.segment(0))
    for base, following in itertools.zip_longest(log.base_offsets, log.base_offsets[1:]):
        path = log.segment(base)
        try:
            found = overview(OS_FILES, path, base_offset=base, following=following)
        except OSError as error:
            rows.add_row(path.name, *["?"] * 7, f"Cannot be read: {error.strerror}")
            if as_json:
                problem = f"Cannot be read: {error.strerror}"
                print(json.dumps({"kind": "segment", "path": str(path), "problem": problem}))
            continue
        if as_json:
            fields = {name: getattr(found, name) for name in found.__slots__}
            print(json.dumps({"kind": "segment", "path": str(path), **fields}))
        else:
            rows.add_row(path.name, *_cells(found))
    if not as_json:
        out.print(rows if rows.rows else "It has no segment.")


def _cells(found: SegmentOverview) -> list[str]:
    oldest, newest = found.min_timestamp_us, found.max_timestamp_us
    return [
        f"{found.base_offset:,} - {found.end_offset - 1:,}" if found.record_batches else "-",
        f"{found.record_batches:,}",
        f"{found.records:,}",
        f"{found.size_bytes:,}",
        "-" if oldest is None else utc(oldest),
        "-" if newest is None else utc(newest),
        found.index,
        found.problem or "-",
    ]


def _show_file(out: Console, path: Path, *, as_json: bool) -> None:
    """A file beside the segments: what it says, if it is one of the small text files."""
    from spark_logbus.log import OS_FILES
    from spark_logbus.log.inspect.listing import is_text_file, read_text_file

    try:
        size = path.stat().st_size
        if path.is_dir():
            lines, problem = [], "a directory that is no log"
        elif not is_text_file(path.name):
            lines, problem = _first_line(path, size), None
        else:
            text = read_text_file(OS_FILES, path)
            lines, problem = [text.title, *text.lines], text.problem
    except OSError as error:
        lines, problem, size = [], f"cannot be read: {error.strerror}", 0
    if as_json:
        fields = {"path": str(path), "bytes": size, "lines": lines, "problem": problem}
        print(json.dumps({"kind": "file", **fields}))
        return
    rest = f"; {problem}" if problem else ""
    out.print(f"  {path.name} ({human_bytes(size)}{rest})")
    for line in lines[:_LINES_SHOWN]:
        out.print(f"    {line}")
    if len(lines) > _LINES_SHOWN:
        out.print(f"    ... {len(lines) - _LINES_SHOWN:,} more lines")


def _first_line(path: Path, size: int) -> list[str]:
    """Of a file that this release does not know, or the broker's own; if it is short text."""
    if not 0 < size <= 256:
        return []
    text = path.read_text("utf-8", errors="replace").strip()
    return [text] if text.isprintable() else []

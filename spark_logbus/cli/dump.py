"""``logbus dump``: what stands in a segment file, record batch by record batch."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Annotated, BinaryIO

import typer
from rich.console import Console
from rich.table import Table


def dump(
    segment: Annotated[Path, typer.Argument(help="A .log file of a partition's directory.")],
    records: Annotated[bool, typer.Option("--records", help="Also the records.")] = False,
    limit: Annotated[int, typer.Option("--max", help="At most so many record batches.")] = 100,
) -> None:
    """Show a segment's record batches and check each; exit code 1 if one is damaged."""
    from spark_logbus.errors import InvalidRequestError, LogbusError
    from spark_logbus.record import LENGTH_FIELD_END, peek_size, verify

    console = Console(soft_wrap=True)
    table = Table(
        "position", "offsets", "records", "bytes", "epoch", "time", "compression", "check"
    )
    damaged = 0
    contents: list[tuple[int, bytes]] = []
    try:
        file: BinaryIO = segment.open("rb")
    except OSError as error:
        raise InvalidRequestError(f"Cannot read {segment}: {error.strerror}.") from error
    with file:
        position = 0
        while len(table.rows) < limit:
            head = file.read(LENGTH_FIELD_END)
            size = peek_size(head)
            if size is None:
                break
            data = head + file.read(min(size, 1 << 30) - LENGTH_FIELD_END)
            try:
                header = verify(data)
            except LogbusError as error:
                damaged += 1
                table.add_row(
                    f"{position:,}", "", "", f"{len(data):,}", "", "", "", f"[red]{error}[/]"
                )
                break
            table.add_row(
                f"{position:,}",
                f"{header.base_offset:,} - {header.last_offset:,}",
                f"{header.record_count:,}",
                f"{header.size:,}",
                str(header.leader_epoch),
                _time(header.max_timestamp_us),
                header.compression.name.lower(),
                "ok",
            )
            contents.append((header.base_offset, data))
            position += size
    console.print(table)
    if records:
        _print_records(console, contents)
    if damaged:
        raise typer.Exit(1)


def _print_records(console: Console, contents: list[tuple[int, bytes]]) -> None:
    from spark_logbus.record import parse_header
    from spark_logbus.record.arrow import decode

    for base_offset, data in contents:
        for number, record in enumerate(decode(parse_header(data), data).to_pylist()):
            key, value = record.get("key"), record["value"]
            console.print(
                f"{base_offset + number}: {key!r} {value!r}", highlight=False, markup=False
            )


def _time(time_us: int) -> str:
    try:
        moment = dt.datetime.fromtimestamp(time_us / 1e6, dt.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{time_us} µs"
    return moment.strftime("%Y-%m-%d %H:%M:%S")

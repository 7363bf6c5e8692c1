"""``logbus dump``: what stands in a segment file, record batch by record batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from spark_logbus.cli.output import console, plural, table, utc

if TYPE_CHECKING:
    from spark_logbus.record import RecordBatchHeader

# More than any record batch has; a length above it is taken for damage, and not for memory.
_MAX_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class Piece:
    """One record batch of the file, or what stands in its place."""

    position: int
    data: bytes
    header: RecordBatchHeader | None
    damage: str | None


def dump(
    segment: Annotated[Path, typer.Argument(help="A .log file of a partition's directory.")],
    records: Annotated[bool, typer.Option("--records", help="Also the records.")] = False,
    limit: Annotated[
        int, typer.Option("--max", help="At most so many record batches.", min=1)
    ] = 100,
) -> None:
    """Show a segment's record batches and check each; exit code 1 if one is damaged."""
    from spark_logbus.errors import InvalidRequestError

    numbers = ("position", "offsets", "records", "bytes", "epoch")
    rows = table(*numbers, "newest record (UTC)", "check", numbers=numbers)
    out = console()
    damaged: list[str] = []
    try:
        with segment.open("rb") as file:
            for piece in _pieces(file):
                if len(rows.rows) == limit:
                    out.print(f"Only the first {limit:,} are shown; --max shows more.")
                    break
                if records:
                    _print_records(piece)
                rows.add_row(*_row(piece))
                if piece.damage is not None:
                    damaged.append(f"Position {piece.position:,}: {piece.damage}")
    except BrokenPipeError:  # of standard output, not of the file
        raise
    except OSError as error:
        raise InvalidRequestError(f"Cannot read {segment}: {error.strerror}.") from error
    out.print(rows if rows.rows else f"{segment} is empty.")
    for line in damaged:
        out.print(line, style="red")
    if damaged:
        out.print(f"{plural(len(damaged), 'place')} in {segment} cannot be read.")
        raise typer.Exit(1)


def _pieces(file: BinaryIO) -> Iterator[Piece]:
    """Record batch after record batch, past a damaged one while lengths still make sense."""
    from spark_logbus.errors import LogbusError
    from spark_logbus.record import HEADER_SIZE, LENGTH_FIELD_END, peek_size, verify

    position = 0
    while head := file.read(LENGTH_FIELD_END):
        size = peek_size(head)
        if size is None or not HEADER_SIZE <= size <= _MAX_BYTES:
            rest = len(head) + sum(iter(lambda: len(file.read(1 << 20)), 0))
            damage = f"{plural(rest, 'byte')} up to the end are no record batches."
            yield Piece(position, head, None, damage)
            return
        data = head + file.read(size - LENGTH_FIELD_END)
        try:
            yield Piece(position, data, verify(data), None)
        except LogbusError as error:
            yield Piece(position, data, None, str(error))
        if len(data) < size:
            return
        position += size


def _row(piece: Piece) -> list[str]:
    header = piece.header
    if header is None:
        return [f"{piece.position:,}", "?", "?", f"{len(piece.data):,}", "?", "?", "DAMAGED"]
    return [
        f"{piece.position:,}",
        f"{header.base_offset:,} - {header.last_offset:,}",
        f"{header.record_count:,}",
        f"{header.size:,}",
        str(header.leader_epoch),
        utc(header.max_timestamp_us),
        "ok",
    ]


def _print_records(piece: Piece) -> None:
    from spark_logbus.record.arrow import decode

    if piece.header is None:
        return
    for number, record in enumerate(decode(piece.header, piece.data).to_pylist()):
        offset = piece.header.base_offset + record.get("offset_delta", number)
        print(f"{offset}\t{record.get('key')!r}\t{record['value']!r}")

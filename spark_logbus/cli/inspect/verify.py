"""``logbus verify``: checks all of a data directory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spark_logbus.cli.inspect.directories import holds_no_logs
from spark_logbus.cli.output import Column, Table, console, print_json
from spark_logbus.plurals import plural
from spark_logbus.sizes import human_bytes

if TYPE_CHECKING:
    from spark_logbus.log.inspect import Verification

_PROGRESS_BYTES = 16 << 20  # a bar that moves with each record batch would cost more than it shows


def verify(
    data: Annotated[Path, typer.Argument(help="A data directory, or that of one partition.")],
    as_json: Annotated[
        bool, typer.Option("--json", "-J", help="One JSON object a line; the last sums it up.")
    ] = False,
) -> None:
    """Check every checksum, offset and index; nothing is changed. The broker may be running.

    Exit code 0: sound, 1: something is wrong, 2: wrong usage.

    \b
    Example:
      logbus verify logbus-data/broker-1/data
    """
    from spark_logbus.broker import BROKER_FILES
    from spark_logbus.log import OS_FILES
    from spark_logbus.log.inspect import list_directory, planned_bytes, verify_directory

    try:
        listing = list_directory(OS_FILES, data.absolute())
    except OSError as error:
        raise typer.BadParameter(f"Cannot read {data}: {error.strerror}.") from error
    if listing is None:
        raise typer.BadParameter(holds_no_logs(data))
    started = time.monotonic()
    with _progress(planned_bytes(listing)) as advance:
        result = verify_directory(OS_FILES, listing, known_files=BROKER_FILES, on_progress=advance)
    seconds = time.monotonic() - started
    if as_json:
        _print_json(result, seconds)
    else:
        _print(result, listing.path, seconds)
    if not result.sound:
        raise typer.Exit(1)


def _print(result: Verification, root: Path, seconds: float) -> None:
    out = console()
    if result.findings:
        rows = Table(
            Column("kind", of="severity.value"),
            Column("where", of=lambda finding: str(finding.path.relative_to(root))),
            Column("what", of="message"),
        )
        out.print(rows.fill(result.findings))
    state = "in use by a broker" if result.live else "not in use"
    if not result.live:
        state += ", stopped in order" if result.clean else ", not stopped in order"
    speed = result.size_bytes / 1e6 / max(seconds, 1e-6)
    out.print(
        f"{root} ({state}): {plural(result.logs, 'log')}, {plural(result.segments, 'segment')}, "
        f"{result.record_batches:,} record batches, {result.records:,} records, "
        f"{human_bytes(result.size_bytes)} in {seconds:.1f} s ({speed:,.0f} MB/s)."
    )
    damages = sum(finding.severity.value == "damage" for finding in result.findings)
    if result.sound:
        out.print("Sound.", style="green")
    else:
        out.print(f"Something is wrong in {plural(damages, 'place')}.", style="bold red")


def _print_json(result: Verification, seconds: float) -> None:
    for finding in result.findings:
        found = {"path": str(finding.path), "message": finding.message}
        print_json({"kind": finding.severity.value, **found})
    summary = {
        name: getattr(result, name)
        for name in (
            "sound", "live", "clean", "logs", "segments", "record_batches", "records", "size_bytes"
        )
    }  # fmt: skip
    print_json({"kind": "summary", **summary, "seconds": round(seconds, 3)})


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error while something is checked; none if that is no terminal."""
    out = console(stderr=True)
    if not out.is_terminal:
        yield lambda _: None
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=out.rich(), transient=True) as bar:
        task = bar.add_task("", total=total)
        waiting = 0

        def advance(size_bytes: int) -> None:
            nonlocal waiting
            waiting += size_bytes
            if waiting >= _PROGRESS_BYTES:
                bar.advance(task, waiting)
                waiting = 0

        yield advance

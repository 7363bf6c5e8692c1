"""The command line's frame: verbs, errors, logging. Verbs import what they need when they run."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

from spark_logbus import __version__
from spark_logbus.cli import (
    accept_clock,
    broker,
    consume,
    dump,
    groups,
    produce,
    topics,
    up,
    verify,
)
from spark_logbus.cli.output import console
from spark_logbus.errors import LogbusError

app = typer.Typer(
    name="logbus",
    help="A segment-file log broker and its Spark connector.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("up")(up.up)
app.command("broker")(broker.broker)
app.add_typer(topics.app, name="topics")
app.add_typer(groups.app, name="groups")
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.add_typer(dump.app, name="dump")
app.command("verify")(verify.verify)
app.command("accept-clock")(accept_clock.accept_clock)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"logbus {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what happens.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """A segment-file log broker and its Spark connector."""
    del version  # printed by its callback
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(message)s",
    )
    logging.getLogger("kazoo").setLevel(logging.ERROR)  # its retries are ours to report


def main() -> None:
    """Run the command line; an error of logbus is one readable message and exit code 1."""
    try:
        app(prog_name="logbus")
    except LogbusError as error:
        out = console(stderr=True)
        out.print("Error:", style="bold red", end=" ")
        out.print(str(error))
        sys.exit(1)

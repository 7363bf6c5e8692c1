"""The command line's frame: verbs, errors, logging.

A verb's module is imported when it is called, or its own help is asked for.
"""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from spark_logbus import __version__
from spark_logbus.cli.options import use_profile, with_profile_first
from spark_logbus.cli.output import console
from spark_logbus.errors import LogbusError
from spark_logbus.programs import ending_without_reader, print_by_line

INTERRUPTED: Final = 130  # as shells have it for Ctrl-C


class Verb(NamedTuple):
    """Function of a module of its own in ``room``, or a group of them: a Typer named ``app``."""

    room: str
    help: str
    is_group: bool = False


VERBS: Final[dict[str, Verb]] = {
    "up": Verb("server", "Start ZooKeeper and brokers here; Ctrl-C or SIGTERM stops them."),
    "broker": Verb("server", "Run one broker until SIGTERM or Ctrl-C."),
    "registry": Verb("server", "Serve schemas over Confluent's Schema Registry API."),
    "cluster": Verb(
        "admin",
        "Show the brokers, and if all is well; drain or forget one, or level all.",
        is_group=True,
    ),
    "topics": Verb(
        "admin", "Create, list, describe, alter, move and delete topics.", is_group=True
    ),
    "groups": Verb("admin", "List, describe, rewind and clear consumer groups.", is_group=True),
    "schemas": Verb(
        "admin", "List, show, register, check, compare and delete schemas.", is_group=True
    ),
    "mirror": Verb(
        "admin", "Copy topics into this cluster from another one, or from Kafka.", is_group=True
    ),
    "users": Verb("admin", "Add, list and remove users who may log in.", is_group=True),
    "acls": Verb("admin", "Add, list and remove access rules.", is_group=True),
    "security": Verb("admin", "Make the certificates and profiles of a cluster.", is_group=True),
    "profiles": Verb(
        "admin", "List and add profiles of this machine, and check one.", is_group=True
    ),
    "produce": Verb("data", "Publish one record for each line."),
    "consume": Verb("data", "Print the records of topics."),
    "audit": Verb("admin", "Compare what was counted of a topic with what is there."),
    "bench": Verb("data", "Send records, read them back, and tell the rates."),
    "dump": Verb("inspect", "Show what stands in the files of a broker.", is_group=True),
    "verify": Verb("inspect", "Check every checksum, offset and index of a data directory."),
    "accept-clock": Verb("inspect", "Tell a broker that its clock is right."),
}


class _Verbs(TyperGroup):
    """Knows all verbs by name, and imports the one that is wanted."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: TyperCommand(name, help=verb.help) for name, verb in VERBS.items()}
        self._loaded: dict[str, Any] = {}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_profile_first(args))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in VERBS and cmd_name not in self._loaded:
            self._loaded[cmd_name] = loaded(cmd_name)
        return self._loaded.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.help) for name, verb in VERBS.items()])

    def invoke(self, ctx: Any) -> Any:
        done = None
        try:
            with ending_without_reader():
                done = super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            raise typer.Exit(INTERRUPTED) from interrupt
        return done


def loaded(name: str) -> Any:
    """The command of a verb, or of a group of them."""
    verb = VERBS[name]
    module = import_module(f"spark_logbus.cli.{verb.room}.{name.replace('-', '_')}")
    if verb.is_group:
        verbs = module.app
    else:
        verbs = typer.Typer(add_completion=False, rich_markup_mode=None)
        verbs.command(name)(getattr(module, name.replace("-", "_")))
    command = get_command(verbs)
    command.name = name
    return command


app = typer.Typer(
    name="logbus",
    cls=_Verbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # Rich would take as long as all the rest
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"logbus {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what happens.")] = False,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            callback=use_profile,
            is_eager=True,
            help="The cluster, and as whom to log in there: a profile (logbus profiles list).",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    version: Annotated[
        bool,
        typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Print it."),
    ] = False,
) -> None:
    """A segment-file log broker and its Spark connector.

    \b
    Example:
      logbus up                                 a cluster here, in a shell of its own
      logbus topics create events -p 4
      seq 1000 | logbus produce events
      logbus consume events -n 10
    """
    del profile, version  # dealt with by their callbacks
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(message)s",
    )
    logging.getLogger("kazoo").setLevel(logging.ERROR)  # its retries are ours to report


def main() -> None:
    """Run the command line; an error of logbus is one readable message and exit code 1."""
    print_by_line()
    try:
        app(prog_name="logbus")
    except LogbusError as error:
        with ending_without_reader():
            out = console(stderr=True)
            out.print("Error:", style="bold red", end=" ")
            out.print(str(error))
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)

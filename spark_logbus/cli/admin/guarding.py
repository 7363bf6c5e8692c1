"""``logbus security zookeeper``: whose the nodes of a cluster are."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from spark_logbus.cli.options import DEFAULT_ZOOKEEPER, AsJson, Execute, ZooKeeper, opened_session
from spark_logbus.cli.output import Console, console, print_json
from spark_logbus.plurals import plural

if TYPE_CHECKING:
    from spark_logbus.zookeeper.guarding import Survey

_TOLD_EVERY_S: Final = 2.0


def guard_zookeeper(
    open_: Annotated[
        bool,
        typer.Option("--open", help="Give the nodes back to whoever reaches ZooKeeper."),
    ] = False,
    execute: Execute = False,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
    as_json: AsJson = False,
) -> None:
    """Give all nodes of a cluster in ZooKeeper to the user that the profile names, and to nobody
    else.

    Brokers and clients go on meanwhile, if all of them have that user by then, or come through a
    gateway; those that do not are shut out. It may be interrupted and run again. A dry run unless
    --execute is given.

    \b
    Example:
      logbus security zookeeper -z profile:brokers
      logbus security zookeeper -z profile:brokers --execute
    """
    from spark_logbus.zookeeper.guarding import Guarding

    out = console(stderr=as_json)
    with opened_session(zookeeper, "logbus-security") as session:
        guarding = Guarding(session, opened=open_)
        looked = _telling(console(stderr=True))
        survey = guarding.apply(looked) if execute else guarding.survey(looked)
    if as_json:
        print_json(_row(survey))
    _tell(out, survey, whose="open to all" if open_ else "its user's alone", execute=execute)
    if execute and survey.others:
        raise typer.Exit(1)


def _telling(out: Console) -> Callable[[int], None]:
    """Returns what tells of a long walk now and then."""
    told_at = time.monotonic()

    def tell(nodes: int) -> None:
        nonlocal told_at
        now = time.monotonic()
        if now - told_at >= _TOLD_EVERY_S:
            told_at = now
            out.print(f"{plural(nodes, 'node')} looked at ...")

    return tell


def _row(survey: Survey) -> dict[str, int]:
    return {
        "nodes": survey.nodes,
        "others": survey.others,
        "changed": survey.changed,
        "foreign": survey.foreign_count,
    }


def _tell(out: Console, survey: Survey, *, whose: str, execute: bool) -> None:
    well, nodes = survey.nodes - survey.others, plural(survey.nodes, "node is", "nodes are")
    changeable = survey.others - survey.foreign_count
    if execute:
        out.print(f"{plural(survey.changed, 'access list')} set; {well:,} of {nodes} {whose}.")
    elif changeable:
        out.print(
            f"{changeable:,} of {plural(survey.nodes, 'node')} would be made {whose}. "
            "Nothing was changed; give --execute to do it."
        )
    else:
        out.print(f"{well:,} of {nodes} {whose}; there is nothing to do.")
    if survey.foreign_count:
        out.print(
            f"{plural(survey.foreign_count, 'node belongs', 'nodes belong')} to another user of "
            f"ZooKeeper, who alone can change that: {', '.join(survey.foreign)}"
            f"{' ...' * (survey.foreign_count > len(survey.foreign))}",
            style="yellow",
        )

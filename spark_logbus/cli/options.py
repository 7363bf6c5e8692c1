"""Arguments and options that several verbs share."""

from __future__ import annotations

import enum
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from spark_logbus.cli.completion import group_names, topic_names
from spark_logbus.errors import ConfigError

if TYPE_CHECKING:
    from spark_logbus.client import ClientConfig, Cluster, ProducerConfig
    from spark_logbus.zookeeper import Session

Choice = TypeVar("Choice", bound=enum.Enum)

DEFAULT_ZOOKEEPER = "localhost:2181/logbus"
_PROFILE: Final = "--profile"


def with_profile_first(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments with ``--profile NAME`` before the verb, wherever it stood."""
    first: list[str] = []
    others = list(arguments)
    end = others.index("--") if "--" in others else len(others)
    for number in reversed(range(end)):
        if others[number] == _PROFILE and number + 1 < end:
            first = [_PROFILE, others[number + 1], *first]
            del others[number : number + 2]
            end -= 2
        elif others[number].startswith(f"{_PROFILE}="):
            first = [others.pop(number), *first]
            end -= 1
    return [*first, *others]


def use_profile(ctx: Any, name: str | None) -> str | None:
    """Makes a profile the one that is used where no address is given, by processes that this one
    starts, too."""
    if name is not None:
        os.environ["LOGBUS_PROFILE"] = name
    return name


def _address(ctx: Any, given: str) -> str:
    """The cluster: as given on the command line, else the profile, else the environment's."""
    from spark_logbus.zookeeper.connect_string import default_connect

    is_given = ctx.get_parameter_source("zookeeper").name == "COMMANDLINE"
    if not is_given:
        return default_connect() if os.environ.get("LOGBUS_PROFILE") else given
    if ctx.find_root().params.get("profile") is not None and not ctx.resilient_parsing:
        raise ConfigError(
            f"{_PROFILE} and --zookeeper both say where the cluster is; give one of them."
        )
    return given


ZooKeeper = Annotated[
    str,
    typer.Option(
        "--zookeeper",
        "-z",
        envvar="LOGBUS_ZOOKEEPER",
        callback=_address,
        help="ZooKeeper's address and chroot.",
        metavar="HOST:PORT/PATH",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", "-J", help="One JSON object a line.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Execute = Annotated[
    bool, typer.Option("--execute", "-x", help="Do it. Without this nothing is changed.")
]
Topic = Annotated[
    str, typer.Argument(help="The topic.", metavar="TOPIC", autocompletion=topic_names)
]
Topics = Annotated[
    list[str],
    typer.Argument(help="One topic or several.", metavar="TOPIC", autocompletion=topic_names),
]
Group = Annotated[
    str, typer.Argument(help="The group.", metavar="GROUP", autocompletion=group_names)
]
Groups = Annotated[
    list[str],
    typer.Argument(help="One group or several.", metavar="GROUP", autocompletion=group_names),
]
CompressionName = Annotated[str, typer.Option("--compression", help="none, lz4 or zstd.")]
AcksName = Annotated[
    str | None,
    typer.Option(
        "--acks",
        help="none, written, flushed or replicated; default: replicated where a topic has more "
        "than one replica, else flushed.",
    ),
]


@contextmanager
def connected(zookeeper: str, config: ClientConfig | None = None) -> Iterator[Cluster]:
    """A client cluster for the length of one command."""
    from spark_logbus.client import Cluster

    with Cluster.from_zookeeper(zookeeper, config) as cluster:
        yield cluster


@contextmanager
def opened_session(zookeeper: str, client_name: str) -> Iterator[Session]:
    """A session with a cluster's ZooKeeper for the length of one command."""
    from spark_logbus.zookeeper import Session

    with Session(zookeeper, client_name=client_name, expects_cluster=True) as session:
        yield session


def producer_config(acks: str | None, compression: str) -> ProducerConfig:
    """Builds a producer's settings of the options of these names. Raises ConfigError."""
    from spark_logbus.client import ProducerConfig
    from spark_logbus.model import Acks, Compression

    return ProducerConfig(
        acks=None if acks is None else _one_of("--acks", acks, Acks),
        compression=_one_of("--compression", compression, Compression),
    )


def _one_of(option: str, given: str, choices: type[Choice]) -> Choice:
    for choice in choices:
        if choice.name.lower() == given:
            return choice
    *most, last = [choice.name.lower() for choice in choices]
    raise ConfigError(f"{option} is {given!r}; use {', '.join(most)} or {last}.")

"""``logbus security``: the certificates, first user and profiles of a cluster."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spark_logbus.cli.admin.guarding import guard_zookeeper
from spark_logbus.cli.output import MOMENT, Column, Table, console
from spark_logbus.errors import ConfigError

if TYPE_CHECKING:
    from spark_logbus.security.directory import SecurityDirectory

app = typer.Typer(
    help="Make the certificates, the first user and the profiles of a cluster.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_DEFAULT_CHROOT = "logbus"
Directory = Annotated[
    Path, typer.Argument(help="The directory of `logbus security init`.", metavar="DIR")
]
Hosts = Annotated[
    list[str] | None,
    typer.Option(
        "--host",
        help="A name or an address under which others reach the broker; the first is advertised. "
        "Several times for several. Default: this machine alone.",
        metavar="NAME",
        show_default=False,
    ),
]


@app.command("init")
def init(
    directory: Annotated[Path, typer.Argument(help="A new directory.", metavar="DIR")],
    host: Hosts = None,
    user: Annotated[str, typer.Option(help="The first user, who may do everything.")] = "admin",
    name: Annotated[
        str | None,
        typer.Option(
            help="The profile's name, of letters, digits, _ and -; default: the directory's.",
            metavar="PROFILE",
            show_default=False,
        ),
    ] = None,
    zookeeper: Annotated[
        str | None,
        typer.Option(
            help="Where ZooKeeper is or will be; default: on this machine, on a free port.",
            metavar="HOST:PORT/PATH",
            show_default=False,
        ),
    ] = None,
    renew: Annotated[
        bool,
        typer.Option(
            "--renew", help="Make all certificates of a directory anew, and nothing else."
        ),
    ] = False,
) -> None:
    """Make an authority, certificates, the first user, a broker's configuration and a profile, in a
    directory that nobody else may read. What is there is never overwritten.

    \b
    Example:
      logbus security init secured
      logbus up --security secured
    """  # fmt: skip
    from spark_logbus.security.directory import (
        GATEWAY_PORT,
        NewCluster,
        SecurityDirectory,
        require_free,
    )
    from spark_logbus.security.profiles import profiles_file
    from spark_logbus.zookeeper.connect_string import DEFAULT_PORT

    if renew:
        _renew(SecurityDirectory.at(directory))
        return
    if (directory / "ca.pem").is_file():  # whole, as it is made at once
        _go_on(SecurityDirectory.at(directory), directory)
        return
    _refuse_profile(zookeeper)
    cluster = NewCluster(
        profile=name or directory.absolute().name,
        user=user,
        zookeeper=zookeeper or f"127.0.0.1:{_free_port(DEFAULT_PORT)}/{_DEFAULT_CHROOT}",
        gateway_port=GATEWAY_PORT if host else _free_port(GATEWAY_PORT),
        hosts=tuple(host or ()),
    )
    require_free(profiles_file(), cluster.profile)
    made = SecurityDirectory.make(directory, cluster)
    _add_profile(made)
    _tell(made, directory, hosts=host or [])


@app.command("issue")
def issue(
    directory: Directory,
    name: Annotated[
        str,
        typer.Argument(
            help="broker-ID for one more broker; another name for a client, which is then "
            "certificate:NAME.",
            metavar="NAME",
        ),
    ],
    host: Hosts = None,
) -> None:
    """Make the files of one more broker, or a client's certificate and profile, in a directory of
    their own, to be copied to where they are used.

    \b
    Example:
      logbus security issue secured broker-2 --host kafka2.example
      logbus security issue secured etl
    """
    from spark_logbus.security.directory import SecurityDirectory

    there = SecurityDirectory.at(directory)
    number = name.removeprefix("broker-")
    out = console()
    if name.startswith("broker-") and number.isascii() and number.isdecimal():
        made = there.add_broker(int(number), host or [])
        out.print(f"Copy {made} to the broker's machine, and start it there:")
        out.print(f"  logbus broker -c {made.name}/broker.toml")
        out.print(f'Profiles of clients may have all gateways:\n  gateway = "{there.gateways}"')
        return
    if host:
        raise ConfigError(
            f"{name!r} is a client's name, and clients prove no host; a broker's is broker-ID."
        )
    made = there.add_client(name)
    profile, _ = there.first_profile
    out.print(f"Hand {made} to the client, who is certificate:{name}:")
    out.print(f"  export LOGBUS_PROFILES={shlex.quote(str(made / 'profiles.toml'))}")
    out.print(f"  logbus profiles check {profile}")
    out.print("What it may do, rules say: logbus acls add certificate:" + f"{name} ...")


def _go_on(made: SecurityDirectory, given: Path) -> None:
    """Does what a run that was ended left to do: its directory is whole."""
    if not _add_profile(made):
        raise ConfigError(
            f"{given} was made before, and nothing was changed. --renew makes new certificates; "
            "`logbus security issue` adds a broker or a client."
        )
    _tell(made, given, hosts=[])


def _add_profile(made: SecurityDirectory) -> bool:
    from spark_logbus.security.directory import add_profile
    from spark_logbus.security.profiles import profiles_file

    name, settings = made.first_profile
    return add_profile(profiles_file(), name, settings)


def _tell(made: SecurityDirectory, given: Path, *, hosts: list[str]) -> None:
    from spark_logbus.security.directory import leftovers
    from spark_logbus.security.profiles import profiles_file

    out = console()
    profile, _ = made.first_profile
    out.print(f"{given} has all keys of a new cluster; keep it from others.", style="bold")
    out.print(f"The profile {profile} is in {profiles_file()}.")
    out.print(f"The user {made.user} may do everything; the password is in {made.password_file}.")
    if hosts:
        out.print(
            f"\nCopy {made.broker(1)} to the broker's machine, and start it there, with ZooKeeper "
            f"at {made.zookeeper}:\n"
            f"  logbus broker -c {made.broker(1).name}/broker.toml\n"
            f"\nThen add the user, here:\n"
            f"  LOGBUS_PROFILES={shlex.quote(str(made.path / 'profiles.toml'))} \\\n"
            f"    logbus --profile brokers users add {shlex.quote(made.user)} "
            f"--password-file {shlex.quote(str(made.password_file))}\n"
            f"\nUse it:\n  export LOGBUS_PROFILE={profile}\n  logbus profiles check"
        )
    else:
        out.print(f"\nStart it:\n  logbus up --security {shlex.quote(str(given))}\n")
        out.print(f"Use it, in another shell:\n  export LOGBUS_PROFILE={profile}")
        out.print("  logbus topics create events")
    for each in leftovers(given):
        out.print(f"{each} is left of a run that was ended; remove it.", style="bold yellow")


def _renew(there: SecurityDirectory) -> None:
    rows = Table(Column("certificate"), Column("good_until", MOMENT))
    for path, until in there.renew():
        rows.add(
            {
                "certificate": str(path.relative_to(there.path)),
                "good_until": int(until.timestamp() * 1e6),
            }
        )
    rows.print()
    console().print(
        "Copy each certificate and its key to where they are used; brokers read them anew by "
        "themselves."
    )


def _refuse_profile(zookeeper: str | None) -> None:
    from spark_logbus.security import profiles
    from spark_logbus.zookeeper import ConnectString

    if zookeeper is None:
        return
    if profiles.named_in(zookeeper) is not None:
        raise ConfigError(f"--zookeeper is {zookeeper!r}; give ZooKeeper's servers here.")
    ConnectString.parse(zookeeper)


def _free_port(preferred: int) -> int:
    from spark_logbus.local.zookeeper import free_port

    return free_port(preferred)


app.command("zookeeper")(guard_zookeeper)

"""``logbus profiles``: which clusters this machine knows, and if they let it in."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_logbus.cli.options import AsJson
from spark_logbus.cli.output import MARK, Column, Table, console
from spark_logbus.errors import ConfigError, LogbusError
from spark_logbus.security import profiles
from spark_logbus.security.profiles import Profile, ProfileSettings

if TYPE_CHECKING:
    from spark_logbus.client import Cluster
    from spark_logbus.model import BrokerAddress

app = typer.Typer(
    help="List and add profiles of this machine, and check one.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_CHECK_MS = 10_000
# What profiles of one cluster have in common: where it is, and whom to believe there.
_SHARED = ("gateway", "zookeeper", "zookeeper_tls", "zookeeper_tls_ca", "tls", "tls_ca")


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the profiles in the file of this user, without any secret. A star marks the one that is
    used where none is named.

    \b
    Example:
      logbus profiles list
    """
    rows = Table(
        Column("profile"),
        Column("used", MARK),
        Column("cluster"),
        Column("tls"),
        Column("certificate"),
        Column("user"),
        Column("password"),
        Column("problem"),
    )
    used = os.environ.get(profiles.NAME_VARIABLE)
    for name, settings in _stored().items():
        rows.add({"profile": name, "used": name == used, **_shown(settings)})
    rows.print(
        as_json=as_json,
        empty=f"There are no profiles in {profiles.profiles_file()}; see `logbus security init`.",
    )


@app.command("add")
def add(
    name: Annotated[str, typer.Argument(help="The new profile.", metavar="PROFILE")],
    like: Annotated[
        str,
        typer.Option(
            "--like",
            help="The profile of the same cluster whose addresses and authorities to take.",
            metavar="PROFILE",
        ),
    ],
    user: Annotated[str, typer.Option(help="The user to log in as.")],
    password_file: Annotated[
        Path | None,
        typer.Option(help="The file with the user's password.", show_default=False),
    ] = None,
    password_env: Annotated[
        str | None,
        typer.Option(
            help="The environment variable with the user's password.",
            metavar="VARIABLE",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Add a profile for another user of a cluster. What is there stays as it is.

    \b
    Example:
      logbus profiles add etl --like prod --user etl --password-file etl.password
    """
    from spark_logbus.security.directory import add_profile

    profiles.check_profile_name(name)
    found = _stored().get(like)
    if found is None:
        raise ConfigError(f"There is no profile {like!r} in {profiles.profiles_file()}.")
    if isinstance(found, ConfigError):
        raise found
    if (password_file is None) == (password_env is None):
        raise ConfigError("Give --password-file or --password-env, one of them.")
    secret = (
        {"password_env": password_env}
        if password_file is None
        else {"password_file": str(password_file.absolute())}
    )
    same = {key: getattr(found, key) for key in _SHARED}
    settings = {
        key: str(value) if isinstance(value, Path) else value
        for key, value in {**same, "user": user, **secret}.items()
        if value is not None
    }
    if not add_profile(profiles.profiles_file(), name, settings):
        console().print(f"The profile {name} was there already, as it is to be.")
        return
    console().print(f"The profile {name} is in {profiles.profiles_file()}.")


@app.command("check")
def check(
    name: Annotated[
        str | None,
        typer.Argument(
            help="The profile. Default: that of --profile, or of LOGBUS_PROFILE.",
            metavar="PROFILE",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Log in at each broker of a profile's cluster, over the network; exit code 1 if one does not
    let it in.

    \b
    Example:
      logbus profiles check prod
    """
    from spark_logbus.client import ClientConfig, Cluster

    name = name or os.environ.get(profiles.NAME_VARIABLE)
    if name is None:
        raise ConfigError("No profile is named: logbus profiles check PROFILE.")
    profile = profiles.load_profile(name)
    for warning in _warnings(_stored()[name]):
        console(stderr=True).print(warning, style="bold yellow")
    # Not over UNIX sockets: what is checked is what other machines meet.
    config = ClientConfig(client_id="logbus-profiles", local_sockets=False)
    rows = Table(Column("broker"), Column("address"), Column("encrypted"), Column("result"))
    with Cluster.from_zookeeper(f"{profiles.PREFIX}{name}", config) as cluster:
        results = [_met(cluster, each) for each in cluster.brokers]
    for result in results:
        rows.add(result)
    rows.print(as_json=as_json)
    if not as_json:
        console().print(f"Logged in as {_identity(profile)}.")
    if any(result["result"] != "lets it in" for result in results):
        raise typer.Exit(1)


def _stored() -> dict[str, ProfileSettings | ConfigError]:
    if not profiles.profiles_file().exists():
        return {}
    return profiles.stored_profiles()


def _shown(settings: ProfileSettings | ConfigError) -> dict[str, Any]:
    if isinstance(settings, ConfigError):
        return {"problem": settings.message}
    password = None
    if settings.password_file is not None:
        password = f"file {settings.password_file}"
    elif settings.password_env is not None:
        password = f"variable {settings.password_env}"
    return {
        "cluster": settings.gateway or settings.zookeeper,
        "tls": None if settings.tls_ca is None else str(settings.tls_ca),
        "certificate": None if settings.tls_certificate is None else str(settings.tls_certificate),
        "user": settings.user,
        "password": password,
        "problem": None,
    }


def _warnings(settings: ProfileSettings | ConfigError) -> Iterable[str]:
    """Tells of files with secrets that others may read."""
    if isinstance(settings, ConfigError):
        return
    directory = profiles.profiles_file().parent
    for path in (settings.password_file, settings.zookeeper_password_file, settings.tls_key):
        if path is not None and _others_may_read(directory / path):
            yield f"Others may read {directory / path}: chmod 600 {directory / path}."


def _others_may_read(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & 0o077)
    except OSError:
        return False  # told by whoever needs it


def _met(cluster: Cluster, broker: BrokerAddress) -> dict[str, Any]:
    """Connects to a broker, and returns what came of it."""
    from spark_logbus.wire.connect import connect

    config = cluster.config.connections
    port = broker.port if config.tls is None else broker.tls_port or broker.port
    result = "lets it in"
    try:
        connect(broker, config, cluster.deadline_ms(_CHECK_MS)).close()
    except LogbusError as error:
        result = str(error)
    return {
        "broker": str(broker.broker_id),
        "address": f"{broker.host}:{port}",
        "encrypted": "no" if config.tls is None else "yes",
        "result": result,
    }


def _identity(profile: Profile) -> str:
    if profile.login is not None:
        return f"user:{profile.login.user}"
    if profile.tls is not None and profile.tls.certificate is not None:
        from spark_logbus.security.certificates import common_name_of

        return f"certificate:{common_name_of(profile.tls.certificate.read_text())}"
    return "nobody in particular"

"""``logbus users``: who may log in, with which password."""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from spark_logbus.cli.options import DEFAULT_ZOOKEEPER, AsJson, ZooKeeper, opened_session
from spark_logbus.cli.output import Column, Table, console
from spark_logbus.clock import SystemClock
from spark_logbus.errors import ConfigError
from spark_logbus.plurals import plural

app = typer.Typer(
    help="Add, list and remove users, and change their passwords.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_CLIENT = "logbus-users"
User = Annotated[str, typer.Argument(help="The user's name.", metavar="USER")]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--password-file",
        help="The file with the password; -: standard input. Default: it is asked for.",
        show_default=False,
    ),
]
PasswordVariable = Annotated[
    str | None,
    typer.Option(
        "--password-env",
        help="The environment variable with the password.",
        metavar="VARIABLE",
        show_default=False,
    ),
]


@app.command("add")
def add(
    user: User,
    password_file: PasswordFile = None,
    password_env: PasswordVariable = None,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
) -> None:
    """Add a user, who may then log in, and may do what rules allow (logbus acls).

    \b
    Example:
      logbus users add anna
      logbus users add etl --password-file /run/secrets/etl
    """
    from spark_logbus.coordination.security.users import UserRegistry

    password = _password(password_file, password_env)
    with opened_session(zookeeper, _CLIENT) as session:
        UserRegistry(session).add(user, password, now_us=SystemClock().now_us())
    console().print(f"{user} is a user now.")


@app.command("passwd")
def passwd(
    user: User,
    password_file: PasswordFile = None,
    password_env: PasswordVariable = None,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
) -> None:
    """Give a user another password. Connections and tokens by the old one end.

    \b
    Example:
      logbus users passwd anna
    """
    from spark_logbus.coordination.security.users import UserRegistry

    password = _password(password_file, password_env)
    with opened_session(zookeeper, _CLIENT) as session:
        UserRegistry(session).set_password(user, password, now_us=SystemClock().now_us())
    console().print(f"{user} has another password now.")


@app.command("remove")
def remove(user: User, zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER) -> None:
    """Remove a user. Connections that stand are refused from now on; rules about the user stay.

    \b
    Example:
      logbus users remove anna
    """
    from spark_logbus.coordination.security.access_rules import RuleRegistry
    from spark_logbus.coordination.security.users import UserRegistry

    with opened_session(zookeeper, _CLIENT) as session:
        principal = f"user:{user}"
        # First: who removes himself reads nothing after that.
        left = [one for one in RuleRegistry(session).all().rules if one.principal == principal]
        UserRegistry(session).remove(user)
    console().print(f"{user} is no user any more.")
    if left:
        console().print(
            f"{plural(len(left), 'rule')} about {principal} would count for a new user of that "
            f"name: see `logbus acls list {principal}`, and `logbus acls remove`."
        )


@app.command("list")
def list_(zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER, as_json: AsJson = False) -> None:
    """List all users.

    \b
    Example:
      logbus users list
    """
    from spark_logbus.coordination.security.users import UserRegistry

    rows = Table(Column("user"))
    with opened_session(zookeeper, _CLIENT) as session:
        for name in UserRegistry(session).names():
            rows.add({"user": name})
    rows.print(as_json=as_json, empty="There are no users; make one with `logbus users add`.")


def _password(path: Path | None, variable: str | None) -> str:
    """Reads a password from a file or the environment, or asks for it twice."""
    if variable is not None:
        if path is not None:
            raise ConfigError("--password-file and --password-env are both given; give one.")
        found = os.environ.get(variable)
        if not found:
            raise ConfigError(f"The environment variable {variable} is not set.")
        return found
    if path is not None:
        if str(path) == "-":
            return sys.stdin.readline().rstrip("\n")
        try:
            return path.read_text().rstrip("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"Cannot read the password in {path}: {error}.") from error
    if not sys.stdin.isatty():
        raise ConfigError(
            "There is nobody to ask for the password; give --password-file or --password-env."
        )
    password = getpass.getpass("Password: ")
    if getpass.getpass("Once more: ") != password:
        raise ConfigError("These are two passwords; nothing was changed.")
    return password

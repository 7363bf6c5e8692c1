"""Arguments of programs that say which cluster they are for, the same in all of them."""

from __future__ import annotations

import argparse
from typing import Any, Final, NoReturn

from spark_logbus.security.profiles import PREFIX
from spark_logbus.zookeeper.connect_string import default_connect

# What nobody is to write where all who list processes read it.
_SECRETS: Final = ("--password", "--passwd", "--secret", "--token")


def add_cluster_options(
    parser: argparse.ArgumentParser, *, default: str | None = argparse.SUPPRESS
) -> None:
    """Adds ``--zookeeper`` and ``--profile``, whose value is ``zookeeper`` in the result, and
    refuses options that would be secrets. What is not given is ``default``, or is not there."""
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "--zookeeper",
        default=default,
        metavar="HOST:PORT/PATH",
        help=f"the cluster (default: {default_connect()})",
    )
    choice.add_argument(
        "--profile",
        dest="zookeeper",
        default=argparse.SUPPRESS,
        type=lambda name: f"{PREFIX}{name}",
        metavar="NAME",
        help="the cluster, and as whom to log in there: a profile (logbus profiles list)",
    )
    for each in _SECRETS:
        parser.add_argument(
            each, action=_Refused, nargs="?", dest=argparse.SUPPRESS, help=argparse.SUPPRESS
        )


class _Refused(argparse.Action):
    """Refuses an option by its name, and shows no value."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> NoReturn:
        parser.error(
            f"{option_string} would show a secret to all who list processes; put it in a profile, "
            "and name that: --profile NAME."
        )

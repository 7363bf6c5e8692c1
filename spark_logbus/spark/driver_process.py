"""Finds the driver that a streaming source belongs to, for the people who look after it.

Spark passes a Python source neither its process id nor its name. But the driver's JVM is the parent
of the process that plans a stream, and its command line has the application's name where that was
set at its start.
"""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path

_NAME = re.compile(r"spark\.app\.name=(.+)")


def spark_driver() -> tuple[int, str | None]:
    """The driver's process id and the application's name, as far as they can be seen: else this
    process, and None."""
    parent = os.getppid()
    arguments = _arguments(parent)
    if not arguments or Path(arguments[0]).name != "java":
        return os.getpid(), None
    return parent, application_name(arguments)


def application_name(arguments: list[str]) -> str | None:
    """The name that ``spark-submit`` or a session builder gave (pure)."""
    for option, value in itertools.pairwise([*arguments, ""]):
        if option == "--name" and value:
            return value
        if option == "--conf" and (found := _NAME.fullmatch(value)):
            return found[1]
    return None


def _arguments(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:  # not on Linux, or gone
        return []

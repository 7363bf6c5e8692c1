"""Finds the processes of Spark that a streaming source belongs to: its planner, and the driver, for
the people who look after it.

Spark passes a Python source neither its process id nor its name. But the driver's JVM is the parent
of the process that plans a stream, and its command line has the application's name where that was
set at its start.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from pathlib import Path

_STREAM_PLANNER = "pyspark.sql.streaming.python_streaming_source_runner"
_NAME = re.compile(r"spark\.app\.name=(.+)")


def spark_driver() -> tuple[int, str | None]:
    """The driver's process id and the application's name, as far as they can be seen: else this
    process, and None."""
    parent = os.getppid()
    arguments = _arguments(parent)
    if not arguments or Path(arguments[0]).name != "java":
        return os.getpid(), None
    return parent, application_name(arguments)


def plans_a_stream() -> bool:
    """True if this is the process that Spark starts for each run of a stream."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == _STREAM_PLANNER


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

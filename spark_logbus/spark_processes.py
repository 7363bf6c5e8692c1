"""The beginning of each Python process that Spark starts: ``logbus_pyspark.pth`` calls ``begin``.

Python runs that file's line at the start of every process of the environment, and the line comes
here where Spark's ``pyspark.zip`` is on the path. So little is imported here.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from spark_logbus import installed_pyspark


def begin() -> None:
    """Run as the Python that Spark takes the program for, with the PySpark that is installed."""
    command = python_command(sys.argv, sys.executable)
    if command:
        with suppress(OSError):
            os.execv(command[0], command)
    installed_pyspark.prefer()
    # What Spark puts on the path later, such as --py-files with another release, comes before the
    # one that is installed, as ever.
    for name in [name for name in sys.modules if name.partition(".")[0] == "spark_logbus"]:
        del sys.modules[name]


def python_command(arguments: list[str], python: str) -> list[str]:
    """The command line of the Python that is meant; empty where the process is that already.

    Spark looks data sources up with the program in ``PYSPARK_DRIVER_PYTHON``. It asks it for its
    version, as ``<program> -c "import sys; print(...)"``, and starts ``<program> -m pyspark...``.
    For a notebook that is ``jupyter``, a program in Python which has no such options, and all
    formats in Python would be missing. A user's own program with such options is left alone.
    """
    if not python or len(arguments) < 3 or arguments[0] in ("-c", "-m"):
        return []
    if arguments[0].endswith(".py"):
        return []  # a driver's own program; those that are installed have no such name
    _, option, what, *_ = arguments
    if option == "-m":
        is_meant = what.startswith("pyspark.")
    else:
        is_meant = option == "-c" and what.startswith("import sys;") and "version_info" in what
    return [python, *arguments[1:]] if is_meant else []

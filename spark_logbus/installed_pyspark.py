"""Lets the Python processes of Spark import the PySpark that is installed, not the one in a zip.

Spark starts its Python processes with ``python/lib/pyspark.zip``, py4j's zip file and a jar first
on the path. Python keeps no byte code of what is in a zip file, so that each process compiles
PySpark anew: 0.6 s of processor time. Where that zip file lies inside of a PySpark that pip has
installed, both hold the same modules, and the installed ones are compiled already. A line of the
file ``logbus_pyspark.pth``, which Python runs at each start, comes here if a ``pyspark.zip`` is on
the path. Whatever is different is left as Spark made it: see docs/adr/0036-installed-pyspark.md.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import Final

VARIABLE: Final = "LOGBUS_INSTALLED_PYSPARK"
_OFF: Final = ("0", "no", "false", "off")
_PY4J: Final = re.compile(r"py4j-(\d[\w.]*)-src\.zip")
_LIBRARY: Final = os.path.join("pyspark", "python", "lib")


def prefer() -> None:
    """Leave Spark's archives out of ``sys.path`` where the same modules are installed."""
    sys.path[:] = without_archives(sys.path, os.environ)


def without_archives(path: list[str], environment: Mapping[str, str]) -> list[str]:
    """Return ``path`` without the archives of the PySpark that lies in one of its later folders.

    Return it as it is where that is not sure: ``LOGBUS_INSTALLED_PYSPARK`` is 0, the archive lies
    elsewhere, or an entry between the two holds another PySpark, or may hold one.
    """
    if environment.get(VARIABLE, "").lower() in _OFF:
        return path
    # Others may have put what is no text on the path, which Python passes over.
    entries = [entry for entry in path if isinstance(entry, str)]
    archive = next((entry for entry in entries if os.path.basename(entry) == "pyspark.zip"), None)
    if archive is None:
        return path
    library = os.path.dirname(archive)
    packages = library.removesuffix(_LIBRARY).rstrip(os.sep)
    if not library.endswith(os.sep + _LIBRARY) or not _holds(packages, "pyspark"):
        return path
    ours = {archive}
    jars = os.path.join(packages, "pyspark", "jars")
    for entry in entries[entries.index(archive) :]:
        folder, name = os.path.split(entry)
        if entry in ours:
            continue
        if folder == library and (py4j := _PY4J.fullmatch(name)):
            if not os.path.isdir(os.path.join(packages, f"py4j-{py4j[1]}.dist-info")):
                return path  # they are not what was installed together
            ours.add(entry)
        elif folder == jars:
            ours.add(entry)  # without a Python module, and of thousands of files to look through
        elif _is(entry, packages):
            return [each for each in path if each not in ours]
        elif os.path.isfile(entry) or _holds(entry, "pyspark") or _holds(entry, "py4j"):
            return path
    return path


def _holds(folder: str, package: str) -> bool:
    place = os.path.join(folder, package)
    return os.path.exists(os.path.join(place, "__init__.py")) or os.path.exists(f"{place}.py")


def _is(entry: str, folder: str) -> bool:
    """Spark follows links to its home, and Python does not."""
    try:
        return entry == folder or os.path.samefile(entry, folder)
    except OSError:
        return False

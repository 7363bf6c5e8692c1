"""Runs of TLC, the model checker of TLA+, over the specifications of ``docs/model``.

``scripts/model`` runs one by hand. TLC comes from Maven Central, once for each user of the machine.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.servers.artifacts import jars_of
from spark_logbus.local.java import java_executable

MODELS = Path(__file__).parents[2] / "docs" / "model"

_MAIN = "tlc2.TLC"
_DEADLINE_S = 3_600.0
_HOLDS = "No error has been found"
_VIOLATED = re.compile(r"Error: Invariant (\w+) is violated")
_STATES = re.compile(r"(\d+) distinct states found")
_STEP = re.compile(r"^State \d+: <(\w+)", re.M)


@dataclass(frozen=True)
class Explored:
    """``violated`` is the invariant that broke, and ``steps`` are the actions that led there; both
    are empty if all states were explored and all invariants held."""

    violated: str
    steps: list[str]
    states: int
    output: str


def explore(module: str, constants: Mapping[str, object]) -> Explored:
    """Explores all states of a module, with constants in the place of those of its ``.cfg``.

    Ends at the first state that violates an invariant. Raises ServerUnavailableError where TLC
    cannot be had.
    """
    [jar] = jars_of(Path(__file__).with_suffix(".xml"))
    with TemporaryDirectory(prefix="logbus-tlc-") as directory:
        # TLC looks for both in one directory, and leaves its own files there.
        for specification in MODELS.glob("*.tla"):
            shutil.copy(specification, directory)
        (Path(directory) / f"{module}.cfg").write_text(
            _configured((MODELS / f"{module}.cfg").read_text(), constants)
        )
        # Both flags halve the processor time of a run of seconds.
        command = [java_executable(), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx2g",
                   "-cp", jar, _MAIN, "-deadlock", "-nowarning", "-terse", "-workers", "1",
                   f"{module}.tla"]  # fmt: skip
        ended = subprocess.run(
            [str(part) for part in command],
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=_DEADLINE_S,
        )
    output = ended.stdout + ended.stderr
    violated = _VIOLATED.search(output)
    states = _STATES.findall(output)
    if not states or (violated is None) != (_HOLDS in output):
        raise AssertionError(f"TLC could not explore {module}:\n{output}")
    return Explored(violated[1] if violated else "", _STEP.findall(output), int(states[-1]), output)


def _configured(text: str, constants: Mapping[str, object]) -> str:
    for name, value in constants.items():
        line = f"  {name} = {str(value).upper() if isinstance(value, bool) else value}"
        text, found = re.subn(rf"^  {name} = .*$", line, text, flags=re.M)
        if found != 1:
            raise AssertionError(f"The .cfg gives {name} {found} times.")
    return text


def main() -> None:
    """Explores the module that the first argument names, with what the others set."""
    module, *settings = sys.argv[1:]
    explored = explore(module, dict(setting.split("=", 1) for setting in settings))
    sys.stdout.write(explored.output)


if __name__ == "__main__":
    main()

"""Jars of servers and their clients, resolved by Maven."""

from __future__ import annotations

import shutil
from pathlib import Path

from bench.servers import ServerUnavailableError
from bench.servers.kept import kept, run_tool


def jars_of(pom: Path) -> list[Path]:
    """The jars that ``pom`` names, with all that they need at run time.

    They are kept, by the pom's content. Raises ServerUnavailableError where they are not there yet
    and Maven cannot bring them.
    """

    def resolve(directory: Path) -> Path:
        maven = shutil.which("mvn")
        if maven is None:
            raise ServerUnavailableError(
                f"There is no mvn on the PATH to bring what {pom.name} names; install Maven."
            )
        jars = directory / "jars"
        shutil.copy(pom, directory / "pom.xml")
        command = [maven, "-q", "--batch-mode", "dependency:copy-dependencies",
                   f"-DoutputDirectory={jars}", "-DincludeScope=runtime"]  # fmt: skip
        run_tool("Maven", command, directory=directory, what=f"what {pom.name} names")
        return jars

    return sorted(kept(pom.stem, pom.read_bytes(), resolve).glob("*.jar"))

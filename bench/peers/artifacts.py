"""Jars of peers, resolved by Maven once and kept in the user's cache directory."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from bench.peers import PeerUnavailableError

_DEADLINE_S = 600.0  # some 50 MB over a slow network
_LINES_SHOWN = 5


def jars_of(pom: Path) -> list[Path]:
    """The jars that ``pom`` names, with all that they need at run time.

    The directory that keeps them is named by the pom's content, so it never is stale. Raises
    PeerUnavailableError where they are not there yet and Maven cannot bring them.
    """
    digest = hashlib.sha256(pom.read_bytes()).hexdigest()[:12]
    kept = cache() / f"{pom.stem}-{digest}"
    if not kept.is_dir():
        _resolve(pom, kept)
    return sorted(kept.glob("*.jar"))


def cache() -> Path:
    """Where this and other modules keep what peers are made of."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "logbus" / "peers"


def _resolve(pom: Path, kept: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise PeerUnavailableError(
            f"There is no mvn on the PATH to bring what {pom.name} names; install Maven."
        )
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".resolving-") as name:
        directory = Path(name)
        shutil.copy(pom, directory / "pom.xml")
        command = [maven, "-q", "--batch-mode", "dependency:copy-dependencies",
                   f"-DoutputDirectory={directory / 'jars'}", "-DincludeScope=runtime"]  # fmt: skip
        try:
            ended = subprocess.run(
                command, cwd=directory, capture_output=True, text=True, timeout=_DEADLINE_S
            )
        except subprocess.TimeoutExpired as error:
            raise PeerUnavailableError(
                f"Maven did not bring what {pom.name} names within {_DEADLINE_S:.0f} seconds."
            ) from error
        if ended.returncode != 0:
            said = "\n".join((ended.stdout + ended.stderr).splitlines()[:_LINES_SHOWN])
            raise PeerUnavailableError(
                f"Maven cannot bring what {pom.name} names; is there a network? It says:\n{said}"
            )
        try:
            (directory / "jars").rename(kept)
        except OSError:
            if not kept.is_dir():  # else another run was quicker, with the same jars
                raise

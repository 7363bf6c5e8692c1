"""Artifacts of servers: brought once, and kept in the user's cache directory."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.servers import ServerUnavailableError

_DEADLINE_S = 600.0  # some 50 MB over a slow network
_LINES_SHOWN = 5


def kept(name: str, made_of: bytes, bring: Callable[[Path], Path]) -> Path:
    """The directory of that name that ``bring`` made of ``made_of``, once.

    ``made_of`` is part of its name, so it never is stale. ``bring`` gets an empty directory, and
    answers the one below it that is to be kept.
    """
    digest = hashlib.sha256(made_of).hexdigest()[:12]
    root = os.environ.get("XDG_CACHE_HOME")
    cache = (Path(root) if root else Path.home() / ".cache") / "logbus" / "peers"
    path = cache / f"{name}-{digest}"
    if path.is_dir():
        return path
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".bringing-") as directory:
        brought = bring(Path(directory))
        try:
            brought.rename(path)
        except OSError:
            if not path.is_dir():  # else another run was quicker, with the same
                raise
    return path


def run_tool(
    tool: str, command: Sequence[str], *, directory: Path, what: str, ask: str = ""
) -> None:
    """Runs a tool; raises ServerUnavailableError where it cannot bring ``what``.

    ``ask`` names a cause that is worth a look.
    """
    try:
        ended = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, timeout=_DEADLINE_S
        )
    except subprocess.TimeoutExpired as error:
        raise ServerUnavailableError(
            f"{tool} did not bring {what} within {_DEADLINE_S:.0f} seconds."
        ) from error
    if ended.returncode != 0:
        said = "\n".join((ended.stderr + ended.stdout).splitlines()[:_LINES_SHOWN])
        raise ServerUnavailableError(
            f"{tool} cannot bring {what}; is there a network{ask}? It says:\n{said}"
        )

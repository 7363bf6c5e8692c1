"""Programs of peers from Debian's packages, unpacked in the user's cache directory.

Nothing is installed, and root is not needed: apt-get brings the packages, dpkg-deb unpacks them.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.peers import PeerUnavailableError
from bench.peers.artifacts import cache

_DEADLINE_S = 600.0  # some 30 MB over a slow network
_LINES_SHOWN = 5


def unpacked(name: str, packages: Sequence[str]) -> Path:
    """The root of the packages' files.

    It is kept, by the packages' names; delete it for newer versions. Raises PeerUnavailableError
    where it is not there yet and these tools cannot bring it.
    """
    digest = hashlib.sha256(" ".join(packages).encode()).hexdigest()[:12]
    kept = cache() / f"{name}-{digest}"
    if not kept.is_dir():
        _unpack(name, packages, kept)
    return kept


def _unpack(name: str, packages: Sequence[str], kept: Path) -> None:
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise PeerUnavailableError(
                f"There is no {tool} on the PATH to bring {name}; it comes from Debian's packages."
            )
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".unpacking-") as directory:
        _run(name, ["apt-get", "-q", "download", *packages], directory)
        root = Path(directory) / "root"
        for package in sorted(Path(directory).glob("*.deb")):
            _run(name, ["dpkg-deb", "-x", str(package), str(root)], directory)
        try:
            root.rename(kept)
        except OSError:
            if not kept.is_dir():  # else another run was quicker, with the same packages
                raise


def _run(name: str, command: list[str], directory: str) -> None:
    try:
        ended = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, timeout=_DEADLINE_S
        )
    except subprocess.TimeoutExpired as error:
        raise PeerUnavailableError(
            f"{command[0]} did not bring {name} within {_DEADLINE_S:.0f} seconds."
        ) from error
    if ended.returncode != 0:
        said = "\n".join((ended.stdout + ended.stderr).splitlines()[-_LINES_SHOWN:])
        raise PeerUnavailableError(
            f"{command[0]} cannot bring {name}; is there a network, and did apt-get update run? "
            f"It says:\n{said}"
        )

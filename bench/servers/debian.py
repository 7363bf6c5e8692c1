"""Programs of servers from Debian's packages, unpacked in the user's cache directory.

Nothing is installed, and root is not needed: apt-get brings the packages, dpkg-deb unpacks them.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from bench.servers import ServerUnavailableError
from bench.servers.kept import kept, run_tool


def unpacked(name: str, packages: Sequence[str]) -> Path:
    """The root of the packages' files.

    It is kept, by the packages' names; delete it for newer versions. Raises ServerUnavailableError
    where it is not there yet and these tools cannot bring it.
    """

    def unpack(directory: Path) -> Path:
        for tool in ("apt-get", "dpkg-deb"):
            if shutil.which(tool) is None:
                raise ServerUnavailableError(
                    f"There is no {tool} on the PATH to bring {name}; it comes from Debian's "
                    "packages."
                )
        run_tool(
            "apt-get",
            ["apt-get", "-q", "download", *packages],
            directory=directory,
            what=name,
            ask=", and did apt-get update run",
        )
        root = directory / "root"
        for package in sorted(directory.glob("*.deb")):
            command = ["dpkg-deb", "-x", str(package), str(root)]
            run_tool("dpkg-deb", command, directory=directory, what=name)
        return root

    return kept(name, " ".join(packages).encode(), unpack)

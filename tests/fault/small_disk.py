"""A broker whose data directory is a small file system of its own, which a test can fill.

It is mounted in a user and mount namespace, so no privileges are needed; the namespace lives on
while the broker is killed and started again.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

import pytest

from spark_logbus.local.cluster import BrokerProcess, Settings

_MOUNT = 'mount -t tmpfs -o size="$2"m tmpfs "$1" && echo mounted && exec sleep infinity'


class SmallDisk:
    """A mounted file system; ``seen`` is where this process finds it."""

    def __init__(self, path: Path, holder: int) -> None:
        self.seen = Path(f"/proc/{holder}/root{path.absolute()}")
        self.holder = holder

    def fill(self) -> None:
        """Leave no byte."""
        with (self.seen / ".filler").open("wb", buffering=0) as file:
            for size in (1 << 20, 4096, 1):
                while _takes(file, size):
                    pass
        assert os.statvfs(self.seen).f_bavail == 0


def _takes(file: FileIO, size: int) -> bool:
    try:
        return file.write(bytes(size)) > 0
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False


@contextmanager
def small_disk(path: Path, *, mib: int) -> Iterator[SmallDisk]:
    """Mount one of that size at ``path``; skips the test where that cannot be."""
    path.mkdir()
    command = [shutil.which("unshare"), "--user", "--map-root-user", "--mount", "sh", "-c", _MOUNT]
    if command[0] is None or shutil.which("nsenter") is None:
        pytest.skip("util-linux is not installed, so there is no file system of its own")
    arguments = [str(part) for part in (*command, "sh", path.absolute(), mib)]
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            if process.stdout.readline() != "mounted\n":
                pytest.skip(f"no file system of its own may be mounted: {process.stderr.read()}")
            yield SmallDisk(path, process.pid)
        finally:
            process.kill()


class BrokerOnSmallDisk(BrokerProcess):
    """``logbus broker`` in the namespace of the disk. Use from one thread at a time."""

    def __init__(
        self,
        directory: Path,
        *,
        zookeeper: str,
        settings: Settings,
        disk: SmallDisk,
        broker_id: int = 1,
    ) -> None:
        super().__init__(broker_id, directory, zookeeper=zookeeper, settings=settings)
        self._disk = disk

    def _prepare(self) -> list[str]:
        nsenter = shutil.which("nsenter")
        assert nsenter is not None, "the disk is there, so it was found"
        return [nsenter, "--target", str(self._disk.holder), "--user", "--preserve-credentials",
                "--mount", "--", *super()._prepare()]  # fmt: skip

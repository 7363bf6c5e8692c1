"""A file whose descriptor a broker on this machine passed over, in place of its bytes."""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Sequence
from typing import Final

ONE_DESCRIPTOR: Final = socket.CMSG_SPACE(array.array("i").itemsize) if os.name == "posix" else 0
"""The room in bytes for one passed descriptor, as ``recvmsg`` wants to know it."""


class PassedFile:
    """Owns the descriptor; closes it when the last reference goes. Not thread-safe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def __del__(self) -> None:
        os.close(self._descriptor)


def passed_file(ancillary: Sequence[tuple[int, int, bytes]]) -> PassedFile | None:
    """The file that came beside received bytes, if one did; any more are closed."""
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    files = [PassedFile(descriptor) for descriptor in descriptors]
    return files[0] if files else None

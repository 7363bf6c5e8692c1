"""Identities of processes, by which others on the same machine see that one has ended.

A process that is killed leaves its ZooKeeper session to expire. A process that waits for that on
the same machine can see at once that nobody is left. A process id alone is not enough: it is given
again, and means another process in another container or after a reboot. So an identity holds all of
these.
"""

from __future__ import annotations

import os
from pathlib import Path

_PROC = Path("/proc")
_STATE = 0  # of the fields after the program's name
_STARTED = 19  # in ticks since the machine was booted


def this_process() -> str:
    """An identity that no other process has, on this machine or another; empty where the system
    does not offer what it takes."""
    try:
        return "/".join([_machine(), str(os.getpid()), _fields(os.getpid())[_STARTED]])
    except (OSError, IndexError):
        return ""


def is_gone(identity: str) -> bool:
    """True if the process has certainly ended: it was of this machine, and is there no more.

    False for one that stands still, for one of another machine or container, and in doubt.
    """
    try:
        boot, namespace, pid, started = identity.split("/")
        if f"{boot}/{namespace}" != _machine():
            return False
        os.kill(int(pid), 0)
        fields = _fields(int(pid))
        return fields[_STATE] in "ZX" or fields[_STARTED] != started
    except ProcessLookupError:
        return True
    except (OSError, ValueError, IndexError):
        return False


def _machine() -> str:
    """Identity of the machine since it was booted, and of the process namespace."""
    boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{(_PROC / 'self/ns/pid').stat().st_ino}"


def _fields(pid: int) -> list[str]:
    return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()

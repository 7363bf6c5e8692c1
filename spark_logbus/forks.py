"""Tells objects of a process in the processes that are forked from it.

A forked process has a copy of all objects, and shares the sockets of its parent; it has none of its
threads, and locks that they held at that moment stay locked for ever. So what has sockets, threads
or locks is told in the child, before anything else runs there: it begins anew, or refuses to work.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final, Protocol
from weakref import WeakSet

from spark_logbus.errors import ProcessForkedError


class Forkable(Protocol):
    def after_fork(self) -> None:
        """Called in the child, which has one thread at that time. Takes no lock and does not
        raise."""


_followers: Final[WeakSet[Forkable]] = WeakSet()


def follow_forks(follower: Forkable) -> None:
    """Have ``follower`` told of forks for as long as there is another reference to it."""
    _followers.add(follower)


def forked(what: str, made_by: int) -> ProcessForkedError:
    """The error for a use of ``what`` by a process that was forked from the one that made it."""
    return ProcessForkedError(
        f"{what} belongs to process {made_by}, from which this one ({os.getpid()}) was forked: it "
        "does not work here, and goes on in the other. Make one in each process, after the fork."
    )


def _in_child() -> None:
    for follower in list(_followers):
        with contextlib.suppress(Exception):
            follower.after_fork()


os.register_at_fork(after_in_child=_in_child)

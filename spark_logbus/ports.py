"""Ports for servers that may choose their own."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Final, TypeVar

from spark_logbus.errors import StorageError

logger = logging.getLogger(__name__)

# Below the range (32768 and up) from which systems take the local ports of outgoing connections:
# one of those must never sit on a server's port while that server restarts.
FREE_PORTS: Final = range(20_000, 32_000)
TRIES: Final = 20

T = TypeVar("T")


def random_ports() -> list[int]:
    """Picks a few of ``FREE_PORTS`` to try, so that servers on one machine seldom collide."""
    return random.sample(FREE_PORTS, TRIES)


def bind_port(port: int, last: int | None, bind: Callable[[int], T]) -> T:
    """Bind ``port``; 0 means the one of the last run if it is free, else any.

    Raises what ``bind`` raises: StorageError for a port that is taken.
    """
    ports = [port] if port else [*([last] if last else []), *random_ports(), 0]
    for candidate in ports[:-1]:
        try:
            return bind(candidate)
        except StorageError as error:
            logger.info("%s Trying another.", error)
    return bind(ports[-1])

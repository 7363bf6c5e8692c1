"""Ports that nobody else gets while a test counts on them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

_HOST = "127.0.0.1"


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port on which nothing listens, unless a server is told to.

    It is bound here with SO_REUSEADDR, which servers use too: Linux lets them listen on it all the
    same, and gives it to nobody who asks for any port, nor to outgoing connections.
    """
    with socket.socket() as placeholder:
        placeholder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        placeholder.bind((_HOST, 0))
        yield placeholder.getsockname()[1]


@contextmanager
def refusing_address() -> Iterator[str]:
    """Refuses connections, whatever else this machine runs."""
    with reserved_port() as port:
        yield f"{_HOST}:{port}"

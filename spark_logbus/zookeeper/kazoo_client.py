"""kazoo's client, set up as sessions need it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient
from kazoo.protocol.serialization import Connect
from kazoo.retry import KazooRetry

# kazoo's own default backs off up to an hour, which would outlast every outage.
_RECONNECT_MAX_DELAY_S = 1.0


def new_client(servers: str, *, session_timeout_ms: int, granted: Callable[[int], None]) -> Any:
    """Not started yet. It reconnects for ever and leaves the chroot to us: kazoo's warns of a
    missing one instead of creating it.

    ``granted`` is called with the session timeout in ms that a server grants, before its connection
    is reported.
    """
    client = KazooClient(
        hosts=servers,
        timeout=session_timeout_ms / 1000,
        connection_retry=KazooRetry(max_tries=-1, max_delay=_RECONNECT_MAX_DELAY_S),
        logger=_logger(),
    )
    # kazoo keeps the granted timeout in a local variable of the private method that connects. It
    # has no hook, and a subclass of its connection would replace the same private parts. So the one
    # call that reads the server's greeting is wrapped. A test fails should that ever miss it: a
    # broker that asked for a longer session than was granted would acknowledge what it must not.
    invoke = client._connection._invoke

    def listening(timeout: float, request: Any, xid: int | None = None) -> Any:
        reply = invoke(timeout, request, xid)
        if isinstance(request, Connect) and reply[0].time_out > 0:
            granted(reply[0].time_out)
        return reply

    client._connection._invoke = listening
    return client


def _logger() -> logging.Logger:
    """kazoo reports every attempt to connect; the session reports what comes of them."""
    quiet = logging.getLogger(__name__)
    if quiet.level == logging.NOTSET:
        quiet.setLevel(logging.ERROR)
    return quiet

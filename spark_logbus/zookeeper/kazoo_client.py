"""kazoo's client, set up as sessions need it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.protocol.serialization import Connect
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL

from spark_logbus.security.profiles import Digest

# kazoo's own default backs off up to an hour, which would outlast every outage.
_RECONNECT_MAX_DELAY_S: Final = 1.0
_FIRST_PATIENCE: Final = 0.25  # of the session timeout, with a server that does not greet us


def new_client(
    servers: str,
    *,
    session_timeout_ms: int,
    granted: Callable[[int], None],
    digest: Digest | None = None,
) -> Any:
    """Makes a client, to be started. It reconnects for ever and leaves the chroot to us: kazoo
    warns of a missing one instead of creating it.

    ``granted`` is called with the session timeout in ms that a server grants, before its connection
    is reported. With a ``digest``, nodes that it makes may be read and changed by that user alone.
    """
    owned: dict[str, Any] = {}
    if digest is not None:
        owned = {
            "auth_data": [("digest", f"{digest.user}:{digest.password}")],
            "default_acl": CREATOR_ALL_ACL,
        }
    client = KazooClient(
        hosts=servers,
        timeout=session_timeout_ms / 1000,
        connection_retry=KazooRetry(max_tries=-1, max_delay=_RECONNECT_MAX_DELAY_S),
        logger=_logger(),
        **owned,
    )
    # kazoo keeps the granted timeout in a local variable of the private method that connects. It
    # has no hook, and a subclass of its connection would replace the same private parts. So the one
    # call that reads the server's greeting is wrapped. A test fails should that ever miss it: a
    # broker that asked for a longer session than was granted would acknowledge what it must not.
    client._connection._invoke = _Greeting(client._connection._invoke, granted)
    return client


class _Greeting:
    """kazoo's ``invoke``, which waits for the answer to a request while it connects.

    A ZooKeeper that has just begun to listen may forget a connection without closing it
    (3.9.5, before its data is loaded). kazoo would wait for the greeting as long as the session
    lasts, and lose the session, though the next connection would be answered. So who has a session
    waits for a quarter of that, and twice as long each time after: the server may be slow instead.
    """

    def __init__(self, invoke: Callable[..., Any], granted: Callable[[int], None]) -> None:
        self._invoke = invoke
        self._granted = granted
        self._patience = _FIRST_PATIENCE

    def __call__(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        if not isinstance(request, Connect):
            return self._invoke(timeout, request, xid)
        if request.session_id:  # a new session takes a server longer: it is written down
            timeout *= min(self._patience, 1.0)
            self._patience *= 2
        reply = self._invoke(timeout, request, xid)
        self._patience = _FIRST_PATIENCE
        if reply[0].time_out > 0:
            self._granted(reply[0].time_out)
        return reply


def _logger() -> logging.Logger:
    """kazoo reports every attempt to connect; the session reports what comes of them."""
    quiet = logging.getLogger(__name__)
    if quiet.level == logging.NOTSET:
        quiet.setLevel(logging.ERROR)
    return quiet

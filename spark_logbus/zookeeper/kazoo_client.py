"""kazoo's client, set up as sessions need it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError
from kazoo.protocol.connection import AUTH_XID
from kazoo.protocol.serialization import Auth, Connect
from kazoo.retry import KazooRetry

from spark_logbus.zookeeper.access import Access, Hidden, TlsHandler, acl_of

# kazoo's own default backs off up to an hour, which would outlast every outage.
_RECONNECT_MAX_DELAY_S: Final = 1.0
_FIRST_PATIENCE: Final = 0.25  # of the session timeout, with a server that does not greet us


def new_client(
    servers: str,
    *,
    session_timeout_ms: int,
    granted: Callable[[int], None],
    access: Access,
    refused: Callable[[], None],
) -> Any:
    """Makes a client, to be started. It reconnects for ever and leaves the chroot to us: kazoo
    warns of a missing one instead of creating it.

    ``granted`` is called with the session timeout in ms that a server grants, before its connection
    is reported. It encrypts and logs in as ``access`` says; a login that is refused ends kazoo's
    thread, which reports it by ``refused`` alone where there was no session before.
    """
    client = KazooClient(
        hosts=servers,
        timeout=session_timeout_ms / 1000,
        connection_retry=KazooRetry(max_tries=-1, max_delay=_RECONNECT_MAX_DELAY_S),
        logger=_logger(),
        handler=None if access.contexts is None else TlsHandler(access.contexts),
        default_acl=None if access.owner is None else acl_of(access.owner),
    )
    # kazoo keeps the granted timeout in a local variable of the private method that connects, and
    # reports the connection before it logs in. It has no hook, and a subclass of its connection
    # would replace the same private parts. So the one call that reads the server's greeting is
    # wrapped. A test fails should that ever miss it: a broker that asked for a longer session than
    # was granted would acknowledge what it must not.
    client._connection._invoke = _Greeting(
        client._connection._invoke, granted, refused, access.logins
    )
    return client


class _Greeting:
    """kazoo's ``invoke``, which waits for the answer to a request while it connects. The login
    follows the greeting, so a connection is reported only when it has logged in.

    A ZooKeeper that has just begun to listen may forget a connection without closing it
    (3.9.5, before its data is loaded). kazoo would wait for the greeting as long as the session
    lasts, and lose the session, though the next connection would be answered. So who has a session
    waits for a quarter of that, and twice as long each time after: the server may be slow instead.
    """

    def __init__(
        self,
        invoke: Callable[..., Any],
        granted: Callable[[int], None],
        refused: Callable[[], None],
        logins: Sequence[tuple[str, Hidden]],
    ) -> None:
        self._invoke = invoke
        self._granted = granted
        self._refused = refused
        self._logins = logins
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
            self._log_in(timeout)
            self._granted(reply[0].time_out)
        return reply

    def _log_in(self, timeout: float) -> None:
        for scheme, secret in self._logins:
            try:
                self._invoke(timeout, Auth(0, scheme, secret), AUTH_XID)
            except AuthFailedError:
                self._refused()
                raise


def _logger() -> logging.Logger:
    """kazoo reports every attempt to connect; the session reports what comes of them."""
    quiet = logging.getLogger(__name__)
    if quiet.level == logging.NOTSET:
        quiet.setLevel(logging.ERROR)
    return quiet

"""Settings of connections to brokers; whoever opens them has checked the values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # who neither encrypts nor logs in does not wait for ssl and what is behind it
    from spark_logbus.security.logins import Login
    from spark_logbus.security.tls import CurrentContext


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionConfig:
    """Settings with which ``connect`` and ``ConnectionPool`` open connections."""

    #: Names this end in the brokers' logs.
    client_id: str
    #: Bound on connecting and shaking hands with one broker.
    connect_timeout_ms: int = 5_000
    #: A larger response frame is refused unread.
    max_response_bytes: int = 256 << 20
    #: Use a broker's UNIX socket when it is on this machine.
    local_sockets: bool = True
    #: Connections kept open per broker between requests, by a pool.
    idle_connections: int = 4
    #: Encrypt connections with this, and check brokers' names; none are not encrypted. UNIX sockets
    #: never are.
    tls: CurrentContext | None = None
    #: Never connect without encryption, whatever a broker says of its ports. Else one that is known
    #: to have no port for it is connected to without: for brokers that are being secured.
    tls_only: bool = True
    #: Proves who opens them; none says nothing.
    login: Login | None = None

"""Opening connections: connect, shake hands, take over the broker's limits."""

from __future__ import annotations

import logging
import os
import socket
import struct
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from spark_logbus.errors import (
    BrokerUnavailableError,
    LimitExceededError,
    LogbusError,
    UnsupportedVersionError,
    UntrustedBrokerError,
)
from spark_logbus.model import BrokerAddress
from spark_logbus.protocol import PROTOCOL_VERSION, Api, HandshakeRequest, HandshakeResponse
from spark_logbus.retry import Deadline
from spark_logbus.wire.buffers import Allocate, new_buffer
from spark_logbus.wire.config import ConnectionConfig
from spark_logbus.wire.connection import BrokerConnection
from spark_logbus.wire.transport import SocketTransport, Transport

if TYPE_CHECKING:
    from spark_logbus.security.tls import CurrentContext

logger = logging.getLogger(__name__)

UNKNOWN_BROKER: Final = -1  # the id in an address of which only host and port are known
_LOCAL_BUFFER_BYTES: Final = 4 << 20  # cut by the kernel to net.core.wmem_max
_SOFTWARE: Final = "logbus-python"
_CREDENTIALS: Final = struct.Struct("=iII")  # struct ucred: pid, uid, gid
# What OpenSSL says of bytes that are none of TLS.
_NOT_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")


def connect(
    address: BrokerAddress,
    config: ConnectionConfig,
    deadline: Deadline,
    *,
    allocate: Allocate = new_buffer,
) -> BrokerConnection:
    """A connection that has shaken hands with the broker ``address`` names. Payloads are received
    into what ``allocate`` gives.

    A broker on this machine that does not let it in over its UNIX socket may have room for it over
    TCP, where connections are counted apart.

    Raises BrokerUnavailableError (also when another broker listens there now),
    LimitExceededError for a broker that takes no more connections, RequestTimeoutError,
    UnsupportedVersionError, AuthenticationError where the login failed, UntrustedBrokerError for
    one whose certificate does not prove who it is.
    """
    deadline = deadline.sooner_ms(config.connect_timeout_ms)
    local = _connect_locally(address, config) if config.local_sockets else None
    if local is not None:
        try:
            return _greeted(SocketTransport(local), address, config, deadline, allocate)
        except (LimitExceededError, BrokerUnavailableError) as error:
            logger.debug("%s is asked over TCP, as its UNIX socket did not do: %s", address, error)
    is_plain = address.broker_id != UNKNOWN_BROKER and address.tls_port is None
    if config.tls is None or (is_plain and not config.tls_only):
        remote: Transport = SocketTransport(_connect(address, deadline))
    else:
        # The connection itself is known by the address that was asked for, as pools keep it.
        encrypts = replace(address, port=address.tls_port or address.port)
        remote = _encrypted(_connect(encrypts, deadline), encrypts, config.tls, deadline)
    return _greeted(remote, address, config, deadline, allocate)


def _greeted(
    transport: Transport,
    address: BrokerAddress,
    config: ConnectionConfig,
    deadline: Deadline,
    allocate: Allocate,
) -> BrokerConnection:
    connection = BrokerConnection(
        transport, address, max_response_bytes=config.max_response_bytes, allocate=allocate
    )
    try:
        _shake_hands(connection, config, deadline)
    except LogbusError as error:
        connection.close(error)
        raise
    return connection


def _connect_locally(
    address: BrokerAddress, config: ConnectionConfig | None = None
) -> socket.socket | None:
    """A connection to a broker on this machine; None if it is not here (any more)."""
    if address.local_socket is None or sys.platform != "linux":
        return None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Answers at once, one way or the other: the name is there or it is not.
        sock.setblocking(False)
        sock.connect("\0" + address.local_socket)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LOCAL_BUFFER_BYTES)
        is_secured = config is not None and (config.tls is not None or config.login is not None)
        if believes(address, _listener_uid(sock), own_uid=os.geteuid(), is_secured=is_secured):
            return sock
        logger.info(
            "Another user than that of %s listens at its UNIX socket; it is asked over TCP.",
            address,
        )
    except OSError:
        pass
    sock.close()
    return None


def believes(address: BrokerAddress, uid: int, *, own_uid: int, is_secured: bool) -> bool:
    """Tells if a broker's UNIX socket, at which ``uid`` listens, is the broker's.

    Its name is free for anybody on this machine while the broker is down, and whoever took it would
    be shown tokens, and could answer with records of its own. The broker's user is in the name; a
    name that does not tell it, of an earlier release, is believed by who would believe anybody at
    the broker's port, too.
    """
    if uid in (0, own_uid, address.local_uid):
        return True
    return address.local_uid is None and not is_secured


def _listener_uid(sock: socket.socket) -> int:
    """Returns the user who listens at the other end, as the kernel knows it."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(credentials)
    return int(uid)


def is_on_this_machine(address: BrokerAddress) -> bool:
    """True if the broker's UNIX socket can be reached."""
    sock = _connect_locally(address)
    if sock is None:
        return False
    sock.close()
    return True


def _connect(address: BrokerAddress, deadline: Deadline) -> socket.socket:
    try:
        # The receive buffer is left to the kernel: setting SO_RCVBUF would switch off its
        # tuning, which goes up to tcp_rmem's maximum, and be cut to rmem_max, often 208 KiB.
        sock = socket.create_connection(
            (address.host, address.port), timeout=max(0.001, deadline.remaining_s)
        )
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    except OSError as error:
        raise BrokerUnavailableError(
            f"Cannot connect to {address}: {error}. Check that the broker runs and that its "
            "advertised host and port can be reached from here."
        ) from error
    return sock


def _encrypted(
    sock: socket.socket, address: BrokerAddress, tls: CurrentContext, deadline: Deadline
) -> Transport:
    """Shakes hands by TLS, and checks that the certificate is of the broker's host."""
    import ssl  # here: who does not encrypt does not wait for it

    from spark_logbus.wire.tls import TlsTransport

    where = f"{address.host}:{address.port}"
    try:
        sock.settimeout(max(0.001, deadline.remaining_s))
        return TlsTransport(tls.get().wrap_socket(sock, server_hostname=address.host))
    except ssl.SSLCertVerificationError as error:
        sock.close()
        raise UntrustedBrokerError(
            f"The certificate of {where} is not trusted: {error.verify_message}. Nothing was sent. "
            "Check the authorities that this client trusts, and that the certificate names the "
            "host that the broker advertises."
        ) from error
    except ssl.SSLError as error:
        sock.close()
        reason = error.reason or str(error)
        if reason in _NOT_TLS:
            raise UntrustedBrokerError(
                f"{where} does not answer by TLS. Nothing was sent. Give the broker's TLS port, or "
                "turn TLS off in this client's settings."
            ) from error
        raise BrokerUnavailableError(f"TLS with {where} failed: {reason}.") from error
    except OSError as error:
        sock.close()
        raise BrokerUnavailableError(f"TLS with {where} failed: {error}.") from error


def _shake_hands(
    connection: BrokerConnection, config: ConnectionConfig, deadline: Deadline
) -> None:
    request = HandshakeRequest(client_id=config.client_id, software=_SOFTWARE)
    exchange = None if config.login is None else config.login.begin()
    if exchange is not None:
        request.mechanism, request.data = exchange.mechanism, exchange.first()
    while True:
        answer = connection.send(Api.HANDSHAKE, request).result(HandshakeResponse, deadline)
        if exchange is None:
            break
        data = exchange.answer(answer.data, goes_on=answer.goes_on)
        if data is None:
            break
        request.data = data
    address = connection.address
    if answer.protocol_version != PROTOCOL_VERSION:
        raise UnsupportedVersionError(
            f"{address} speaks protocol version {answer.protocol_version}, this client "
            f"{PROTOCOL_VERSION}; upgrade the older of the two."
        )
    if address.broker_id not in (UNKNOWN_BROKER, answer.broker_id):
        raise BrokerUnavailableError(
            f"Expected {address}, but broker {answer.broker_id} listens there now."
        )
    connection.take_limits(
        max_request_bytes=answer.max_frame_bytes,
        max_record_batch_bytes=answer.max_record_batch_bytes,
    )

"""Connections of a broker to the other brokers of its cluster."""

from __future__ import annotations

from spark_logbus.broker.config import BrokerConfig, TlsConfig
from spark_logbus.broker.security.security import Security
from spark_logbus.clock import Clock
from spark_logbus.security.tls import CurrentContext, of_peer
from spark_logbus.wire.config import ConnectionConfig


def connections_to_brokers(
    config: BrokerConfig, security: Security | None, clock: Clock
) -> ConnectionConfig:
    """Returns the settings of such connections: encrypted where this broker's are, with its own
    certificate, and with a token that it signs itself where brokers ask who connects. As long as
    this one takes connections that are not encrypted, it makes such to brokers that have no others:
    in a cluster that is secured broker by broker."""
    return ConnectionConfig(
        client_id=f"broker-{config.id}",
        tls=_contexts(config.tls, clock),
        tls_only=config.tls.only,
        login=None if security is None else security.login(),
    )


def _contexts(tls: TlsConfig, clock: Clock) -> CurrentContext | None:
    if tls.server is None:
        return None
    return of_peer(tls.server, clock)

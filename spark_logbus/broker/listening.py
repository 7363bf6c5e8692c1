"""Ports of a broker, and what others are told of them."""

from __future__ import annotations

from functools import partial

from spark_logbus.broker.config import BrokerConfig
from spark_logbus.broker.data_directory import remembered_port
from spark_logbus.clock import Clock
from spark_logbus.model import BrokerAddress
from spark_logbus.network import Network, TlsPort
from spark_logbus.ports import bind_port
from spark_logbus.security.tls import of_server


def listen(config: BrokerConfig, clock: Clock) -> Network:
    """Binds the ports that the configuration names; nobody can connect yet. Raises StorageError for
    one that is taken, ConfigError for certificates that cannot be used."""
    server = config.tls.server
    tls = None if server is None else TlsPort(config.tls.port, of_server(server, clock))
    bind = partial(_network, config, clock, tls)
    if config.tls.only:
        return bind(None)
    return bind_port(config.port, remembered_port(config.data_dir), bind)


def _network(config: BrokerConfig, clock: Clock, tls: TlsPort | None, port: int | None) -> Network:
    return Network(host=config.host, port=port, config=config.network, clock=clock, tls=tls)


def address_of(config: BrokerConfig, network: Network, gateway_port: int | None) -> BrokerAddress:
    """Returns the address that clients and other brokers are told."""
    port = network.port or network.tls_port
    assert port is not None, "a broker listens on one port at least"
    return BrokerAddress(
        config.id,
        config.advertised_host or config.host,
        port,
        network.local_socket,
        config.rack,
        network.tls_port,
        gateway_port,
    )

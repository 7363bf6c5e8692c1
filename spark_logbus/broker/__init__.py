"""The server: sockets, handlers, and the order of starting and stopping."""

from spark_logbus.broker.config import (
    BrokerConfig,
    CompactionConfig,
    GatewayConfig,
    LoggingConfig,
    MetricsConfig,
    MovesConfig,
    ReplicationConfig,
    SecurityConfig,
    TlsConfig,
    load_broker_config,
)
from spark_logbus.broker.data_directory import BROKER_FILES
from spark_logbus.broker.server import Broker
from spark_logbus.network.config import NetworkConfig

__all__ = [
    "BROKER_FILES",
    "Broker",
    "BrokerConfig",
    "CompactionConfig",
    "GatewayConfig",
    "LoggingConfig",
    "MetricsConfig",
    "MovesConfig",
    "NetworkConfig",
    "ReplicationConfig",
    "SecurityConfig",
    "TlsConfig",
    "load_broker_config",
]

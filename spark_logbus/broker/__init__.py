"""The server: sockets, handlers, and the order of starting and stopping."""

from spark_logbus.broker.config import (
    BrokerConfig,
    CompactionConfig,
    LoggingConfig,
    MetricsConfig,
    load_broker_config,
)
from spark_logbus.broker.data_directory import BROKER_FILES
from spark_logbus.broker.network.config import NetworkConfig
from spark_logbus.broker.server import Broker

__all__ = [
    "BROKER_FILES",
    "Broker",
    "BrokerConfig",
    "CompactionConfig",
    "LoggingConfig",
    "MetricsConfig",
    "NetworkConfig",
    "load_broker_config",
]

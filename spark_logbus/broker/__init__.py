"""The server: sockets, handlers, and the order of starting and stopping."""

from spark_logbus.broker.config import (
    BrokerConfig,
    CompactionConfig,
    NetworkConfig,
    load_broker_config,
)
from spark_logbus.broker.server import Broker

__all__ = ["Broker", "BrokerConfig", "CompactionConfig", "NetworkConfig", "load_broker_config"]

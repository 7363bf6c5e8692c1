"""A ZooKeeper client: sessions, nodes, transactions, watches. The only importer of kazoo."""

from spark_logbus.zookeeper.connect_string import (
    ENVIRONMENT_VARIABLE,
    ConnectString,
    default_connect,
)
from spark_logbus.zookeeper.session import Session
from spark_logbus.zookeeper.states import SessionState
from spark_logbus.zookeeper.unreadable import CorruptNodeError

__all__ = [
    "ENVIRONMENT_VARIABLE",
    "ConnectString",
    "CorruptNodeError",
    "Session",
    "SessionState",
    "default_connect",
]

"""A ZooKeeper client: sessions, nodes, transactions, watches. The only importer of kazoo."""

from typing import TYPE_CHECKING

from spark_logbus.lazy_names import lazy_names

if TYPE_CHECKING:
    from spark_logbus.zookeeper.connect_string import (
        ENVIRONMENT_VARIABLE,
        ConnectString,
        default_connect,
    )
    from spark_logbus.zookeeper.program_options import add_cluster_options
    from spark_logbus.zookeeper.session import Session
    from spark_logbus.zookeeper.states import SessionState
    from spark_logbus.zookeeper.unreadable import CorruptNodeError
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "connect_string": "ENVIRONMENT_VARIABLE ConnectString default_connect",
            "program_options": "add_cluster_options",
            "session": "Session",
            "states": "SessionState",
            "unreadable": "CorruptNodeError",
        },
    )

__all__ = [
    "ENVIRONMENT_VARIABLE",
    "ConnectString",
    "CorruptNodeError",
    "Session",
    "SessionState",
    "add_cluster_options",
    "default_connect",
]

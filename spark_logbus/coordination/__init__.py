"""ZooKeeper: every path and payload, sessions, and what logbus keeps there.

The only importer of kazoo. See docs/formats/zookeeper.md for the tree.
"""

from spark_logbus.coordination.claims import GroupClaims, Holder, Unclaimed
from spark_logbus.coordination.connect import (
    ENVIRONMENT_VARIABLE,
    ConnectString,
    default_connect,
)
from spark_logbus.coordination.embedded import EmbeddedZooKeeper
from spark_logbus.coordination.groups import CommittedOffset, GroupOffsets
from spark_logbus.coordination.lease import Lease
from spark_logbus.coordination.locks import Lock
from spark_logbus.coordination.payloads import CorruptNodeError
from spark_logbus.coordination.registry import BrokerRegistry
from spark_logbus.coordination.rewinds import GroupRewinds, Rewind
from spark_logbus.coordination.session import Session
from spark_logbus.coordination.states import SessionState
from spark_logbus.coordination.topic_records import PartitionState, Reached, TopicRecord, enlarge
from spark_logbus.coordination.topics import TopicRegistry

__all__ = [
    "ENVIRONMENT_VARIABLE",
    "BrokerRegistry",
    "CommittedOffset",
    "ConnectString",
    "CorruptNodeError",
    "EmbeddedZooKeeper",
    "GroupClaims",
    "GroupOffsets",
    "GroupRewinds",
    "Holder",
    "Lease",
    "Lock",
    "PartitionState",
    "Reached",
    "Rewind",
    "Session",
    "SessionState",
    "TopicRecord",
    "TopicRegistry",
    "Unclaimed",
    "default_connect",
    "enlarge",
]

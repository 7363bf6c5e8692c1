"""A process that stages and commits one atomic write, to be killed at a step of that.

``atomic_writer_program.py brokers topic partitions writer version first-record records``, with
``brokers`` as JSON. It asks them for whatever it needs, not ZooKeeper, which may be away when the
process starts.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

from spark_logbus.client import AtomicWrites, Bootstrap, ClientConfig, Cluster, WriteIdentity
from spark_logbus.errors import BrokerUnavailableError
from spark_logbus.model import BrokerAddress, TopicPartition
from spark_logbus.record.stage_id import stage_id
from tests.fault.load.records import CLIENT, WAIT_S
from tests.fault.load.writers import spread, stage
from tests.helpers import wait_until


def main(brokers: str, topic: str, *numbers: str) -> None:
    partitions, writer, version, first, count = map(int, numbers)
    where = [TopicPartition(topic, number) for number in range(partitions)]
    # A writer of its own for each write: none is the other's repetition.
    identity = WriteIdentity(writer=f"killed-{writer}-{version}", version=1)
    write = writer << 20 | version
    bootstrap = Bootstrap(tuple(BrokerAddress(*each) for each in json.loads(brokers)))
    # Whoever is asked first may stand still.
    patient = replace(CLIENT, connect_timeout_ms=CLIENT.retry_deadline_ms)
    (cluster,) = wait_until(lambda: _connected(bootstrap, patient), deadline_s=WAIT_S)
    with cluster:
        shares = spread(range(first, first + count), where)
        task = stage(cluster, identity, stage_id(write, 0), 0, shares)
        AtomicWrites(cluster).commit(identity, write, [task])


def _connected(bootstrap: Bootstrap, config: ClientConfig) -> list[Cluster]:
    """Connects, unless all brokers are away at the moment."""
    try:
        return [Cluster.connect(bootstrap, config)]
    except BrokerUnavailableError:
        return []


if __name__ == "__main__":
    main(*sys.argv[1:])

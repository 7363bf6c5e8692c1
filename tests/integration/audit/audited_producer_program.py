"""Sends records of one topic and time for ever, and counts them, until it is killed.

``python -m tests.integration.audit.audited_producer_program <zookeeper> <topic> <time in µs>``
"""

from __future__ import annotations

import sys

from spark_logbus.audit import AuditConfig, AuditInterceptor
from spark_logbus.client import Cluster, Producer


def main() -> None:
    zookeeper, topic, at_us = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with Cluster.from_zookeeper(zookeeper) as cluster:
        config = AuditConfig(window_ms=60_000, interval_ms=300)
        audit = AuditInterceptor(cluster, "killed", config=config)
        with Producer(cluster, interceptors=[audit]) as producer:
            while True:
                sent = producer.send_many(topic, [b"x"] * 100, timestamps_us=[at_us] * 100)
                sent[-1].result(60)


if __name__ == "__main__":
    main()

"""Log records as records of a topic, with real brokers."""

from __future__ import annotations

import json
import logging
import logging.config
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_logbus.client import Admin, Cluster, Consumer, ProducerConfig
from spark_logbus.client.logging_handler import LogbusHandler
from spark_logbus.errors import UnknownTopicError
from spark_logbus.local.cluster import EmbeddedCluster


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(tmp_path / "cluster") as started:
        with Cluster.from_zookeeper(started.zookeeper) as cluster:
            Admin(cluster).create_topic("logs", partitions=1)
        yield started


def published(embedded: EmbeddedCluster) -> list[dict[str, object]]:
    with Cluster.from_zookeeper(embedded.zookeeper) as cluster, Consumer(cluster) as consumer:
        consumer.assign_topics("logs")
        return [json.loads(value) for value in consumer.to_arrow().column("value").to_pylist()]


def test_log_records_are_published(embedded: EmbeddedCluster) -> None:
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "handlers": {
                "topic": {
                    "()": LogbusHandler, "topic": "logs", "zookeeper": embedded.zookeeper,
                    "level": "INFO",
                }
            },
            "loggers": {"shop": {"handlers": ["topic"], "level": "DEBUG", "propagate": False}},
        }
    )  # fmt: skip
    log = logging.getLogger("shop.orders")
    [handler] = logging.getLogger("shop").handlers
    try:
        log.debug("not this")
        log.info("order %d of %s", 7, "é\udcff", extra={"customer": "c-1"})
        try:
            raise ValueError("no stock")
        except ValueError:
            log.exception("failed")
        handler.handle(logging.makeLogRecord({"name": "spark_logbus.client", "msg": "its own"}))
    finally:
        logging.getLogger("shop").removeHandler(handler)
        handler.close()
    first, second = published(embedded)
    assert (first["level"], first["logger"]) == ("INFO", "shop.orders")
    assert (first["message"], first["customer"]) == ("order 7 of é\udcff", "c-1")
    assert second["message"] == "failed"
    assert "ValueError: no stock" in str(second["exception"])


@pytest.mark.long
def test_a_broker_that_is_away_holds_up_nobody(embedded: EmbeddedCluster) -> None:
    config = ProducerConfig(
        max_block_ms=0, buffer_bytes=1 << 20, batch_bytes=1 << 18, delivery_timeout_ms=2_000
    )
    handler = LogbusHandler("logs", zookeeper=embedded.zookeeper, config=config)
    log = logging.getLogger("shop.away")
    log.propagate = False
    log.addHandler(handler)
    try:
        log.warning("before")
        handler.flush()
        for broker in embedded.brokers:
            broker.kill()
        began = time.monotonic()
        for _ in range(20_000):
            log.warning("x" * 100)
        assert time.monotonic() - began < 20, "20,000 waits of any length would take longer"
        assert handler.dropped > 0
        for broker in embedded.brokers:
            broker.start()
    finally:
        log.removeHandler(handler)
        handler.close()
    assert published(embedded)[0]["message"] == "before"


def test_a_topic_that_is_not_there_is_said_at_once(embedded: EmbeddedCluster) -> None:
    with pytest.raises(UnknownTopicError):
        LogbusHandler("nowhere", zookeeper=embedded.zookeeper)

"""Records that are to be kept are, whatever their timestamps, ZooKeeper or a crash make of them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from spark_logbus.local.cluster import BrokerProcess
from spark_logbus.local.zookeeper import EmbeddedZooKeeper
from tests.builders.record_batches import record_batch
from tests.helpers import frozen, wait_until
from tests.servers.broker import broker_process, connect, create_topic, is_led
from tests.servers.metrics import scrape, value, wait_for

PARTITIONS = 300
OLD = (1_000_000, 1_000_000)  # 1970
# What a topic that says nothing gets: deleted at once.
SETTINGS = {
    "log": {"retention_ms": 0},
    "broker": {"zookeeper_session_ms": 4_000},
    "compaction": {"check_interval_ms": 100},
}
FOREVER = {"retention.ms": "-1"}


def starts(broker: BrokerProcess) -> list[float | None]:
    scraped = scrape(broker)
    return [
        value(scraped, "log_start_offset", topic="kept", partition=str(number))
        for number in range(PARTITIONS)
    ]


def wait_for_upkeep(broker: BrokerProcess, topic: str) -> None:
    """Retention has passed over the logs: it deleted from another topic."""
    with connect(broker) as wire:
        create_topic(wire, topic)
        wire.append(topic, 0, record_batch(5))
    wait_for(broker, "log_start_offset", 5, topic=topic, partition="0")


@pytest.mark.long
def test_a_topic_that_is_kept_for_ever_outlives_every_start(tmp_path: Path) -> None:
    with EmbeddedZooKeeper(tmp_path / "zookeeper", heap_mb=64) as zookeeper:
        where = f"{zookeeper.address}/logbus"
        port = int(zookeeper.address.rpartition(":")[2])
        with broker_process(tmp_path / "broker", where, settings=SETTINGS) as broker:
            with connect(broker) as wire:
                create_topic(wire, "kept", partitions=PARTITIONS, config=FOREVER)
                for number in range(PARTITIONS):
                    wire.append("kept", number, record_batch(2, timestamps=OLD))
            kept = [0] * PARTITIONS

            broker.kill()
            broker.start()
            with connect(broker) as wire:
                wait_until(lambda: is_led(wire, "kept"))
            wait_for_upkeep(broker, "after-a-crash")
            assert starts(broker) == kept

            broker.kill()
            broker.start()
            with frozen(zookeeper.pid):
                end = time.monotonic() + 3
                while time.monotonic() < end:  # several rounds of upkeep
                    assert starts(broker) == kept
            with connect(broker) as wire:
                wait_until(lambda: is_led(wire, "kept"))
            wait_for_upkeep(broker, "after-a-slow-zookeeper")
            assert starts(broker) == kept
            broker.stop()

        zookeeper.stop()
        with (
            EmbeddedZooKeeper(tmp_path / "empty", heap_mb=64, port=port),
            broker_process(tmp_path / "broker", where, settings=SETTINGS) as broker,
        ):
            wait_for_upkeep(broker, "after-a-loss")
            assert starts(broker) == kept
            held = value(scrape(broker), "logs_held")
            assert held is not None
            assert held >= PARTITIONS
            assert "all their records are kept" in broker.log_file.read_text()


@pytest.mark.long
def test_a_backfill_is_kept_as_long_as_records_of_today(tmp_path: Path, chroot: str) -> None:
    config = {"retention.ms": "3600000", "segment.bytes": "2048"}
    a_year_ago = (time.time_ns() // 1000 - 365 * 86_400 * 1_000_000,) * 2
    in_milliseconds = (time.time_ns() // 1_000_000,) * 2
    with broker_process(tmp_path / "broker", chroot, settings=SETTINGS) as broker:
        with connect(broker) as wire:
            create_topic(wire, "backfill", config=config)
            for stamped in (a_year_ago, in_milliseconds, OLD) * 4:
                data = record_batch(5, payload=bytes(900), timestamps=stamped)
                assert wire.append("backfill", 0, data).results[0].error is None
        wait_for_upkeep(broker, "before")
        broker.kill()
        broker.start()
        wait_for_upkeep(broker, "after")
        with connect(broker) as wire:
            wait_until(lambda: is_led(wire, "backfill"))
            assert wire.fetch("backfill", 0, 0).results[0].error is None
        scraped = scrape(broker)
        there = [
            value(scraped, name, topic="backfill", partition="0")
            for name in ("log_start_offset", "log_end_offset")
        ]
        assert there == [0, 60]

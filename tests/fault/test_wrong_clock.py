"""A broker process whose clock is a year ahead of what it has seen last, until it is accepted."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from spark_logbus.log import OS_FILES
from spark_logbus.log.clock_file import write_clock
from tests.builders.record_batches import record_batch
from tests.helpers import wait_until
from tests.servers.broker import broker_process, connect, create_topic, is_led
from tests.servers.metrics import health, port_of, scrape, value, wait_for

YEAR_S = 365 * 86_400


def accept_clock(data: Path, *options: str) -> str:
    command = [sys.executable, "-m", "spark_logbus.cli", "accept-clock", str(data), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return " ".join(done.stdout.split())


@pytest.mark.long
def test_a_clock_that_is_wrong_at_the_start_deletes_nothing(tmp_path: Path, chroot: str) -> None:
    aged = {"retention.ms": "1"}
    sized = {"retention.ms": "-1", "retention.bytes": "1", "segment.bytes": "1024"}
    batch = record_batch(2, payload=bytes(900))
    with broker_process(tmp_path / "broker", chroot) as broker:
        with connect(broker) as wire:
            create_topic(wire, "kept", config={"retention.ms": "-1"})
            wire.append("kept", 0, batch)
            create_topic(wire, "sized", config=sized)
        broker.kill()
        data = broker.directory / "data"
        write_clock(OS_FILES, data, (time.time_ns() - YEAR_S * 10**9) // 1000)
        broker.start()
        with connect(broker) as wire:
            wait_until(lambda: is_led(wire, "kept"))
            create_topic(wire, "aged", config=aged)
            assert wire.append("aged", 0, batch).results[0].error is None
            wait_until(lambda: is_led(wire, "sized"))
            for _ in range(4):
                wire.append("sized", 0, batch)
            scraped = wait_for(broker, "log_start_offset", 6, topic="sized", partition="0")
            assert value(scraped, "log_start_offset", topic="aged", partition="0") == 0
            refused_s = value(scraped, "clock_refused_seconds")
            assert refused_s is not None
            assert abs(refused_s - YEAR_S) < 3600
            status, said = health(port_of(broker))
            assert (status, said["status"]) == (200, "ok")
            assert "logbus accept-clock" in said["notes"][0]
            assert "is not believed" in broker.log_file.read_text()
            assert wire.fetch("aged", 0, 0).results[0].length > 0

        assert "365.0 days ahead" in accept_clock(data)
        assert value(scrape(broker), "clock_refused_seconds") != 0
        assert "Accepted: the broker goes by the clock." in accept_clock(data, "--execute")
        wait_for(broker, "log_start_offset", 2, topic="aged", partition="0")
        wait_for(broker, "clock_refused_seconds", 0)
        assert health(port_of(broker))[1]["notes"] == []

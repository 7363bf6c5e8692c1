"""``logbus verify`` and ``logbus dump`` beside a broker at work: no false alarms."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from spark_logbus.local.cluster import BrokerProcess
from spark_logbus.log.disk import names
from tests.builders.record_batches import joined, record_batch
from tests.helpers import wait_until
from tests.servers.broker import broker_process, connect, create_topic

ROUNDS = 2


def logbus(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "spark_logbus.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


class Writer(threading.Thread):
    """Appends to a partition until it is stopped; segments roll and retention deletes them."""

    def __init__(self, broker: BrokerProcess, partition: int) -> None:
        super().__init__()
        self.stopping = threading.Event()
        self.appended = 0
        self._broker = broker
        self._partition = partition

    def run(self) -> None:
        with connect(self._broker) as wire:
            while not self.stopping.is_set():
                size = 8 * (self.appended % 90)
                data = joined(*(record_batch(2, payload=bytes(size)) for _ in range(3)))
                wire.append("t", self._partition, data, acks="written")
                self.appended += 1


@pytest.mark.long
def test_no_false_alarm_while_a_broker_appends_rolls_and_deletes(
    tmp_path: Path, chroot: str
) -> None:
    with broker_process(tmp_path, chroot) as broker:
        with connect(broker) as wire:
            small = {"segment.bytes": "16384", "retention.bytes": "65536"}
            create_topic(wire, "t", partitions=2, config=small)
        writers = [Writer(broker, partition) for partition in range(2)]
        for writer in writers:
            writer.start()
        data = str(broker.directory / "data")
        try:
            for _ in range(ROUNDS):
                done = logbus("verify", data, "--json")
                *findings, summary = map(json.loads, done.stdout.splitlines())
                damage = [found for found in findings if found["kind"] == "damage"]
                assert (done.returncode, damage, done.stderr) == (0, [], "")
                assert summary["live"]
                assert logbus("dump", "segments", data).returncode == 0
            wait_until(lambda: all(writer.appended > 100 for writer in writers))
        finally:
            for writer in writers:
                writer.stopping.set()
                writer.join()
        broker.stop()
        done = logbus("verify", data)
        assert done.returncode == 0
        assert "not in use, stopped in order" in done.stdout
        assert done.stdout.endswith("Sound.\n")


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.long
def test_damage_is_found_beside_a_broker_and_without(
    tmp_path: Path, chroot: str, live: bool
) -> None:
    with broker_process(tmp_path, chroot) as broker:
        with connect(broker) as wire:
            create_topic(wire, "t", config={"segment.bytes": "1024"})
            for _ in range(10):
                wire.append("t", 0, record_batch(payload=bytes(920)))
        if not live:
            broker.kill()
        path = broker.directory / "data" / "t-0" / names.segment(3)
        data = bytearray(path.read_bytes())
        data[500] ^= 1
        path.write_bytes(data)
        done = logbus("verify", str(broker.directory / "data"), "--json")
        assert done.returncode == 1
        found, summary = map(json.loads, done.stdout.splitlines())
        assert (found["kind"], found["path"]) == ("damage", str(path))
        assert found["message"].startswith("Offsets 3 up to 4 are damaged.")
        assert summary["live"] == live
        done = logbus("dump", "batches", str(path))
        assert done.returncode == 1
        assert "checksum" in done.stdout

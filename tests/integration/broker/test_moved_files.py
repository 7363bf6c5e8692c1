"""Readers of mapped files while the partition moves away and its files are deleted."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from spark_logbus.client import Admin, Cluster, Producer, ProducerConfig
from spark_logbus.local.cluster import BrokerProcess
from tests.helpers import paths_below, wait_until
from tests.integration.broker import mapped_reader_program
from tests.integration.broker.mapped_reader_program import T0, value
from tests.servers.broker import broker_process

RECORDS = 40_000
PER_BATCH = 5_000  # about 1 MB; a segment holds three of them
SETTINGS = {
    "moves": {"reserve_bytes": 0, "retention_ms": 200},
    "log": {"segment_bytes": 4_000_000},
}


class MappedReader:
    """The reader, in a process that a signal ends."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def passes(self) -> tuple[int, int]:
        """Returns how often it has read all, and how many parts of files it has mapped."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("how far\n")
        self._process.stdin.flush()
        told = self._process.stdout.readline().split()
        assert len(told) == 2, f"it has ended: {self._process.wait(60)}"
        return int(told[0]), int(told[1])

    def wait_for_passes(self, more: int) -> None:
        """Waits until it has read all so many times more, and has mapped files for it."""
        before, mapped = self.passes()
        wait_until(lambda: self.passes()[0] >= before + more, message="the reader to get on")
        assert self.passes()[1] > mapped

    def end(self) -> str:
        out, _ = self._process.communicate(timeout=60)
        assert self._process.returncode == 0
        return out


@contextmanager
def reading(zookeeper: str) -> Iterator[MappedReader]:
    command = [sys.executable, mapped_reader_program.__file__, zookeeper, str(RECORDS)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield MappedReader(process)
        finally:
            process.kill()


@pytest.fixture
def brokers(tmp_path: Path, chroot: str) -> Iterator[dict[int, BrokerProcess]]:
    with ExitStack() as stack:
        yield {
            number: stack.enter_context(
                broker_process(tmp_path / f"{number}", chroot, broker_id=number, settings=SETTINGS)
            )
            for number in (1, 2)
        }


def fill(producer: Producer, start: int, end: int) -> None:
    values = pa.array([value(number) for number in range(start, end)], pa.binary())
    producer.send_arrow(T0.topic, pa.table({"value": values}), partition=0)
    producer.flush()


def files(broker: BrokerProcess) -> list[Path]:
    """Returns the segments that a broker has of the partition, also those that are set aside."""
    return [each for each in paths_below(broker.directory / "data") if ".log" in each.name]


def test_readers_of_mapped_files_notice_neither_a_move_nor_the_end_of_the_files(
    brokers: dict[int, BrokerProcess], chroot: str
) -> None:
    """The log is appended to as well while it is read and moves."""
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster.from_zookeeper(chroot))
        admin = Admin(cluster)
        admin.create_topic(T0.topic, partitions=1)
        producer = stack.enter_context(Producer(cluster, ProducerConfig(batch_bytes=1_100_000)))
        for start in range(0, RECORDS, PER_BATCH):
            fill(producer, start, start + PER_BATCH)
        old = 1 if files(brokers[1]) else 2
        reader = stack.enter_context(reading(chroot))
        reader.wait_for_passes(1)
        end = RECORDS
        for source in (old, 3 - old):
            admin.move_partitions({T0: 3 - source})
            fill(producer, end, end + PER_BATCH)
            end += PER_BATCH
            wait_until(lambda: not files(brokers[source]), message="no file to be left")  # noqa: B023
            reader.wait_for_passes(2)
        assert reader.end().endswith("all read\n")

"""A broker's memory does not grow with the data that it takes in and serves."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from spark_logbus.cluster import BrokerProcess
from spark_logbus.errors import LogbusError
from spark_logbus.record import format as fmt
from tests.fault.log.material import record_batch
from tests.integration.broker_tools import broker_process, connect, create_topic
from tests.unit.broker.wire import Wire

MIB = 1 << 20
PARTITIONS = 4


def resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


def mixed_batches() -> list[memoryview]:
    """From single records to the largest that producers send by themselves."""
    return [record_batch(payload=bytes(size)) for size in (100, 10_000, 300_000, MIB, 4 * MIB)]


class Load(threading.Thread):
    """Appends to one partition, and reads back all of it."""

    def __init__(self, broker: BrokerProcess, partition: int, mib: int, batches: list[memoryview]):
        super().__init__()
        self._broker = broker
        self._partition = partition
        self._bytes = mib * MIB
        self._batches = batches
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            with connect(self._broker) as wire:
                self._append(wire)
                self._read(wire)
        except (AssertionError, LogbusError, OSError) as error:
            self.error = error

    def _append(self, wire: Wire) -> None:
        number = done = 0
        while done < self._bytes:
            data = self._batches[number % len(self._batches)]
            acks = "flushed" if number % 10 == 0 else "written"
            assert wire.append("t", self._partition, data, acks=acks).results[0].error is None
            number += 1
            done += len(data)
        wire.append("t", self._partition, self._batches[0])

    def _read(self, wire: Wire) -> None:
        offset = 0
        while wire.fetch("t", self._partition, offset).results[0].length:
            position = 0
            while position < len(wire.payload):
                size = fmt.SIZE_PREFIX.unpack_from(wire.payload, position)[1]
                position += size + fmt.LENGTH_FIELD_END
                offset += 1


def run_load(broker: BrokerProcess, *, mib: int, batches: list[memoryview]) -> None:
    loads = [Load(broker, partition, mib // PARTITIONS, batches) for partition in range(PARTITIONS)]
    for load in loads:
        load.join()
    assert [load.error for load in loads] == [None] * PARTITIONS


@pytest.mark.parametrize(
    "mib",
    [500, pytest.param(5_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])],
)
def test_memory_does_not_grow_with_the_data(tmp_path: Path, chroot: str, mib: int) -> None:
    settings = {"log": {"segment_bytes": 32 * MIB}}
    with broker_process(tmp_path, chroot, settings=settings) as broker:
        with connect(broker) as wire:
            create_topic(wire, "t", partitions=PARTITIONS)
        batches = mixed_batches()
        run_load(broker, mib=100, batches=batches)  # buffers, threads' stacks, code
        before = resident_mib(broker.pid)
        run_load(broker, mib=mib, batches=batches)
        after = resident_mib(broker.pid)
        told = f"{before:.0f} MiB before and {after:.0f} MiB after {mib} MiB of data"
        assert after - before < 20, told
        assert after < 150, told


def test_the_broker_process_holds_neither_arrow_nor_spark(tmp_path: Path, chroot: str) -> None:
    with broker_process(tmp_path, chroot) as broker:
        with connect(broker) as wire:
            create_topic(wire, "t")
            wire.append("t", 0, record_batch())
            wire.fetch("t", 0, 0)
        mapped = Path(f"/proc/{broker.pid}/maps").read_text()
        assert not [name for name in ("libarrow", "numpy", "pandas") if name in mapped]

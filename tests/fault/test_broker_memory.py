"""A broker's memory does not grow with its data, nor with what its clients send at once."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from spark_logbus.cluster import BrokerProcess
from spark_logbus.errors import LogbusError
from spark_logbus.protocol import Api, AppendResponse, MetadataRequest, MetadataResponse
from spark_logbus.record import format as fmt
from tests.fault.broker_peers import resident_mib, works
from tests.fault.log.material import record_batch
from tests.helpers import wait_until
from tests.integration.broker_tools import broker_process, connect, create_topic
from tests.unit.broker.wire import EndedError, Wire, append_request, fetch_request, request

MIB = 1 << 20
PARTITIONS = 4


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


# -- what many connections send at once ---------------------------------------------------

LARGE = record_batch(payload=bytes(8 * MIB))
SHARED = {
    "network": {
        "max_frame_bytes": 9 * MIB,
        "max_header_bytes": 64 << 10,
        "max_buffered_bytes": 20 * MIB,  # two of LARGE
        "stall_timeout_ms": 60_000,
    },
    "log": {"max_record_batch_bytes": 8 * MIB + 4096},
}


class SlowSender(threading.Thread):
    """Sends an append but for its last byte, and that when it is told to."""

    def __init__(self, broker: BrokerProcess) -> None:
        super().__init__(daemon=True)
        self.wire = connect(broker)
        self.almost = threading.Event()
        self.finish = threading.Event()
        self.done = False
        self.start()

    def run(self) -> None:
        data = request(Api.APPEND, append_request("t", 0, LARGE, acks="written"), LARGE)
        with self.wire as wire, suppress(OSError, EndedError):
            wire.sock.sendall(data[:-1])
            self.almost.set()
            self.finish.wait(60)
            wire.sock.sendall(data[-1:])
            answer = wire.answer(Api.APPEND, AppendResponse, correlation=0)
            self.done = answer.results[0].error is None


def test_large_requests_share_a_bounded_memory_and_all_get_through(
    tmp_path: Path, chroot: str
) -> None:
    with broker_process(tmp_path, chroot, settings=SHARED) as broker, connect(broker) as good:
        create_topic(good, "t")
        good.append("t", 0, LARGE, acks="written")
        before = resident_mib(broker.pid)
        senders = [SlowSender(broker) for _ in range(16)]
        wait_until(lambda: sum(sender.almost.is_set() for sender in senders) >= 2)
        for _ in range(10):
            assert works(broker, good), "small requests pass"
        assert sum(sender.almost.is_set() for sender in senders) == 2, "the others wait"
        grown = resident_mib(broker.pid) - before
        for sender in senders:
            sender.finish.set()
        for sender in senders:
            sender.join(60)
        assert all(sender.done for sender in senders), "none is dropped, none waits for ever"
        assert grown < 30, f"{grown:.0f} MiB for 16 requests of 8 MiB"


def test_who_stalls_or_goes_gives_its_memory_back(tmp_path: Path, chroot: str) -> None:
    network = {**SHARED["network"], "stall_timeout_ms": 1_500}
    settings = {**SHARED, "network": network}
    with broker_process(tmp_path, chroot, settings=settings) as broker, connect(broker) as wire:
        create_topic(wire, "t")
        stalling, going = SlowSender(broker), SlowSender(broker)
        wait_until(lambda: stalling.almost.is_set() and going.almost.is_set())
        waiting = [SlowSender(broker) for _ in range(2)]
        for sender in waiting:
            sender.finish.set()
        going.wire.sock.shutdown(socket.SHUT_RDWR)
        for sender in waiting:
            sender.join(60)
            assert sender.done
        assert stalling.wire.is_ended()


def test_answers_that_nobody_reads_are_bounded(tmp_path: Path, chroot: str) -> None:
    """A client may ask for much with little, again and again, and take nothing."""
    network = {
        "max_frame_bytes": 256 << 10,
        "max_header_bytes": 16 << 10,
        "max_buffered_bytes": MIB,
    }
    settings = {"network": network, "log": {"max_record_batch_bytes": 100 << 10}}
    with broker_process(tmp_path, chroot, settings=settings) as broker, connect(broker) as good:
        create_topic(good, "t", partitions=200)
        asked = MetadataRequest(["t"], ends=True)
        before = resident_mib(broker.pid)
        with ExitStack() as stack:
            greedy = [stack.enter_context(connect(broker)) for _ in range(200)]
            for wire in greedy:
                # Its answer comes first, and late.
                wire.send(Api.FETCH, fetch_request("t", 0, 0, min_bytes=MIB, wait_ms=5_000))
                for _ in range(15):
                    wire.send(Api.METADATA, asked)
            for _ in range(50):
                assert works(broker, good)
            grown = resident_mib(broker.pid) - before
            assert grown < 20, f"{grown:.0f} MiB for 3,000 answers of 20 KB"
            for wire in greedy[:3]:
                for _ in range(16):
                    wire.receive()  # all of them come, if they are read


def test_a_request_cannot_have_a_topic_described_many_times(tmp_path: Path, chroot: str) -> None:
    with broker_process(tmp_path, chroot) as broker, connect(broker) as wire:
        create_topic(wire, "t")
        asked = MetadataRequest(["t"] * 10_000)
        answer = wire.call(Api.METADATA, asked, MetadataResponse)
        assert [topic.name for topic in answer.topics] == ["t"]

"""A broker's memory does not grow with its data, nor with what its clients send at once."""

from __future__ import annotations

import select
import socket
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import pytest

from spark_logbus.errors import LogbusError
from spark_logbus.local.cluster import BrokerProcess
from spark_logbus.protocol import (
    PROTOCOL_VERSION,
    Api,
    AppendResponse,
    MetadataRequest,
    MetadataResponse,
    encode_request,
    frame_head,
)
from spark_logbus.record import format as fmt
from tests.builders.record_batches import record_batch
from tests.helpers import wait_until
from tests.servers.broker import broker_process, connect, create_topic
from tests.servers.peers import resident_mib, works
from tests.servers.wire import EndedError, Wire, append_request, fetch_request, request

MIB = 1 << 20
PARTITIONS = 4


def mixed_batches() -> list[memoryview]:
    """Requests range from single records to the largest that producers send by themselves."""
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
@pytest.mark.long
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

# So large that the kernel cannot buffer what the broker does not take, which is 10 MiB or so.
LARGE_MIB = 24
LARGE = record_batch(payload=bytes(LARGE_MIB * MIB))


def shared(*, stall_timeout_ms: int = 60_000) -> dict[str, dict[str, int]]:
    """Settings with memory for one of LARGE, and for parts of others."""
    return {
        "network": {
            "max_frame_bytes": (LARGE_MIB + 1) * MIB,
            "max_header_bytes": 64 << 10,
            "max_buffered_bytes": (2 * LARGE_MIB + 12) * MIB,
            "stall_timeout_ms": stall_timeout_ms,
        },
        "log": {"max_record_batch_bytes": LARGE_MIB * MIB + 4096},
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


@pytest.mark.long
def test_large_requests_share_bounded_memory(tmp_path: Path, chroot: str) -> None:
    with broker_process(tmp_path, chroot, settings=shared()) as broker, connect(broker) as good:
        create_topic(good, "t")
        good.append("t", 0, LARGE, acks="written")
        before = resident_mib(broker.pid)
        senders = [SlowSender(broker) for _ in range(16)]
        wait_until(lambda: any(sender.almost.is_set() for sender in senders))
        for _ in range(10):
            assert works(broker, good), "small requests pass"
        assert sum(sender.almost.is_set() for sender in senders) <= 2, "the others wait"
        grown = resident_mib(broker.pid) - before
        for sender in senders:
            sender.finish.set()
        for sender in senders:
            sender.join(60)
        assert all(sender.done for sender in senders), "none is dropped, none waits for ever"
        assert grown < 90, f"{grown:.0f} MiB for 16 requests of {LARGE_MIB} MiB"


@pytest.mark.long
def test_who_stalls_or_goes_gives_its_memory_back(tmp_path: Path, chroot: str) -> None:
    settings = shared(stall_timeout_ms=1_500)
    with broker_process(tmp_path, chroot, settings=settings) as broker, connect(broker) as wire:
        create_topic(wire, "t")
        stalling, going = SlowSender(broker), SlowSender(broker)
        wait_until(lambda: stalling.almost.is_set() or going.almost.is_set())
        waiting = [SlowSender(broker) for _ in range(2)]
        for sender in waiting:
            sender.finish.set()
        going.wire.sock.shutdown(socket.SHUT_RDWR)
        for sender in waiting:
            sender.join(60)
            assert sender.done
        assert stalling.wire.is_ended()


class Drippers(threading.Thread):
    """Connections that each announce a large append, and send a byte of it now and then."""

    def __init__(self, broker: BrokerProcess, count: int, *, at_once: int) -> None:
        super().__init__(daemon=True)
        length = 60 * MIB
        head = frame_head(
            api=Api.APPEND, version=PROTOCOL_VERSION, correlation=1,
            header=encode_request(append_request("t", 0, memoryview(bytes(length)))),
            payload_length=length,
        )  # fmt: skip
        self._over = threading.Event()
        self._socks = [connect(broker).sock for _ in range(count)]
        for sock in self._socks:
            sock.sendall(head)
            sock.setblocking(False)
            with suppress(BlockingIOError):  # the broker receives what it has memory for
                sock.send(bytes(at_once))

    @property
    def connected(self) -> int:
        ended, _, _ = select.select(self._socks, [], [], 0)
        return len(self._socks) - len(ended)

    def run(self) -> None:
        while not self._over.wait(0.1):
            for sock in self._socks:
                with suppress(OSError):
                    sock.send(b"x")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()
        for sock in self._socks:
            sock.close()


CUT_OFF = "which is less than 8192 bytes a second"


def appended_while(drippers: Drippers, wire: Wire) -> None:
    """Both come from the same address."""
    data = record_batch(payload=bytes(200_000))
    before = drippers.connected
    for _ in range(5):
        assert wire.append("t", 0, data).results[0].error is None
    assert drippers.connected == before > 0, "none of them was cut off by then"


@pytest.mark.parametrize("count", [4, 40])
@pytest.mark.long
def test_requests_that_drip_in_hold_up_no_append_and_are_cut_off(
    tmp_path: Path, chroot: str, count: int
) -> None:
    settings = {"network": {"stall_timeout_ms": 6_000}}
    with broker_process(tmp_path, chroot, settings=settings) as broker, connect(broker) as good:
        create_topic(good, "t")
        with Drippers(broker, count, at_once=0) as drippers:
            appended_while(drippers, good)
            wait_until(lambda: drippers.connected == 0, deadline_s=60)
        assert works(broker, good)
        assert broker.log_file.read_text().count(CUT_OFF) == count


@pytest.mark.long
def test_dripping_requests_with_all_memory_delay_no_append(tmp_path: Path, chroot: str) -> None:
    settings = {"network": {"stall_timeout_ms": 6_000}}
    with broker_process(tmp_path, chroot, settings=settings) as broker, connect(broker) as good:
        create_topic(good, "t")
        with Drippers(broker, 40, at_once=3 * MIB) as drippers:
            appended_while(drippers, good)
            wait_until(lambda: drippers.connected < 40, deadline_s=60)
            assert good.append("t", 0, record_batch()).results[0].error is None
        assert CUT_OFF in broker.log_file.read_text()


@pytest.mark.long
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

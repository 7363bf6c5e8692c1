"""Bytes that no honest client sends: refused or harmless, and nobody else notices."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from spark_logbus.client import Cluster, RangeReader
from spark_logbus.errors import (
    CorruptRecordBatchError,
    FrameTooLargeError,
    InvalidNameError,
    InvalidRequestError,
    LogbusError,
    NotLeaderError,
)
from spark_logbus.local.cluster import BrokerProcess
from spark_logbus.model import Compression, OffsetRange, TopicPartition
from spark_logbus.protocol import (
    PROTOCOL_VERSION,
    AlterTopicRequest,
    AlterTopicResponse,
    Api,
    CreateTopicRequest,
    CreateTopicResponse,
    DeleteTopicRequest,
    DeleteTopicResponse,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    frame_head,
)
from tests.builders.forged import body_start, encoded, forge, message, reseal, timestamps
from tests.builders.record_batches import record_batch
from tests.helpers import paths_below, wait_until
from tests.servers.broker import broker_process, connect, create_topic, failure
from tests.servers.peers import good_frames, resident_mib, sockets_of, works
from tests.servers.wire import EndedError, Wire

# No connection ends because it has stalled: a refusal is what ends it.
SETTINGS = {"network": {"threads": 4, "stall_timeout_ms": 3_600_000}}


@pytest.fixture
def broker(tmp_path: Path, chroot: str) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path / "a" / "broker", chroot, settings=SETTINGS) as broker:
        with connect(broker) as wire:
            create_topic(wire, "t")
        yield broker


# -- frames -------------------------------------------------------------------------------

GARBAGE = {
    "ones": b"\xff" * 64,
    "zeros": bytes(64),
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
    "huge length": struct.pack("<IHHII", 0xFFFF_FFFF, 3, 1, 0, 100) + bytes(100),
    "negative length": struct.pack("<iHHII", -1 << 31, 3, 1, 0, 100) + bytes(100),
    "length zero": struct.pack("<IHHII", 0, 3, 1, 0, 100) + bytes(100),
    "header longer than the frame": struct.pack("<IHHII", 100, 1, 1, 0, 101) + bytes(100),
    "huge header": struct.pack("<IHHII", 50 << 20, 1, 1, 0, 49 << 20) + bytes(100),
    "no header": struct.pack("<IHHII", 100, 1, 1, 0, 0) + bytes(100),
}


def test_a_length_that_is_huge_negative_or_zero_is_refused_before_memory_is_taken(
    broker: BrokerProcess,
) -> None:
    before = resident_mib(broker.pid)
    with connect(broker) as good:
        for data in GARBAGE.values():
            for shake_hands in (False, True):
                with Wire.to(broker.address, shake_hands=shake_hands) as bad:
                    bad.sock.sendall(data)
                    with contextlib.suppress(EndedError):
                        while True:
                            bad.receive()
        assert works(broker, good)
    assert resident_mib(broker.pid) - before < 20


def test_garbage_behind_a_valid_frame_comes_after_its_answer(broker: BrokerProcess) -> None:
    with connect(broker) as wire:
        wire.sock.sendall(good_frames()[0] + b"\xff" * 16)
        assert wire.receive().api == Api.METADATA
        assert wire.receive().api == 0, "what the broker says of the bytes that are no frame"
        assert wire.is_ended()


def test_frames_that_are_cut_anywhere_leave_nothing_behind(broker: BrokerProcess) -> None:
    chance = random.Random(5)
    with connect(broker) as good:
        assert works(broker, good)
        sockets = sockets_of(broker.pid)
        for _ in range(100):
            frame = chance.choice(good_frames())
            with connect(broker) as cut:
                cut.sock.sendall(frame[: chance.randrange(len(frame))])
        assert works(broker, good)
        wait_until(lambda: sockets_of(broker.pid) <= sockets)


def test_flipped_bits_never_do_more_than_end_their_connection(broker: BrokerProcess) -> None:
    chance = random.Random(6)
    with connect(broker) as good:
        for _ in range(300):
            frame = bytearray(chance.choice(good_frames()))
            frame[chance.randrange(len(frame))] ^= 1 << chance.randrange(8)
            with connect(broker) as bad, contextlib.suppress(EndedError, OSError):
                bad.sock.sendall(frame)
                bad.sock.shutdown(socket.SHUT_WR)
                while True:
                    bad.receive()
        assert works(broker, good)
    assert "unexpectedly" not in broker.log_file.read_text()


# -- what frames carry --------------------------------------------------------------------


def refused_header(wire: Wire, api: Api, header: bytes) -> None:
    head = frame_head(api=api, version=PROTOCOL_VERSION, correlation=0, header=header)
    wire.sock.sendall(head)
    with pytest.raises(InvalidRequestError):
        wire.answer(api, MetadataResponse, correlation=0)


def test_nothing_from_the_network_is_unpickled_or_evaluated(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    trap = tmp_path / "sprung"

    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str, int]]:
            return os.mkdir, (str(trap), 0o700)

    pickled = pickle.dumps(Trap())
    pickle.loads(pickled)
    assert trap.exists(), "the trap works"
    trap.rmdir()
    with connect(broker) as wire:
        for api in (Api.METADATA, Api.APPEND, Api.FETCH, Api.CREATE_TOPIC):
            refused_header(wire, api, pickled)
            refused_header(wire, api, b"__import__('os').mkdir(%r)" % str(trap))
        wire.append("t", 0, memoryview(forge(pickled)))
        assert works(broker, wire)
    assert not trap.exists()


def test_a_header_that_would_blow_up_in_memory_is_refused(broker: BrokerProcess) -> None:
    before = resident_mib(broker.pid)
    topics = b"\x81\xa6topics"
    with connect(broker) as wire:
        refused_header(wire, Api.METADATA, topics + b"\xdd\xff\xff\xff\xff")  # 4 billion names
        refused_header(wire, Api.METADATA, topics + b"\xdb\xff\xff\xff\xff")  # one of 4 GiB
        refused_header(wire, Api.METADATA, b"\x91" * 500_000)  # a deep one
        many = topics + b"\xdd" + (600_000).to_bytes(4, "big") + b"\xa2\xc3\xa9" * 600_000
        refused_header(wire, Api.METADATA, many)
        for _ in range(20):
            with connect(broker) as another:
                refused_header(another, Api.METADATA, many)
        with connect(broker) as another:  # as much as a frame may hold, 30 times that decoded
            another.sock.sendall(struct.pack("<IHHII", 60 << 20, 2, 1, 0, 59 << 20))
            with pytest.raises(FrameTooLargeError, match="header"):
                another.answer(Api.METADATA, MetadataResponse)
        assert works(broker, wire)
    assert resident_mib(broker.pid) - before < 100


def test_a_request_may_not_name_more_partitions_than_a_topic_has(broker: BrokerProcess) -> None:
    asked = [ListOffsetsPartition("t", 0, "latest")] * 10_001
    with connect(broker) as wire:
        with pytest.raises(InvalidRequestError, match="max_partitions_per_request"):
            wire.call(Api.LIST_OFFSETS, ListOffsetsRequest(asked), ListOffsetsResponse)
        with pytest.raises(InvalidRequestError, match="max_partitions_per_request"):
            wire.call(Api.METADATA, MetadataRequest(["t"] * 10_001), MetadataResponse)
        answered = wire.call(Api.LIST_OFFSETS, ListOffsetsRequest(asked[1:]), ListOffsetsResponse)
        assert len(answered.results) == 10_000


# -- payloads -----------------------------------------------------------------------------

TWO = timestamps(1, 2)


def bomb() -> bytearray:
    """Compressed buffers that claim to hold an exabyte."""
    data = encoded(60, Compression.ZSTD)
    start = body_start(data)
    data[start : start + 8] = (1 << 60).to_bytes(8, "little")
    return reseal(data)


def outside() -> bytearray:
    """A payload whose buffers lie behind its end."""
    return forge(message({"timestamp": TWO, "value": pa.array([b"a" * 999, b"b"])})[:-512])


def extension() -> bytearray:
    kind = pa.uuid()
    values = pa.ExtensionArray.from_storage(kind, pa.array([b"a" * 16, b"b" * 16], pa.binary(16)))
    return forge(message({"timestamp": TWO, "value": values}), record_count=2)


def schema() -> bytearray:
    """A schema message with metadata in the place of the records."""
    columns = pa.schema([pa.field("value", pa.binary())], metadata={"PANDAS": "x" * 1000})
    return forge(bytes(columns.serialize()))


@pytest.mark.parametrize("hostile", [bomb, outside, extension, schema])
@pytest.mark.long
def test_a_lying_payload_harms_nobody(broker: BrokerProcess, chroot: str, hostile: object) -> None:
    assert callable(hostile)
    data = memoryview(hostile())
    before = resident_mib(broker.pid)
    with connect(broker) as wire:
        result = wire.append("t", 0, data).results[0]
        assert works(broker, wire)
        assert resident_mib(broker.pid) - before < 20
        if result.error is not None:
            return  # refused, as good
        with Cluster.from_zookeeper(chroot) as cluster:
            wanted = OffsetRange(TopicPartition("t", 0), result.base_offset, result.base_offset + 1)
            with pytest.raises(CorruptRecordBatchError), RangeReader(cluster, wanted) as reader:
                list(reader)


# -- names --------------------------------------------------------------------------------

BAD_NAMES = ["", ".", "..", "../t", "a/b", "/etc", "a\0b", "a\nb", "\u202e", "é", "x" * 10_000]


def test_path_like_topic_names_are_refused_everywhere(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    with connect(broker) as wire:
        assert works(broker, wire)  # the first append makes a file beside the log
        before = sorted(paths_below(tmp_path))
        for name in BAD_NAMES:
            with pytest.raises(InvalidNameError):
                wire.call(Api.CREATE_TOPIC, CreateTopicRequest(name, 1), CreateTopicResponse)
            with pytest.raises(LogbusError):
                wire.call(Api.DELETE_TOPIC, DeleteTopicRequest(name), DeleteTopicResponse)
            altered = AlterTopicRequest(name, {"retention.ms": "1"})
            with pytest.raises(LogbusError):
                wire.call(Api.ALTER_TOPIC, altered, AlterTopicResponse)
            with pytest.raises(InvalidNameError):
                wire.call(Api.METADATA, MetadataRequest([name]), MetadataResponse)
            with pytest.raises(NotLeaderError):
                raise failure(wire.append(name, 0, record_batch()).results[0].error)
            with pytest.raises(NotLeaderError):
                raise failure(wire.fetch(name, 0, 0).results[0].error)
        assert works(broker, wire)
        assert sorted(paths_below(tmp_path)) == before

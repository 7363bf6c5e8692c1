"""Bits flip on the disk of a running broker: what its clients see of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_logbus.client import Cluster, Consumer, Producer, ProducerConfig, RangeReader
from spark_logbus.errors import CorruptRecordBatchError, UnsupportedVersionError
from spark_logbus.log import LogConfig
from spark_logbus.log.disk import names
from spark_logbus.model import OffsetRange, TopicPartition
from spark_logbus.record import peek_size
from tests.servers.broker import broker_here, connect, create_topic

TP = TopicPartition("t", 0)
COUNT = 30
DAMAGE = (CorruptRecordBatchError, UnsupportedVersionError)
DAMAGED = 7  # one record to a record batch, three to a segment: in a sealed one


def flip(directory: Path, offset: int, byte: int) -> None:
    segments = sorted(directory.glob("*.log"), reverse=True)
    path = next(each for each in segments if (names.parse_segment(each.name) or 0) <= offset)
    data = bytearray(path.read_bytes())
    position = 0
    for _ in range(offset - (names.parse_segment(path.name) or 0)):
        size = peek_size(data, position)
        assert size is not None
        position += size
    data[position + byte] ^= 0x10
    path.write_bytes(data)


def values(cluster: Cluster, start: int, end: int) -> list[bytes]:
    found: list[bytes] = []
    with RangeReader(cluster, OffsetRange(TP, start, end)) as reader:
        for batch in reader:
            found += batch.arrow_batch.column("value").to_pylist()
    return found


@pytest.mark.parametrize(
    ("byte", "told"),
    [
        (300, r"t-0\[7, 8\) are damaged.* from offset 8 on"),
        (100, r"t-0\[7, 8\) are damaged.* from offset 8 on"),
        (48, r"t-0(\[7, 8\) are damaged| is damaged at offset 7)"),
        (8, "t-0"),
        (0, "t-0"),
        (24, "offset 7"),
    ],
    ids=["the payload", "Arrow metadata", "a timestamp", "the length", "the offset", "the magic"],
)
def test_a_flipped_bit_in_a_sealed_segment_costs_one_batch(
    tmp_path: Path, chroot: str, byte: int, told: str
) -> None:
    log = LogConfig(segment_bytes=1800)
    expected = [b"%03d" % number * 50 for number in range(COUNT)]
    with broker_here(tmp_path / "data", chroot, log=log) as broker:
        with connect(broker) as wire:
            create_topic(wire, TP.topic)
        with Cluster.from_zookeeper(chroot) as cluster:
            with Producer(cluster, ProducerConfig(linger_ms=0)) as producer:
                for value in expected:
                    producer.send(TP.topic, value).result(60)
            flip(tmp_path / "data" / str(TP), DAMAGED, byte)
            with pytest.raises(DAMAGE, match=told):
                values(cluster, DAMAGED, COUNT)
            assert values(cluster, 0, DAMAGED) == expected[:DAMAGED]
            assert values(cluster, DAMAGED + 1, COUNT) == expected[DAMAGED + 1 :]
            check_a_consumer_stops_there_and_goes_on_behind(cluster)


def check_a_consumer_stops_there_and_goes_on_behind(cluster: Cluster) -> None:
    with Consumer(cluster) as consumer:
        consumer.assign([TP])
        seen: list[int] = []

        def poll() -> None:
            for batch in consumer.poll_arrow(60):
                seen.extend(batch.offsets().to_pylist())

        while len(seen) < DAMAGED:
            poll()
        for _ in range(2):  # and it stays there
            with pytest.raises(DAMAGE):
                poll()
            assert consumer.position(TP) == DAMAGED
        assert seen == list(range(DAMAGED)), "what stands before the damage was handed out"
        consumer.seek(TP, DAMAGED + 1)
        while consumer.position(TP) < COUNT:
            poll()
    assert seen == [n for n in range(COUNT) if n != DAMAGED]

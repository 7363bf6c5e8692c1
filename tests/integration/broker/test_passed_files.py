"""Large ranges read on the broker's machine: its files are mapped, whatever happens to them."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest

from spark_logbus.broker import NetworkConfig
from spark_logbus.client import (
    Admin,
    ClientConfig,
    Cluster,
    Producer,
    ProducerConfig,
    RangeReader,
    mapped_file,
)
from spark_logbus.client.fetch import range_reader
from spark_logbus.client.fetch.batches import FetchedBatch
from spark_logbus.errors import CorruptRecordBatchError
from spark_logbus.log import LogConfig
from spark_logbus.model import Compression, OffsetRange, TopicPartition
from spark_logbus.wire import transport
from spark_logbus.wire.passed_file import PassedFile
from tests.helpers import paths_below, wait_until
from tests.servers.broker import broker_here

pytestmark = pytest.mark.usefixtures("no_collector")  # what is mapped goes with its last reader

T0 = TopicPartition("t", 0)
RECORDS = 60_000
PER_BATCH = 5_000  # about 1 MB; a segment holds seven of them
LOG = LogConfig(segment_bytes=8_000_000)
LOG_NAME = "spark_logbus.client.fetch.range_reader"


def value(number: int) -> bytes:
    return b"%07d" % number * 28


def fill(cluster: Cluster, compression: Compression = Compression.NONE) -> None:
    Admin(cluster).create_topic(T0.topic, partitions=1)
    config = ProducerConfig(batch_bytes=1_100_000, compression=compression)
    with Producer(cluster, config) as producer:
        for start in range(0, RECORDS, PER_BATCH):
            values = pa.array([value(n) for n in range(start, start + PER_BATCH)], pa.binary())
            producer.send_arrow(T0.topic, pa.table({"value": values}), partition=0)
            producer.flush()  # so that a segment is full of record batches one by one


@pytest.fixture
def cluster(tmp_path: Path, chroot: str) -> Iterator[Cluster]:
    with (
        broker_here(tmp_path / "data", chroot, log=LOG),
        Cluster.from_zookeeper(chroot) as cluster,
    ):
        yield cluster


@pytest.fixture
def mapped(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The parts of files that are mapped: position and length of each."""
    parts: list[tuple[int, int]] = []
    original = mapped_file.mapped

    def noted(file: PassedFile, position: int, length: int) -> memoryview:
        view = original(file, position, length)
        parts.append((position, length))
        return view

    monkeypatch.setattr(range_reader, "mapped", noted)
    return parts


def values(batches: list[FetchedBatch]) -> list[bytes]:
    return [each for one in batches for each in one.arrow_batch.column("value").to_pylist()]


def check(cluster: Cluster, start: int = 0, end: int = RECORDS) -> None:
    position = start
    for fetched in RangeReader(cluster, OffsetRange(T0, start, end)):
        assert fetched.base_offset == position
        expected = [value(n) for n in range(position, fetched.next_offset)]
        assert fetched.arrow_batch.column("value").to_pylist() == expected
        position = fetched.next_offset
    assert position == end


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
def test_a_range_over_several_segments_is_read_from_their_files(
    cluster: Cluster, mapped: list[tuple[int, int]], compression: Compression
) -> None:
    fill(cluster, compression)
    check(cluster)
    if compression is Compression.NONE:
        assert len(mapped) == 2, "a segment, and what follows it"
        assert sum(length for _, length in mapped) > RECORDS * 196
    check(cluster, 7, 12_345)
    check(cluster, RECORDS - 100, RECORDS)
    assert not mapped_file._mappings, "mappings go with their last view"


def test_records_in_memory_outlive_their_topic(cluster: Cluster, tmp_path: Path) -> None:
    fill(cluster)
    with RangeReader(cluster, OffsetRange(T0, 0, RECORDS)) as reader:
        kept = list(reader)
    Admin(cluster).delete_topic(T0.topic)
    wait_until(lambda: not any(".log" in path.name for path in paths_below(tmp_path / "data")))
    assert values(kept) == [value(n) for n in range(RECORDS)]
    assert len(mapped_file._mappings) == 2
    del kept
    assert not mapped_file._mappings


def test_a_reader_finishes_a_segment_being_deleted(
    cluster: Cluster, tmp_path: Path, mapped: list[tuple[int, int]]
) -> None:
    fill(cluster)
    with RangeReader(cluster, OffsetRange(T0, 0, RECORDS), in_flight=1) as reader:
        first = next(reader)
        Admin(cluster).alter_topic(T0.topic, put={"retention.bytes": "1"})
        directory = tmp_path / "data" / str(T0)
        wait_until(lambda: len(list(directory.glob("*.log"))) == 1)
        kept = [first, *islice(reader, 6)]
    assert values(kept) == [value(n) for n in range(7 * PER_BATCH)]
    assert len(mapped) == 1


def test_a_part_of_a_file_is_no_larger_than_a_response_may_be(
    cluster: Cluster, chroot: str, mapped: list[tuple[int, int]]
) -> None:
    fill(cluster)
    with Cluster.from_zookeeper(chroot, ClientConfig(max_response_bytes=3 << 20)) as modest:
        # What is fetched through the socket has to fit as well.
        reader = RangeReader(modest, OffsetRange(T0, 0, RECORDS), fetch_bytes=2 << 20)
        assert values(list(reader)) == [value(n) for n in range(RECORDS)]
    assert 2 << 20 < max(length for _, length in mapped) <= 3 << 20


@pytest.mark.parametrize("code", [errno.ENODEV, errno.EIO, errno.ENOMEM])
def test_files_that_cannot_be_mapped_are_read_through_the_socket(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    fill(cluster)

    def refuse(*_: object) -> memoryview:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(range_reader, "mapped", refuse)
    with caplog.at_level(logging.DEBUG, LOG_NAME):
        check(cluster)
    (record,) = (one for one in caplog.records if one.name == LOG_NAME)
    assert os.strerror(code) in record.getMessage()


def test_without_descriptors_reads_use_the_socket(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, mapped: list[tuple[int, int]]
) -> None:
    fill(cluster)
    monkeypatch.setattr(transport, "ONE_DESCRIPTOR", 0)  # the kernel then drops them
    check(cluster)
    assert not mapped


def test_kept_batches_do_not_use_up_descriptors(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, mapped: list[tuple[int, int]]
) -> None:
    fill(cluster)
    monkeypatch.setattr(mapped_file, "_MOST_MAPPINGS", 3)
    kept = [list(RangeReader(cluster, OffsetRange(T0, 0, RECORDS))) for _ in range(3)]
    assert len(mapped) == 3
    for one in kept:
        assert values(one) == [value(n) for n in range(RECORDS)]


def test_readers_over_tcp_get_the_bytes(
    tmp_path: Path, chroot: str, mapped: list[tuple[int, int]]
) -> None:
    with (
        broker_here(tmp_path / "data", chroot, network=NetworkConfig(local_socket=False)),
        Cluster.from_zookeeper(chroot) as cluster,
    ):
        fill(cluster)
        check(cluster)
    with (
        broker_here(tmp_path / "data", chroot),
        Cluster.from_zookeeper(chroot, ClientConfig(local_sockets=False)) as cluster,
    ):
        check(cluster)
    assert not mapped


def test_damage_in_a_mapped_file_costs_one_record_batch(
    cluster: Cluster, tmp_path: Path, mapped: list[tuple[int, int]]
) -> None:
    fill(cluster)
    first = min((tmp_path / "data" / str(T0)).glob("*.log"))
    with first.open("r+b") as file:
        file.seek(first.stat().st_size * 5 // 7 + 1_000)
        file.write(b"damage")
    with RangeReader(cluster, OffsetRange(T0, 0, RECORDS)) as reader:
        kept = list(islice(reader, 5))
        with pytest.raises(CorruptRecordBatchError, match=r"t-0\[25000, 30000\) are damaged"):
            next(reader)
    assert values(kept) == [value(n) for n in range(25_000)]
    assert len(mapped) == 1
    check(cluster, 30_000)

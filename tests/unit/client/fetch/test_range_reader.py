from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_logbus.client import Cluster, RangeReader
from spark_logbus.errors import (
    BrokerUnavailableError,
    ConfigError,
    CorruptRecordBatchError,
    LogbusError,
    NotLeaderError,
    OffsetOutOfRangeError,
    ProtocolError,
    UnknownTopicError,
)
from spark_logbus.model import OffsetRange, TopicPartition
from spark_logbus.protocol import (
    Api,
    FetchRequest,
    FetchResponse,
    FetchResult,
    encode_response,
    frame_head,
)
from spark_logbus.wire.connection import BrokerConnection
from spark_logbus.wire.transport import SocketTransport
from tests.builders.arrow_batches import QUICK, T0, numbered, record_batch
from tests.fakes.broker import FakeCluster, FaultKind
from tests.helpers import open_files

PER_BATCH = 10
BATCH_BYTES = len(record_batch(numbered(100, PER_BATCH)))


def fill(fake: FakeCluster, batches: int = 20) -> None:
    fake.create("t")
    for number in range(batches):
        fake.append(T0, record_batch(numbered(number * PER_BATCH, PER_BATCH)))


def values(reader: RangeReader) -> list[bytes]:
    read: list[bytes] = []
    position = None
    for fetched in reader:
        assert position is None or fetched.base_offset == position
        position = fetched.next_offset
        read += fetched.arrow_batch.column("value").to_pylist()
    return read


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("fetch_bytes", [1, 3 * BATCH_BYTES, 1 << 20])
@pytest.mark.parametrize(("start", "end"), [(0, 200), (3, 197), (10, 20), (15, 16), (50, 50)])
def test_a_range_is_read_whole_and_no_further(
    fake: FakeCluster, cluster: Cluster, start: int, end: int, fetch_bytes: int, in_flight: int
) -> None:
    fill(fake)
    reader = RangeReader(
        cluster, OffsetRange(T0, start, end), fetch_bytes=fetch_bytes, in_flight=in_flight
    )
    assert values(reader) == numbered(start, end - start)
    with pytest.raises(StopIteration):
        next(reader)
    fetches = [r for r in fake.brokers[0].requests if isinstance(r, FetchRequest)]
    assert all(fetch.partitions[0].end == end for fetch in fetches)


FAULTS: list[tuple[FaultKind, LogbusError | None]] = [
    ("drop_before", None),
    ("drop_after", None),
    ("half", None),
    ("error", BrokerUnavailableError("going down")),
    ("partition_error", NotLeaderError("not any more")),
    ("partition_error", UnknownTopicError("not yet heard of")),
]


@pytest.mark.parametrize(("kind", "error"), FAULTS)
def test_failures_on_the_way_lose_and_repeat_nothing(
    fake: FakeCluster, cluster: Cluster, kind: FaultKind, error: LogbusError | None
) -> None:
    fill(fake)
    reader = RangeReader(cluster, OffsetRange(T0, 5, 195), fetch_bytes=2 * BATCH_BYTES)
    first = next(reader).arrow_batch.column("value").to_pylist()
    for _ in range(3):
        fake.brokers[0].fault(Api.FETCH, kind, error)
    assert first + values(reader) == numbered(5, 190)
    assert not fake.brokers[0].faults[Api.FETCH]


def test_the_leader_moves_in_the_middle(fake: FakeCluster, cluster: Cluster) -> None:
    fill(fake)
    reader = RangeReader(cluster, OffsetRange(T0, 0, 200), fetch_bytes=1)
    first = next(reader).arrow_batch.column("value").to_pylist()
    fake.partition(T0).leader = 2
    assert first + values(reader) == numbered(0, 200)
    assert any(isinstance(request, FetchRequest) for request in fake.brokers[1].requests)


def test_the_leader_restarts_on_another_port(fake: FakeCluster, cluster: Cluster) -> None:
    fill(fake)
    reader = RangeReader(cluster, OffsetRange(T0, 0, 200), fetch_bytes=1)
    first = next(reader).arrow_batch.column("value").to_pylist()
    fake.brokers[0].stop()
    fake.brokers[0].start()
    assert first + values(reader) == numbered(0, 200)


def test_arrow_batches_outlive_the_reader(fake: FakeCluster, cluster: Cluster) -> None:
    fill(fake)
    with RangeReader(cluster, OffsetRange(T0, 0, 200)) as reader:
        kept = [fetched.arrow_batch for fetched in reader]
    assert [value for one in kept for value in one.column("value").to_pylist()] == numbered(0, 200)


def test_a_start_that_is_gone_is_reported(fake: FakeCluster, cluster: Cluster) -> None:
    fill(fake)
    fake.partition(T0).start = 50
    with pytest.raises(OffsetOutOfRangeError, match="40"):
        next(RangeReader(cluster, OffsetRange(T0, 40, 60)))


def test_an_end_that_never_comes_is_reported(fake: FakeCluster, cluster: Cluster) -> None:
    fill(fake, 1)
    reader = RangeReader(cluster, OffsetRange(T0, 0, 20), missing_tail_wait_ms=1)
    assert next(reader).next_offset == 10
    with pytest.raises(OffsetOutOfRangeError, match="ends at 10"):
        next(reader)


def test_an_end_that_is_still_coming_is_waited_for(fake: FakeCluster, cluster: Cluster) -> None:
    fill(fake, 1)
    reader = RangeReader(cluster, OffsetRange(T0, 0, 20))
    next(reader)
    waiting = threading.Event()

    def append() -> None:
        waiting.wait(60)
        fake.append(T0, record_batch(numbered(10, 10)))

    thread = threading.Thread(target=append)
    thread.start()
    waiting.set()
    assert values(reader) == numbered(10, 10)
    thread.join()


def test_a_damaged_record_batch_is_reported(fake: FakeCluster, cluster: Cluster) -> None:
    fill(fake, 3)
    header, data = fake.partition(T0).batches[1]
    damaged = data[:-1] + bytes([data[-1] ^ 1])
    fake.partition(T0).batches[1] = (header, damaged)
    reader = RangeReader(cluster, OffsetRange(T0, 0, 30))
    assert next(reader).next_offset == 10
    with pytest.raises(CorruptRecordBatchError, match="offset 10: checksum"):
        next(reader)
    with pytest.raises(StopIteration):
        next(reader)


def test_a_topic_that_is_not_there(cluster: Cluster) -> None:
    with pytest.raises(UnknownTopicError, match="no topic 'none'"):
        next(RangeReader(cluster, OffsetRange(TopicPartition("none", 0), 0, 1)))


def test_retries_end(fake: FakeCluster) -> None:
    fill(fake, 1)
    from dataclasses import replace

    with Cluster.connect(fake.bootstrap, replace(QUICK, retry_deadline_ms=2_000)) as cluster:
        for _ in range(5_000):
            fake.brokers[0].fault(Api.FETCH, "partition_error", NotLeaderError("never"))
        with pytest.raises(NotLeaderError, match=r"Reading t-0\[0, 10\) at offset 0"):
            next(RangeReader(cluster, OffsetRange(T0, 0, 10)))


def test_unusable_sizes_are_refused(cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match="in_flight"):
        RangeReader(cluster, OffsetRange(T0, 0, 1), in_flight=3)
    with pytest.raises(ConfigError, match="fetch_bytes"):
        RangeReader(cluster, OffsetRange(T0, 0, 1), fetch_bytes=0)


def test_a_topic_that_was_created_again_is_another_topic(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fill(fake)
    assert values(RangeReader(cluster, OffsetRange(T0, 0, 3), topic_id="id-t")) == numbered(0, 3)
    fake.topics["t"].topic_id = "id-u"
    with pytest.raises(UnknownTopicError, match=r"id id-t was deleted; .* the id id-u"):
        next(RangeReader(cluster, OffsetRange(T0, 0, 3), topic_id="id-t"))
    # Known from before as another one: asked anew, not refused.
    assert values(RangeReader(cluster, OffsetRange(T0, 0, 3), topic_id="id-u")) == numbered(0, 3)


@contextmanager
def reading_from(
    reader: RangeReader, kind: socket.AddressFamily = socket.AF_UNIX
) -> Iterator[socket.socket]:
    """Yields the other end of the connection that ``reader`` uses first."""
    if kind == socket.AF_UNIX:
        ours, theirs = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as server:
            ours = socket.create_connection(server.getsockname())
            theirs, _ = server.accept()
    address = reader._cluster.leader(T0, reader._cluster.deadline_ms(5_000))
    reader._connection = BrokerConnection(
        SocketTransport(ours), address, max_response_bytes=1 << 20
    )
    with theirs:
        yield theirs


def by_file(correlation: int, length: int) -> bytes:
    header = encode_response(FetchResponse([FetchResult("t", 0, length)], position=0))
    return frame_head(
        api=Api.FETCH, version=1, correlation=correlation, header=header, payload_length=0
    )


def test_a_broker_that_insists_on_a_file_is_not_asked_for_ever(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fill(fake, 1)
    reader = RangeReader(cluster, OffsetRange(T0, 0, 10))
    with reading_from(reader) as broker:
        broker.sendall(by_file(1, 100) + by_file(2, 100))
        with pytest.raises(ProtocolError, match="100 bytes of a file, where at most 0"):
            next(reader)


def test_a_file_in_place_of_bytes_over_tcp_is_an_error(fake: FakeCluster, cluster: Cluster) -> None:
    fill(fake, 1)
    reader = RangeReader(cluster, OffsetRange(T0, 0, 10))
    with reading_from(reader, socket.AF_INET) as broker:
        broker.sendall(by_file(1, 100))
        with pytest.raises(ProtocolError, match="100 bytes of a file, where at most 0"):
            next(reader)


def test_no_more_is_mapped_than_a_response_may_have(fake: FakeCluster, cluster: Cluster) -> None:
    fill(fake, 1)
    reader = RangeReader(cluster, OffsetRange(T0, 0, 10))
    with reading_from(reader) as broker, open("/dev/zero", "rb") as endless:
        socket.send_fds(broker, [by_file(1, 1 << 40)], [endless.fileno()])
        with pytest.raises(ProtocolError, match="1099511627776 bytes of a file, where at most"):
            next(reader)
        assert open_files(Path(endless.name)) == [endless.name], "which is this test's own"

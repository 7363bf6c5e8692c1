from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import replace

import pyarrow as pa
import pytest

from spark_logbus.client import (
    AppendedRange,
    Cluster,
    Producer,
    ProducerConfig,
    RangeReader,
    RecordFuture,
)
from spark_logbus.client.producer import producer as producer_module
from spark_logbus.client.producer.partitioner import partition_of
from spark_logbus.errors import (
    BrokerUnavailableError,
    BufferExhaustedError,
    InvalidRequestError,
    LimitExceededError,
    LogbusError,
    NotEnoughReplicasError,
    NotLeaderError,
    ProducerClosedError,
    RecordBatchTooLargeError,
    RequestTimeoutError,
    StorageError,
    UnknownTopicError,
)
from spark_logbus.model import Acks, Compression, OffsetRange, TopicPartition
from spark_logbus.protocol import Api, AppendRequest
from spark_logbus.record import split
from spark_logbus.record.rows.arrow import decode
from tests.builders.arrow_batches import QUICK, T0, T1, arrow_batch, numbered
from tests.fakes.broker import MAX_RECORD_BATCH_BYTES, FakeCluster, FaultKind
from tests.helpers import wait_until

SMALL = ProducerConfig(linger_ms=0, batch_bytes=200)
#: Records of 20 bytes have a record batch each, which wait together while another is under way.
ONE_BY_ONE = replace(SMALL, batch_bytes=30, max_in_flight=1)


def stored(
    fake: FakeCluster, topic_partition: TopicPartition, column: str = "value"
) -> list[bytes | None]:
    found: list[bytes | None] = []
    for header, data in fake.partition(topic_partition).batches:
        found += decode(header, data).column(column).to_pylist()
    return found


def appends(fake: FakeCluster) -> int:
    requests = [request for broker in fake.brokers for request in broker.requests]
    return sum(isinstance(request, AppendRequest) for request in requests)


def test_each_future_tells_where_its_record_is(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t", partitions=2)
    with Producer(cluster, SMALL) as producer:
        futures = [
            producer.send("t", b"%d" % n, key=b"k%d" % (n % 5), timestamp_us=n) for n in range(200)
        ]
    for number, future in enumerate(futures):
        told = future.result(60)
        assert told.partition == partition_of(b"k%d" % (number % 5), 2)
        assert told.timestamp_us == number
        topic_partition = TopicPartition("t", told.partition)
        assert told.offset is not None
        assert stored(fake, topic_partition)[told.offset] == b"%d" % number
        assert stored(fake, topic_partition, "key")[told.offset] == b"k%d" % (number % 5)


def test_headers_tombstones_and_partitions_are_kept(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t", partitions=2)
    with Producer(cluster) as producer:
        producer.send("t", None, key=b"k", headers=[("a", b"1"), ("a", None)], partition=1)
        producer.send("t", bytearray(b"v"), partition=1)
    ((header, data),) = fake.partition(T1).batches
    assert decode(header, data).column("value").to_pylist() == [None, b"v"]
    assert decode(header, data).column("headers").to_pylist() == [
        [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
        None,
    ]


def test_keyless_records_fill_one_record_batch_after_the_other(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create("t", partitions=2)
    with Producer(cluster, ProducerConfig(linger_ms=60_000, batch_bytes=210)) as producer:
        for number in range(60):
            producer.send("t", b"%08d" % number)
    # 7 records of 28 bytes fit in 210: they are spread evenly, and never one by one.
    assert abs(len(stored(fake, T0)) - len(stored(fake, T1))) <= 7
    for topic_partition in (T0, T1):
        assert {header.record_count for header, _ in fake.partition(topic_partition).batches} <= {
            4,
            7,
        }


def test_a_record_batch_lingers_for_more(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    with Producer(cluster, ProducerConfig(linger_ms=2_000)) as producer:
        futures = [producer.send("t", b"%d" % number) for number in range(10)]
        assert futures[0].result(60).offset == 0  # without a flush
    assert [header.record_count for header, _ in fake.partition(T0).batches] == [10]


FAULTS: list[tuple[FaultKind, LogbusError | None]] = [
    ("drop_before", None),
    ("drop_after", None),
    ("half", None),
    ("error", BrokerUnavailableError("going down")),
    ("partition_error", NotLeaderError("not any more")),
    ("partition_error", UnknownTopicError("not yet heard of")),
    ("partition_error", LimitExceededError("busy")),
]


@pytest.mark.parametrize(("kind", "error"), FAULTS)
def test_order_holds_under_retries_without_loss_or_repeats(
    fake: FakeCluster, cluster: Cluster, kind: FaultKind, error: LogbusError | None
) -> None:
    fake.create("t", partitions=2)
    with Producer(cluster, SMALL) as producer:
        for number in range(300):
            if number % 50 == 10:
                for broker in fake.brokers:
                    broker.fault(Api.APPEND, kind, error)
            producer.send("t", b"%d" % number, partition=number % 2)
        producer.flush(10)
        assert not fake.brokers[0].faults[Api.APPEND]
    for topic_partition in (T0, T1):
        expected = [b"%d" % number for number in range(topic_partition.partition, 300, 2)]
        assert stored(fake, topic_partition) == expected


def test_offsets_are_right_after_a_retry(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    fake.brokers[0].fault(Api.APPEND, "drop_after")
    with Producer(cluster) as producer:
        assert producer.send("t", b"once").result(60).offset == 0
        assert producer.send("t", b"next").result(60).offset == 1
    assert stored(fake, T0) == [b"once", b"next"]


def test_without_idempotence_a_retry_may_append_twice(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    fake.brokers[0].fault(Api.APPEND, "drop_after")
    with Producer(cluster, ProducerConfig(idempotent=False)) as producer:
        future = producer.send("t", b"twice")
        assert future.result(60).offset == 1  # of the one that was acknowledged
    assert stored(fake, T0) == [b"twice", b"twice"]


def test_the_leader_moves_and_the_order_holds(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    with Producer(cluster, SMALL) as producer:
        for number in range(200):
            if number % 50 == 25:
                fake.partition(T0).leader = 3 - fake.partition(T0).leader
            producer.send("t", b"%d" % number)
    assert stored(fake, T0) == numbered(0, 200)


def test_a_leader_restarts_on_another_port(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t", partitions=2)
    with Producer(cluster, SMALL) as producer:
        producer.send("t", b"0", partition=0).result(60)
        fake.brokers[0].stop()
        lost = [producer.send("t", b"%d" % number, partition=0) for number in range(1, 50)]
        # The other leader's records go on while this one is away.
        assert producer.send("t", b"elsewhere", partition=1).result(60).offset == 0
        assert not any(future.done() for future in lost)
        fake.brokers[0].start()
        assert [future.result(60).offset for future in lost] == list(range(1, 50))
    assert stored(fake, T0) == numbered(0, 50)


def test_a_hanging_leader_times_out_and_is_tried_again(fake: FakeCluster) -> None:
    fake.create("t")
    fake.brokers[0].fault(Api.APPEND, "hang")
    with (
        Cluster.connect(fake.bootstrap, replace(QUICK, request_timeout_ms=100)) as cluster,
        Producer(cluster, SMALL) as producer,
    ):
        producer.send("t", b"a").result(60)
    assert stored(fake, T0) == [b"a"]


def test_delivery_is_given_up_after_its_timeout(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t", partitions=2)
    config = replace(SMALL, delivery_timeout_ms=100)
    fake.brokers[0].stop()
    with Producer(cluster, config) as producer:
        future = producer.send("t", b"a", partition=0)
        error = future.exception(5)
    assert isinstance(error, RequestTimeoutError)
    assert "1 records for t-0 were not acknowledged within 100 ms; last failure:" in str(error)


def test_what_the_broker_refuses_fails_alone(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    hang = fake.brokers[0].fault(Api.APPEND, "hang")
    with Producer(cluster, ONE_BY_ONE) as producer:
        first = producer.send("t", b"0" * 20)
        assert hang.met.wait(60)
        # While the first is under way, three more collect into one request, which is refused
        # as a whole; sent one by one, the second of them is refused again.
        more = [producer.send("t", b"%d" % number * 20) for number in (1, 2, 3)]
        broker = fake.brokers[0]
        broker.fault(Api.APPEND, "partition_error", RecordBatchTooLargeError("too large"))
        broker.fault(Api.APPEND, "partition_error", RecordBatchTooLargeError("too large"))
        hang.release.set()
        assert first.result(60).offset == 0
        assert isinstance(more[0].exception(5), RecordBatchTooLargeError)
        assert [future.result(60).offset for future in more[1:]] == [1, 2]


def test_an_error_without_remedy_is_not_retried(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    fake.brokers[0].fault(Api.APPEND, "partition_error", StorageError("disk full"))
    with Producer(cluster) as producer, pytest.raises(StorageError, match="disk full"):
        producer.send("t", b"a").result(60)
    assert appends(fake) == 1


def test_a_topic_deleted_under_way(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    with Producer(cluster) as producer:
        producer.send("t", b"a").result(60)
        del fake.topics["t"]
        with pytest.raises(UnknownTopicError):
            producer.send("t", b"b").result(60)


def test_sending_to_what_is_not_there_raises_at_once(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    with Producer(cluster) as producer:
        with pytest.raises(UnknownTopicError, match="'none'"):
            producer.send("none", b"a")
        with pytest.raises(UnknownTopicError, match="not 3"):
            producer.send("t", b"a", partition=3)
        with pytest.raises(InvalidRequestError, match="value must be bytes or None, got str"):
            producer.send("t", "text")
        with pytest.raises(InvalidRequestError, match="key must be bytes"):
            producer.send("t", b"a", key=5)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError, match="header's key"):
            producer.send("t", b"a", headers=[(b"a", b"b")])  # type: ignore[list-item]


@pytest.mark.parametrize("acks", [Acks.NONE, Acks.WRITTEN])
def test_acks(fake: FakeCluster, cluster: Cluster, acks: Acks) -> None:
    fake.create("t")
    with Producer(cluster, ProducerConfig(acks=acks)) as producer:
        futures = [producer.send("t", b"x" * 100) for _ in range(5000)]
    offsets = [future.result(0).offset for future in futures]
    if acks is Acks.NONE:
        assert set(offsets) == {None}
        reader = RangeReader(cluster, OffsetRange(T0, 0, 5000))  # waits until they are there
        assert sum(fetched.arrow_batch.num_rows for fetched in reader) == 5000
    else:
        assert offsets == list(range(5000))


def test_acks_are_by_default_those_of_all_replicas(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    fake.create("replicated")
    part = fake.partition(TopicPartition("replicated", 0))
    part.followers, part.in_sync = {2: 0}, [1, 2]

    def asked(topic: str, acks: Acks | None = None) -> set[str]:
        with Producer(cluster, ProducerConfig(acks=acks)) as producer:
            producer.send(topic, b"x")
        requests = [each for each in fake.brokers[0].requests if isinstance(each, AppendRequest)]
        fake.brokers[0].requests.clear()
        return {each.acks for each in requests}

    assert asked("t") == {"flushed"}, "which brokers of earlier releases know"
    assert asked("replicated") == {"replicated"}
    assert asked("replicated", Acks.FLUSHED) == {"flushed"}
    assert asked("t", Acks.REPLICATED) == {"replicated"}


@pytest.mark.parametrize(
    "error",
    [
        NotEnoughReplicasError("1 of 2 is in sync"),
        NotLeaderError("it may become visible"),
        RequestTimeoutError("it may become visible"),
    ],
)
def test_records_wait_for_replicas(fake: FakeCluster, cluster: Cluster, error: LogbusError) -> None:
    fake.create("t")
    for _ in range(3):
        fake.brokers[0].fault(Api.APPEND, "partition_error", error)
    with Producer(cluster) as producer:
        assert producer.send("t", b"x").result(60).offset == 0
    short = ProducerConfig(delivery_timeout_ms=100, linger_ms=0)
    for _ in range(1_000):
        fake.brokers[0].fault(Api.APPEND, "partition_error", error)
    with (
        Producer(cluster, short) as producer,
        pytest.raises(RequestTimeoutError, match=error.message),
    ):
        producer.send("t", b"x").result(60)


def test_the_largest_record_is_exact(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    limit = MAX_RECORD_BATCH_BYTES
    low, high = limit - 4096, limit
    with Producer(cluster) as producer:
        while high - low > 1:
            size = (low + high) // 2
            try:
                producer.send("t", b"x" * size)
                low = size
            except RecordBatchTooLargeError:
                high = size
        with pytest.raises(RecordBatchTooLargeError, match=f"2000000 bytes.*{limit}"):
            producer.send("t", b"x" * 2_000_000)
    sizes = [len(data) for _, data in fake.partition(T0).batches]
    assert limit - 8 <= max(sizes) <= limit


def test_a_topics_own_limit_counts(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t", config={"max.message.bytes": "10000"})
    with Producer(cluster) as producer:
        for _ in range(100):
            producer.send("t", b"x" * 1000)
        with pytest.raises(RecordBatchTooLargeError, match="10000"):
            producer.send("t", b"x" * 10_000)
        futures = producer.send_arrow("t", arrow_batch([b"x" * 1000] * 100))
        with pytest.raises(RecordBatchTooLargeError, match="10000"):
            producer.send_arrow("t", arrow_batch([b"x", b"x" * 10_000]))
    assert len(stored(fake, T0)) == 200
    assert all(len(data) <= 10_000 for _, data in fake.partition(T0).batches)
    assert sum(future.result(0).record_count for future in futures) == 100


@pytest.mark.parametrize(
    ("key", "headers"),
    [
        (None, None),
        (b"k" * 6_000, None),
        (b"k", {"h": b"1" * 6_000}),
        (None, {"h" * 3_000: b"1" * 3_000}),
    ],
)
def test_columns_take_what_a_single_record_may_be_or_nothing(
    fake: FakeCluster, cluster: Cluster, key: bytes | None, headers: dict[str, bytes] | None
) -> None:
    fake.create("t", config={"max.message.bytes": "10000"})
    low, high = 0, 10_000
    with Producer(cluster) as producer:
        while high - low > 1:
            size = (low + high) // 2
            try:
                producer.send("t", b"x" * size, key=key, headers=headers)
                low = size
            except RecordBatchTooLargeError:
                high = size
        producer.flush()
        sent = len(stored(fake, T0))
        keys, of_each = [key] * 101, [None] * 100 + [headers]
        values = [b"a" * 900] * 100 + [b"x" * (low + 8)]
        with pytest.raises(RecordBatchTooLargeError):
            producer.send_many("t", values, keys=keys, headers=of_each)
        producer.flush()
        assert len(stored(fake, T0)) == sent
        values[-1] = b"x" * low
        producer.send_many("t", values, keys=keys, headers=of_each)
        producer.flush()
        assert len(stored(fake, T0)) == sent + 101
    assert all(len(data) <= 10_000 for _, data in fake.partition(T0).batches)


def test_full_memory_blocks_and_then_raises(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    hang = fake.brokers[0].fault(Api.APPEND, "hang")
    config = ProducerConfig(
        batch_bytes=1000, buffer_bytes=5000, max_block_ms=2_000, linger_ms=60_000
    )
    with Producer(cluster, config) as producer:
        futures: list[RecordFuture] = []
        futures += [producer.send("t", b"x" * 80) for _ in range(50)]
        with pytest.raises(BufferExhaustedError, match="raise buffer_bytes"):
            producer.send("t", b"x" * 80)
        hang.release.set()
        futures[-1].result(60)
        futures.append(producer.send("t", b"x" * 80))  # there is room again
        producer.send("t", b"x" * 6000)  # larger than the buffer: alone in it, once it is empty
    assert len(stored(fake, T0)) == 52


def test_waiting_for_room_ends_when_there_is_room(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    config = ProducerConfig(batch_bytes=1000, buffer_bytes=3000, linger_ms=60_000)
    with Producer(cluster, config) as producer:
        for number in range(500):
            producer.send("t", b"%080d" % number)
    assert stored(fake, T0) == [b"%080d" % number for number in range(500)]


def test_columns_are_split_like_single_records(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t", partitions=2)
    keys = [b"k%d" % (number % 7) for number in range(5000)]
    table = pa.table({"value": [str(number) for number in range(5000)], "key": keys})
    acknowledged: list[Future[AppendedRange]] = []
    with Producer(cluster, ProducerConfig(arrow_piece_bytes=10_000)) as producer:
        futures = producer.send_arrow("t", table, on_ack=acknowledged.append)
        producer.flush(10)
    assert sorted(map(id, acknowledged)) == sorted(map(id, futures))
    for topic_partition in (T0, T1):
        expected = [
            b"%d" % number
            for number, key in enumerate(keys)
            if partition_of(key, 2) == topic_partition.partition
        ]
        assert stored(fake, topic_partition) == expected
        ranges = [future.result(0) for future in futures]
        mine = [one for one in ranges if one.partition == topic_partition.partition]
        assert len(mine) > 3
        position = 0
        for one in mine:
            assert one.base_offset == position
            position += one.record_count
        assert position == len(expected)


def test_columns_without_keys_take_turns(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t", partitions=2)
    with Producer(cluster, ProducerConfig(arrow_piece_bytes=10_000)) as producer:
        futures = producer.send_arrow("t", pa.table({"value": [b"x" * 100] * 1000}))
        to = [future.result(60).partition for future in futures]
        assert to in (
            [0, 1] * (len(to) // 2) + [0] * (len(to) % 2),
            [1, 0] * (len(to) // 2) + [1] * (len(to) % 2),
        )
        (one,) = producer.send_arrow("t", arrow_batch([b"y"]), partition=1)
        assert one.result(60).partition == 1
        assert producer.send_arrow("t", pa.table({"value": pa.array([], pa.binary())})) == []
        with pytest.raises(InvalidRequestError, match="other"):
            producer.send_arrow("t", pa.table({"other": [1]}))
        with pytest.raises(InvalidRequestError, match="got list"):
            producer.send_arrow("t", [b"x"])


def test_columns_and_single_records_keep_their_order(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    with Producer(cluster, ProducerConfig(linger_ms=60_000)) as producer:
        for start in range(0, 100, 10):
            for number in range(start, start + 5):
                producer.send("t", b"%d" % number)
            producer.send_arrow("t", arrow_batch(numbered(start + 5, 5)))
    assert stored(fake, T0) == numbered(0, 100)


@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.ZSTD])
def test_compression(fake: FakeCluster, cluster: Cluster, compression: Compression) -> None:
    fake.create("t")
    with Producer(cluster, ProducerConfig(compression=compression)) as producer:
        for _ in range(100):
            producer.send("t", b"x" * 1000)
        producer.send_arrow("t", arrow_batch([b"y" * 1000] * 100))
    data = b"".join(data for _, data in fake.partition(T0).batches)
    assert len(data) < 50_000
    assert {header.compression for header, _ in split(data, allow_tail=False)} == {compression}
    assert stored(fake, T0) == [b"x" * 1000] * 100 + [b"y" * 1000] * 100


def test_flush_waits_for_what_was_sent_before(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    with Producer(cluster, ProducerConfig(linger_ms=60_000)) as producer:
        futures = [producer.send("t", b"a") for _ in range(10)]
        producer.flush(5)
        assert all(future.done() for future in futures)
        hang = fake.brokers[0].fault(Api.APPEND, "hang")
        producer.send("t", b"b")
        with pytest.raises(RequestTimeoutError, match="1 of 1 record batches"):
            producer.flush(0.01)
        hang.release.set()


def test_close_flushes_and_ends_all_sending(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    before = set(threading.enumerate())
    producer = Producer(cluster, ProducerConfig(linger_ms=60_000))
    future = producer.send("t", b"a")
    producer.close()
    producer.close()
    assert future.result(0).offset == 0
    with pytest.raises(ProducerClosedError):
        producer.send("t", b"b")
    with pytest.raises(ProducerClosedError):
        producer.send_arrow("t", arrow_batch([b"b"]))
    left = set(threading.enumerate()) - before
    assert not [one for one in left if one.name.startswith("logbus-producer")]


def test_closing_in_a_hurry_fails_what_waits(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    fake.brokers[0].fault(Api.APPEND, "hang")
    producer = Producer(cluster, SMALL)
    future = producer.send("t", b"a")
    with pytest.raises(RequestTimeoutError):
        producer.close(0.01)
    assert isinstance(future.exception(5), ProducerClosedError)


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit, KeyboardInterrupt])
def test_leaving_by_an_exception_does_not_wait_for_ever(
    fake: FakeCluster,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
) -> None:
    monkeypatch.setattr(producer_module, "_LAST_RECORDS_S", 0.05)
    fake.create("t")
    fake.brokers[0].fault(Api.APPEND, "hang")

    def leave() -> None:
        with Producer(cluster, SMALL) as producer:
            producer.send("t", b"a")
            raise error

    with pytest.raises(error):
        leave()


def test_callbacks_run_and_their_faults_do_no_harm(
    fake: FakeCluster, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    fake.create("t")
    seen: list[int | None] = []
    with Producer(cluster) as producer:
        for _ in range(3):
            future = producer.send("t", b"a")
            future.add_done_callback(lambda done: seen.append(done.result(0).offset))
        future.add_done_callback(lambda _: 1 / 0)
        producer.flush(5)
        wait_until(lambda: len(seen) == 3)  # a future is done before its callbacks run
        future.add_done_callback(lambda done: seen.append(done.result(0).offset))
        assert producer.send("t", b"b").result(60).offset == 3
    assert seen == [0, 1, 2, 2]
    assert "A callback of a record failed" in caplog.text
    assert future.exception() is None
    assert not future.cancel()
    assert not future.running()


def test_many_threads_share_a_producer(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t", partitions=2)
    with Producer(cluster, ProducerConfig(linger_ms=1, batch_bytes=2000)) as producer:

        def work(mine: int) -> None:
            for number in range(500):
                producer.send("t", b"%d:%d" % (mine, number), key=b"%d" % mine)

        threads = [threading.Thread(target=work, args=(mine,)) for mine in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    everything = stored(fake, T0) + stored(fake, T1)
    assert len(everything) == 2000
    for mine in range(4):
        own = [value for value in everything if value and value.startswith(b"%d:" % mine)]
        assert own == [b"%d:%d" % (mine, number) for number in range(500)]


def test_a_future_that_is_not_done_times_out(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    with Producer(cluster, ProducerConfig(linger_ms=60_000)) as producer:
        future = producer.send("t", b"a")
        with pytest.raises(TimeoutError):
            future.result(0.001)
        assert future.running()


def test_keyless_records_avoid_a_leaderless_partition(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t", partitions=2)
    fake.brokers[1].stop()
    config = replace(SMALL, delivery_timeout_ms=3_000)
    with Producer(cluster, config) as producer:
        free = [producer.send("t", b"%d" % number) for number in range(100)]
        (table,) = producer.send_arrow("t", pa.table({"value": [b"a"]}))
        bound = producer.send("t", b"bound", partition=1)
        assert {future.result(60).partition for future in free} == {0}
        assert table.result(60).partition == 0
        with pytest.raises(RequestTimeoutError, match="broker 2"):
            bound.result(60)
        fake.brokers[1].start()
        wait_until(lambda: producer.send("t", b"again").result(60).partition == 1)
    assert sorted(stored(fake, T0)[:101], key=repr) == sorted([*numbered(0, 100), b"a"], key=repr)


def test_without_any_leader_records_wait_where_they_are(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create("t", partitions=2)
    with Producer(cluster, ProducerConfig(linger_ms=0)) as producer:
        producer.send("t", b"first").result(60)
        for broker in fake.brokers:
            broker.stop()
        waiting = [producer.send("t", b"%d" % number) for number in range(50)]
        for broker in fake.brokers:
            broker.start()
        cluster._callers.bootstrap = fake.bootstrap  # they are on other ports now
        assert all(future.result(60).offset is not None for future in waiting)


def test_what_a_disk_refused_leaves_no_gap_in_the_numbers(fake: FakeCluster) -> None:
    """The broker took nothing of it: what is behind goes on from where it would have been."""
    fake.create("t")
    broker = fake.brokers[0]
    # The first waits for its second try, so that more collect; they are sent together and then
    # each by itself, and when the second is, there is room again.
    broker.fault(Api.APPEND, "partition_error", NotLeaderError("moved"))
    broker.fault(Api.APPEND, "partition_error", StorageError("no space left"))
    broker.fault(Api.APPEND, "partition_error", StorageError("no space left"))
    slow = replace(QUICK, retry_backoff_ms=1_000, retry_backoff_max_ms=1_000)
    with (
        Cluster.connect(fake.bootstrap, slow) as cluster,
        Producer(cluster, ONE_BY_ONE) as producer,
    ):
        futures = [producer.send("t", b"%d" % number * 20) for number in range(3)]
        assert type(futures[0].exception(9)) is StorageError
        assert [future.result(60).offset for future in futures[1:]] == [0, 1]

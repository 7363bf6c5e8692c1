"""Record batches that become a thousand times as large when they are decoded."""

from __future__ import annotations

import logging
from dataclasses import replace

import pyarrow as pa
import pytest

from spark_logbus.client import Cluster, Consumer, ConsumerConfig
from spark_logbus.client.fetch import records, tables
from spark_logbus.client.fetch.records import records_of
from spark_logbus.errors import CorruptRecordBatchError, RecordBatchTooLargeError
from spark_logbus.model import Compression
from spark_logbus.record.rows.arrow import encode
from tests.builders.arrow_batches import T0, arrow_batch, numbered, record_batch
from tests.fakes.broker import FakeCluster

MIB = 1 << 20
ROWS = 64
BOUND = 8 * MIB
CONFIG = ConsumerConfig(max_wait_ms=20, max_decoded_bytes=BOUND)


def bomb(size: int) -> memoryview:
    """Returns a record batch of 64 records, which have ``size`` bytes together."""
    made = encode(arrow_batch([bytes(size // ROWS)] * ROWS), compression=Compression.ZSTD)
    assert len(made) < size // 50
    return made


def decoded_bytes(batches: list[object]) -> int:
    return sum(one.arrow_batch.nbytes for one in batches)  # type: ignore[attr-defined]


def test_a_poll_stops_at_the_bound_and_the_next_goes_on(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create("t")
    for _ in range(20):
        fake.append(T0, bomb(3 * MIB))
    with Consumer(cluster, CONFIG) as consumer:
        consumer.assign([T0])
        offset = 0
        before = pa.total_allocated_bytes()
        while offset < 20 * ROWS:
            batches = consumer.poll_arrow(60)
            assert 1 <= len(batches) <= 2
            assert decoded_bytes([*batches]) <= BOUND
            for batch in batches:
                assert batch.base_offset == offset
                offset = batch.next_offset
            assert consumer.position(T0) == offset
            assert pa.total_allocated_bytes() - before < 2 * BOUND
    # One request, or two: what is not decoded yet is not asked for again.
    assert sum(type(one).__name__ == "FetchRequest" for one in fake.brokers[0].requests) <= 3


def test_a_record_batch_beyond_the_bound_comes_alone(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    for one in (record_batch(numbered(0, 10)), bomb(2 * BOUND), record_batch(numbered(0, 10))):
        fake.append(T0, one)
    with Consumer(cluster, CONFIG) as consumer:
        consumer.assign([T0])
        sizes = []
        while consumer.position(T0) < 20 + ROWS:
            sizes.append([batch.arrow_batch.num_rows for batch in consumer.poll_arrow(60)])
        assert sizes == [[10], [ROWS], [10]]
        consumer.seek(T0, 5)  # in the middle of a record batch that is handed out one by one
        assert next(consumer).offset == 5
        assert [batch.arrow_batch.num_rows for batch in consumer.poll_arrow(60)] == [4]
        assert len(consumer.poll(60, max_records=1000)) == ROWS


def test_what_is_damaged_is_told_behind_what_is_not(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    fake.append(T0, record_batch(numbered(0, 10)))
    fake.append(T0, bomb(MIB))
    header, data = fake.partition(T0).batches[1]
    fake.partition(T0).batches[1] = (header, data[:-1] + bytes([data[-1] ^ 1]))
    with Consumer(cluster, CONFIG) as consumer:
        consumer.assign([T0])
        assert [batch.next_offset for batch in consumer.poll_arrow(60)] == [10]
        with pytest.raises(CorruptRecordBatchError, match="damaged"):
            consumer.poll_arrow(60)


def test_a_table_has_a_limit_if_it_is_given_one(
    fake: FakeCluster,
    cluster: Cluster,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake.create("t")
    for _ in range(6):
        fake.append(T0, bomb(3 * MIB))
    with Consumer(cluster, CONFIG) as consumer:
        consumer.assign([T0])
        with pytest.raises(RecordBatchTooLargeError, match=r"8388608 bytes of max_bytes"):
            consumer.to_arrow(max_bytes=BOUND)
        assert consumer.position(T0) == 0
        monkeypatch.setattr(tables, "_LARGE_BYTES", MIB)
        with caplog.at_level(logging.WARNING):
            assert consumer.to_arrow().num_rows == 6 * ROWS
    assert sum("takes more than 1 MiB" in line for line in caplog.messages) == 1


@pytest.mark.parametrize("gaps", [False, True])
def test_a_large_record_batch_becomes_records_part_by_part(
    fake: FakeCluster, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, gaps: bool
) -> None:
    fake.create("t")
    fake.append(T0, record_batch(numbered(0, 100)))
    with Consumer(cluster, CONFIG) as consumer:
        consumer.assign([T0])
        [batch] = consumer.poll_arrow(60)
        if gaps:
            deltas = pa.array(range(0, 200, 2), pa.int32())
            batch = replace(
                batch, arrow_batch=batch.arrow_batch.append_column("offset_delta", deltas)
            )
        whole = list(records_of(batch))
        monkeypatch.setattr(records, "_ROWS_AT_ONCE", 7)
        assert list(records_of(batch)) == whole
        consumer.seek(T0, 3)
        assert [record.offset for record in consumer.poll(60, max_records=30)] == [*range(3, 33)]
        assert consumer.position(T0) == 33

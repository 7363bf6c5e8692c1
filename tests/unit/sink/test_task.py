"""What a task sends, and when it counts as done."""

from __future__ import annotations

from concurrent.futures import Future
from typing import cast

import pyarrow as pa
import pytest

from spark_logbus.client import AppendedRange, Producer
from spark_logbus.errors import PartitionOfflineError
from spark_logbus.model import TopicPartition
from spark_logbus.sink import task as delivery
from spark_logbus.sink.columns import SinkColumns
from spark_logbus.sink.task import Appended, TaskWriter

VALUES = SinkColumns(record=("value",), has_topic=False, has_partition=True)


class FakeProducer:
    """Appends at once to partitions that are lists."""

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, int] = {}
        self.sent: list[int] = []
        self.fail = False

    def send_arrow(
        self, topic: str, data: pa.RecordBatch | pa.Table, *, partition: int | None
    ) -> list[Future[AppendedRange]]:
        topic_partition = TopicPartition(topic, partition or 0)
        base = self.partitions.get(topic_partition, 0)
        self.partitions[topic_partition] = base + data.num_rows
        self.sent.append(data.num_rows)
        future: Future[AppendedRange] = Future()
        if self.fail:
            future.set_exception(PartitionOfflineError("the disk is gone"))
        else:
            future.set_result(
                AppendedRange(topic, topic_partition.partition, base, data.num_rows, 0)
            )
        return [future]


def rows(count: int, *, partition: int = 0) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"value": [b"x" * 100] * count, "partition": pa.array([partition] * count, pa.int32())}
    )


def deliver(
    producer: FakeProducer, *arrow_batches: pa.RecordBatch
) -> dict[TopicPartition, Appended]:
    made = TaskWriter(cast(Producer, producer), VALUES, topic="t")
    return made.write(arrow_batches)


def test_small_arrow_batches_are_collected_to_one_record_batch() -> None:
    producer = FakeProducer()
    appended = deliver(producer, *[rows(10)] * 5, rows(0), rows(7, partition=1))
    assert producer.sent == [50, 7]
    assert appended == {
        TopicPartition("t", 0): Appended(50, 0, 50),
        TopicPartition("t", 1): Appended(7, 0, 7),
    }


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ([30, 8, 8], [30, 16]),  # of some 100 bytes: more than is wanted, and together about it
        ([19, 19], [19, 19]),  # each by itself is nearer to it than both together
        ([12, 12, 12], [24, 12]),
    ],
)
def test_rows_are_sent_when_they_are_about_a_record_batch(
    given: list[int], sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "RECORD_BATCH_BYTES", 2_000)
    producer = FakeProducer()
    appended = deliver(producer, *map(rows, given))
    assert producer.sent == sent
    assert appended == {TopicPartition("t", 0): Appended(sum(given), 0, sum(given))}


def test_many_destinations_do_not_take_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "MAX_WAITING_BYTES", 5_000)
    producer = FakeProducer()
    deliver(producer, *[rows(10 + n, partition=n) for n in range(10)])
    assert len(producer.sent) == 10
    assert producer.sent != sorted(producer.sent)  # the largest went first, not the first


def test_a_failed_append_fails_the_task() -> None:
    producer = FakeProducer()
    producer.fail = True
    with pytest.raises(PartitionOfflineError, match="the disk is gone"):
        deliver(producer, rows(10))


def test_no_rows_send_nothing() -> None:
    producer = FakeProducer()
    assert deliver(producer) == {}
    assert producer.sent == []


@pytest.mark.parametrize(
    ("columns", "unplaced"),
    [
        ({"value": [b"a", b"b"]}, {"t": 2}),
        ({"value": [b"a", b"b"], "key": pa.array([b"k", None], pa.binary())}, {"t": 1}),
        ({"value": [b"a", b"b"], "key": [b"k", b""]}, {}),
        (
            {
                "value": [b"a", b"b", b"c"],
                "key": pa.array([None, None, b"k"], pa.binary()),
                "partition": pa.array([1, None, None], pa.int32()),
            },
            {"t": 1},
        ),
    ],
)
def test_rows_that_say_nothing_of_where_they_go_are_counted(
    columns: dict[str, object], unplaced: dict[str, int]
) -> None:
    names = tuple(name for name in ("value", "key") if name in columns)
    sink = SinkColumns(record=names, has_topic=False, has_partition="partition" in columns)
    made = TaskWriter(cast(Producer, FakeProducer()), sink, topic="t")
    made.write([pa.RecordBatch.from_pydict(columns)] * 2)
    assert made.unplaced == {topic: 2 * count for topic, count in unplaced.items()}

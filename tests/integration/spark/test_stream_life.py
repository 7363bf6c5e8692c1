"""Streams whose topics come and go, whose micro-batches fail, and what they are joined to."""

from __future__ import annotations

import random

import pytest
from pyspark.errors import StreamingQueryException

from spark_logbus.errors import UnknownTopicError
from tests.helpers import spanning, wait_until
from tests.servers.cluster import Logbus
from tests.servers.spark import MODES, PREFETCHED, Streams, finish, in_both_modes_at_length


def numbered(count: int, start: int = 0) -> list[str]:
    return [f"{number:05d}" for number in range(start, start + count)]


class PlannedError(Exception):
    pass


@pytest.mark.long
def test_latest_stays_after_a_failed_first_micro_batch(logbus: Logbus, streams: Streams) -> None:
    topic = logbus.topic()
    logbus.produce(topic, numbered(5))

    def fail(batch: int) -> None:
        raise PlannedError(batch)

    streams.before_batch = fail
    with pytest.raises(StreamingQueryException, match="PlannedError"):
        finish(streams.start(streams.source(subscribe=topic)))
    logbus.produce(topic, numbered(3, 100))
    streams.before_batch = lambda _: None
    assert streams.run(subscribe=topic) == numbered(3, 100)


@pytest.mark.long
@in_both_modes_at_length
def test_a_failed_micro_batch_is_read_again_despite_new_partitions(
    logbus: Logbus, streams: Streams
) -> None:
    topic = logbus.topic(partitions=2)
    logbus.produce(topic, numbered(6))
    logbus.produce(topic, numbered(6, 100), partition=1)
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "4"}

    def fail_at_second(batch: int) -> None:
        if batch == 1:
            raise PlannedError(batch)

    streams.before_batch = fail_at_second
    with pytest.raises(StreamingQueryException, match="PlannedError"):
        finish(streams.start(streams.source(**options)))
    assert streams.values() == [*numbered(2), *numbered(2, 100)]
    logbus.admin.alter_topic(topic, partitions=3)
    logbus.produce(topic, numbered(3, 200), partition=2)
    seen_before: dict[int, list[str]] = {}
    streams.before_batch = lambda batch: seen_before.update({batch: streams.values()})
    assert streams.run(**options) == [*numbered(4, 2), *numbered(4, 102), *numbered(3, 200)]
    assert seen_before[1] == []
    # The one that failed has the same records again; the new partition comes after it.
    assert seen_before[2] == [*numbered(2, 2), *numbered(2, 102)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("streams", "fail_on_data_loss"), spanning([*MODES], ["true", "false"]), indirect=["streams"]
)
def test_a_topic_that_is_deleted_while_a_micro_batch_reads_it(
    logbus: Logbus, streams: Streams, fail_on_data_loss: str
) -> None:
    topic, other = logbus.topic(), logbus.topic()
    logbus.produce(topic, numbered(5))
    logbus.produce(other, numbered(5, 100))
    streams.before_batch = lambda batch: None if batch else logbus.admin.delete_topic(topic)
    options = {"subscribe": f"{topic},{other}", "startingOffsets": "earliest"}
    query = streams.start(streams.source(**options, failOnDataLoss=fail_on_data_loss))
    # A prefetch has all records by then, and the loss is one for the next micro-batch.
    prefetched = numbered(5) if streams.mode == PREFETCHED else []
    if fail_on_data_loss == "true":
        with pytest.raises(StreamingQueryException, match=f"topic {topic} was deleted"):
            finish(query)
        # Else the micro-batch would have been handed on without the topic's records.
        assert streams.values() == (prefetched and [*prefetched, *numbered(5, 100)])
    else:
        finish(query)
        assert streams.values() == [*prefetched, *numbered(5, 100)]


@pytest.mark.parametrize(
    ("how", "fail_on_data_loss"), spanning(["deleted", "recreated"], ["true", "false"])
)
@pytest.mark.long
def test_available_now_notices_vanished_records(
    logbus: Logbus, streams: Streams, how: str, fail_on_data_loss: str
) -> None:
    topic = logbus.topic()
    logbus.produce(topic, numbered(10))

    def lose(batch: int) -> None:
        if batch == 1:
            logbus.admin.delete_topic(topic)
            if how == "recreated":
                logbus.topic(name=topic)
                logbus.produce(topic, numbered(20, 500))

    options = {
        "subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "3",
        "failOnDataLoss": fail_on_data_loss,
    }  # fmt: skip
    streams.before_batch = lose
    query = streams.start(streams.source(**options))
    read = numbered(6 if streams.mode == PREFETCHED else 3)  # a prefetch was faster
    if fail_on_data_loss == "true":
        how_told = "deleted and created again" if how == "recreated" else "deleted"
        with pytest.raises(StreamingQueryException, match=f"lost: topic {topic} was {how_told}"):
            finish(query)
        assert streams.values() == read
    else:
        finish(query)
        # The run goes no further than it set out to; the next one reads what is left.
        again = numbered(20, 500) if how == "recreated" else []
        assert streams.values() == read + again[:10]
        streams.before_batch = lambda _: None
        assert streams.run(**options) == again[10:]


@pytest.mark.long
def test_available_now_reads_nothing_that_came_after_its_start(
    logbus: Logbus, streams: Streams
) -> None:
    prefix = f"{logbus.topic(partitions=2)}-now"
    one, two = logbus.topic(partitions=2, name=f"{prefix}-1"), f"{prefix}-2"
    logbus.produce(one, numbered(10))

    def append(batch: int) -> None:
        if batch == 0:
            logbus.produce(one, numbered(5, 100))
            logbus.produce(one, numbered(5, 200), partition=1)
            logbus.produce(logbus.topic(name=two), numbered(5, 300))

    options = {"subscribePattern": f"{prefix}-.*", "startingOffsets": "earliest"}
    streams.before_batch = append
    assert streams.run(**options, maxOffsetsPerTrigger="4") == numbered(10)
    streams.before_batch = lambda _: None
    assert streams.run(**options) == [*numbered(5, 100), *numbered(5, 200), *numbered(5, 300)]


@pytest.mark.long
def test_a_stream_joined_to_itself(logbus: Logbus, streams: Streams) -> None:
    topic = logbus.topic(partitions=2)
    logbus.produce(topic, numbered(4))
    logbus.produce(topic, numbered(4, 2), partition=1)
    source = streams.source(subscribe=topic, startingOffsets="earliest")
    left = source.selectExpr("value", "offset AS left_offset")
    right = source.selectExpr("value AS also", "offset AS right_offset")
    finish(streams.start(left.join(right, left["value"] == right["also"])))
    # 2 and 3 are in both partitions: each of the two meets each of the two.
    assert streams.values() == sorted([*numbered(6), *numbered(2, 2) * 3])
    assert streams.tasks[0] == [streams.mode == PREFETCHED] * 2


@pytest.mark.slow
@pytest.mark.timeout(600)
@in_both_modes_at_length
def test_topics_that_come_and_go_at_random_under_load(logbus: Logbus, streams: Streams) -> None:
    dice = random.Random(5)
    prefix = f"random-{streams.mode}"
    source = streams.source(
        subscribePattern=f"{prefix}-.*", startingOffsets="earliest", failOnDataLoss="false"
    )
    query = streams.start(source, available_now=False)
    kept = logbus.topic(name=f"{prefix}-kept", partitions=2)
    expected = ["kept-at-first"]
    alive: list[str] = []

    def all_kept_were_read() -> bool:
        assert query.isActive, query.exception()
        return [row["topic"] for row in streams.rows].count(kept) >= len(expected)

    logbus.produce(kept, expected)
    # So that topics come and go under a query that plans, not while Spark starts its process:
    # Spark gives that 10 s, which the load can take up on a busy machine.
    wait_until(all_kept_were_read, deadline_s=60, message="the first micro-batch")
    for number in range(60):
        match dice.choice(["add", "drop", "grow", "produce"]):
            case "add":
                alive.append(logbus.topic(name=f"{prefix}-{number}"))
            case "drop" if alive:
                logbus.admin.delete_topic(alive.pop(dice.randrange(len(alive))))
            case "grow" if alive:
                topic = dice.choice(alive)
                grown = len(logbus.spans(topic)) + 1
                logbus.admin.alter_topic(topic, partitions=grown)
        for topic in alive:
            try:
                logbus.produce(topic, [f"passing-{number}"])
            except UnknownTopicError:
                raise AssertionError(f"{topic} was not deleted") from None
        values = [f"kept-{number:03d}-{each}" for each in range(20)]
        logbus.produce(kept, values, partition=number % 2)
        expected += values
    wait_until(all_kept_were_read, deadline_s=120)
    query.stop()
    assert [v for v in streams.values() if v.startswith("kept")] == sorted(expected)
    read = [(row["topic"], row["partition"], row["offset"]) for row in streams.rows]
    assert len(read) == len(set(read)), "a record was read twice"

"""Rewinds of a group whose query runs, idles, is stopped, or is in the middle of a replay."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from spark_logbus.clock import SystemClock
from spark_logbus.coordination.groups.offsets import GroupOffsets
from spark_logbus.coordination.groups.rewinds import GroupRewinds
from spark_logbus.model import (
    AtOffset,
    AtTimestamp,
    Earliest,
    LastDuration,
    LastRecords,
    Latest,
    TopicPartition,
)
from spark_logbus.offsets.position import ShiftBack
from spark_logbus.offsets.rewind import Target, apply, describe, prepare
from spark_logbus.offsets.snapshot import take_snapshot
from spark_logbus.selection import Topics
from spark_logbus.zookeeper import Session
from tests.helpers import spanning, wait_until
from tests.servers.cluster import Logbus
from tests.servers.spark import MODES, Streams, finish, in_both_modes_at_length


def numbered(count: int, start: int = 0) -> list[str]:
    return [f"{number:05d}" for number in range(start, start + count)]


def rewind(logbus: Logbus, group: str, topic: str, target: Target) -> None:
    """Does what the command line does with ``--execute``."""
    with Session(logbus.zookeeper, client_name="test") as session:
        snapshot = take_snapshot(logbus.admin, Topics((topic,)), missing_ok=False)
        groups = GroupOffsets(session)
        now_us = SystemClock().now_us
        made = prepare(
            group, target, admin=logbus.admin, groups=groups, snapshot=snapshot, now_us=now_us
        )
        apply(made, rewinds=GroupRewinds(session), by="test", why="a test")


def offsets_of(streams: Streams) -> list[dict[str, Any]]:
    """The source's offset of each micro-batch, as the checkpoint has it."""
    logs = sorted((streams.checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    return [json.loads(path.read_text().splitlines()[-1]) for path in logs]


def started(topic: str, group: str, **more: str) -> dict[str, str]:
    return {"subscribe": topic, "group": group, "startingOffsets": "earliest", **more}


LONG_AGO_US = 1_700_000_000_000_000
HOUR_US = 3_600_000_000


@pytest.mark.long
@pytest.mark.parametrize(
    ("streams", "trigger"),
    spanning([*MODES], [{}, {"processingTime": "1 second"}]),
    indirect=["streams"],
)
def test_a_running_query_follows_at_once(
    logbus: Logbus, streams: Streams, trigger: dict[str, str]
) -> None:
    """Idle before each rewind: nothing is appended that would make it look."""
    topic = logbus.topic()
    topic_partition = TopicPartition(topic, 0)
    for number, value in enumerate(numbered(10)):
        logbus.produce(topic, [value], timestamp_us=LONG_AGO_US + number * HOUR_US)
    group = f"live-rewind-{topic}"
    rows: list[str] = []

    def collect(frame: DataFrame, batch_id: int) -> None:
        rows.extend(row["value"].decode() for row in frame.collect())

    writer = streams.source(**started(topic, group)).writeStream.foreachBatch(collect)
    writer = writer.option("checkpointLocation", str(streams.checkpoint))
    query = (writer.trigger(**trigger) if trigger else writer).start()
    streams.queries.append(query)

    def done() -> bool:
        assert query.isActive, str(query.exception())
        return logbus.committed(group) == {topic_partition: 10}

    wait_until(done, deadline_s=60, message="the first micro-batch and its commit")
    # Hours apart, so that it does not matter how long this test takes.
    targets: list[tuple[Target, int]] = [
        (AtOffset(7), 3),
        (AtTimestamp(LONG_AGO_US + 4 * HOUR_US), 6),
        (LastDuration(SystemClock().now_us() - LONG_AGO_US - 7 * HOUR_US - HOUR_US // 2), 2),
        (ShiftBack(4), 4),
        (LastRecords(1), 1),
        (Earliest(), 10),
    ]
    for target, count in targets:
        rows.clear()
        rewind(logbus, group, topic, target)
        wait_until(lambda n=count: len(rows) == n, deadline_s=60, message=describe(target))  # type: ignore[misc]
        assert rows == numbered(count, 10 - count)
        wait_until(done, message="the commit after the replay")
    progress = [one for one in query.recentProgress if one["numInputRows"]][-1]
    end = json.loads(progress["sources"][0]["endOffset"])
    assert (end["from"], end["to"], end["rewind_epoch"]) == (
        {topic: {"0": 0}},
        {topic: {"0": 10}},
        len(targets),
    )


@pytest.mark.long
def test_a_stopped_query_follows_a_recreated_groups_rewind(
    logbus: Logbus, streams: Streams, group: str
) -> None:
    topic = logbus.topic()
    logbus.produce(topic, numbered(10))
    options = started(topic, group)
    assert len(streams.run(**options)) == 10
    rewind(logbus, group, topic, AtOffset(4))
    assert len(streams.run(**options)) == 6
    assert offsets_of(streams)[-1]["rewind_epoch"] == 1
    with Session(logbus.zookeeper, client_name="test") as session:
        wait_until(lambda: not GroupOffsets(session).owners(group))
        GroupOffsets(session).delete(group)
    rewind(logbus, group, topic, AtOffset(7))
    assert len(streams.run(**options)) == 3
    assert offsets_of(streams)[-1]["rewind_epoch"] == 1
    assert streams.run(**options) == [], "it is followed once"


@pytest.mark.long
@in_both_modes_at_length
def test_a_restart_in_a_replay_repeats_the_same_ranges(
    logbus: Logbus, streams: Streams, group: str
) -> None:
    topic = logbus.topic(partitions=2)
    logbus.produce(topic, numbered(10))
    logbus.produce(topic, numbered(10, 100), partition=1)
    options = started(topic, group, maxOffsetsPerTrigger="6")
    assert len(streams.run(**options)) == 20
    first = len(offsets_of(streams))
    logbus.rewind(group, {TopicPartition(topic, 0): 2, TopicPartition(topic, 1): 6})
    seen: dict[int, list[str]] = {}

    def failing(frame: DataFrame, batch_id: int) -> None:
        values = sorted(row["value"].decode() for row in frame.collect())
        if batch_id == first + 1 and batch_id not in seen:
            seen[batch_id] = values
            raise RuntimeError("a crash in the second micro-batch of the replay")
        assert seen.get(batch_id, values) == values
        seen[batch_id] = values

    def run() -> None:
        writer = streams.source(**options).writeStream.foreachBatch(failing)
        writer = writer.option("checkpointLocation", str(streams.checkpoint))
        finish(writer.trigger(availableNow=True).start())

    with pytest.raises(StreamingQueryException, match="a crash in the second"):
        run()
    written = offsets_of(streams)
    logbus.produce(topic, numbered(5, 50))
    run()
    assert offsets_of(streams)[: len(written)] == written
    again = sorted(value for values in seen.values() for value in values)
    assert again == [*numbered(8, 2), *numbered(5, 50), *numbered(4, 106)]
    assert [len(values) for values in seen.values()] == [6, 6, 5]
    assert logbus.committed(group) == logbus.ends(topic)


def during(
    logbus: Logbus, streams: Streams, options: dict[str, str], acts: dict[int, Callable[[], None]]
) -> list[list[str]]:
    """An AvailableNow run, with something happening during some of its micro-batches; what each
    of them read."""
    batches: list[list[str]] = []

    def collect(frame: DataFrame, batch_id: int) -> None:
        acts.get(len(batches), lambda: None)()
        batches.append([row["value"].decode() for row in frame.collect()])

    writer = streams.source(**options).writeStream.foreachBatch(collect)
    writer = writer.option("checkpointLocation", str(streams.checkpoint))
    finish(writer.trigger(availableNow=True).start())
    return batches


@pytest.mark.long
def test_rewinds_during_a_replay_win_over_it(logbus: Logbus, streams: Streams, group: str) -> None:
    topic = logbus.topic()
    logbus.produce(topic, numbered(10))
    options = started(topic, group, maxOffsetsPerTrigger="4")
    batches = during(
        logbus,
        streams,
        options,
        {
            1: lambda: rewind(logbus, group, topic, AtOffset(2)),
            2: lambda: rewind(logbus, group, topic, AtOffset(7)),
        },
    )
    assert batches == [numbered(4), numbered(4, 4), numbered(4, 2), numbered(3, 7)]
    assert logbus.committed(group) == logbus.ends(topic)
    assert streams.run(**options) == []


@pytest.mark.long
def test_available_now_skips_to_the_end_beyond_its_own(
    logbus: Logbus, streams: Streams, group: str
) -> None:
    """Skips by a rewind what was appended since the run began: it does not come later."""
    topic = logbus.topic()
    logbus.produce(topic, numbered(10))
    options = started(topic, group, maxOffsetsPerTrigger="4")

    def skip() -> None:
        logbus.produce(topic, numbered(5, 50))
        rewind(logbus, group, topic, Latest())
        logbus.produce(topic, numbered(2, 90))

    batches = during(logbus, streams, options, {0: skip})
    assert [batch for batch in batches if batch] == [numbered(4)]
    assert streams.run(**options) == numbered(2, 90)
    assert logbus.committed(group) == logbus.ends(topic)


@pytest.mark.long
def test_partitions_that_the_query_does_not_read_are_left_alone(
    logbus: Logbus, streams: Streams, group: str
) -> None:
    topic, other = logbus.topic(partitions=2), logbus.topic()
    for partition in range(2):
        logbus.produce(topic, numbered(4, 100 * partition), partition=partition)
    logbus.produce(other, numbered(4, 500))
    options = {"assign": json.dumps({topic: [0]}), "group": group, "startingOffsets": "earliest"}
    assert streams.run(**options) == numbered(4)
    unread = {TopicPartition(topic, 1): 1, TopicPartition(other, 0): 2}
    logbus.rewind(group, unread)
    assert streams.run(**options) == []
    logbus.rewind(group, {TopicPartition(topic, 0): 3, TopicPartition(topic, 1): 0})
    assert streams.run(**options) == numbered(1, 3)
    found = logbus.committed(group)
    assert found == {**unread, TopicPartition(topic, 1): 0, TopicPartition(topic, 0): 4}


@pytest.mark.long
def test_a_partition_that_the_query_has_not_seen_yet(
    logbus: Logbus, streams: Streams, group: str
) -> None:
    topic = logbus.topic()
    logbus.produce(topic, numbered(4))
    options = started(topic, group)
    assert streams.run(**options) == numbered(4)
    logbus.admin.alter_topic(topic, partitions=2)
    logbus.produce(topic, numbered(4, 100), partition=1)
    logbus.rewind(group, {TopicPartition(topic, 1): 3})
    assert streams.run(**options) == numbered(1, 103)


@pytest.mark.long
def test_a_rewind_of_a_topic_that_was_recreated_since(
    logbus: Logbus, streams: Streams, group: str
) -> None:
    topic = logbus.topic()
    logbus.produce(topic, numbered(4))
    options = started(topic, group, failOnDataLoss="false")
    assert streams.run(**options) == numbered(4)
    logbus.rewind(group, {TopicPartition(topic, 0): 3})
    logbus.admin.delete_topic(topic)
    logbus.topic(name=topic)
    logbus.produce(topic, numbered(6, 100))
    assert streams.run(**options) == numbered(6, 100)  # the rewind was of another topic
    rewind(logbus, group, topic, AtOffset(4))
    assert streams.run(**options) == numbered(2, 104)


@pytest.mark.long
def test_a_new_checkpoint_starts_where_its_options_say(
    logbus: Logbus, streams: Streams, group: str
) -> None:
    topic = logbus.topic()
    logbus.produce(topic, numbered(6))
    options = started(topic, group)
    assert streams.run(**options) == numbered(6)
    rewind(logbus, group, topic, AtOffset(2))
    streams.checkpoint = streams.checkpoint.with_name("second")
    assert streams.run(**options | {"startingOffsets": "committed"}) == numbered(4, 2)
    rewind(logbus, group, topic, AtOffset(2))
    streams.checkpoint = streams.checkpoint.with_name("third")
    assert streams.run(**options | {"startingOffsets": "latest"}) == []
    assert logbus.committed(group) == logbus.ends(topic)
    assert streams.run(**options) == []

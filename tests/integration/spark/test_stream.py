"""``spark.readStream.format("logbus")``: micro-batches, restarts, groups, and what gets lost."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_logbus.datasource.stream_offset import VERSION
from spark_logbus.model import TopicPartition
from tests.helpers import spanning, wait_until
from tests.servers.cluster import Logbus
from tests.servers.spark import MODES, PREFETCHED, Streams, finish


def numbered(count: int, start: int = 0) -> list[str]:
    return [f"{number:05d}" for number in range(start, start + count)]


def offsets_in(checkpoint: Path) -> list[dict[str, Any]]:
    """The source's offset in each entry of the checkpoint's offset log."""
    logs = sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    return [json.loads(path.read_text().splitlines()[-1]) for path in logs]


def test_available_now_takes_limited_micro_batches(logbus: Logbus, streams: Streams) -> None:
    topic = logbus.topic(partitions=2)
    logbus.produce(topic, numbered(30))
    logbus.produce(topic, numbered(10, 100), partition=1)
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "16"}
    group = f"limited-{topic}"
    query = finish(streams.start(streams.source(**options, group=group)))
    assert streams.values() == numbered(30) + numbered(10, 100)
    progress = [one for one in query.recentProgress if one["numInputRows"]]
    assert [one["numInputRows"] for one in progress] == [16, 16, 8]
    assert [entry["to"][topic] for entry in offsets_in(streams.checkpoint)] == [
        {"0": 12, "1": 4},
        {"0": 24, "1": 8},
        {"0": 30, "1": 10},
    ]
    assert logbus.committed(group) == logbus.ends(topic)


@pytest.mark.parametrize(
    ("streams", "fail_on_data_loss"), spanning([*MODES], ["true", "false"]), indirect=["streams"]
)
def test_restart_reads_exactly_the_gap(
    logbus: Logbus, streams: Streams, fail_on_data_loss: str
) -> None:
    topic = logbus.topic(partitions=2)
    group = f"gap-{topic}"
    options = {"subscribe": topic, "group": group, "failOnDataLoss": fail_on_data_loss}
    logbus.produce(topic, numbered(5))
    assert streams.run(**options) == []  # from latest
    logbus.produce(topic, numbered(5, 100), partition=1)
    assert streams.run(**options) == numbered(5, 100)
    assert streams.run(**options) == []
    logbus.produce(topic, numbered(3, 200))
    assert streams.run(**options, startingOffsets="earliest") == numbered(3, 200)
    assert logbus.committed(group) == logbus.ends(topic)


@pytest.mark.long
def test_a_running_query_takes_up_new_records_and_new_topics(
    logbus: Logbus, streams: Streams, group: str
) -> None:
    one, two = (f"live-{streams.mode}-{name}" for name in ("one", "two"))
    logbus.topic(name=one)
    logbus.produce(one, numbered(3))
    pattern = f"live-{streams.mode}-.*"
    source = streams.source(subscribePattern=pattern, startingOffsets="earliest", group=group)
    query = streams.start(source, available_now=False)
    wait_until(lambda: len(streams.rows) == 3, deadline_s=60, message="the first records")
    logbus.topic(name=two, partitions=2)
    logbus.produce(two, numbered(3, 100), partition=1)
    wait_until(lambda: len(streams.rows) == 6, deadline_s=60, message="the new topic")
    logbus.produce(one, numbered(1, 200))
    wait_until(lambda: len(streams.rows) == 7, deadline_s=60, message="new records")
    ends = {**logbus.ends(one), **logbus.ends(two)}
    # The last micro-batch is committed while the query idles, before another one comes.
    wait_until(lambda: logbus.committed(group) == ends, message="the group's commit")
    reported = query.lastProgress
    assert reported is not None
    query.stop()
    assert streams.values() == [*numbered(3), *numbered(3, 100), *numbered(1, 200)]


@pytest.mark.long
def test_committed_start_after_a_rewind(logbus: Logbus, streams: Streams, group: str) -> None:
    topic = logbus.topic(partitions=2)
    logbus.produce(topic, numbered(10))
    logbus.produce(topic, numbered(2, 100), partition=1)
    logbus.rewind(group, {TopicPartition(topic, 0): 8})
    read = streams.run(subscribe=topic, group=group, startingOffsets="committed")
    assert read == [*numbered(2, 8), *numbered(2, 100)]


@pytest.mark.long
def test_a_rewind_takes_effect_on_a_checkpoint(
    logbus: Logbus, streams: Streams, group: str
) -> None:
    topic = logbus.topic()
    topic_partition = TopicPartition(topic, 0)
    logbus.produce(topic, numbered(10))
    options = {"subscribe": topic, "group": group, "startingOffsets": "earliest"}
    assert streams.run(**options) == numbered(10)
    logbus.rewind(group, {topic_partition: 6})
    assert logbus.committed(group) == {topic_partition: 6}
    assert streams.run(**options) == numbered(4, 6)
    assert logbus.committed(group) == {topic_partition: 10}
    assert streams.run(**options) == []


@pytest.mark.long
def test_assigned_partitions_and_offsets(logbus: Logbus, streams: Streams) -> None:
    topic = logbus.topic(partitions=3)
    for partition in range(3):
        logbus.produce(topic, numbered(4, 100 * partition), partition=partition)
    read = streams.run(
        assign=json.dumps({topic: [0, 2]}),
        startingOffsets=json.dumps({topic: {"0": 2, "2": -2}}),
        includeHeaders="true",
    )
    assert read == [*numbered(2, 2), *numbered(4, 200)]


@pytest.mark.long
def test_two_streams_in_one_query(logbus: Logbus, streams: Streams) -> None:
    one, two = logbus.topic(), logbus.topic()
    logbus.produce(one, numbered(3))
    logbus.produce(two, numbered(3, 100))
    both = [streams.source(subscribe=topic, startingOffsets="earliest") for topic in (one, two)]
    finish(streams.start(both[0].union(both[1])))
    assert streams.values() == numbered(3) + numbered(3, 100)
    assert streams.tasks == [[streams.mode == PREFETCHED] * 2]
    logbus.produce(two, numbered(1, 200))
    both = [streams.source(subscribe=topic, startingOffsets="earliest") for topic in (one, two)]
    finish(streams.start(both[0].union(both[1])))
    assert streams.values() == numbered(1, 200)


@pytest.mark.parametrize(  # fewer records than before, as many, and more
    ("streams", "count"), spanning([*MODES], [3, 5, 7]), indirect=["streams"]
)
@pytest.mark.long
def test_a_recreated_topic(logbus: Logbus, streams: Streams, count: int) -> None:
    topic = logbus.topic()
    logbus.produce(topic, numbered(5))
    group = f"recreated-{topic}"
    options = {"subscribe": topic, "startingOffsets": "latest", "group": group}
    assert streams.run(**options | {"startingOffsets": "earliest"}) == numbered(5)
    logbus.admin.delete_topic(topic)
    logbus.topic(name=topic)
    logbus.produce(topic, numbered(count, 100))
    with pytest.raises(
        StreamingQueryException, match=f"topic {topic} was deleted and created again"
    ):
        streams.run(**options)
    assert streams.run(**options, failOnDataLoss="false") == numbered(count, 100)
    assert logbus.committed(group) == logbus.ends(topic)
    assert streams.run(**options) == []


@pytest.mark.long
def test_a_deleted_topic_of_a_pattern(logbus: Logbus, streams: Streams) -> None:
    prefix = f"shrink-{streams.mode}"
    gone, kept = f"{prefix}-a", f"{prefix}-b"
    for name in (gone, kept):
        logbus.topic(name=name)
        logbus.produce(name, [name])
    options = {"subscribePattern": f"{prefix}-.*", "startingOffsets": "earliest"}
    assert streams.run(**options) == [gone, kept]
    logbus.admin.delete_topic(gone)
    logbus.produce(kept, ["more"])
    with pytest.raises(StreamingQueryException, match=f"topic {gone} was deleted"):
        streams.run(**options)
    assert streams.run(**options, failOnDataLoss="false") == ["more"]
    assert streams.run(**options) == []


@pytest.mark.long
def test_a_topic_that_is_no_longer_selected(logbus: Logbus, streams: Streams) -> None:
    left, kept = logbus.topic(), logbus.topic()
    for topic in (left, kept):
        logbus.produce(topic, [topic])
    options = {"startingOffsets": "earliest"}
    assert streams.run(subscribe=f"{left},{kept}", **options) == sorted([left, kept])
    logbus.produce(kept, ["more"])
    with pytest.raises(StreamingQueryException, match=f"topic {left}, which the checkpoint names"):
        streams.run(subscribe=kept, **options)
    assert streams.run(subscribe=kept, **options, failOnDataLoss="false") == ["more"]
    assert streams.run(subscribe=f"{left},{kept}", **options) == [left]


@pytest.mark.long
def test_retention_that_overtook_the_query(logbus: Logbus, streams: Streams) -> None:
    topic = logbus.topic(segment_bytes="2048", retention_bytes="4096")
    topic_partition = TopicPartition(topic, 0)
    logbus.produce(topic, numbered(5))
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    assert streams.run(**options) == numbered(5)
    for start in range(100, 200, 10):
        logbus.produce(topic, [value * 50 for value in numbered(10, start)])
    # With less than a segment above its bound, retention is done: the start stays where it is.
    wait_until(
        lambda: logbus.size_bytes(topic_partition) < 4096 + 2048, deadline_s=90, message="retention"
    )
    start, end = logbus.spans(topic)[topic_partition]
    with pytest.raises(
        StreamingQueryException,
        match=f"{topic_partition}: offset 5 was to be read next, but the log now starts at "
        f"{start}. "
        "To go on with what is there, set the option failOnDataLoss to false",
    ):
        streams.run(**options)
    # In the topic the record at offset 5 is number 100.
    left = [value * 50 for value in numbered(end - start, 95 + start)]
    assert streams.run(**options, failOnDataLoss="false") == left


@pytest.mark.long
def test_a_checkpoint_of_a_newer_release(logbus: Logbus, streams: Streams) -> None:
    topic = logbus.topic()
    streams.run(subscribe=topic)
    written = streams.checkpoint / "offsets" / "0"
    written.write_text(written.read_text().replace(f'{{"version": {VERSION},', '{"version": 9,'))
    (streams.checkpoint / "offsets" / ".0.crc").unlink()
    with pytest.raises(
        StreamingQueryException,
        match=r"written by a newer release of logbus: its offset has version 9, this release reads "
        rf"up to {VERSION}\. Upgrade, or start a new checkpoint",
    ):
        streams.run(subscribe=topic)


@pytest.mark.long
def test_a_stopped_query_ends_at_once(
    spark: SparkSession, logbus: Logbus, streams: Streams
) -> None:
    topic = logbus.topic(partitions=2)
    over = threading.Event()

    def keep_coming() -> None:
        while not over.is_set():
            logbus.produce(topic, numbered(10), partition=None)

    with ThreadPoolExecutor() as pool:
        producing = pool.submit(keep_coming)
        try:
            source = streams.source(subscribe=topic, startingOffsets="earliest")
            query = streams.start(source, available_now=False)
            wait_until(lambda: len(streams.rows) > 100, deadline_s=60, message="records")
            # With a limit, stop() raises when it is not over by then.
            spark.conf.set("spark.sql.streaming.stopTimeout", "10s")
            query.stop()
            assert not producing.done()
        finally:
            over.set()
            spark.conf.unset("spark.sql.streaming.stopTimeout")
        producing.result(60)
    assert not query.isActive
    assert query.exception() is None


@pytest.mark.long
def test_a_running_query_takes_up_partitions_that_are_added(
    logbus: Logbus, streams: Streams, group: str
) -> None:
    topic = logbus.topic(partitions=1)
    logbus.produce(topic, numbered(3))
    source = streams.source(subscribe=topic, startingOffsets="earliest", group=group)
    query = streams.start(source, available_now=False)
    wait_until(lambda: len(streams.rows) == 3, deadline_s=60, message="the first records")
    logbus.admin.alter_topic(topic, partitions=3)
    logbus.produce(topic, numbered(3, 100), partition=2)
    wait_until(lambda: len(streams.rows) == 6, deadline_s=60, message="the new partition")
    query.stop()
    assert streams.values() == [*numbered(3), *numbered(3, 100)]

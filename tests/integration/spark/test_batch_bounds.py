"""Where a batch read starts and ends, by time, by offset and in mixtures of both."""

from __future__ import annotations

import json

import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.servers.cluster import Logbus

BEGAN_MS = 1_769_860_800_000
COUNT = 10  # records in each of two partitions, one each second


def at(second: float) -> int:
    return BEGAN_MS + round(second * 1_000)


@pytest.fixture
def topic(logbus: Logbus) -> str:
    name = logbus.topic(partitions=2)
    for number in range(COUNT):
        for partition in range(2):
            logbus.produce(
                name, [f"{partition}{number}"], partition=partition, timestamp_us=at(number) * 1_000
            )
    return name


def by_partition(topic: str, first: int, second: int) -> str:
    return json.dumps({topic: {"0": first, "1": second}})


def read(spark: SparkSession, logbus: Logbus, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("logbus").option("zookeeper", logbus.zookeeper)
    return reader.options(**options).load(topic)


def read_offsets(frame: DataFrame) -> dict[int, tuple[int, int]]:
    """First offset and count of each partition; the records are the ones that belong there."""
    found: dict[int, list[int]] = {}
    for row in frame.orderBy("partition", "offset").collect():
        assert row["value"].decode() == f"{row['partition']}{row['offset']}"
        found.setdefault(row["partition"], []).append(row["offset"])
    for offsets in found.values():
        assert offsets == list(range(offsets[0], offsets[-1] + 1))
    return {partition: (offsets[0], len(offsets)) for partition, offsets in found.items()}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {0: (0, 10), 1: (0, 10)}),
        ({"startingTimestamp": str(at(3))}, {0: (3, 7), 1: (3, 7)}),
        ({"startingTimestamp": "2026-01-31T12:00:03Z"}, {0: (3, 7), 1: (3, 7)}),
        ({"endingTimestamp": str(at(3))}, {0: (0, 3), 1: (0, 3)}),
        ({"startingOffsets": "-2 records", "endingOffsets": "-1 record"}, {0: (8, 1), 1: (8, 1)}),
        # No record is that young: up to the end.
        ({"startingTimestamp": str(at(8)), "endingTimestamp": str(at(99))}, {0: (8, 2), 1: (8, 2)}),
        (
            {"startingTimestamp": str(at(99)), "startingOffsetsByTimestampStrategy": "latest"},
            {},
        ),
    ],
)
@pytest.mark.long
def test_bounds_for_all_partitions(
    spark: SparkSession,
    logbus: Logbus,
    topic: str,
    options: dict[str, str],
    expected: dict[int, tuple[int, int]],
) -> None:
    assert read_offsets(read(spark, logbus, topic, **options)) == expected


@pytest.mark.long
def test_times_and_offsets_mixed(spark: SparkSession, logbus: Logbus, topic: str) -> None:
    times = by_partition(topic, at(2), at(4.5))
    offsets = by_partition(topic, 6, -1)
    frame = read(spark, logbus, topic, startingOffsetsByTimestamp=times, endingOffsets=offsets)
    assert read_offsets(frame) == {0: (2, 4), 1: (5, 5)}
    offsets = by_partition(topic, -2, 1)
    frame = read(spark, logbus, topic, startingOffsets=offsets, endingOffsetsByTimestamp=times)
    assert read_offsets(frame) == {0: (0, 2), 1: (1, 4)}
    # In one partition no record is as young as the end: up to its end. A start is an error then.
    times = by_partition(topic, at(99), at(4.5))
    frame = read(spark, logbus, topic, startingOffsets=offsets, endingOffsetsByTimestamp=times)
    assert read_offsets(frame) == {0: (0, 10), 1: (1, 4)}
    lenient = {"startingOffsetsByTimestampStrategy": "latest"}
    frame = read(spark, logbus, topic, startingOffsetsByTimestamp=times, **lenient)
    assert read_offsets(frame) == {1: (5, 5)}
    with pytest.raises(PySparkException, match=f"{topic}-0 has no record at or after 2026-01-31"):
        read(spark, logbus, topic, startingOffsetsByTimestamp=times).count()


@pytest.mark.long
def test_the_more_special_option_wins(spark: SparkSession, logbus: Logbus, topic: str) -> None:
    weakest = {
        "startingOffsets": by_partition(topic, 1, 1), "endingOffsets": by_partition(topic, 3, 3)
    }  # fmt: skip
    assert read_offsets(read(spark, logbus, topic, **weakest)) == {0: (1, 2), 1: (1, 2)}
    stronger = {
        **weakest,
        "startingOffsetsByTimestamp": by_partition(topic, at(4), at(4)),
        "endingOffsetsByTimestamp": by_partition(topic, at(7), at(7)),
    }
    assert read_offsets(read(spark, logbus, topic, **stronger)) == {0: (4, 3), 1: (4, 3)}
    strongest = {**stronger, "startingTimestamp": str(at(8)), "endingTimestamp": str(at(9))}
    assert read_offsets(read(spark, logbus, topic, **strongest)) == {0: (8, 1), 1: (8, 1)}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingTimestamp": str(at(99))}, "no record at or after 2026-01-31T12:01:39"),
        (
            {"startingTimestamp": str(at(5)), "endingTimestamp": str(at(2))},
            "startingTimestamp and endingTimestamp: .* would start at 5 and end at 2",
        ),
        ({"startingOffsets": "-1"}, "could mean two things"),
    ],
)
def test_bounds_that_mean_nothing(
    spark: SparkSession, logbus: Logbus, topic: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(PySparkException, match=said):
        read(spark, logbus, topic, **options).count()


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_an_offset_that_the_log_does_not_reach(
    spark: SparkSession, logbus: Logbus, topic: str, option: str
) -> None:
    beyond = {option: by_partition(topic, COUNT + 5, 3)}
    with pytest.raises(
        PySparkException,
        match=f"{topic}-0: expected records up to offset 15, but the log now ends at 10",
    ):
        read(spark, logbus, topic, **beyond).count()
    calm = read(spark, logbus, topic, **beyond, failOnDataLoss="false")
    expected = {1: (3, 7)} if option == "startingOffsets" else {0: (0, 10), 1: (0, 3)}
    assert read_offsets(calm) == expected


@pytest.mark.long
def test_a_frame_united_with_itself(spark: SparkSession, logbus: Logbus, topic: str) -> None:
    frame = read(spark, logbus, topic).select("partition", "offset", "value")
    both = frame.union(frame)
    assert both.count() == 4 * COUNT
    assert_df_equality(both.distinct(), frame, ignore_row_order=True)
    halves = [
        read(spark, logbus, topic, endingTimestamp=str(at(4))),
        read(spark, logbus, topic, startingTimestamp=str(at(4))),
    ]
    whole = read(spark, logbus, topic)
    assert_df_equality(halves[0].union(halves[1]), whole, ignore_row_order=True)


def test_records_without_headers(spark: SparkSession, logbus: Logbus, topic: str) -> None:
    logbus.produce(topic, ["with"], headers=[("a", b"1"), ("a", None)])
    frame = read(spark, logbus, topic, includeHeaders="true", startingOffsets="-2 records")
    found = {row["value"]: row["headers"] for row in frame.collect()}
    assert found[b"09"] is None
    assert [tuple(header) for header in found[b"with"]] == [("a", b"1"), ("a", None)]


def test_no_task_has_more_records_than_allowed(
    spark: SparkSession, logbus: Logbus, topic: str
) -> None:
    frame = read(spark, logbus, topic, maxRecordsPerPartition="3")
    assert frame.rdd.getNumPartitions() == 8
    sizes = frame.rdd.mapPartitions(lambda rows: [sum(1 for _ in rows)]).collect()
    assert sum(sizes) == 2 * COUNT
    assert max(sizes) <= 3

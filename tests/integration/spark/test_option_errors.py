"""Errors of options as a user of Spark meets them: the option, what it was given, what to do.

``tests/unit/datasource/test_option_errors.py`` has every option; here is one of each way in.
"""

from __future__ import annotations

import json

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

from tests.servers.cluster import Logbus
from tests.servers.spark import Streams, in_one_mode

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "Exactly one of the options subscribe, assign, subscribePattern is needed; got none"),
        ({"path": "t u"}, "InvalidOptionError: Option load: 't u' cannot name a topic"),
        (
            {"subscribe": "t", "startingOffset": "x"},
            "startingoffset .* did you mean startingOffsets",
        ),
        (
            {"subscribe": "t", "minPartitions": "0"},
            "InvalidOptionError: Option minPartitions:? .*from 1 to 1000000, got '0'",
        ),
        ({"subscribe": "t", "maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger has no meaning"),
        (
            {"subscribe": "no-such-topic"},
            "The cluster has no topic no-such-topic; it has: .*Create",
        ),
        ({"assign": '{"no-such-topic":[0]}'}, "The cluster has no topic no-such-topic"),
    ],
)
def test_a_mistake_of_a_batch_read_is_told_by_spark(
    spark: SparkSession, logbus: Logbus, options: dict[str, str], said: str
) -> None:
    reader = spark.read.format("logbus").options(zookeeper=logbus.zookeeper, **options)
    with pytest.raises(PySparkException, match=said):
        reader.load().count()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"subscribe": "no-such-topic"},
            "The cluster has no topic no-such-topic; it has: .*Create",
        ),
        (
            {"subscribe": "t", "endingOffsets": "latest"},
            "InvalidOptionError: Option endingOffsets has no meaning for a streaming read",
        ),
        (
            {"subscribe": "t", "maxOffsetsPerTrigger": "0"},
            "InvalidOptionError: Option maxOffsetsPerTrigger:? .*got '0'",
        ),
    ],
)
@in_one_mode
def test_a_mistake_of_a_stream_is_told_by_spark(
    streams: Streams, options: dict[str, str], said: str
) -> None:
    with pytest.raises(StreamingQueryException, match=said):
        streams.run(**options)


@pytest.mark.parametrize("option", ["startingOffsets", "startingOffsetsByTimestamp"])
@in_one_mode
def test_partitions_that_a_start_lacks_or_has_too_many(
    spark: SparkSession, logbus: Logbus, streams: Streams, option: str
) -> None:
    topic = logbus.topic(partitions=2)
    options = {"subscribe": topic, option: json.dumps({topic: {"0": 1, "2": 1}})}
    said = (
        f"Option {option} must name exactly the partitions that are read: it lacks {topic}-1 "
        rf"\(-2 is earliest, -1 latest\); it names {topic}-2, which are not read"
    )
    with pytest.raises(PySparkException, match=said):
        spark.read.format("logbus").options(zookeeper=logbus.zookeeper, **options).load().count()
    with pytest.raises(StreamingQueryException, match=said):
        streams.run(**options)

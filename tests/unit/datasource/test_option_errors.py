"""Options that make no sense: the error names the option, the value it was given, and a remedy."""

from __future__ import annotations

import json

import pytest

from spark_logbus.datasource.options import KNOWN, STREAM_ONLY, parse_options, schema_options
from spark_logbus.errors import InvalidOptionError

# Option, value, what is said about it; the options that a batch read has.
BATCH = [
    ("zookeeper", " ", "is empty; give a value or leave it out"),
    ("zookeeper", "localhost:2181:1", "'localhost:2181:1' is not a server; use .host:port,"),
    ("zookeeper", "localhost:2181/a b", "has the unusable part 'a b'"),
    ("profile", "prod", "is 'prod', but zookeeper says where the cluster is too"),
    ("subscribe", "t,,u", "expected topic names with commas between them, got 't,,u'"),
    ("subscribe", "t/u", "'t/u' cannot name a topic"),
    ("subscribe", "t;u", "'t;u' cannot name a topic"),
    ("assign", "t", "'t' is not valid JSON"),
    (
        "assign",
        '{"t":[]}',
        r"expected a list of partitions for topic t, such as \[0, 1\], got \[\]",
    ),
    ("assign", '{"t":[-1]}', "expected partition numbers from 0 on for topic t, got -1"),
    ("subscribePattern", "t[", r"'t\[' is not a regular expression"),
    ("group", "a/b", "'a/b' cannot name a group"),
    ("startingOffsets", "soon", "expected earliest, latest, .* got 'soon'"),
    ("startingOffsets", "latest", "cannot start at latest .* give earliest or offsets"),
    ("startingOffsets", "committed", "committed needs the option group"),
    ("startingOffsets", "-1", "could mean two things; write earliest or latest, or '-1 records'"),
    ("startingOffsets", "-5 moons", "'5 moons'"),
    ("startingOffsets", '{"t":{"0":-3}}', r"an offset, -2 \(earliest\) or -1 .* for t-0, got -3"),
    ("startingOffsets", '{"t":{"x":1}}', "partition numbers from 0 on for topic t, got 'x'"),
    ("startingTimestamp", "noon", "such as 2026-01-31T12:00:00Z, got 'noon'"),
    ("startingTimestamp", "-5", r"milliseconds since 1970 \(0 to \d+\) or .* got '-5'"),
    ("startingTimestamp", str((1 << 63) - 1), r"\(0 to \d+\) or .* got '9223372036854775807'"),
    (
        "startingOffsetsByTimestamp",
        json.dumps({"t": {"0": (1 << 63) - 1}}),
        r"milliseconds since 1970 \(0 to 9223372036854775\) for t-0, got 9223372036854775807",
    ),
    ("startingOffsetsByTimestamp", '{"t":{"3":-1}}', "since 1970 .* for t-3, got -1"),
    ("startingOffsetsByTimestampStrategy", "earliest", "expected error or latest, got 'earliest'"),
    ("endingTimestamp", "noon", "such as 2026-01-31T12:00:00Z, got 'noon'"),
    ("endingTimestamp", str(1 << 63), r"\(0 to \d+\) or .* got '9223372036854775808'"),
    ("endingOffsetsByTimestamp", '{"t":{"0":-1}}', "since 1970 .* for t-0, got -1"),
    ("endingOffsets", "earliest", "cannot end at earliest .* give latest or offsets"),
    ("endingOffsets", '{"t":{"0":-2}}', "cannot end at earliest .* give latest or offsets"),
    ("failOnDataLoss", "yes", "expected true or false, got 'yes'"),
    ("includeHeaders", "1", "expected true or false, got '1'"),
    ("columns", "a,,b", "expected different names with commas between them, got 'a,,b'"),
    ("flatten", "1", "expected true or false, got '1'"),
    ("schemaVersion", "0", "expected a whole number from 1 to 2147483647, got '0'"),
    ("onUndecodable", "skip", "expected one of fail, drop, keep, got 'skip'"),
    ("rack", " ", "is empty; give a value or leave it out"),
    ("minPartitions", "0", "expected a whole number from 1 to 1000000, got '0'"),
    ("minPartitions", "-3", "expected a whole number from 1 to 1000000, got '-3'"),
    ("minPartitions", "1.5", "expected a whole number from 1 to 1000000, got '1.5'"),
    ("minPartitions", "1000001", "expected a whole number from 1 to 1000000, got '1000001'"),
    ("maxRecordsPerPartition", "0", r"expected a whole number from 1 to \d+, got '0'"),
    ("maxBytesPerInputPartition", "5 pints", "bytes such as 536870912 or 512m, got '5 pints'"),
    ("columns", "a, a", "expected different names with commas between them, got 'a, a'"),
    ("flatten", "yes", "expected true or false, got 'yes'"),
    ("schemaVersion", "newest", r"expected a whole number from 1 to \d+, got 'newest'"),
]

# What only streaming reads have, and some of what they share with batch reads.
STREAM = [
    ("startingOffsets", "committed", "committed needs the option group"),
    ("startingTimestamp", str((1 << 63) - 1), r"\(0 to \d+\) or .* got '9223372036854775807'"),
    (
        "startingOffsetsByTimestamp",
        json.dumps({"t": {"0": (1 << 63) - 1}}),
        r"milliseconds since 1970 \(0 to 9223372036854775\) for t-0, got 9223372036854775807",
    ),
    ("minPartitions", "0", "expected a whole number from 1 to 1000000, got '0'"),
    ("endingOffsets", "latest", "has no meaning for a streaming read, .* remove it"),
    ("endingTimestamp", "5", "has no meaning for a streaming read, .* remove it"),
    ("endingOffsetsByTimestamp", "{}", "has no meaning for a streaming read, .* remove it"),
    ("maxOffsetsPerTrigger", "0", r"expected a whole number from 1 to \d+, got '0'"),
    ("maxOffsetsPerTrigger", str(1 << 63), r"from 1 to \d+, got '9223372036854775808'"),
    ("minOffsetsPerTrigger", "few", r"expected a whole number from 1 to \d+, got 'few'"),
    ("maxBytesPerTrigger", "much", "bytes such as 536870912 or 512m, got 'much'"),
    ("maxTriggerDelay", "soon", "got 'soon'"),
    ("maxPrefetchBytes", "-1", "bytes such as 536870912 or 512m, got '-1'"),
    ("maxPrefetchBytes", "some", "bytes such as 536870912 or 512m, got 'some'"),
]


def parse(options: dict[str, str], *, streaming: bool) -> None:
    """Parses ``options`` as a read does, which asks for its schema first."""
    given = {"zookeeper": "z:1", **options}
    schema_options(given)
    parse_options(given, streaming=streaming)


def with_a_topic(option: str, value: str) -> dict[str, str]:
    selects = option in ("subscribe", "assign", "subscribePattern")
    return {option: value} if selects else {"subscribe": "t", option: value}


@pytest.mark.parametrize(("option", "value", "said"), BATCH)
def test_a_batch_read_names_option_value_and_remedy(option: str, value: str, said: str) -> None:
    with pytest.raises(InvalidOptionError, match=f"Option {option}:? .*{said}"):
        parse(with_a_topic(option, value), streaming=False)


@pytest.mark.parametrize(("option", "value", "said"), STREAM)
def test_a_stream_names_option_value_and_remedy(option: str, value: str, said: str) -> None:
    with pytest.raises(InvalidOptionError, match=f"Option {option}:? .*{said}"):
        parse(with_a_topic(option, value), streaming=True)


def test_each_option_is_among_them() -> None:
    """``path`` stands for ``subscribe``; see below."""
    assert {option for option, _, _ in BATCH} == {*KNOWN} - {*STREAM_ONLY, "path"}
    assert {option for option, _, _ in STREAM} >= {*STREAM_ONLY}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "Exactly one of the options subscribe, assign, subscribePattern is needed; got none"),
        ({"path": "t u"}, "Option load: 't u' cannot name a topic"),
        ({"subscribe": "t", "path": "u"}, r"either load\('u'\), which means subscribe, or"),
        ({"subscribe": "t", "assign": '{"t":[0]}'}, "is needed; got subscribe and assign"),
        (
            {"subscribe": "t", "startingOffset": "x"},
            "startingoffset .* did you mean startingOffsets",
        ),
        ({"subscribe": "t", "kafka.bootstrap.servers": "b:1"}, "did you mean zookeeper"),
        ({"subscribe": "t", "kafka.group.id": "g"}, "did you mean group"),
        ({"subscribe": "t", "groupIdPrefix": "g"}, "did you mean group"),
        ({"subscribe": "t", "kafkaConsumer.pollTimeoutMs": "5"}, "for Kafka's client; remove it"),
        ({"subscribe": "t", "fetchOffset.numRetries": "5"}, "for Kafka's client; remove it"),
        ({"subscribe": "t", "kafka.security.protocol": "SSL"}, "for Kafka's client; remove it"),
        ({"subscribe": "t", "maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger has no meaning"),
        (
            {"subscribe": "t", "maxPrefetchBytes": "0"},
            "maxPrefetchBytes has no meaning for a batch",
        ),
        ({"subscribe": "t", "group": "g"}, "Option group: a batch read commits nothing"),
    ],
)
def test_mistakes_of_a_batch_read(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidOptionError, match=said):
        parse(options, streaming=False)


def test_a_minimum_above_the_maximum_of_a_micro_batch() -> None:
    said = "minOffsetsPerTrigger is 9, more than maxOffsetsPerTrigger, which is 5; lower one"
    limits = {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}
    with pytest.raises(InvalidOptionError, match=said):
        parse({"subscribe": "t", **limits}, streaming=True)

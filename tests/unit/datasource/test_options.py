"""Source options: parsed once, refused by name."""

from __future__ import annotations

import pytest

from spark_logbus.datasource.options import SourceOptions, parse_options, schema_options
from spark_logbus.errors import InvalidOptionError
from spark_logbus.model import (
    AtOffset,
    AtTimestamp,
    Earliest,
    LastDuration,
    LastRecords,
    Latest,
    TopicPartition,
)
from spark_logbus.offsets.position import (
    Committed,
    OffsetBound,
    PerPartition,
    Positions,
)
from spark_logbus.offsets.trigger_limits import TriggerLimits
from spark_logbus.selection import Partitions, Pattern, Topics

T0 = TopicPartition("t", 0)


def batch(**options: str) -> SourceOptions:
    return parse_options({"zookeeper": "z:1", **options}, streaming=False)


def stream(**options: str) -> SourceOptions:
    return parse_options({"zookeeper": "z:1", **options}, streaming=True)


def test_defaults_of_a_batch_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOGBUS_ZOOKEEPER", raising=False)
    parsed = parse_options({"subscribe": "t"}, streaming=False)
    assert parsed == SourceOptions(
        zookeeper="localhost:2181/logbus",
        selection=Topics(("t",)),
        starting=OffsetBound(positions=Earliest(), option="startingOffsets"),
        ending=OffsetBound(
            positions=Latest(), option="endingOffsets", latest_without_match=True, is_end=True
        ),
        group=None,
        fail_on_data_loss=True,
        include_headers=False,
        trigger=TriggerLimits(max_delay_ms=900_000),
        max_records_per_partition=None,
        min_partitions=None,
        max_bytes_per_input_partition=512 << 20,
    )


def test_defaults_of_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGBUS_ZOOKEEPER", "z:2181/x")
    parsed = parse_options({"subscribe": "t"}, streaming=True)
    assert (parsed.zookeeper, parsed.starting.positions) == ("z:2181/x", Latest())


def test_a_bad_environment_variable_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOGBUS_ZOOKEEPER", "http://z:2181")
    with pytest.raises(InvalidOptionError, match=r"not given, and \$LOGBUS_ZOOKEEPER .* 'http:'"):
        parse_options({"subscribe": "t"}, streaming=False)


@pytest.mark.parametrize(("word", "version"), [("latest", None), ("-1", None), ("3", 3)])
def test_versions_of_a_schema(word: str, version: int | None) -> None:
    options = parse_options({"subscribe": "t", "schemaVersion": word}, streaming=False)
    assert options.values.version == version


@pytest.mark.parametrize(
    ("options", "selection"),
    [
        ({"subscribe": "b, a,b"}, Topics(("a", "b"))),
        ({"SUBSCRIBE": "t"}, Topics(("t",))),
        ({"path": "t,u"}, Topics(("t", "u"))),
        ({"assign": '{"t":[0]}'}, Partitions((T0,))),
        ({"subscribePattern": "t.*"}, Pattern("t.*")),
    ],
)
def test_selections(options: dict[str, str], selection: object) -> None:
    assert batch(**options).selection == selection


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"minPartitions": "7"}, {"min_partitions": 7}),
        ({"maxBytesPerInputPartition": "64m"}, {"max_bytes_per_input_partition": 64 << 20}),
        ({"maxBytesPerInputPartition": "1000"}, {"max_bytes_per_input_partition": 1000}),
        ({"failOnDataLoss": "FALSE"}, {"fail_on_data_loss": False}),
        ({"includeHeaders": "true"}, {"include_headers": True}),
        ({"maxRecordsPerPartition": "9"}, {"max_records_per_partition": 9}),
    ],
)
def test_values(options: dict[str, str], expected: dict[str, object]) -> None:
    parsed = batch(subscribe="t", **options)
    assert {name: getattr(parsed, name) for name in expected} == expected


AT_0 = PerPartition(((T0, AtTimestamp(5_000)),))


@pytest.mark.parametrize(
    ("options", "option", "positions"),
    [
        ({"startingOffsets": "committed", "group": "g"}, "startingOffsets", Committed()),
        ({"startingOffsets": "-1000"}, "startingOffsets", LastRecords(1000)),
        ({"startingOffsets": "-10 minutes"}, "startingOffsets", LastDuration(600_000_000)),
        ({"startingTimestamp": "5"}, "startingTimestamp", AtTimestamp(5_000)),
        ({"startingOffsetsByTimestamp": '{"t":{"0":5}}'}, "startingOffsetsByTimestamp", AT_0),
        # The more special option wins, whatever the others say.
        (
            {"startingOffsetsByTimestamp": '{"t":{"0":5}}', "startingOffsets": '{"t":{"0":7}}'},
            "startingOffsetsByTimestamp",
            AT_0,
        ),
        (
            {"startingTimestamp": "6", "startingOffsetsByTimestamp": '{"t":{"0":5}}'},
            "startingTimestamp",
            AtTimestamp(6_000),
        ),
    ],
)
def test_starts(options: dict[str, str], option: str, positions: Positions) -> None:
    assert batch(subscribe="t", **options).starting == OffsetBound(
        positions=positions, option=option
    )


@pytest.mark.parametrize(
    ("options", "option", "positions"),
    [
        ({"endingOffsets": '{"t":{"0":5}}'}, "endingOffsets", PerPartition(((T0, AtOffset(5)),))),
        ({"endingOffsets": "-1 day"}, "endingOffsets", LastDuration(86_400_000_000)),
        (
            {"endingTimestamp": "1970-01-01T00:00:01Z", "endingOffsets": "latest"},
            "endingTimestamp",
            AtTimestamp(1_000_000),
        ),
        (
            {"endingOffsetsByTimestamp": '{"t":{"0":5}}', "endingOffsets": "latest"},
            "endingOffsetsByTimestamp",
            AT_0,
        ),
    ],
)
def test_ends(options: dict[str, str], option: str, positions: Positions) -> None:
    expected = OffsetBound(
        positions=positions, option=option, latest_without_match=True, is_end=True
    )
    assert batch(subscribe="t", **options).ending == expected


def test_strategy_of_timestamps() -> None:
    at = {"startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "LATEST"}
    assert stream(subscribe="t", **at).starting.latest_without_match


def test_limits_of_a_micro_batch() -> None:
    parsed = stream(
        subscribe="t", minOffsetsPerTrigger="5", maxOffsetsPerTrigger="10", maxTriggerDelay="90s",
        maxBytesPerTrigger="64m",
    )  # fmt: skip
    assert parsed.trigger == TriggerLimits(
        max_records=10, min_records=5, max_delay_ms=90_000, max_bytes=64 << 20
    )
    assert parsed.trigger.bounded
    assert not stream(subscribe="t", maxTriggerDelay="1m").trigger.bounded


def test_a_limit_of_long_max_is_a_limit() -> None:
    parsed = stream(subscribe="t", maxOffsetsPerTrigger=str((1 << 63) - 1))
    assert parsed.trigger.max_records == (1 << 63) - 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "subscribe, assign, subscribePattern is needed; got none"),
        ({"subscribe": "t", "assign": '{"t":[0]}'}, "got subscribe and assign"),
        ({"subscribe": "t", "path": "u"}, r"load\('u'\)"),
        ({"subscribe": ""}, "Option subscribe is empty"),
        ({"subscribe": "t,,u"}, "Option subscribe"),
        ({"subscribe": "t/u"}, "Option subscribe: 't/u' cannot name a topic"),
        ({"path": "t u"}, "Option load: 't u' cannot name a topic"),
        ({"assign": "t"}, "Option assign"),
        ({"assign": '{"a/b":[0]}'}, "Option assign: 'a/b'"),
        ({"subscribePattern": "t["}, "Option subscribePattern: .* not a regular expression"),
        ({"subscribe": "t", "startingOffset": "x"}, "did you mean startingOffsets"),
        ({"subscribe": "t", "kafka.bootstrap.servers": "x"}, "did you mean zookeeper"),
        ({"subscribe": "t", "kafka.security.protocol": "x"}, "for Kafka's client; remove it"),
        ({"subscribe": "t", "kafkaConsumer.pollTimeoutMs": "5"}, "for Kafka's client; remove it"),
        ({"subscribe": "t", "startingTimestamp": "-5"}, "Option startingTimestamp: .* got '-5'"),
        ({"subscribe": "t", "startingTimestamp": "noon"}, "Option startingTimestamp: .* 'noon'"),
        (
            {"subscribe": "t", "startingTimestamp": "9223372036854775807"},
            "Option startingTimestamp: .* got '9223372036854775807'",
        ),
        (
            {"subscribe": "t", "endingOffsetsByTimestamp": '{"t":{"0":-1}}'},
            "Option endingOffsetsByTimestamp: .* t-0, got -1",
        ),
        (
            {"subscribe": "t", "startingOffsetsByTimestamp": '{"t":{"0":9223372036854775807}}'},
            "Option startingOffsetsByTimestamp: .* t-0, got 9223372036854775807",
        ),
        ({"subscribe": "t", "startingOffsets": "-1"}, "could mean two things"),
        ({"subscribe": "t", "startingOffsets": "-5 moons"}, "startingOffsets: .* '5 moons'"),
        ({"subscribe": "t", "startingOffsetsByTimestampStrategy": "x"}, "error or latest, got 'x'"),
        ({"subscribe": "t", "maxRecordsPerPartition": "0"}, "Option maxRecordsPerPartition"),
        ({"subscribe": "t", "minOffsetsPerTrigger": "5"}, "minOffsetsPerTrigger .* batch read"),
        ({"subscribe": "t", "kafka.group.id": "x"}, "did you mean group"),
        ({"topic": "t"}, "did you mean subscribe"),
        ({"subscribe": "t", "xyzzy": "1"}, "Option xyzzy is unknown .* known are zookeeper"),
        ({"subscribe": "t", "maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger .* batch read"),
        ({"subscribe": "t", "minPartitions": "0"}, "Option minPartitions: .* got '0'"),
        ({"subscribe": "t", "minPartitions": "many"}, "Option minPartitions: .* got 'many'"),
        ({"subscribe": "t", "minPartitions": "-3"}, "Option minPartitions"),
        ({"subscribe": "t", "failOnDataLoss": "yes"}, "Option failOnDataLoss: .* 'yes'"),
        ({"subscribe": "t", "maxBytesPerInputPartition": "5 pints"}, "maxBytesPerInputPartition"),
        ({"subscribe": "t", "maxBytesPerInputPartition": "0"}, "maxBytesPerInputPartition"),
        ({"subscribe": "t", "startingOffsets": "latest"}, "startingOffsets: .* latest"),
        ({"subscribe": "t", "startingOffsets": '{"t":{"0":-1}}'}, "startingOffsets: .* latest"),
        ({"subscribe": "t", "startingOffsets": "committed"}, "needs the option group"),
        ({"subscribe": "t", "endingOffsets": "earliest"}, "endingOffsets: .* earliest"),
        ({"subscribe": "t", "endingOffsets": '{"t":{"0":-2}}'}, "endingOffsets: .* earliest"),
        ({"subscribe": "t", "endingOffsets": "committed"}, "endingOffsets: committed is for"),
        ({"subscribe": "t", "group": "a/b"}, "Option group: 'a/b' cannot name a group"),
        ({"subscribe": "t", "group": "g"}, "Option group: a batch read commits nothing"),
    ],
)
def test_batch_refusals_name_the_option(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidOptionError, match=said):
        batch(**options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets .* streaming read, only for a batch read"),
        ({"endingTimestamp": "5"}, "endingTimestamp .* streaming read, only for a batch read"),
        ({"endingOffsetsByTimestamp": "5"}, "endingOffsetsByTimestamp .* streaming read"),
        ({"maxTriggerDelay": "soon"}, "Option maxTriggerDelay: .* got 'soon'"),
        ({"maxBytesPerTrigger": "much"}, "Option maxBytesPerTrigger"),
        (
            {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"},
            "minOffsetsPerTrigger is 9, more than maxOffsetsPerTrigger, which is 5",
        ),
        ({"maxOffsetsPerTrigger": "0"}, "Option maxOffsetsPerTrigger"),
        ({"maxOffsetsPerTrigger": str(1 << 63)}, "Option maxOffsetsPerTrigger"),
    ],
)
def test_stream_refusals_name_the_option(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidOptionError, match=said):
        stream(subscribe="t", **options)


def test_headers_are_known_before_the_kind_of_read() -> None:
    given = {"includeheaders": "true", "endingOffsets": "latest", "subscribe": "t"}
    assert schema_options(given).include_headers
    with pytest.raises(InvalidOptionError, match="did you mean includeHeaders"):
        schema_options({"includeHeader": "true", "subscribe": "t"})

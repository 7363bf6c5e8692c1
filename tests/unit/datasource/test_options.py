"""Source options: parsed once, refused by name."""

from __future__ import annotations

import pytest

from spark_logbus.datasource.options import SourceOptions, parse_options, wants_headers
from spark_logbus.errors import InvalidOptionError
from spark_logbus.model import AtOffset, Earliest, Latest, TopicPartition
from spark_logbus.offsets import Committed, Partitions, Pattern, PerPartition, Topics

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
        starting=Earliest(),
        ending=Latest(),
        group=None,
        fail_on_data_loss=True,
        include_headers=False,
        max_offsets_per_trigger=None,
        min_partitions=None,
        max_bytes_per_input_partition=512 << 20,
    )


def test_defaults_of_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGBUS_ZOOKEEPER", "z:2181/x")
    parsed = parse_options({"subscribe": "t"}, streaming=True)
    assert (parsed.zookeeper, parsed.starting) == ("z:2181/x", Latest())


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
        ({"startingOffsets": "committed", "group": "g"}, {"starting": Committed()}),
        ({"endingOffsets": '{"t":{"0":5}}'}, {"ending": PerPartition(((T0, AtOffset(5)),))}),
    ],
)
def test_values(options: dict[str, str], expected: dict[str, object]) -> None:
    parsed = batch(subscribe="t", **options)
    assert {name: getattr(parsed, name) for name in expected} == expected


def test_a_limit_of_long_max_is_a_limit() -> None:
    parsed = stream(subscribe="t", maxOffsetsPerTrigger=str((1 << 63) - 1))
    assert parsed.max_offsets_per_trigger == (1 << 63) - 1


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
        ({"maxOffsetsPerTrigger": "0"}, "Option maxOffsetsPerTrigger"),
        ({"maxOffsetsPerTrigger": str(1 << 63)}, "Option maxOffsetsPerTrigger"),
    ],
)
def test_stream_refusals_name_the_option(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidOptionError, match=said):
        stream(subscribe="t", **options)


def test_headers_are_known_before_the_kind_of_read() -> None:
    assert wants_headers({"includeheaders": "true", "endingOffsets": "latest"})
    with pytest.raises(InvalidOptionError, match="did you mean includeHeaders"):
        wants_headers({"includeHeader": "true"})

"""Sink options: parsed once, refused by name."""

from __future__ import annotations

import pytest

from spark_logbus.client import Repetition
from spark_logbus.errors import InvalidOptionError
from spark_logbus.model import Acks, Compression
from spark_logbus.sink.options import Delivery, SinkOptions, Transaction, parse_options


def parse(**options: str) -> SinkOptions:
    return parse_options({"zookeeper": "z:1", **options}, overwrite=False)


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGBUS_ZOOKEEPER", "z:2181/x")
    assert parse_options({}, overwrite=False) == SinkOptions(
        zookeeper="z:2181/x", topic=None, acks=None, compression=Compression.NONE
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"TOPIC": "t"}, {"topic": "t"}),
        ({"path": "t"}, {"topic": "t"}),
        ({"path": "t", "topic": "t"}, {"topic": "t"}),
        ({"acks": "Written", "delivery": "at-least-once"}, {"acks": Acks.WRITTEN}),
        ({"acks": "flushed"}, {"acks": Acks.FLUSHED}),
        ({"acks": "replicated"}, {"acks": Acks.REPLICATED}),
        ({}, {"delivery": Delivery.EXACTLY_ONCE, "transaction": None}),
        ({"txnAppId": "a b", "txnVersion": "0"}, {"transaction": Transaction("a b", 0)}),
        ({"audit": "true"}, {"audit": True}),
        ({}, {"audit": False}),
        ({"compression": "zstd"}, {"compression": Compression.ZSTD}),
        ({"checkpointLocation": "/x", "queryName": "q"}, {"topic": None, "checkpoint": "/x"}),
        (
            {"txnAppId": "a", "txnVersion": "0", "repetition": "Dropped"},
            {"repetition": Repetition.DROPPED},
        ),
        ({}, {"repetition": Repetition.CHECKED}),
    ],
)
def test_values(options: dict[str, str], expected: dict[str, object]) -> None:
    parsed = parse(**options)
    assert {name: getattr(parsed, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topics": "t"}, "Option topics is unknown .* did you mean topic"),
        ({"kafka.bootstrap.servers": "x"}, "did you mean zookeeper"),
        ({"kafka.linger.ms": "5"}, "it is for Kafka's client; remove it"),
        ({"xyzzy": "1"}, "known are zookeeper"),
        ({"path": "t", "topic": "u"}, r"save\('t'\)"),
        ({"topic": "a/b"}, "Option topic: 'a/b' cannot name a topic"),
        ({"topic": " "}, "Option topic is empty"),
        ({"zookeeper": "z:0"}, "Option zookeeper: 'z:0' in .* is not a server; use"),
        (
            {"acks": "all"},
            "Option acks: expected one of none, written, flushed, replicated, got 'all'",
        ),
        ({"acks": "none"}, "Option acks is none, which may lose records.*at-least-once"),
        ({"delivery": "exactly_once"}, "expected exactly-once or at-least-once"),
        ({"txnAppId": "a"}, "Option txnAppId is set and txnVersion is not"),
        ({"txnVersion": "1"}, "Option txnVersion is set and txnAppId is not"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "a whole number from 0"),
        ({"txnAppId": "a" * 151, "txnVersion": "1"}, "has 151 characters"),
        (
            {"txnAppId": "a", "txnVersion": "1", "delivery": "at-least-once"},
            "need delivery exactly-once",
        ),
        ({"compression": "gzip"}, "Option compression: expected one of none, lz4, zstd"),
    ],
)
def test_refusals_name_the_option(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidOptionError, match=said):
        parse(**options)


def test_a_stream_is_its_own_transaction() -> None:
    given = {"zookeeper": "z:1", "txnAppId": "a", "txnVersion": "1"}
    with pytest.raises(InvalidOptionError, match="writeStream has its query"):
        parse_options(given, overwrite=False, streaming=True)


def test_overwriting_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match=r"append.*foreachBatch"):
        parse_options({"topic": "t"}, overwrite=True)

"""Messages of Kafka's as record batches, and a topic's configuration as one of logbus."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import pairwise

import pytest

from spark_logbus.client.fetch.batches import EncodedBatch, decoded
from spark_logbus.client.fetch.records import records_of
from spark_logbus.errors import ConfigError, InvalidRequestError
from spark_logbus.mirror.source.kafka import KafkaSource, batches, topic_config
from spark_logbus.model import OffsetRange, TopicPartition
from spark_logbus.record import verify

RANGE = OffsetRange(TopicPartition("t", 0), 10, 100_000)
CREATE_TIME = 1
T0_MS = 1_700_000_000_000


@dataclass
class Message:
    """Message with the methods that Confluent's client has."""

    number: int
    size: int = 10

    def offset(self) -> int:
        return 10 + 2 * self.number  # with gaps, as after a compaction

    def key(self) -> bytes | None:
        return b"%d" % self.number if self.number % 2 else None

    def value(self) -> bytes | None:
        return None if self.number % 5 == 0 else bytes(self.size)

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return [("n", b"%d" % self.number), ("none", None)] if self.number % 3 == 0 else None

    def timestamp(self) -> tuple[int, int]:
        return CREATE_TIME, T0_MS + self.number


def test_messages_become_record_batches_that_name_their_offsets() -> None:
    messages = [Message(number, size=400_000) for number in range(10)]
    found = list(batches(iter(messages), RANGE))
    assert len(found) > 2
    assert sum(batch.record_count for batch in found) == 10
    assert (found[0].start, found[-1].end) == (10, 29)
    assert all(before.end <= after.start for before, after in pairwise(found))
    records = []
    for batch in found:
        raw = EncodedBatch(verify(batch.data), batch.data)
        fetched = decoded(RANGE.topic_partition, raw, start=0, end=100)
        assert fetched is not None
        records += list(records_of(fetched))
    assert [
        (each.key, each.value, list(each.headers) or None, each.timestamp_us) for each in records
    ] == [
        (each.key(), each.value(), each.headers(), (T0_MS + each.number) * 1000)
        for each in messages
    ]


def test_no_messages_are_no_record_batch() -> None:
    assert list(batches(iter([]), RANGE)) == []


def test_what_both_have_of_a_configuration_is_kept() -> None:
    of_kafka = {"retention.ms": "5000", "cleanup.policy": "compact", "unclean.leader": "true"}
    assert topic_config(of_kafka) == {"retention.ms": "5000", "cleanup.policy": "compact"}
    with pytest.raises(ConfigError, match="Kafka's configuration of the topic cannot be kept"):
        topic_config({"segment.bytes": "14"})


def test_the_extra_is_named_where_the_client_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[kafka\]'"):
        KafkaSource("localhost:9092")


class Nameless(Message):
    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return [("n", b"1"), (None, b"2")]  # type: ignore[list-item]

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 3


def test_a_header_without_a_name_is_refused_with_its_place() -> None:
    with pytest.raises(InvalidRequestError, match=r"offset 14 of t-3 .* header without a name"):
        list(batches(iter([Message(0), Nameless(2)]), RANGE))

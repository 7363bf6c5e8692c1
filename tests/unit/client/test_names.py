"""What users write from memory: texts for enums, names of settings and arguments, types."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from spark_logbus import client, model
from spark_logbus.audit.reporter import AuditConfig
from spark_logbus.client import (
    Acks,
    AsyncConsumer,
    ClientConfig,
    Cluster,
    Compression,
    Consumer,
    ConsumerConfig,
    ConsumerRecord,
    Producer,
    ProducerConfig,
)
from spark_logbus.errors import ConfigError, InvalidRequestError
from tests.fakes.broker import FakeCluster


@pytest.mark.parametrize("acks", [Acks.WRITTEN, "written", "WRITTEN"])
@pytest.mark.parametrize("compression", [Compression.ZSTD, "zstd", "Zstd"])
def test_texts_are_taken_where_enums_are(
    fake: FakeCluster, cluster: Cluster, acks: Any, compression: Any
) -> None:
    config = ProducerConfig(acks=acks, compression=compression)
    assert (config.acks, config.compression) == (Acks.WRITTEN, Compression.ZSTD)
    assert config == replace(ProducerConfig(), acks=acks, compression=compression)
    assert pickle.loads(pickle.dumps(config)) == config
    fake.create("t")
    with Producer(cluster, config) as producer:
        assert producer.send_many("t", [b"v" * 50] * 100)[0].result(60).record_count == 100


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"acks": "all"}, "acks is 'all'; use 'none', 'written', 'flushed' or 'replicated', .*"),
        ({"acks": -1}, "acks is -1; .*Did you mean 'replicated'"),
        ({"acks": "1"}, "Did you mean 'written'"),
        ({"acks": "flush"}, "Did you mean 'flushed'"),
        ({"acks": False}, "acks is False; use 'none'"),
        ({"acks": Compression.NONE}, "acks is <Compression"),
        ({"acks": b"flushed"}, "acks is b'flushed'; use"),
        ({"compression": "gzip"}, "compression is 'gzip'; use 'none', 'lz4' or 'zstd'"),
        ({"compression": "z_std"}, "Did you mean 'zstd'"),
        ({"compression": 2}, "compression is 2; use"),
        ({"compression": True}, "compression is True; use"),
        ({"idempotent": "yes"}, "idempotent is 'yes'; use True or False"),
    ],
)
def test_other_values_are_refused_with_those_that_there_are(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        ProducerConfig(**settings)


@pytest.mark.parametrize(
    ("kind", "typo", "message"),
    [
        (ProducerConfig, {"ack": "flushed"}, "'ack' in ProducerConfig; did you mean 'acks'"),
        (ConsumerConfig, {"group_id": "g"}, "did you mean 'group'"),
        (ClientConfig, {"request_timeout": 1}, "did you mean 'request_timeout_ms'"),
        (AuditConfig, {"interval": 1}, "did you mean 'interval_ms'"),
        (ProducerConfig, {"bootstrap": ""}, "known are: acks, "),
    ],
)
def test_settings_that_are_misspelt_are_told(
    kind: Callable[..., object], typo: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        kind(**typo)
    with pytest.raises(ConfigError, match=message):
        replace(kind(), **typo)  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("call", "typo", "message"),
    [
        (Consumer.poll, {"timeout_ms": 1}, "poll has no argument 'timeout_ms'.*in seconds"),
        (Consumer.poll, {"max_record": 1}, "did you mean 'max_records'"),
        (Consumer.poll_arrow, {"timeout_ms": 1}, "poll_arrow .*did you mean 'timeout_s'"),
        (Consumer.poll, {"zzz": 1}, "its arguments are timeout_s, max_records"),
    ],
)
def test_arguments_that_are_misspelt_are_told(
    cluster: Cluster, call: Callable[..., object], typo: dict[str, Any], message: str
) -> None:
    with Consumer(cluster) as consumer, pytest.raises(InvalidRequestError, match=message):
        call(consumer, **typo)


def test_so_are_those_of_an_async_consumer(cluster: Cluster) -> None:
    async def run() -> None:
        async with AsyncConsumer(cluster) as consumer:
            with pytest.raises(InvalidRequestError, match="did you mean 'timeout_s'"):
                await consumer.poll(timeout_ms=1)  # type: ignore[call-arg]
            with pytest.raises(InvalidRequestError, match="did you mean 'timeout_s'"):
                await consumer.poll_arrow(timeout_ms=1)  # type: ignore[call-arg]

    asyncio.run(run())


def test_so_are_those_of_a_producer(cluster: Cluster) -> None:
    with Producer(cluster) as producer:
        for call in (producer.flush, producer.close):
            with pytest.raises(InvalidRequestError, match=r"did you mean 'timeout_s'.* in seconds"):
                call(timeout_ms=1)  # type: ignore[call-arg]
        producer.flush(timeout_s=1)


def test_what_calls_take_comes_from_one_place() -> None:
    names = (
        "Acks AtOffset AtTimestamp Compression Earliest LastDuration LastRecords Latest "
        "OffsetRange OffsetSpec TopicPartition"
    )
    for name in names.split():
        assert getattr(client, name) is getattr(model, name)
        assert name in client.__all__
    for name in client.__all__:
        assert getattr(client, name) is not None


def values(consumer: Consumer[bytes | None]) -> list[int]:
    """A type checker knows that a value is bytes or None, and that there is nothing else."""

    def size(record: ConsumerRecord[bytes | None]) -> int:
        return len(record.value or b"")

    return [size(record) for record in consumer.poll(60)]


def titles(consumer: Consumer[dict[str, str]]) -> list[str]:
    return [record.value["title"] for record in consumer.poll(60)]


def anything(record: ConsumerRecord) -> object:
    return record.value.whatever


def test_values_have_a_type_for_those_who_say_it(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    config = ConsumerConfig(start="earliest")
    with Producer(cluster) as producer, Consumer[bytes | None](cluster, config) as consumer:
        producer.send("t", b"12345").result(60)
        consumer.assign_topics("t")
        assert values(consumer) == [5]

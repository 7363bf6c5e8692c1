"""A Kafka cluster as the source: records become record batches, in the partitions that they have.

A consumer is assigned partitions at offsets by hand, so no group of Kafka's is needed, and reads
what is committed. A range ends at an offset, not after a number of records: markers of transactions
and what compaction has removed take offsets too, so a range that is read again is the same.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from spark_logbus.errors import (
    BrokerUnavailableError,
    ConfigError,
    InvalidRequestError,
    LogbusError,
    OffsetOutOfRangeError,
    TopicRecreatedError,
    UnknownTopicError,
)
from spark_logbus.log.config import LogConfig
from spark_logbus.mirror.source.source import SourceBatch, SourceTopic, TargetSchemaIds
from spark_logbus.model import Compression, Header, OffsetRange, TopicPartition
from spark_logbus.offsets.snapshot import Span
from spark_logbus.record.rows.builder import ArrowBatchBuilder, record_size
from spark_logbus.selection import Selection, matching_topics, named_topics

_CONNECT_S: Final = 5.0
_REQUEST_S: Final = 15.0
_SILENT_S: Final = 30.0  # a range that brings nothing for so long is tried again later
_POLL_S: Final = 0.5
_MESSAGES: Final = 5_000  # of a call
_BATCH_BYTES: Final = 1 << 20
# About what a record takes in Kafka, where its offsets say nothing of sizes: a range is cut to
# offsets, and its bytes are bounded by what a round reads at most.
_GUESSED_RECORD_BYTES: Final = 200
# Keys of a topic's configuration that logbus has under the same name and in the same form.
_SAME_KEYS: Final = ("retention.ms", "retention.bytes", "segment.bytes", "max.message.bytes")


def client_library() -> Any:
    """Raises ConfigError, which names the extra, where it is not installed."""
    try:
        return importlib.import_module("confluent_kafka")
    except ImportError as error:
        raise ConfigError(
            "To copy from Kafka takes Confluent's client, which is not installed; "
            "`pip install '.[kafka]'` in a clone of logbus brings it."
        ) from error


def topic_config(kafka: Mapping[str, str]) -> dict[str, str]:
    """The configuration of the copy, by that of Kafka's topic: what both have. Pure."""
    config = {key: kafka[key] for key in _SAME_KEYS if key in kafka}
    if "compact" in kafka.get("cleanup.policy", ""):
        config["cleanup.policy"] = kafka["cleanup.policy"]
    try:
        LogConfig.from_topic_config(config, LogConfig())
    except ConfigError as error:
        raise ConfigError(f"Kafka's configuration of the topic cannot be kept: {error}") from error
    return config


class KafkaSource:
    """Thread-safe: each range is read with a consumer of its own."""

    def __init__(self, bootstrap: str, settings: Mapping[str, Any] | None = None) -> None:
        """``settings`` are librdkafka's, as for encryption."""
        self._library = client_library()
        self._settings = {"bootstrap.servers": bootstrap, "log_level": 3, **(settings or {})}
        self.name = f"Kafka at {bootstrap}"
        self._admin = importlib.import_module("confluent_kafka.admin").AdminClient(self._settings)
        self._looking = self._consumer()

    def connect(self) -> None:
        """BrokerUnavailableError while no broker answers; the library itself tries for ever."""
        try:
            self._looking.list_topics(timeout=_CONNECT_S)
        except self._library.KafkaException as error:
            raise BrokerUnavailableError(
                f"{self.name} did not answer within {_CONNECT_S:.0f} s: {error.args[0].str()}. Is "
                "it running, and are these its bootstrap servers (host:port,host:port)?"
            ) from error

    def close(self) -> None:
        self._looking.close()

    def _consumer(self) -> Any:
        return self._library.Consumer(
            {
                **self._settings,
                "group.id": "logbus-mirror",  # librdkafka wants one; nothing is committed
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
            }
        )

    # -- topics ---------------------------------------------------------------------------

    def topics(self, selection: Selection) -> dict[str, SourceTopic]:
        kafka = self._library
        try:
            listed = self._looking.list_topics(timeout=_REQUEST_S).topics
            names = matching_topics(selection, [name for name in listed if name[:2] != "__"])
            missing = sorted(set(named_topics(selection) or ()) - set(names))
            if missing:
                raise UnknownTopicError(f"{self.name} has no topic {', '.join(missing)}.")
            if not names:
                return {}
            ids = self._topic_ids(names)
            configs = self._configs(names)
            return {
                name: SourceTopic(
                    name,
                    ids[name],
                    configs[name],
                    {number: self._span(name, number) for number in listed[name].partitions},
                )
                for name in names
            }
        except kafka.KafkaException as error:
            raise self._translated("look at topics", error) from error

    def _topic_ids(self, names: Sequence[str]) -> dict[str, str]:
        described = self._admin.describe_topics(self._library.TopicCollection(list(names)))
        return {
            name: str(future.result(timeout=_REQUEST_S).topic_id)
            for name, future in described.items()
        }

    def _configs(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        admin = importlib.import_module("confluent_kafka.admin")
        asked = {admin.ConfigResource(admin.RESOURCE_TOPIC, name): name for name in names}
        found = {}
        for resource, future in self._admin.describe_configs(list(asked)).items():
            entries = future.result(timeout=_REQUEST_S)
            own = {
                key: entry.value
                for key, entry in entries.items()
                if not entry.is_default
                and entry.source == admin.ConfigSource.DYNAMIC_TOPIC_CONFIG.value
            }
            found[asked[resource]] = topic_config(own)
        return found

    def _span(self, name: str, number: int) -> Span:
        at = self._library.TopicPartition(name, number)
        return Span(*self._looking.get_watermark_offsets(at, timeout=_REQUEST_S))

    def cut(self, ranges: Sequence[OffsetRange], *, max_bytes: int) -> list[OffsetRange]:
        most = max(1_000, max_bytes // _GUESSED_RECORD_BYTES // max(1, len(ranges)))
        return [
            OffsetRange(each.topic_partition, each.start, min(each.end, each.start + most))
            for each in ranges
        ]

    def committed(self, group: str, topic_ids: Mapping[str, str]) -> dict[TopicPartition, int]:
        kafka = self._library
        asked = kafka.ConsumerGroupTopicPartitions(group)
        try:
            [future] = self._admin.list_consumer_group_offsets([asked]).values()
            found = future.result(timeout=_REQUEST_S).topic_partitions
        except kafka.KafkaException as error:
            raise self._translated(f"read the offsets of the group {group}", error) from error
        return {
            TopicPartition(each.topic, each.partition): each.offset
            for each in found
            if each.topic in topic_ids and each.offset >= 0
        }

    # -- records --------------------------------------------------------------------------

    def read(
        self, offset_range: OffsetRange, *, topic_id: str, schema_ids: TargetSchemaIds
    ) -> Iterator[SourceBatch]:
        kafka = self._library
        at = offset_range.topic_partition
        consumer = self._consumer()
        try:
            now = self._topic_ids([at.topic])[at.topic]
            if now != topic_id:
                raise TopicRecreatedError(
                    f"The topic {at.topic} of {self.name} was deleted and created again (id "
                    f"{topic_id}, now {now})."
                )
            consumer.assign([kafka.TopicPartition(at.topic, at.partition, offset_range.start)])
            yield from batches(self._messages(consumer, offset_range), offset_range)
        except kafka.KafkaException as error:
            raise self._translated(f"read {offset_range}", error) from error
        finally:
            consumer.close()

    def _messages(self, consumer: Any, offset_range: OffsetRange) -> Iterator[Any]:
        """The messages of a range; it ends at a message after it, or where the log ends."""
        kafka = self._library
        heard_at = time.monotonic()
        while True:
            found = consumer.consume(_MESSAGES, timeout=_POLL_S)
            for message in found:
                error = message.error()
                if error is None:
                    if message.offset() >= offset_range.end:
                        return
                    yield message
                    if message.offset() + 1 >= offset_range.end:
                        return
                elif error.code() == kafka.KafkaError._PARTITION_EOF:
                    if message.offset() >= offset_range.end:
                        return
                else:
                    raise kafka.KafkaException(error)
            if found:
                heard_at = time.monotonic()
            elif time.monotonic() - heard_at > _SILENT_S:
                raise BrokerUnavailableError(
                    f"{self.name} has brought nothing of {offset_range} for {_SILENT_S:.0f} s; it "
                    "may be down, or a transaction there may still be open."
                )

    def _translated(self, what: str, error: Any) -> LogbusError:
        """Kafka's error as one of ours."""
        reason = error.args[0]
        message = f"It was not possible to {what} in {self.name}: {reason.str()}."
        codes = self._library.KafkaError
        if reason.code() in (codes.OFFSET_OUT_OF_RANGE, codes._AUTO_OFFSET_RESET):
            return OffsetOutOfRangeError(f"{message} Kafka deleted them since they were planned.")
        if reason.retriable() or reason.code() < 0:  # librdkafka's own: the network's
            return BrokerUnavailableError(message)
        if reason.code() in (codes.UNKNOWN_TOPIC_OR_PART, codes.UNKNOWN_TOPIC_ID):
            return UnknownTopicError(message)
        return InvalidRequestError(message)


def batches(messages: Iterator[Any], offset_range: OffsetRange) -> Iterator[SourceBatch]:
    """Messages of Kafka's, in the order of their offsets, as record batches of about 1 MiB."""
    builder, size, start, last, time_us = ArrowBatchBuilder(), 0, offset_range.start, -1, 0
    for message in messages:
        key, value, headers = message.key(), message.value(), _headers(message)
        _, time_ms = message.timestamp()
        if last < 0:
            start = message.offset()
        last, time_us = message.offset(), max(0, time_ms) * 1000
        builder.append(value, key, time_us, headers)
        size += record_size(value=value, key=key, headers=headers)
        if size >= _BATCH_BYTES:
            yield _batch(builder, start, last + 1, time_us)
            builder, size, last = ArrowBatchBuilder(), 0, -1
    if last >= 0:
        yield _batch(builder, start, last + 1, time_us)


def _headers(message: Any) -> list[Header] | None:
    headers = [(name, value) for name, value in message.headers() or ()]
    if any(name is None for name, _ in headers):
        raise InvalidRequestError(
            f"The message with the offset {message.offset()} of {message.topic()}-"
            f"{message.partition()} in Kafka has a header without a name, which no record can have."
        )
    return headers or None


def _batch(builder: ArrowBatchBuilder, start: int, end: int, time_us: int) -> SourceBatch:
    data = builder.encoded(Compression.LZ4)
    return SourceBatch(data, start, end, len(builder), time_us)

"""Checks what is to be appended, before any lock is taken."""

from __future__ import annotations

from typing import NamedTuple

from spark_logbus.errors import (
    CorruptRecordBatchError,
    InvalidRequestError,
    RecordBatchTooLargeError,
)
from spark_logbus.model import TopicPartition
from spark_logbus.record import RecordBatchHeader, peek_size, verify


class ValidatedBatch(NamedTuple):
    header: RecordBatchHeader
    data: memoryview


def validate_append(
    topic_partition: TopicPartition,
    data: memoryview,
    *,
    max_record_batch_bytes: int,
    needs_keys: bool = False,
) -> list[ValidatedBatch]:
    """The record batches in ``data``, each whole, verified and within the limit.

    Raises CorruptRecordBatchError, UnsupportedVersionError, RecordBatchTooLargeError or
    InvalidRequestError; nothing of ``data`` is to be appended then.
    """
    batches: list[ValidatedBatch] = []
    position, total = 0, len(data)
    while position < total:
        size = peek_size(data, position)
        if size is None or size > total - position:
            raise CorruptRecordBatchError(
                f"An append to {topic_partition} ends within a record batch: expected "
                f"{size if size is not None else 'a header'} bytes at position {position}, "
                f"got {total - position}."
            )
        if size > max_record_batch_bytes:
            raise RecordBatchTooLargeError(
                f"A record batch of {size} bytes for {topic_partition} is above the limit of "
                f"{max_record_batch_bytes}; send smaller record batches, or raise "
                "max.message.bytes of the topic."
            )
        batch = data if size == total else data[position : position + size]
        header = verify(batch)
        if header.has_offset_delta:
            raise InvalidRequestError(
                f"A record batch for {topic_partition} has gaps in its offsets; only "
                "compaction writes such record batches."
            )
        if needs_keys and not header.has_key and not header.is_control:
            raise InvalidRequestError(
                f"The topic {topic_partition.topic!r} is compacted by key, and a record batch for "
                f"{topic_partition} has no keys; give every record a key, or set cleanup.policy "
                "of the topic to delete."
            )
        batches.append(ValidatedBatch(header, batch))
        position += size
    if not batches:
        raise InvalidRequestError(
            f"An append to {topic_partition} holds no record batch; send at least one."
        )
    return batches

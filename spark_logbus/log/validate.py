"""Checks what is to be appended, before any lock is taken."""

from __future__ import annotations

from typing import NamedTuple

from spark_logbus.errors import (
    CorruptRecordBatchError,
    InvalidRequestError,
    RecordBatchTooLargeError,
    SchemaMismatchError,
)
from spark_logbus.model import TopicPartition
from spark_logbus.record import RecordBatchHeader, peek_size, verify
from spark_logbus.record import format as fmt
from spark_logbus.topic_schemas import PLAIN, VALUE_ENCODING, TopicSchemas


class ValidatedBatch(NamedTuple):
    header: RecordBatchHeader
    data: memoryview


def validate_append(
    topic_partition: TopicPartition,
    data: memoryview,
    *,
    max_record_batch_bytes: int,
    needs_keys: bool = False,
    schemas: TopicSchemas = PLAIN,
) -> list[ValidatedBatch]:
    """The record batches in ``data``, each whole, verified and within the limit.

    Raises CorruptRecordBatchError, UnsupportedVersionError, RecordBatchTooLargeError,
    SchemaMismatchError for a form that is not that of the topic's values, or InvalidRequestError;
    nothing of ``data`` is to be appended then. Whether the subject of the values has the schema id
    is the caller's to know.
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
        if header.schema_id or header.attributes & fmt.LAYOUT_MASK or schemas is not PLAIN:
            _check_form(topic_partition, header, schemas)
        batches.append(ValidatedBatch(header, batch))
        position += size
    if not batches:
        raise InvalidRequestError(
            f"An append to {topic_partition} holds no record batch; send at least one."
        )
    return batches


def _check_form(
    topic_partition: TopicPartition, header: RecordBatchHeader, schemas: TopicSchemas
) -> None:
    """Raise SchemaMismatchError unless layout and schema id are of the topic's encoding."""
    if header.is_control:
        return
    layout = fmt.LAYOUT_COLUMNS if schemas.has_columns else fmt.LAYOUT_ARROW_BATCH
    encoding = schemas.value_encoding
    is_what = (
        "holds plain bytes" if encoding is None else f"has the {VALUE_ENCODING} {encoding.value}"
    )
    if header.layout != layout:
        raise SchemaMismatchError(
            f"The topic {topic_partition.topic!r} {is_what}, so record batches for "
            f"{topic_partition} have the payload layout {layout}, got {header.layout}; write them "
            "as the topic's configuration says."
        )
    if encoding is None and header.schema_id != fmt.PLAIN_BYTES_SCHEMA:
        raise SchemaMismatchError(
            f"The topic {topic_partition.topic!r} {is_what}, so record batches for "
            f"{topic_partition} have the schema id {fmt.PLAIN_BYTES_SCHEMA}, got "
            f"{header.schema_id}; create a topic with a {VALUE_ENCODING} for records with a schema."
        )
    if schemas.has_columns and header.schema_id == fmt.PLAIN_BYTES_SCHEMA:
        raise SchemaMismatchError(
            f"The topic {topic_partition.topic!r} {is_what}, so record batches for "
            f"{topic_partition} have the id of a schema of the subject {schemas.value_subject!r}, "
            f"got {header.schema_id}; register the schema, and write with its id."
        )

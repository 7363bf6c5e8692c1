"""Values of topics with a schema, decoded into Arrow columns of the reader's schema.

A record batch names the schema that its values were written with. Which columns of it are wanted,
and what is to be done to make them the reader's, follows from the two schemas alone and is found
out once for each; then it costs a few calls for a record batch, and nothing for a record.

A schema that is gone, or that does not resolve to the reader's, makes the values undecodable that
were written with it, and no others: what becomes of them is decided as for a value that is no
datum.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import types

from avro_columns.confluent import PREFIX_BYTES, confluent_ids
from avro_columns.decode.decoder import (
    MAX_DECODED_BYTES,
    Decoded,
    Decoder,
    Undecodable,
)
from avro_columns.decode.evolution import Resolver
from avro_columns.errors import BatchTooLargeError, ResolutionError, UnsupportedTypeError
from avro_columns.values.arrow_types import arrow_type
from avro_columns.values.resolved_tree import parse, record_of, with_fields
from spark_logbus.client.fetch.plain_reader import UNDECODABLE, PlainReader
from spark_logbus.client.schemas.topic import ValueSchemas
from spark_logbus.errors import UndecodableRecordError
from spark_logbus.model import OffsetRange, OnUndecodable, TopicPartition
from spark_logbus.protocol import ColumnChoice
from spark_logbus.record import RecordBatchHeader
from spark_logbus.record import format as fmt
from spark_logbus.record.columns.cut_run import find_cut_run
from spark_logbus.record.columns.decoder import decode_columns, verify_selected
from spark_logbus.record.columns.join import column_run, joined_columns, verified_columns
from spark_logbus.record.columns.layout import ColumnSelection, struct_of
from spark_logbus.record.header import verify_against
from spark_logbus.record.rows.plain import integers
from spark_logbus.record.run import RecordBatchRun
from spark_logbus.schemas.avro_errors import logbus_errors
from spark_logbus.topic_schemas import Encoding

logger = logging.getLogger(__name__)

#: Record batches below this come whole: to cut out their columns takes longer than to send them.
LEAST_CUT_BYTES: Final = 32 << 10

# Versions of a schema of which a fetch asks for some fields only; what was written with others
# comes whole.
_MOST_CUT: Final = 16

# What record batches may take that are decoded together: compressed ones, and the columns that are
# made of datums.
_MOST_TOGETHER_BYTES: Final = 32 << 20

#: Remedy for values that do not decode, where the caller of a reader knows no better one.
_REMEDY: Final = (
    "Read with another version of the schema, or have such records left out or kept beside the "
    "others."
)
_NO_BYTES: Final = " (it is stored as columns, so that it has no bytes to show)"
_RECORD_COLUMNS: Final = frozenset({"timestamp", "key", "headers"})
_NO_FIELDS: Final = '{"type": "record", "name": "nothing", "fields": []}'


class ValueReader(PlainReader):
    """Decodes the values of one topic. Thread-safe but for first uses of a schema, which may be
    worked out twice."""

    def __init__(
        self,
        schemas: ValueSchemas,
        *,
        fields: Sequence[str] | None = None,
        columns: Collection[str] = _RECORD_COLUMNS,
        on_undecodable: OnUndecodable = OnUndecodable.FAIL,
        find_writer: Callable[[int], str | None] | None = None,
        remedy: str = _REMEDY,
    ) -> None:
        """``fields`` are those wanted of the reader's schema, whose order they have; None: all; an
        empty sequence: no value is decoded. ``columns`` are those wanted beside the value.
        ``find_writer`` finds schemas that ``schemas`` does not have, by id; None for one
        that there is not. ``remedy`` tells what to do about values that do not decode.

        Raises UnsupportedSchemaError, and SchemaMismatchError for a field that there is not.
        """
        self._schemas = schemas
        self._columns = _RECORD_COLUMNS.intersection(columns)
        self._on_undecodable = on_undecodable
        self._find_writer = find_writer
        self._remedy = remedy
        self._writers: dict[int, _Writer] = {}
        self._fields = None if fields is None else tuple(fields)
        #: The number of records that were left out.
        self.dropped = 0
        with logbus_errors:
            reader = parse(schemas.reader if fields is None or fields else _NO_FIELDS)
            #: The schema of the values.
            self.schema = reader if fields is None else with_fields(record_of(reader), fields)
            #: Their type.
            self.arrow_type = arrow_type(self.schema)

    @property
    def schema_text(self) -> str:
        """The reader's schema as JSON, with all that it refers to."""
        return self._schemas.reader

    @property
    def decodes_datums(self) -> bool:
        """True if values are datums of Avro, and not columns already."""
        return self._schemas.encoding is Encoding.AVRO

    @cached_property
    def choice(self) -> ColumnChoice | None:
        """Columns that a fetch is to ask for; None: everything."""
        if self._schemas.encoding is not Encoding.COLUMNS:
            return None
        chosen = {}
        # The newest, as records have them as a rule, and each takes milliseconds.
        versions = self._schemas.versions
        newest = sorted(self._schemas.writers, key=lambda each: -versions.get(each, each))
        for schema_id in newest[:_MOST_CUT]:
            writer = self._writer(schema_id)
            if writer.problem is None:
                chosen[schema_id] = writer.places
        if self._columns == _RECORD_COLUMNS and all(each is None for each in chosen.values()):
            return None
        fields = {
            schema_id: None if places is None else list(places)
            for schema_id, places in chosen.items()
        }
        return ColumnChoice(sorted(self._columns), fields, LEAST_CUT_BYTES)

    @cached_property
    def takes_all_fields(self) -> bool:
        """True if ``choice`` leaves out no field of any value."""
        choice = self.choice
        return choice is None or all(places is None for places in choice.fields.values())

    def find_chosen(self, data: memoryview) -> RecordBatchRun | None:
        """Returns the record batches of a fetch that asked for ``choice``, as ``find_run`` does."""
        least_bytes = 0 if self.choice is None else self.choice.min_bytes
        return find_cut_run(data, self.cut, least_bytes=least_bytes)

    def cut(self, header: RecordBatchHeader) -> ColumnSelection | None:
        """Returns what comes of that record batch when a fetch asks for ``choice``; None: all of
        it."""
        choice = self.choice
        if (
            choice is None
            or header.layout != fmt.LAYOUT_COLUMNS
            or header.schema_id not in choice.fields
            or header.size < choice.min_bytes
        ):
            return None
        return self._selection(header.schema_id)

    def _selection(self, schema_id: int) -> ColumnSelection:
        return ColumnSelection(self._columns, self._writer(schema_id).places)

    @property
    def _reads_nothing(self) -> bool:
        """True if no value is decoded."""
        return self._fields is not None and not self._fields

    @logbus_errors
    def stored(
        self, header: RecordBatchHeader, data: memoryview, *, is_cut: bool
    ) -> pa.RecordBatch | None:
        """Returns what ``PlainReader.stored`` does; ``value`` of payload layout 1 is a struct
        without fields where its schema is not known or not wanted. Raises CoordinationError where a
        schema has to be looked up."""
        if header.layout != fmt.LAYOUT_COLUMNS:
            return super().stored(header, data, is_cut=is_cut)
        directory = (
            verify_selected(header, data, self._selection(header.schema_id))
            if is_cut
            else verify_against(header, data)
        )
        if header.is_control:
            return None
        found = decode_columns(
            header,
            data,
            self._writer(header.schema_id).stored_type,
            selection=self._selection(header.schema_id),
            is_selected=is_cut,
            directory=directory,
        )
        if "value" not in found:
            found["value"] = struct_of([], [], header.record_count, None)
        return _arrow_batch(found)

    @logbus_errors
    def joined(self, run: RecordBatchRun) -> tuple[int, dict[str, pa.Array]] | None:
        """Returns what ``PlainReader.joined`` does. Raises CoordinationError where a schema has to
        be looked up."""
        header = run.header(0)
        selection = self._selection(header.schema_id)
        stored_type = self._writer(header.schema_id).stored_type
        if stored_type is None:
            return None
        alike = column_run(run, selection)
        if alike is None or not (count := verified_columns(alike)):
            return None
        found = joined_columns(
            alike.part(count), stored_type, selection, max_decoded_bytes=_MOST_TOGETHER_BYTES
        )
        if found is None:
            return None
        if "value" not in found:
            found["value"] = struct_of([], [], int(run.part(0, count).record_counts.sum()), None)
        return count, found

    @logbus_errors
    def as_read(
        self,
        topic_partition: TopicPartition,
        header: RecordBatchHeader,
        stored: pa.RecordBatch,
        rows: range,
    ) -> pa.RecordBatch:
        """Returns those rows of one record batch with ``value`` as the reader's; some records may
        be left out.

        Raises UndecodableRecordError, and CoordinationError where a schema has to be looked up.
        """
        columns = dict(zip(stored.schema.names, stored.columns, strict=True))
        if self._reads_nothing:
            return _arrow_batch(columns | {"value": struct_of([], [], len(rows), None)})
        try:
            decoded = self._decoded(columns["value"], header, MAX_DECODED_BYTES)
        except BatchTooLargeError as error:
            reason = f"its record batch is too large to be decoded ({error.message.rstrip('.')})"
            decoded = self._none_of(columns["value"], reason)
        read = self._told(columns, decoded)
        if not decoded.undecodable or self._on_undecodable is OnUndecodable.KEEP:
            return _arrow_batch(read)
        # The places of the rows where there are no gaps yet.
        read.setdefault("offset_delta", integers(rows, pa.int32()))
        left_out = np.array([each.row for each in decoded.undecodable])
        if self._on_undecodable is OnUndecodable.FAIL:
            deltas = read["offset_delta"]
            first, last = (header.base_offset + deltas[int(left_out[at])].as_py() for at in (0, -1))
            raise UndecodableRecordError(
                f"{len(left_out)} of the records {OffsetRange(topic_partition, first, last + 1)} "
                f"do not decode under the schema; the first has offset {first}: "
                f"{decoded.undecodable[0].reason}. {self._remedy}"
            )
        if not self.dropped:
            first = header.base_offset + read["offset_delta"][int(left_out[0])].as_py()
            logger.warning(
                "Records of %s that do not decode are left out, as the option says; the first is "
                "that at offset %d: %s.",
                topic_partition,
                first,
                decoded.undecodable[0].reason,
            )
        self.dropped += len(left_out)
        stay = pa.array(np.delete(np.arange(len(rows)), left_out))
        return _arrow_batch({name: column.take(stay) for name, column in read.items()})

    @logbus_errors
    def as_read_together(
        self, run: RecordBatchRun, columns: Mapping[str, pa.Array]
    ) -> Mapping[str, pa.Array] | None:
        """Returns what ``as_read`` does, of several record batches that are alike; None if what
        becomes of their records is to be decided one by one."""
        if "value" not in columns:
            return columns
        if self._reads_nothing:
            return {**columns, "value": struct_of([], [], len(columns["value"]), None)}
        try:
            decoded = self._decoded(columns["value"], run.header(0), _MOST_TOGETHER_BYTES)
        except BatchTooLargeError:
            return None
        if decoded.undecodable and self._on_undecodable is not OnUndecodable.KEEP:
            return None
        return self._told(columns, decoded)

    def _told(self, columns: Mapping[str, pa.Array], decoded: Decoded) -> dict[str, pa.Array]:
        read = {**columns, "value": decoded.values}
        if self._on_undecodable is OnUndecodable.KEEP:
            read["undecodable"] = _undecodable(decoded, columns["value"])
        return read

    def _decoded(self, values: pa.Array, header: RecordBatchHeader, max_bytes: int) -> Decoded:
        """``values`` as they were written, or datums, as the reader's.

        Raises BatchTooLargeError for datums that would take more than ``max_bytes``.
        """
        if header.layout != fmt.LAYOUT_COLUMNS and header.schema_id == fmt.PLAIN_BYTES_SCHEMA:
            return self._decoded_framed(values, max_bytes)
        writer = self._writer(header.schema_id)
        if writer.problem is not None:
            return self._none_of(values, writer.problem)
        if header.layout == fmt.LAYOUT_COLUMNS:
            return writer.resolve(values)
        return writer.decode(values, start=0, max_decoded_bytes=max_bytes)

    def _none_of(self, values: pa.Array, reason: str) -> Decoded:
        """Returns nulls for ``values``, none of which decodes but tombstones."""
        there = np.flatnonzero(values.is_valid()).tolist()
        nulls = pa.nulls(len(values), self.arrow_type)
        return Decoded(nulls, [Undecodable(row, reason) for row in there])

    def _decoded_framed(self, datums: pa.Array, max_bytes: int) -> Decoded:
        """Datums in Confluent's wire format; who wrote them may have chosen any id."""
        found = confluent_ids(datums)
        undecodable = list(found.undecodable)
        left = max_bytes
        pieces: list[pa.Array] = []
        order: list[Any] = []
        for framed_id, rows in found.groups().items():
            writer = self._writer(framed_id)
            if writer.problem is not None:
                undecodable += [Undecodable(row, writer.problem) for row in rows.tolist()]
                continue
            part = writer.decode(
                datums.take(pa.array(rows)), start=PREFIX_BYTES, max_decoded_bytes=left
            )
            left -= part.values.nbytes
            undecodable += [Undecodable(int(rows[at.row]), at.reason) for at in part.undecodable]
            pieces.append(part.values)
            order.append(rows)
        undecodable.sort(key=_row)
        if not pieces:
            return Decoded(pa.nulls(len(datums), self.arrow_type), undecodable)
        values = pa.concat_arrays(pieces)
        at = np.full(len(datums), -1, np.int64)
        at[np.concatenate(order)] = np.arange(len(values))
        return Decoded(values.take(pa.array(at, mask=at < 0)), undecodable)

    def _writer(self, schema_id: int) -> _Writer:
        """Raises CoordinationError where it has to be looked up, and cannot be now."""
        writer = self._writers.get(schema_id)
        if writer is not None:
            return writer
        text = self._schemas.writers.get(schema_id)
        if text is None and self._find_writer is not None and not self._reads_nothing:
            text = self._find_writer(schema_id)
        writer = _Writer(self._schemas, schema_id, text, self._fields)
        if text is not None:
            self._writers[schema_id] = writer  # one that there is not may be registered later
        return writer


class _Writer:
    """Values of one schema, and the way by which they become the reader's."""

    def __init__(
        self,
        schemas: ValueSchemas,
        schema_id: int,
        text: str | None,
        fields: tuple[str, ...] | None,
    ) -> None:
        """``text`` is None for an id that stands for no schema."""
        #: Of a record batch of layout 1; None: not known.
        self.stored_type: pa.DataType | None = None
        #: Of the writer's fields that are needed; None: all.
        self.places: tuple[int, ...] | None = None
        #: The reason why its values cannot be read under the reader's schema.
        self.problem: str | None = None
        if fields is not None and not fields:
            self.places = ()
        elif text is None:
            self.places = ()
            self.problem = (
                f"its schema id is {schema_id}, which the topic's subject {schemas.subject!r} does "
                "not have: it was never registered there, or deleted permanently; to have it read, "
                "register it with that id again, in the mode IMPORT of the subject"
            )
        else:
            try:
                self.stored_type = _stored_type(text)
                resolution = _resolution(text, schemas.reader, fields, schemas.encoding)
                self.places = resolution.places
                self.resolve = resolution.resolve
                self.decode = resolution.decode
            except (ResolutionError, UnsupportedTypeError) as error:
                self.problem = (
                    f"{schemas.named(schema_id)} cannot be read under {schemas.reader_name}: "
                    f"{error.message.rstrip('.')}"
                )


class _Resolution:
    """The way from the values of one schema to those of another. Thread-safe."""

    def __init__(
        self, text: str, reader: str, fields: tuple[str, ...] | None, encoding: Encoding
    ) -> None:
        node = parse(text)
        self._resolver = Resolver(node, parse(reader), fields=fields)
        needed = self._resolver.writer_fields
        self.places: tuple[int, ...] | None = None
        stored = arrow_type(node)
        if needed is not None and len(needed) < stored.num_fields:
            self.places = tuple(stored.get_field_index(name) for name in needed)
        if encoding is Encoding.AVRO:
            self._decoder = Decoder(node, fields=needed)

    def resolve(self, values: pa.Array) -> Decoded:
        """Values of a record batch of layout 1 as values of the reader's schema."""
        return self._resolver.resolve(values)

    def decode(self, datums: pa.Array, *, start: int, max_decoded_bytes: int) -> Decoded:
        """Datums as values of the reader's schema. Raises BatchTooLargeError."""
        decoded = self._decoder.decode(datums, start=start, max_decoded_bytes=max_decoded_bytes)
        resolved = self.resolve(decoded.values)
        undecodable = sorted([*decoded.undecodable, *resolved.undecodable], key=_row)
        return Decoded(resolved.values, undecodable)


# A process reads under few schemas, again and again: each of Spark's tasks, and each micro-batch
# that is prefetched, has a reader of its own.
_resolution = lru_cache(maxsize=64)(_Resolution)


@lru_cache(maxsize=64)
def _stored_type(text: str) -> pa.DataType:
    return arrow_type(parse(text))


def _arrow_batch(columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])


def _row(undecodable: Undecodable) -> int:
    return undecodable.row


def _undecodable(decoded: Decoded, values: pa.Array) -> pa.Array:
    """The column ``undecodable``, of ``values`` as they were stored."""
    count = len(decoded.values)
    if not decoded.undecodable:
        return pa.nulls(count, UNDECODABLE)
    rows = np.array([each.row for each in decoded.undecodable])
    if types.is_binary(values.type):
        kept, why = values.take(pa.array(rows)), ""
    else:
        kept, why = pa.nulls(len(rows), pa.binary()), _NO_BYTES
    reasons = pa.array([each.reason + why for each in decoded.undecodable], pa.string())
    told = pa.StructArray.from_arrays([kept, reasons], fields=list(UNDECODABLE))
    at = np.full(count, -1, np.int64)
    at[rows] = np.arange(len(rows))
    return told.take(pa.array(at, mask=at < 0))

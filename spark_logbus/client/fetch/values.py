"""Values of topics with a schema, decoded into Arrow columns of the reader's schema.

A record batch names the schema that its values were written with. Which columns of it are wanted,
and what is to be done to make them the reader's, follows from the two schemas alone and is found
out once for each; then it costs a few calls for a record batch, and nothing for a record.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import types

from spark_logbus.client.value_schemas import ValueSchemas
from spark_logbus.errors import CorruptRecordBatchError, LogbusError, UndecodableRecordError
from spark_logbus.model import OnUndecodable
from spark_logbus.protocol import ColumnChoice
from spark_logbus.record import RecordBatchHeader
from spark_logbus.record import format as fmt
from spark_logbus.record.column_decoder import decode_columns, verify_selected
from spark_logbus.record.column_layout import Selection, struct_of
from spark_logbus.record.header import verify_against
from spark_logbus.record.plain import integers
from spark_logbus.schemas.columns.arrow_types import arrow_type
from spark_logbus.schemas.columns.confluent import PREFIX_BYTES, confluent_ids
from spark_logbus.schemas.columns.decoder import Decoded, Decoder, Undecodable
from spark_logbus.schemas.columns.evolution import Resolver
from spark_logbus.schemas.columns.inlined import Node, parse, record_of, with_fields
from spark_logbus.topic_schemas import Encoding

#: Record batches below this come whole: to cut out their columns takes longer than to send them.
LEAST_CUT_BYTES: Final = 32 << 10

UNDECODABLE: Final = pa.struct([pa.field("value", pa.binary()), pa.field("reason", pa.string())])

_RECORD_COLUMNS: Final = frozenset({"timestamp", "key", "headers"})
_NO_FIELDS: Final = '{"type": "record", "name": "nothing", "fields": []}'


class ValueReader:
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
    ) -> None:
        """``fields`` are those wanted of the reader's schema, whose order they have; None: all; an
        empty sequence: no value is decoded. ``columns`` are those wanted beside the value.
        ``find_writer`` finds schemas that ``schemas`` does not have, by id; None for one
        that there is not.

        Raises UnsupportedSchemaError, and SchemaMismatchError for a field that there is not.
        """
        self._schemas = schemas
        self._columns = _RECORD_COLUMNS.intersection(columns)
        self._on_undecodable = on_undecodable
        self._find_writer = find_writer
        self._writers: dict[int, _Writer] = {}
        self._fields = fields
        self._reader = parse(schemas.reader if fields is None or fields else _NO_FIELDS)
        read = self._reader if fields is None else with_fields(record_of(self._reader), fields)
        #: The type of the values.
        self.arrow_type = arrow_type(read)

    @cached_property
    def choice(self) -> ColumnChoice | None:
        """What a fetch is to ask for; None: everything."""
        if self._schemas.encoding is not Encoding.COLUMNS:
            return None
        chosen = {}
        for schema_id in self._schemas.writers:
            with suppress(LogbusError):  # met by who comes to a record batch of that schema
                chosen[schema_id] = self._writer(schema_id).places
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

    def cut(self, header: RecordBatchHeader) -> Selection | None:
        """What comes of that record batch when a fetch asks for ``choice``; None: all of it."""
        choice = self.choice
        if (
            choice is None
            or header.layout != fmt.LAYOUT_COLUMNS
            or header.schema_id not in choice.fields
            or header.size < choice.min_bytes
        ):
            return None
        return self._selection(header.schema_id)

    def _selection(self, schema_id: int) -> Selection:
        return Selection(self._columns, self._writer(schema_id).places)

    def verify(self, header: RecordBatchHeader, data: memoryview, *, is_cut: bool) -> None:
        """Raises CorruptRecordBatchError unless what is there of a record batch was written so."""
        if is_cut:
            verify_selected(header, data, self._selection(header.schema_id))
        else:
            verify_against(header, data)

    def columns(
        self, header: RecordBatchHeader, data: memoryview, *, is_cut: bool
    ) -> dict[str, pa.Array]:
        """The columns of a verified record batch of layout 1, with ``value`` as it was written.

        Raises CorruptRecordBatchError, and the errors of schemas.
        """
        selection = self._selection(header.schema_id)
        stored_type = self._writer(header.schema_id).stored_type
        found = decode_columns(header, data, stored_type, selection=selection, is_selected=is_cut)
        if "value" not in found:
            found["value"] = struct_of([], [], header.record_count, None)
        return found

    def as_read(
        self, header: RecordBatchHeader, columns: dict[str, pa.Array], rows: range
    ) -> dict[str, pa.Array]:
        """``columns`` of those rows of one record batch with ``value`` as the reader's; some
        records may be left out.

        Raises CorruptRecordBatchError, UndecodableRecordError, and the errors of schemas.
        """
        if self._fields is not None and not self._fields:
            return columns | {"value": struct_of([], [], len(rows), None)}
        decoded = self._decoded(columns["value"], header)
        read = self._told(columns, decoded)
        if not decoded.undecodable or self._on_undecodable is OnUndecodable.KEEP:
            return read
        # The places of the rows where there are no gaps yet.
        read.setdefault("offset_delta", integers(rows, pa.int32()))
        left_out = np.array([each.row for each in decoded.undecodable])
        if self._on_undecodable is OnUndecodable.FAIL:
            first = header.base_offset + read["offset_delta"][int(left_out[0])].as_py()
            raise UndecodableRecordError(
                f"{len(left_out)} records of {self._schemas.topic!r} do not decode under the "
                f"schema; the first has offset {first}: {decoded.undecodable[0].reason}. Read it "
                "with another schema, or have such records dropped, or kept beside the others."
            )
        stay = pa.array(np.delete(np.arange(len(rows)), left_out))
        return {name: column.take(stay) for name, column in read.items()}

    def as_read_together(
        self, header: RecordBatchHeader, columns: Mapping[str, pa.Array]
    ) -> Mapping[str, pa.Array] | None:
        """As ``as_read``, of several record batches that are alike, of which ``header`` is the
        first one's; None if what becomes of their records is to be decided one by one."""
        if "value" not in columns:
            return columns
        decoded = self._decoded(columns["value"], header)
        if decoded.undecodable and self._on_undecodable is not OnUndecodable.KEEP:
            return None
        return self._told(columns, decoded)

    def _told(self, columns: Mapping[str, pa.Array], decoded: Decoded) -> dict[str, pa.Array]:
        read = {**columns, "value": decoded.values}
        if self._on_undecodable is OnUndecodable.KEEP:
            read["undecodable"] = _undecodable(decoded, columns["value"])
        return read

    def _decoded(self, values: pa.Array, header: RecordBatchHeader) -> Decoded:
        """``values`` as they were written, or datums, as the reader's."""
        if header.layout == fmt.LAYOUT_COLUMNS:
            return self._writer(header.schema_id).resolver.resolve(values)
        if header.schema_id != fmt.PLAIN_BYTES_SCHEMA:
            return self._writer(header.schema_id).decode(values, start=0)
        return self._decoded_framed(values)

    def _decoded_framed(self, datums: pa.Array) -> Decoded:
        """Datums in Confluent's wire format; who wrote them may have chosen any id."""
        found = confluent_ids(datums)
        undecodable = list(found.undecodable)
        pieces: list[pa.Array] = []
        order: list[Any] = []
        for framed_id, rows in found.groups().items():
            writer = self._known_writer(framed_id)
            if writer is None:
                reason = f"its schema id is {framed_id}, which the topic's subject does not have"
                undecodable += [Undecodable(row, reason) for row in rows.tolist()]
                continue
            part = writer.decode(datums.take(pa.array(rows)), start=PREFIX_BYTES)
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
        writer = self._known_writer(schema_id)
        if writer is None:
            raise CorruptRecordBatchError(
                f"A record batch of {self._schemas.topic!r} has the schema id {schema_id}, "
                "which the topic's subject does not have."
            )
        return writer

    def _known_writer(self, schema_id: int) -> _Writer | None:
        """None for an id that stands for no schema."""
        writer = self._writers.get(schema_id)
        if writer is None:
            text = self._schemas.writers.get(schema_id)
            if text is None and self._find_writer is not None:
                text = self._find_writer(schema_id)
            if text is None:
                return None
            writer = self._writers[schema_id] = _Writer(text, self._reader, self._fields)
        return writer


class _Writer:
    """What the values of one schema are, and how they become the reader's."""

    def __init__(self, text: str, reader: Node, fields: Sequence[str] | None) -> None:
        self._node = parse(text)
        #: Of a record batch of layout 1.
        self.stored_type = arrow_type(self._node)
        #: Of the writer's fields that are needed; None: all.
        self.places: tuple[int, ...] | None = None
        if fields is not None and not fields:
            self.places = ()
            self.resolver = Resolver(self._node, self._node)
            return
        self.resolver = Resolver(self._node, reader, fields=fields)
        names = self.resolver.writer_fields
        if names is not None and len(names) < self.stored_type.num_fields:
            self.places = tuple(self.stored_type.get_field_index(name) for name in names)

    @cached_property
    def _decoder(self) -> Decoder:
        return Decoder(self._node, fields=self.resolver.writer_fields)

    def decode(self, datums: pa.Array, *, start: int) -> Decoded:
        """Datums as values of the reader's schema."""
        decoded = self._decoder.decode(datums, start=start)
        resolved = self.resolver.resolve(decoded.values)
        undecodable = sorted([*decoded.undecodable, *resolved.undecodable], key=_row)
        return Decoded(resolved.values, undecodable)


def _row(undecodable: Undecodable) -> int:
    return undecodable.row


def _undecodable(decoded: Decoded, values: pa.Array) -> pa.Array:
    """The column ``undecodable``, of ``values`` as they were stored."""
    count = len(decoded.values)
    if not decoded.undecodable:
        return pa.nulls(count, UNDECODABLE)
    rows = np.array([each.row for each in decoded.undecodable])
    reasons = pa.array([each.reason for each in decoded.undecodable], pa.string())
    kept = pa.nulls(len(rows), pa.binary())
    if types.is_binary(values.type):
        kept = values.take(pa.array(rows))
    told = pa.StructArray.from_arrays([kept, reasons], fields=list(UNDECODABLE))
    at = np.full(count, -1, np.int64)
    at[rows] = np.arange(len(rows))
    return told.take(pa.array(at, mask=at < 0))

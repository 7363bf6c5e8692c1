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

from spark_logbus.client.value_schemas import ValueSchemas
from spark_logbus.errors import CorruptRecordBatchError, LogbusError, UndecodableRecordError
from spark_logbus.model import OnUndecodable
from spark_logbus.protocol import ColumnChoice
from spark_logbus.record import RecordBatchHeader
from spark_logbus.record import format as fmt
from spark_logbus.record.column_decoder import decode_columns, verify_selected
from spark_logbus.record.column_layout import Selection
from spark_logbus.record.header import verify_against
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
        find_writer: Callable[[int], str] | None = None,
    ) -> None:
        """``fields`` are those wanted of the reader's schema, whose order they have; None: all.
        ``columns`` are those wanted beside the value. ``find_writer`` finds schemas that
        ``schemas`` does not have, by id.

        Raises UnsupportedSchemaError, and SchemaMismatchError for a field that there is not.
        """
        self._schemas = schemas
        self._columns = _RECORD_COLUMNS.intersection(columns)
        self._on_undecodable = on_undecodable
        self._find_writer = find_writer
        self._writers: dict[int, _Writer] = {}
        self._fields = fields
        self._reader = parse(schemas.reader)
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
        """The columns of a verified record batch of layout 1, with ``value`` as the reader's.

        Raises CorruptRecordBatchError, UndecodableRecordError, and the errors of schemas.
        """
        writer = self._writer(header.schema_id)
        selection = self._selection(header.schema_id)
        found = decode_columns(
            header, data, writer.stored_type, selection=selection, is_selected=is_cut
        )
        value = found.get("value")
        if value is None:
            return found
        decoded = writer.resolver.resolve(value)
        return self._settled(found, decoded, None, header)

    def of_datums(
        self, columns: Mapping[str, pa.Array], header: RecordBatchHeader
    ) -> dict[str, pa.Array] | None:
        """``columns`` with ``value``, which are datums, as the reader's; they are of record batches
        with the same schema id, of which ``header`` is the first one's.

        None if rows are to be left out of more than one record batch. Raises as ``columns``.
        """
        datums = columns["value"]
        decoded = self._decoded(datums, header.schema_id)
        several = len(datums) != header.record_count
        if several and decoded.undecodable and self._on_undecodable is OnUndecodable.DROP:
            return None
        return self._settled(dict(columns), decoded, datums, header)

    def _decoded(self, datums: pa.Array, schema_id: int) -> Decoded:
        if schema_id != fmt.PLAIN_BYTES_SCHEMA:
            return self._writer(schema_id).decode(datums, start=0)
        found = confluent_ids(datums)
        undecodable = list(found.undecodable)
        pieces: list[pa.Array] = []
        order: list[Any] = []
        for framed_id, rows in found.groups().items():
            part = self._writer(framed_id).decode(datums.take(pa.array(rows)), start=PREFIX_BYTES)
            undecodable += [Undecodable(int(rows[at.row]), at.reason) for at in part.undecodable]
            pieces.append(part.values)
            order.append(rows)
        if not pieces:
            return Decoded(pa.nulls(len(datums), self.arrow_type), undecodable)
        values = pa.concat_arrays(pieces)
        at = np.full(len(datums), -1, np.int64)
        at[np.concatenate(order)] = np.arange(len(values))
        spread = values.take(pa.array(at, mask=at < 0))
        return Decoded(spread, sorted(undecodable, key=lambda each: each.row))

    def _settled(
        self,
        columns: dict[str, pa.Array],
        decoded: Decoded,
        datums: pa.Array | None,
        header: RecordBatchHeader,
    ) -> dict[str, pa.Array]:
        columns["value"] = decoded.values
        keeps = self._on_undecodable is OnUndecodable.KEEP
        if keeps:
            columns["undecodable"] = _told(decoded, datums)
        if not decoded.undecodable or keeps:
            return columns
        rows = np.array([each.row for each in decoded.undecodable])
        if self._on_undecodable is OnUndecodable.FAIL:
            deltas = columns.get("offset_delta")
            first = decoded.undecodable[0]
            delta = first.row if deltas is None else deltas[first.row].as_py()
            raise UndecodableRecordError(
                f"{len(rows)} records of {self._schemas.topic!r} do not decode under the schema; "
                f"the first has offset {header.base_offset + delta}: {first.reason}. Read it with "
                "another schema, or have such records dropped, or kept beside the others."
            )
        sound = np.ones(header.record_count, np.bool_)
        sound[rows] = False
        stay = pa.array(np.flatnonzero(sound))
        if "offset_delta" not in columns:
            columns["offset_delta"] = pa.array(np.arange(header.record_count, dtype=np.int32))
        return {name: column.take(stay) for name, column in columns.items()}

    def _writer(self, schema_id: int) -> _Writer:
        writer = self._writers.get(schema_id)
        if writer is None:
            text = self._schemas.writers.get(schema_id)
            if text is None and self._find_writer is not None:
                text = self._find_writer(schema_id)
            if text is None:
                raise CorruptRecordBatchError(
                    f"A record batch of {self._schemas.topic!r} has the schema id {schema_id}, "
                    "which the topic's subject does not have."
                )
            writer = self._writers[schema_id] = _Writer(text, self._reader, self._fields)
        return writer


class _Writer:
    """What the values of one schema are, and how they become the reader's."""

    def __init__(self, text: str, reader: Node, fields: Sequence[str] | None) -> None:
        self._node = parse(text)
        #: Of a record batch of layout 1.
        self.stored_type = arrow_type(self._node)
        self.resolver = Resolver(self._node, reader, fields=fields)
        names = self.resolver.writer_fields
        #: Of the writer's fields that are needed; None: all.
        self.places: tuple[int, ...] | None = None
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


def _told(decoded: Decoded, datums: pa.Array | None) -> pa.Array:
    """The column ``undecodable``."""
    count = len(decoded.values)
    if not decoded.undecodable:
        return pa.nulls(count, UNDECODABLE)
    rows = np.array([each.row for each in decoded.undecodable])
    reasons = pa.array([each.reason for each in decoded.undecodable], pa.string())
    kept = pa.nulls(len(rows), pa.binary()) if datums is None else datums.take(pa.array(rows))
    told = pa.StructArray.from_arrays([kept, reasons], fields=list(UNDECODABLE))
    at = np.full(count, -1, np.int64)
    at[rows] = np.arange(len(rows))
    return told.take(pa.array(at, mask=at < 0))

"""Values of a topic with a schema, made into record batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types

from avro_columns.confluent import confluent_ids
from avro_columns.encode.encoder import Encoder
from avro_columns.errors import AvroError
from avro_columns.values import resolved_tree as tree
from avro_columns.values.arrow_types import arrow_type
from avro_columns.values.coerce import coerce
from avro_columns.values.resolved_tree import parse
from avro_columns.values.row_check import RowCheck
from avro_columns.values.rows import columns_of
from spark_logbus.client.producer.columns import require_sequence
from spark_logbus.client.producer.plain_writer import PLAIN_WRITER, PlainWriter
from spark_logbus.client.schemas.topic import (
    WriterSchema,
    find_writer_schema,
    opened_registry,
)
from spark_logbus.errors import SchemaMismatchError
from spark_logbus.model import Compression
from spark_logbus.record.columns.encoder import encode_columns
from spark_logbus.record.columns.layout import fields_of
from spark_logbus.record.rows.arrow import encode
from spark_logbus.record.rows.builder import (
    BATCH_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    ArrowBatchBuilder,
)
from spark_logbus.schemas.avro_errors import in_logbus, logbus_errors
from spark_logbus.topic_schemas import Encoding

if TYPE_CHECKING:
    from spark_logbus.client.cluster.cluster import Cluster

_RECORD_COLUMNS: Final = ("timestamp", "key", "headers")
# Of each column: its places and checksum, and what pads its buffers.
_COLUMN_OVERHEAD_BYTES: Final = 320


def look_up_writer_schema(cluster: Cluster, config: dict[str, str]) -> WriterSchema | None:
    """The latest schema of the values of a topic with that configuration, from ZooKeeper.

    Raises CoordinationError, and InvalidRequestError where ZooKeeper's address is not known.
    """
    with opened_registry(cluster, client_name="producer") as registry:
        return find_writer_schema(registry, config)


def spread(present: pa.Array, there: npt.NDArray[np.bool_]) -> pa.Array:
    """The values of ``present`` where ``there`` is set, and null elsewhere."""
    return present.take(pa.array(np.cumsum(there) - 1, mask=~there))


class ValueWriter(PlainWriter):
    """Writes values of one schema. Thread-safe."""

    counts_bytes = False

    def __init__(self, schema: WriterSchema) -> None:
        """Raises UnsupportedSchemaError."""
        self.schema = schema
        with logbus_errors:
            self._node = parse(schema.text)
            self._type = arrow_type(self._node)
            self._datums = Encoder(self._node) if schema.encoding is Encoding.AVRO else None
            self._check = RowCheck(self._node)
        self._fields = {field.name for field in fields_of(self._type)}
        self._takes_bytes = _takes_bytes(self._node)
        self._take = self._check.take
        #: Estimates the bytes of a row.
        self.row_bytes = self._check.size
        self.overhead_bytes = BATCH_OVERHEAD_BYTES
        if self._datums is None:
            self.overhead_bytes += _COLUMN_OVERHEAD_BYTES * _columns_in(self._type)

    def take(self, value: Any) -> Any:
        """Returns the row that ``new_builder`` takes of one value: a mapping, an instance of a
        dataclass, or what else the schema describes.

        Raises SchemaMismatchError that names the field.
        """
        try:
            return self._take(value)
        except AvroError as error:
            raise in_logbus(error) from error

    def prepare(self, topic: str, value: Any) -> tuple[PlainWriter, Any, int]:
        """Returns what ``PlainWriter.prepare`` does; the writer of bytes that are datums already
        is ``PLAIN_WRITER``. Raises SchemaMismatchError."""
        if self.is_framed(topic, value):
            return PLAIN_WRITER.prepare(topic, value)
        row = None if value is None else self.take(value)
        return self, row, RECORD_OVERHEAD_BYTES + self.row_bytes(row)

    def column(self, topic: str, values: Any) -> Any:
        """Returns values as rows, unless they are Arrow arrays or bytes. Raises
        SchemaMismatchError."""
        if isinstance(values, pa.Array | pa.ChunkedArray):
            return values
        require_sequence("values", values)
        first = next((value for value in values if value is not None), None)
        return values if self.is_framed(topic, first) else self.rows(values)

    def writer_of(self, topic: str, data: pa.RecordBatch | pa.Table) -> PlainWriter:
        """Returns what writes these columns: ``PLAIN_WRITER`` for bytes that are datums already.
        Raises SchemaMismatchError for bytes that nobody could read."""
        if not isinstance(data, pa.RecordBatch | pa.Table) or not self.are_framed(data):
            return self
        self.check_framed(topic, data.column("value"))
        return PLAIN_WRITER

    @logbus_errors
    def rows(self, values: Sequence[Any]) -> pa.Array:
        """Mappings and instances of dataclasses, or None for a tombstone, as a column.

        Raises SchemaMismatchError that names the row and the field.
        """
        if all(value is not None for value in values):
            return columns_of(values, self._node)
        present = columns_of([value for value in values if value is not None], self._node)
        return spread(present, np.array([value is not None for value in values]))

    def new_builder(self) -> ArrowBatchBuilder:
        """Collects what ``take`` returns, and None for tombstones."""
        return _RowBuilder(self)

    def values(self, rows: Sequence[Any]) -> pa.Array:
        """Returns rows that were taken as values of records."""
        return self._coerced(self.rows(rows))

    def records(self, data: pa.RecordBatch, *, now_us: int) -> pa.RecordBatch:
        """``data`` as records whose values are the schema's columns, or datums.

        Takes the schema's columns; or ``value`` with them as a struct, and beside it ``key``,
        ``timestamp`` and ``headers``. Raises SchemaMismatchError that names the column,
        InvalidRequestError.
        """
        names = data.schema.names
        if self._is_of_records(data):
            value = data.column("value")
            others = [name for name in names if name != "value"]
        else:
            value, others = data.to_struct_array(), []
        values = self._coerced(value)
        plain = {name: data.column(name) for name in others}
        # The checks and defaults of records are the same for all values.
        stand_in = pa.RecordBatch.from_pydict({**plain, "value": pa.nulls(len(data), pa.binary())})
        records = super().records(stand_in, now_us=now_us)
        return records.set_column(records.schema.get_field_index("value"), "value", values)

    def altered(self, records: pa.RecordBatch, *, now_us: int) -> pa.RecordBatch:
        """Returns what an interceptor made of what ``records`` has returned, in the same form.

        Raises as ``records`` does.
        """
        if self._datums is not None:
            return super().altered(records, now_us=now_us)  # datums are bytes
        return self.records(records, now_us=now_us)

    def _is_of_records(self, data: pa.RecordBatch | pa.Table) -> bool:
        names = set(data.schema.names)
        if "value" not in names or not names <= {"value", *_RECORD_COLUMNS}:
            return False
        if not types.is_struct(self._type):
            return True
        return types.is_struct(data.schema.field("value").type) or "value" not in self._fields

    @logbus_errors
    def _coerced(self, value: pa.Array) -> pa.Array:
        values = coerce(value, self._node, nullable=True)
        if self._datums is None or not values.null_count:
            return values if self._datums is None else self._datums.encode(values)
        return spread(self._datums.encode(values.drop_null()), np.asarray(values.is_valid()))

    def encode(self, records: pa.RecordBatch, compression: Compression) -> memoryview:
        """A record batch of what ``records`` has returned. Raises RecordBatchTooLargeError."""
        make = encode if self._datums is not None else encode_columns
        return make(records, schema_id=self.schema.schema_id, compression=compression)

    def is_framed(self, topic: str, value: object) -> bool:
        """True for bytes in Confluent's wire format, which bytes are in a topic of datums whose
        schema takes none: no value to be encoded.

        Raises SchemaMismatchError for bytes in a topic of columns that are no bytes, and for those
        that are not in that format.
        """
        if not isinstance(value, bytes | bytearray | memoryview) or self._takes_bytes:
            return False
        if self._datums is not None:
            self.check_framed(topic, pa.array([bytes(value)], pa.binary()))
            return True
        if types.is_struct(self._type):
            raise SchemaMismatchError(
                f"The topic {topic!r} has a schema and holds its columns, which bytes are not; "
                "send mappings, or tables with send_arrow."
            )
        return False

    def are_framed(self, data: pa.RecordBatch | pa.Table) -> bool:
        """``is_framed`` for columns of records."""
        if self._datums is None or self._takes_bytes:
            return False
        return self._is_of_records(data) and _is_binary(data.schema.field("value").type)

    @logbus_errors
    def check_framed(self, topic: str, values: pa.Array | pa.ChunkedArray) -> None:
        """Raise SchemaMismatchError for a value that is not in Confluent's wire format, which
        nobody could read."""
        chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
        before = 0
        for chunk in chunks:
            wrong = confluent_ids(chunk.cast(pa.binary())).undecodable
            if wrong:
                place = "" if len(values) == 1 else f" in row {before + wrong[0].row}"
                raise SchemaMismatchError(
                    f"Bytes for the topic {topic!r}, whose schema takes none, are to be in "
                    f"Confluent's wire format, and those{place} are not: {wrong[0].reason}. Send "
                    "what the schema describes, which is encoded then."
                )
            before += len(chunk)


class _RowBuilder(ArrowBatchBuilder):
    """Records whose values are rows of a schema. Not thread-safe."""

    __slots__ = ("_writer",)

    def __init__(self, writer: ValueWriter) -> None:
        super().__init__()
        self._writer = writer

    def encoded(self, compression: Compression) -> memoryview:
        return self._writer.encode(self.build(), compression)

    def build(self) -> pa.RecordBatch:
        return self._with_values(self._writer.values(self._values))


def _takes_bytes(node: tree.Node) -> bool:
    """Are bytes values of it, and not only parts of such?"""
    members = node.others if isinstance(node, tree.Union) else (node,)
    return any(
        isinstance(member, tree.Primitive)
        and member.kind in ("bytes", "fixed")
        and member.logical in (None, "uuid")
        for member in members
    )


def _is_binary(kind: pa.DataType) -> bool:
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def _columns_in(kind: pa.DataType) -> int:
    """The columns of that type, nested ones included."""
    return 1 + sum(_columns_in(kind.field(number).type) for number in range(kind.num_fields))

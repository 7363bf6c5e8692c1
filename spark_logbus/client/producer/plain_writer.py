"""Values of a topic without a schema, which go into record batches as they are."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from spark_logbus.client.arguments import as_bytes
from spark_logbus.model import Compression
from spark_logbus.record.rows.arrow import canonical, encode
from spark_logbus.record.rows.builder import (
    BATCH_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    ArrowBatchBuilder,
)


class PlainWriter:
    """Writes values of bytes. ``ValueWriter`` does the same for values of a schema. Thread-safe."""

    #: Sizes of records are those of their bytes, and no estimate.
    counts_bytes = True
    #: Most bytes that encoding adds to the sizes which a builder counts.
    overhead_bytes = BATCH_OVERHEAD_BYTES

    def prepare(self, topic: str, value: Any) -> tuple[PlainWriter, Any, int]:
        """Returns the writer of a value, the value as its builder takes it, and the size of the
        record in bytes."""
        if value is None:
            return self, None, RECORD_OVERHEAD_BYTES
        if value.__class__ is not bytes:
            value = as_bytes("value", value)
        return self, value, RECORD_OVERHEAD_BYTES + len(value)

    def column(self, topic: str, values: Any) -> Any:
        """Returns the values of many records, to become the column ``value``."""
        return values

    def writer_of(self, topic: str, data: pa.RecordBatch | pa.Table) -> PlainWriter:
        """Returns the writer of columns of records."""
        return self

    def new_builder(self) -> ArrowBatchBuilder:
        """Returns a builder of a record batch, which takes prepared values."""
        return ArrowBatchBuilder()

    def records(self, data: pa.RecordBatch, *, now_us: int) -> pa.RecordBatch:
        """Returns ``data`` as records in canonical form. Raises InvalidRequestError."""
        return canonical(data, now_us=now_us)

    def altered(self, records: pa.RecordBatch, *, now_us: int) -> pa.RecordBatch:
        """Returns what an interceptor made of ``records``, in canonical form. Raises as
        ``records`` does."""
        return canonical(records, now_us=now_us)

    def encode(self, records: pa.RecordBatch, compression: Compression) -> memoryview:
        """Returns records in canonical form as a record batch."""
        return encode(records, compression=compression)


PLAIN_WRITER: Final = PlainWriter()

"""Records as the columns of a load, made where they are read, by Arrow alone.

What Spark computes passes through its JVM: rows go there from the process that reads them, and come
back to the one that writes them, which takes longer than both. Values that are columns as they are
read, or that are kept as bytes, need nothing of Spark, and can be written in the same process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import StructType

from spark_logbus.datasource.batch_reader import LogbusBatchReader
from spark_logbus.datasource.input_partition import RangesPartition
from spark_logbus.load.read.values import VALUE, AvroFields


@dataclass(frozen=True, slots=True)
class DirectRead:
    """Records of input partitions, for tasks to read. Immutable and picklable."""

    reader: LogbusBatchReader
    partitions: Sequence[RangesPartition]
    avro: AvroFields | None
    #: Columns as they are read, and decoded with ``avro``.
    schema: StructType
    #: Columns that take the place of ``value``, by the field of it that each is; none: it stays.
    fields: Mapping[str, str]

    def batches(self, number: int) -> Iterator[pa.RecordBatch]:
        """Reads the records of the input partition with that number."""
        batches = self.reader.read(self.partitions[number])
        if self.avro is not None:
            batches = self.avro.decode(batches, self.schema)
        yield from map(self._apart, batches)

    def _apart(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self.fields:
            return batch
        value = batch.column(VALUE)
        there = [value.type.field(place).name for place in range(value.type.num_fields)]
        own = dict(zip(there, value.flatten(), strict=True))
        columns = {name: batch.column(name) for name in batch.schema.names if name != VALUE}
        columns |= {column: own[name] for name, column in self.fields.items()}
        return pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])

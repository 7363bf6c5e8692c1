"""Values of fetched record batches as they are stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark_logbus.model import TopicPartition
from spark_logbus.protocol import ColumnChoice
from spark_logbus.record import RecordBatchHeader, verify_against
from spark_logbus.record import format as fmt
from spark_logbus.record.columns.decoder import decode_columns
from spark_logbus.record.rows.arrow import decode
from spark_logbus.record.run import RecordBatchRun, find_run

if TYPE_CHECKING:
    from avro_columns.values.resolved_tree import Node

#: Type of the column ``undecodable``: a value that does not decode, and the reason.
UNDECODABLE: Final = pa.struct([pa.field("value", pa.binary()), pa.field("reason", pa.string())])


class PlainReader:
    """Reads values of bytes. ``ValueReader`` does the same for values of a schema. Thread-safe."""

    #: The schema of the values; None: they are bytes.
    schema: Node | None = None
    #: Number of records that were left out.
    dropped = 0
    arrow_type = pa.binary()

    @property
    def schema_text(self) -> str | None:
        """The reader's schema as JSON, with all that it refers to; None for bytes."""
        return None

    @property
    def decodes_datums(self) -> bool:
        """True if values are datums of Avro, and neither bytes nor columns."""
        return False

    @property
    def choice(self) -> ColumnChoice | None:
        """Columns that a fetch is to ask for; None: everything."""
        return None

    @property
    def takes_all_fields(self) -> bool:
        """True if ``choice`` leaves out no field of any value."""
        return True

    def find_chosen(self, data: memoryview) -> RecordBatchRun | None:
        """Returns the record batches of a fetch that asked for ``choice``, as ``find_run`` does."""
        return find_run(data)

    def stored(
        self, header: RecordBatchHeader, data: memoryview, *, is_cut: bool
    ) -> pa.RecordBatch | None:
        """Returns the records of a record batch that ``header`` begins, with values as they were
        written; None for a control record batch. Raises CorruptRecordBatchError."""
        verify_against(header, data)
        return None if header.is_control else decode(header, data)

    def joined(self, run: RecordBatchRun) -> tuple[int, dict[str, pa.Array]] | None:
        """Returns what ``stored`` does, of all records of as many of the first record batches of
        ``run``, which are columns and alike, as are found to be sound, and the number of these.
        None if they have to be verified and decoded one by one."""
        return None

    def as_read(
        self,
        topic_partition: TopicPartition,
        header: RecordBatchHeader,
        stored: pa.RecordBatch,
        rows: range,
    ) -> pa.RecordBatch:
        """Returns those rows of one record batch, which ``stored`` has, with values as they are
        read."""
        return stored

    def as_read_together(
        self, run: RecordBatchRun, columns: Mapping[str, pa.Array]
    ) -> Mapping[str, pa.Array] | None:
        """Returns columns of several record batches that are alike with values as they are read;
        None if what becomes of their records is to be decided one by one."""
        return columns


class KeysOnlyReader(PlainReader):
    """Reads records without the values that only their schema could decode."""

    def stored(
        self, header: RecordBatchHeader, data: memoryview, *, is_cut: bool
    ) -> pa.RecordBatch | None:
        if header.layout != fmt.LAYOUT_COLUMNS or header.is_control:
            return super().stored(header, data, is_cut=is_cut)
        directory = verify_against(header, data)
        columns = decode_columns(header, data, None, directory=directory)
        return pa.RecordBatch.from_pydict(columns)


PLAIN_READER: Final = PlainReader()

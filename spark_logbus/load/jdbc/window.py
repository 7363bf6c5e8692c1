"""The rows of a table that are of a window, which give way to what is read of it anew.

A row says by ``partition`` and ``offset`` which record it is, so that those of a window are known
whichever load has brought them, and no other row is touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql.types import IntegerType, LongType, StructType, TimestampType

from spark_logbus.errors import DataLossError
from spark_logbus.load.errors import WarehouseError
from spark_logbus.load.jdbc.columns import Existing, columns_of
from spark_logbus.load.jdbc.connection import Transaction
from spark_logbus.model import OffsetRange

#: What says which record a row is, and when that was.
ROWS: Final = (
    StructType()
    .add("partition", IntegerType())
    .add("offset", LongType())
    .add("timestamp", TimestampType())
)


class UnknownRowsError(WarehouseError):
    """The rows of a table do not say which record of the log each of them is."""


def check_known(existing: Mapping[str, Existing], *, table: str) -> None:
    """UnknownRowsError unless a table with these columns has those of ``ROWS`` (pure)."""
    for column in columns_of(ROWS):
        there = existing.get(column.name)
        if there is None or there.type not in column.types:
            found = "none of that name" if there is None else there.type
            raise UnknownRowsError(
                f"Which record of the log a row of {table} is, is not known: its column "
                f"{column.name} is {found}, expected {' or '.join(column.types)}. Nothing was "
                "changed. Restore the column as it was loaded, or load into another table with "
                "--from."
            )


def delete_rows(
    transaction: Transaction, ranges: Sequence[OffsetRange], *, table: str, expected: int
) -> None:
    """Delete those of ``ranges``; DataLossError where they are not as many as were ``expected``."""
    deleted = sum(
        transaction.run(
            f'DELETE FROM {table} WHERE "partition" = ? AND "offset" >= ? AND "offset" < ?',
            each.topic_partition.partition,
            each.start,
            each.end,
        )
        for each in ranges
    )
    if deleted != expected:
        raise DataLossError(
            f"Expected to replace {expected:,} rows of {table}, as many as the window had there, "
            f"but {deleted:,} could be deleted; nothing was changed. If somebody else has changed "
            "the table meanwhile, run it again; if not, does it have a trigger, a rule or policies "
            "that keep rows?"
        )

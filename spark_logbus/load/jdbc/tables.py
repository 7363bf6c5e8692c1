"""Tables as a database has them now: which are there, and with which columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_logbus.load.errors import WarehouseError
from spark_logbus.load.jdbc.columns import Existing, TableColumn, check_fit
from spark_logbus.load.jdbc.connection import Database, Transaction


@dataclass(frozen=True, slots=True)
class Tables:
    """Those of the schema that a load goes into."""

    database: Database

    def qualified(self, name: str) -> str:
        return self.database.qualified(name)

    def existing(self, transaction: Transaction, name: str) -> Mapping[str, Existing] | None:
        """The columns of a table; None if there is none of that name."""
        kinds = transaction.rows(
            "SELECT relkind::text FROM pg_class WHERE oid = to_regclass(?)", self.qualified(name)
        )
        if not kinds:
            return None
        if kinds[0][0] not in ("r", "p"):
            raise WarehouseError(
                f"{self.qualified(name)} is no table but a view or of another kind, into which "
                "records and offsets do not go together. Load into a table."
            )
        found = transaction.rows(
            "SELECT attname::text, format_type(atttypid, atttypmod), attnotnull AND NOT atthasdef "
            "AND attidentity = '' FROM pg_attribute WHERE attrelid = to_regclass(?) AND "
            "attnum > 0 AND NOT attisdropped",
            self.qualified(name),
        )
        return {column: Existing(kind, needed) for column, kind, needed in found}

    def check_fit(self, name: str, columns: Sequence[TableColumn]) -> None:
        """IncompatibleColumnsError unless the table takes these, or is not there yet."""
        with self.database.transaction() as transaction:
            existing = self.existing(transaction, name)
        if existing is not None:
            check_fit(columns, existing, table=self.qualified(name))

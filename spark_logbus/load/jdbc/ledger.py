"""The table of loads: for each load of each table one row, with the offsets that are in.

::

    <schema>.logbus_loads
        target, load          the table, and the number of the load; the key
        topic, topic_id       of which the records are
        ranges, ends          offsets, as JSON: what came in, or with ``again`` was read anew; the
                              ends of all partitions
        records, dead_letters
        staging               the name of its staging table, which no other load has
        holder                who loaded
        committed_at

The row is the commit: it goes in with the records, in one transaction. Putting it in is also the
lock. Of two loads with the same number, the second waits in the database for the first, and is
refused when that has committed, because the key is taken.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from spark_logbus.audit.warehouse import Loads
from spark_logbus.errors import LockHeldError
from spark_logbus.load.commit import Commit, ranges_from_json, ranges_to_json
from spark_logbus.load.errors import SupersededError, WarehouseError
from spark_logbus.load.jdbc.columns import quoted
from spark_logbus.load.jdbc.connection import LOCK_S, Database, DatabaseError, JdbcTransaction
from spark_logbus.load.jdbc.staging import StagedCommit
from spark_logbus.load.tables import JdbcTable

LEDGER: Final = "logbus_loads"
#: Marks a range that was in already.
_AGAIN: Final = "again"


@dataclass(frozen=True, slots=True)
class Ledger:
    """The loads of one table."""

    database: Database
    table: JdbcTable
    topic: str
    holder: str

    @property
    def name(self) -> str:
        return f"{quoted(self.table.schema)}.{LEDGER}"

    def create(self) -> None:
        """Creates the table, unless it is there; two first loads of a schema may come at once."""
        for last_try in (False, True):
            try:
                with self.database.transaction() as transaction:
                    if not self.is_there(transaction):
                        transaction.run(
                            f"CREATE TABLE {self.name} (target text NOT NULL, load bigint NOT "
                            "NULL, topic text NOT NULL, topic_id text NOT NULL, ranges json NOT "
                            "NULL, ends json NOT NULL, records bigint NOT NULL, dead_letters "
                            "bigint NOT NULL, staging text NOT NULL, holder text NOT NULL, "
                            "committed_at timestamp with time zone NOT NULL DEFAULT now(), "
                            "PRIMARY KEY (target, load))"
                        )
                return
            except DatabaseError as error:
                if last_try or not error.is_taken:
                    raise

    def is_there(self, transaction: JdbcTransaction) -> bool:
        """Tells whether a load into any table of the schema has made it."""
        return transaction.rows("SELECT to_regclass(?) IS NOT NULL", self.name) == [(True,)]

    def last(self, transaction: JdbcTransaction, *, before: int | None = None) -> Commit | None:
        """Reads the newest load, or the newest with a lower number than ``before``.

        Raises WarehouseError where the table holds records of another topic.
        """
        found = transaction.rows(
            "SELECT load, topic, topic_id, ranges::text, ends::text, records, dead_letters, "
            f"staging FROM {self.name} WHERE target = ? AND (load < ? OR ?) "
            "ORDER BY load DESC LIMIT 1",
            self.table.name,
            before or 0,
            before is None,
        )
        if not found:
            return None
        ((number, topic, topic_id, ranges, ends, records, dead_letters, staging),) = found
        if topic != self.topic:
            raise WarehouseError(
                f"Table {self.table} holds the topic {topic} since load {number}, not "
                f"{self.topic}: rows are known by partition and offset. Load into another table."
            )
        return Commit(
            number,
            staging,
            topic_id,
            ranges_from_json(topic, _that_came_in(ranges)),
            {int(partition): end for partition, end in json.loads(ends).items()},
            records,
            (),
            dead_letters=dead_letters,
        )

    def loads(self) -> Loads:
        """Reads the offsets that came in with all loads."""
        with self.database.transaction() as transaction:
            found = transaction.rows(
                f"SELECT ranges::text, ends::text FROM {self.name} WHERE target = ? ORDER BY load",
                self.table.name,
            )
        return Loads.from_commits(
            [
                json.dumps({"ranges": _that_came_in(ranges), "ends": json.loads(ends)})
                for ranges, ends in found
            ]
        )

    def enter(self, transaction: JdbcTransaction, commit: StagedCommit) -> None:
        """Puts the row in, and keeps other loads of the table out until the transaction ends.

        Raises SupersededError where another load has gone on from ``commit.last``, or its row is
        not there any more; LockHeldError while another is about to commit.
        """
        again = [{**each, _AGAIN: True} for each in ranges_to_json(commit.replaced)]
        try:
            transaction.run(
                f"INSERT INTO {self.name} (target, load, topic, topic_id, ranges, ends, records, "
                "dead_letters, staging, holder) "
                "VALUES (?, ?, ?, ?, ?::json, ?::json, ?, ?, ?, ?)",
                self.table.name,
                commit.number,
                self.topic,
                commit.topic_id,
                json.dumps([*ranges_to_json(commit.ranges), *again]),
                json.dumps(commit.ends, sort_keys=True),
                commit.records,
                commit.dead_letters,
                commit.staging,
                self.holder,
            )
        except DatabaseError as error:
            if error.is_taken:
                raise self._superseded(commit) from error
            if error.is_locked:
                raise self.held() from error
            raise
        before = self.last(transaction, before=commit.number)
        if (before and before.staging) != (commit.last and commit.last.staging):
            raise self._superseded(commit)

    def holds(self, commit: Commit) -> bool:
        """Tells whether this very load is in."""
        with self.database.transaction() as transaction:
            return bool(
                transaction.rows(
                    f"SELECT 1 FROM {self.name} WHERE target = ? AND load = ? AND staging = ?",
                    self.table.name,
                    commit.number,
                    commit.staging,
                )
            )

    def held(self) -> LockHeldError:
        """Returns the error for a transaction that is in the way, and names its load."""
        with self.database.transaction() as transaction:
            found = transaction.rows(
                "SELECT DISTINCT application_name || ' (server process ' || pid || ')' "
                "FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE pid <> pg_backend_pid() "
                "AND relation = to_regclass(?)",
                self.name,
            )
        who = ", ".join(name for (name,) in found) or "another transaction"
        return LockHeldError(
            f"{self.table} is locked by {who}, for longer than {LOCK_S} seconds. Wait until that "
            "one has ended; one that stands still is ended by the database within a minute."
        )

    def _superseded(self, commit: Commit) -> SupersededError:
        with self.database.transaction() as transaction:
            found = transaction.rows(
                f"SELECT holder, committed_at::text FROM {self.name} WHERE target = ? "
                "ORDER BY load DESC LIMIT 1",
                self.table.name,
            )
        by = f"{found[0][0]} has committed at {found[0][1]}" if found else "its row is gone"
        return SupersededError(
            f"Load {commit.number} of {self.table} does not go on from the last commit any more: "
            f"{by}. Nothing of this load was committed. Run it again for what is new by then."
        )


def _that_came_in(ranges: str) -> list[dict[str, Any]]:
    return [each for each in json.loads(ranges) if not each.get(_AGAIN)]

"""Changes that other writers make to a lake's table while a load writes files for it.

They are looked for in the version that the load is about to commit on. What they have added, or
stored in other files, is no matter; what the load's own files rest on is.
"""

from __future__ import annotations

from spark_logbus.load.errors import WarehouseError
from spark_logbus.load.lake.staging import StagedCommit
from spark_logbus.load.lake.table import LakeVersion
from spark_logbus.load.lake.topic_tables import TopicTables
from spark_logbus.load.schema import IncompatibleColumnsError
from spark_logbus.plurals import first_of, plural


def check_unchanged(tables: TopicTables, staged: StagedCommit, version: LakeVersion) -> None:
    """Raises WarehouseError where another writer has changed what the files rest on."""
    if version.table_id != staged.written_on.table_id:
        raise WarehouseError(
            f"Table {tables.name} was dropped and made again while records were written. Nothing "
            "was committed. Run it again."
        )
    _check_columns(staged, version, tables.name)
    gone = version.missing([file.path for file in staged.added])
    gone += tables.letters.missing([file.path for file in staged.letters])
    if gone:
        files = plural(
            len(gone),
            f"file that was written for {tables.name} is gone before its commit",
            f"files that were written for {tables.name} are gone before their commit",
        )
        raise WarehouseError(
            f"{files} ({first_of(gone)}): something clears away files that the table does not name "
            "yet, as a VACUUM without retention does. Nothing was committed. Keep such files for "
            "longer than a load takes, and run it again."
        )


def check_replaced(tables: TopicTables, staged: StagedCommit) -> None:
    """Raises WarehouseError where another writer has replaced files that are to be removed."""
    there = {file.path for file in tables.opened().files()}
    gone = [file.path for file in staged.removed if file.path not in there]
    if gone:
        files = plural(
            len(gone),
            f"file of {tables.name} while its records",
            f"files of {tables.name} while their records",
        )
        raise WarehouseError(
            f"Another writer has replaced {files} were read ({first_of(gone)}); nothing was "
            "changed. Run it again."
        )


def _check_columns(staged: StagedCommit, version: LakeVersion, where: str) -> None:
    """Raises IncompatibleColumnsError where the table no longer has the columns, or partitions,
    that the files were written with."""
    ours, theirs = staged.written_on.writer(), version.writer()
    there = {field.name: field for field in theirs.schema}
    changed = [
        field.name
        for field in ours.schema
        if field.name not in there or not field.equals(there[field.name], check_metadata=True)
    ]
    needed = [
        field.name
        for field in theirs.schema
        if not field.nullable and field.name not in ours.schema.names
    ]
    if changed or needed or ours.partition_names != theirs.partition_names:
        what = ", ".join([*changed, *needed]) or "partitions"
        raise IncompatibleColumnsError(
            f"Another writer has changed the columns of {where} while records were written: "
            f"{what}. Nothing was committed. Run the load again."
        )

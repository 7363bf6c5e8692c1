"""Small files of a warehouse, rewritten as few larger ones.

Loads that come often leave a small file in each directory that they bring records for, and readers
spend their time on opening them. A rewrite reads the small files of a directory and stages their
records as one file, or a few; it is a commit of its own, that names the files that it replaces, and
goes through the same steps as a load: staged, counted, committed by one rename, then published. To
publish it, the replaced files are deleted first and the new ones moved into place then. Killed at
any point, the next load finishes or discards it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

from spark_logbus.errors import DataLossError
from spark_logbus.load.commit import Commit
from spark_logbus.load.errors import translated
from spark_logbus.load.files.staging import list_and_count, write
from spark_logbus.load.files.warehouse import Warehouse
from spark_logbus.load.tally import ObservedTally

#: Less than what Spark makes of one partition of a shuffle, so that what was rewritten stays.
SMALL_BYTES: Final = 8 << 20

#: Small files of one directory that are worth a rewrite: it reads and writes all of them, so not
#: at each load.
DEFAULT_FILES: Final = 8


def worth_rewriting(sizes: Mapping[str, int], *, least: int) -> tuple[str, ...]:
    """The small files of directories that hold ``least`` of them or more, sorted (pure).

    ``sizes`` are those of all files, by name from the warehouse's directory on.
    """
    small: dict[str, list[str]] = defaultdict(list)
    for name, size in sizes.items():
        if size < SMALL_BYTES:
            small[name.rpartition("/")[0]].append(name)
    return tuple(sorted(name for own in small.values() if len(own) >= least for name in own))


def stage_rewrite(
    spark: SparkSession,
    warehouse: Warehouse,
    last: Commit,
    *,
    least: int,
    compression: str | None,
) -> Commit | None:
    """Stages few files in the place of many; returns None if there are not that many."""
    names = worth_rewriting(warehouse.file_sizes(), least=least)
    if not names:
        return None
    staging = Commit.new_staging_name(last.number + 1)
    path = warehouse.staging(staging)
    with translated(f"rewrite {len(names)} files of {warehouse.path}"):
        observed = ObservedTally(warehouse.records_of(last, names))
        write(observed.frame, path, last.layout, compression)
        staged, files = list_and_count(spark, path, last.layout, staging)
    read = observed.tally()
    if staged != read:
        raise DataLossError(
            f"Expected {read.records:,} records, which {len(names)} files of {warehouse.path} "
            f"hold, staged {staged.records:,}; nothing was changed. Run the load again."
        )
    return last.rewritten(staging, files, replaces=names, schema=last.schema)

"""Small files of a lake's table, rewritten as few larger ones in one commit, without a word about
offsets."""

from __future__ import annotations

from spark_logbus.errors import DataLossError
from spark_logbus.load.commit import Commit
from spark_logbus.load.errors import translated
from spark_logbus.load.lake.marks import new_mark
from spark_logbus.load.lake.reading import divided_rows
from spark_logbus.load.lake.staging import StagedCommit, replacing
from spark_logbus.load.lake.topic_tables import TopicTables
from spark_logbus.load.lake.writing import write
from spark_logbus.load.small_files import worth_rewriting
from spark_logbus.load.tally import ObservedTally
from spark_logbus.plurals import plural


def rewrite(tables: TopicTables, last: Commit, *, least: int) -> StagedCommit | None:
    """Stages the rewrite of the small files of partitions that have ``least`` of them or more; None
    where there are none. Raises DataLossError."""
    version = tables.opened()
    sizes = {file: file.size_bytes for file in version.files() if file.removable}
    files = worth_rewriting(sizes, least=least, directory=lambda file: file.partition)
    if not files:
        return None
    mark = new_mark(last.number + 1)
    tables.own_directory().write(mark)
    with translated(f"rewrite {len(files)} files of {tables.name}"):
        observed = ObservedTally(divided_rows(tables.spark, version, files, last.layout))
        written = write(observed.frame, version.writer(), mark.staging, tables.config.compression)
    read = observed.tally()
    if written.tally != read:
        raise DataLossError(
            f"Expected {plural(read.records, 'record')}, which {len(files)} files of {tables.name} "
            f"hold, staged {written.tally.records:,}; nothing was changed. Run the load again."
        )
    return replacing(last, mark, version, written, files, data_change=False)
